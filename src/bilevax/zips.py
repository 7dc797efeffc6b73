"""Zip archives and NPZ files of others: no size is believed before it is checked, and nothing is ever executed.

Whatever is wrong with an archive is a ValueError, without the name of the file, which the caller knows.
"""

from __future__ import annotations

import contextlib
import io
import math
import re
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from bilevax import limits

_END, _END_BYTES, _LONGEST_COMMENT = b"PK\5\6", 22, 1 << 16
_END_64, _END_64_BYTES, _LOCATOR_BYTES = b"PK\6\6", 56, 20
_MOST_DIRECTORY = 20_000_000  # bytes of the list of parts; zipfile needs ten times as many to read it
_MOST_RATIO = 1032  # deflate cannot do more
_HEADER_TEXT = re.compile(
    r"""\{\s*['"]descr['"]\s*:\s*['"](?P<kind>[<>|=]?[biufcSU]\d{1,9})['"]\s*,"""
    r"""\s*['"]fortran_order['"]\s*:\s*(?P<fortran>True|False)\s*,"""
    r"""\s*['"]shape['"]\s*:\s*\((?P<shape>[\dL,\s]*)\)\s*,?\s*\}\s*"""
)
_LONGEST_HEADER = 10_000  # characters
# What zipfile and zlib raise for a file that is cut, overwritten or made by somebody else.
_DAMAGE = (
    OSError, EOFError, KeyError, RuntimeError, NotImplementedError, IndexError, OverflowError, MemoryError,
    struct.error, zlib.error, zipfile.BadZipFile,
)  # fmt: skip


def words(error: BaseException) -> str:
    """What an error says, in one short line."""
    return " ".join(str(error).split())[:200] or type(error).__name__


def listed(names: Iterable[str]) -> str:
    """Names of a file for a message: the first ten, in one line."""
    return ", ".join(name[:40].encode("unicode_escape").decode() for name in list(names)[:10])


@contextlib.contextmanager
def opened(source: Path | bytes) -> Iterator[zipfile.ZipFile]:
    """An archive; whatever is wrong with it while it is open is a ValueError."""
    try:
        with io.BytesIO(source) if isinstance(source, bytes) else source.open("rb") as stream:
            check_directory(stream)
            with zipfile.ZipFile(stream) as archive:
                yield archive
    except FileNotFoundError:
        raise
    except _DAMAGE as error:
        raise ValueError(words(error)) from None


def check_directory(stream: IO[bytes]) -> None:
    """Refuse an archive whose list of parts is absurdly long, before zipfile reads it."""
    length = stream.seek(0, 2)
    first = max(0, length - _END_BYTES - _LONGEST_COMMENT - _LOCATOR_BYTES - _END_64_BYTES)
    stream.seek(first)
    tail = stream.read()
    for found in re.finditer(re.escape(_END), tail):
        size = int.from_bytes(tail[found.start() + 12 : found.start() + 16], "little")
        before = tail[max(0, found.start() - _LOCATOR_BYTES - _END_64_BYTES) : found.start()]
        if before.startswith(_END_64):
            size = max(size if size != 0xFFFFFFFF else 0, int.from_bytes(before[40:48], "little"))
        if min(size, first + found.start()) > _MOST_DIRECTORY:
            raise ValueError(f"its list of parts has {size} bytes, and {_MOST_DIRECTORY} is the limit")
    stream.seek(0)


def check_parts(archive: zipfile.ZipFile, parts: Iterable[zipfile.ZipInfo]) -> None:
    """Refuse parts that claim more than the bytes of the archive can hold, or more than may come into memory."""
    stream: Any = archive.fp
    length, total = stream.seek(0, 2), 0
    for part in parts:
        name = part.filename[:60]
        if part.flag_bits & 1 or part.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError(f"{name!r} is encrypted or packed in an unusual way")
        most = part.compress_size * (1 if part.compress_type == zipfile.ZIP_STORED else _MOST_RATIO)
        if part.header_offset < 0 or part.header_offset + part.compress_size > length or part.file_size > most:
            raise ValueError(f"{name!r} claims {part.file_size} bytes, which are not in the file")
        total += part.file_size
    limits.check_size("the archive", total, packed=length, what="what is asked for")


