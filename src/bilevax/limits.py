"""How much of a file may come into memory, decided before it does.

A file of a few bytes can claim to hold a terabyte, or unpack to one. Whoever raises the limit trusts the file.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path

import numpy as np

VARIABLE = "BILEVAX_MOST_BYTES"
MOST = 4_000_000_000
"""Bytes that the content of a file may have in memory."""
SMALL, RATIO = 200_000_000, 100
"""A packed file may unpack to `SMALL` bytes, or to `RATIO` times its own size if that is more."""
LONGEST_LINE = 1_000_000
PIECE = 1 << 20
"""Bytes that are read at a time where nobody knows how many will come."""


def most_bytes(packed: int | None = None) -> int:
    """Bytes that a file may have in memory; `packed` is the size of one that will be unpacked."""
    given = os.environ.get(VARIABLE)
    if not given:
        return MOST if packed is None else min(MOST, max(SMALL, RATIO * packed))
    try:
        most = int(float(given))
    except (ValueError, OverflowError):
        most = 0
    if most < 1:
        raise ValueError(f"{VARIABLE} is {given!r}; set it to a number of bytes such as 8e9, or unset it.")
    return most


def check_size(path: object, size: int, packed: int | None = None, what: str = "its content") -> None:
    """Refuse a file that would need more bytes than it may have."""
    most = most_bytes(packed)
    if size > most:
        raise ValueError(
            f"{path}: {what} would need {size} bytes or more, and {most} is the limit; if you trust the file, set "
            f"{VARIABLE} to a larger number."
        )


def check_lines(path: object, data: bytes) -> bytes:
    """The same text, in which no line is longer than `LONGEST_LINE`."""
    at = long_line(data, LONGEST_LINE)
    if at is not None:
        number = data.count(b"\n", 0, at) + 1
        raise ValueError(f"{path}, line {number}: the line has more than {LONGEST_LINE} bytes; is this the right file?")
    return data


def long_line(data: bytes, most: int) -> int | None:
    """Where the first line begins that has more than `most` bytes, if any."""
    at = 0
    while len(data) - at > most:
        last = max(data.rfind(b"\n", at, at + most), data.rfind(b"\r", at, at + most))
        if last < 0:
            return at
        at = last + 1
    return None


def text_array(path: object, names: Sequence[str]) -> np.ndarray:
    """An array of text. It takes as many bytes for each entry as for the longest one, so that is measured first."""
    longest = max(map(len, names), default=0)
    check_size(path, 4 * longest * len(names), what=f"{len(names)} texts of up to {longest} characters")
    return np.array(names)


def read_bytes(path: Path, most: int | None = None) -> bytes:
    """The bytes of a file or a pipe, in pieces where its size is not known."""
    with path.open("rb") as stream:
        status = os.fstat(stream.fileno())
        size = status.st_size
        if stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode):
            raise ValueError(f"{path} is a device; give a file.")
        pieces: list[bytes] = []
        total = 0
        while True:
            if most is None:
                check_size(path, max(size, total))
            elif max(size, total) > most:
                raise ValueError(f"{path}: it has more than {most} bytes, the most that such a file may have.")
            piece = stream.read(max(size - total, PIECE) if total < size else PIECE)
            if not piece:
                return b"".join(pieces)
            pieces.append(piece)
            total += len(piece)