def read_part(archive: zipfile.ZipFile, name: str) -> bytes:
    """The content of one part."""
    part = archive.getinfo(name)
    check_parts(archive, [part])
    with archive.open(part) as member:
        pieces = []
        while piece := member.read(limits.PIECE):
            pieces.append(piece)
    return b"".join(pieces)


def array_names(archive: zipfile.ZipFile) -> list[str]:
    """The names of the arrays in an NPZ file."""
    return sorted({name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")})


def read_arrays(archive: zipfile.ZipFile, names: Iterable[str]) -> dict[str, np.ndarray]:
    """Arrays of an NPZ file by their names; a KeyError names one that is not there."""
    parts = {name: archive.getinfo(f"{name}.npy") for name in names}
    check_parts(archive, parts.values())
    return {name: _read_array(archive, part) for name, part in parts.items()}


def _read_array(archive: zipfile.ZipFile, part: zipfile.ZipInfo) -> np.ndarray:
    with archive.open(part) as member:
        kind, shape, fortran, length = array_header(member)
        size = math.prod(shape) * kind.itemsize
        if size != part.file_size - length:
            raise ValueError(
                f"{part.filename[:60]!r} claims {size} bytes of {kind}{shape} and has {part.file_size - length}"
            )
        content = fill(member, size)
        member.read(1)  # nothing is left; at the end zipfile compares the checksum
    if not size:
        return np.zeros(shape, kind)
    if kind.kind == "U":
        letters = np.frombuffer(content, kind.byteorder.replace("|", "=") + "u4")
        if letters.max() > 0x10FFFF or np.any((letters >> 11) == 0xD800 >> 11):
            raise ValueError(f"{part.filename[:60]!r} holds numbers that stand for no letter")
    return np.frombuffer(content, kind).reshape(shape, order="F" if fortran else "C")


def check_positions(indices: np.ndarray, starts: np.ndarray, rows: int, cols: int) -> None:
    """Refuse positions that are not those of a sparse matrix of rows, or of columns, that stand one after the other.

    SciPy's compiled loops trust them, and its own full check does not look at all of them if the last start is 0.
    """
    for array in (indices, starts):
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise ValueError(f"positions are vectors of whole numbers, got {array.dtype}{array.shape}")
    if len(starts) != rows + 1 or starts[0] != 0 or starts[-1] != len(indices) or np.any(starts[1:] < starts[:-1]):
        raise ValueError(f"the starts of {rows} rows or columns are wrong")
    if len(indices) and (indices.min() < 0 or indices.max() >= cols):
        raise ValueError(f"a position is not from 0 to {cols - 1}")


def fill(member: IO[bytes], size: int) -> bytearray:
    """So many bytes, read in pieces."""
    content, at = bytearray(size), 0
    with memoryview(content) as room:
        while at < size:
            count = member.readinto(room[at : at + limits.PIECE])  # type: ignore[attr-defined]
            if not count:
                raise ValueError(f"it is cut short: {at} of {size} bytes")
            at += count
    return content


def array_header(member: IO[bytes]) -> tuple[np.dtype[Any], tuple[int, ...], bool, int]:
    """Type, shape and order of an array of numbers or text, and the length of the header; nothing is evaluated."""
    start = member.read(8)
    wide = start[6:8] in (b"\2\0", b"\3\0")
    if start[:6] != b"\x93NUMPY" or not (wide or start[6:8] == b"\1\0"):
        raise ValueError("it is not an array of numpy")
    width = 4 if wide else 2
    length = int.from_bytes(member.read(width), "little")
    if length > _LONGEST_HEADER:
        raise ValueError(f"the header of an array has {length} characters, and {_LONGEST_HEADER} is the limit")
    text = member.read(length).decode("latin-1")
    found = _HEADER_TEXT.fullmatch(text)
    if found is None:
        raise ValueError(f"the header of an array does not describe numbers or text: {text[:60]!r}")
    try:
        kind = np.dtype(found["kind"])
        shape = tuple(int(number.strip().rstrip("L")) for number in found["shape"].split(",") if number.strip())
    except (TypeError, ValueError) as error:
        raise ValueError(f"the header of an array is wrong: {words(error)}") from None
    if not kind.itemsize or len(shape) > 32 or max(shape, default=0) > 2**62:
        raise ValueError(f"the header of an array claims {kind} of shape {str(shape)[:60]}")
    return kind, shape, found["fortran"] == "True", 8 + width + length
