"""Arrays and a JSON header in one file: an npz that `numpy.load` opens, without pickle, with checksums.

Files of others are read with suspicion. Nothing is unpacked, no size is believed before the file proves it, and
whatever is wrong is one `DamagedFile`. Checksums notice damage; they do not notice a forger, who can compute them.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bilevax import zips
from bilevax.files import write_atomic

_HEADER = "header.json"
_MOST_HEADER = 64_000_000  # bytes
_MOST_ARRAYS = 100_000
# What zipfile, numpy and json raise for a file that is cut, overwritten or made by somebody else.
_DAMAGE = (
    ValueError, OSError, EOFError, KeyError, TypeError, IndexError, AttributeError, RuntimeError, SyntaxError,
    OverflowError, NotImplementedError, RecursionError, MemoryError, zipfile.BadZipFile,
)  # fmt: skip
UNEXPECTED = (ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError, RecursionError)
"""What happens to whoever uses a header that has another form than ours, by damage or by malice."""


class DamagedFile(ValueError):
    """A file that is not what bilevax wrote: cut short, changed, or something else."""


def write(path: str | Path, header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Path:
    """Write arrays under their names, whole or not at all."""

    def into(stream: Any) -> None:
        sums: dict[str, str] = {}
        with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
            for name, array in arrays.items():
                if array.dtype.hasobject:
                    raise TypeError(f"{path}: {name} holds Python objects, which are not written.")
                data = np.asarray(array, order="C")
                form, content = _form(data), data.reshape(-1).view(np.uint8).data
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    member.write(form)
                    member.write(content)
                sums[name] = _sum(form, content)
            text = json.dumps({**header, "arrays": sums}, allow_nan=False).encode()
            archive.writestr(_HEADER, text)
            archive.comment = hashlib.sha256(text).hexdigest().encode()

    return write_atomic(path, into, "wb")


def read(path: str | Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The header and the arrays of a file that `write` wrote; a `DamagedFile` with the reason for any other."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}.")
    try:
        with path.open("rb") as stream:
            zips.check_directory(stream)
        with zipfile.ZipFile(path) as archive:
            header = _header(archive)
            sums = header.pop("arrays")
            if not isinstance(sums, dict) or len(sums) > _MOST_ARRAYS:
                raise DamagedFile("its list of arrays is not one")
            expected = {f"{name}.npy" for name in sums} | {_HEADER}
            if sorted(archive.namelist()) != sorted(expected):
                raise DamagedFile("its parts are not those of its list")
            # Nothing is packed, so that a run of any size can be read again, but no part can claim more than is there.
            if sum(part.file_size for part in archive.infolist()) > path.stat().st_size:
                raise DamagedFile("its parts claim more bytes than it has")
            return header, {name: _array(archive, name, total) for name, total in sums.items()}
    except DamagedFile as error:
        raise DamagedFile(f"{path} cannot be read: {error}.") from None
    except _DAMAGE as error:
        raise DamagedFile(f"{path} is damaged, cut short, or not a file of bilevax ({zips.words(error)}).") from None


def _form(array: np.ndarray) -> bytes:
    """What stands before the numbers of an array in an npy file."""
    stream = io.BytesIO()
    np.lib.format.write_array_header_2_0(stream, np.lib.format.header_data_from_array_1_0(array))
    return stream.getvalue()


def _sum(form: bytes, content: Any) -> str:
    total = hashlib.sha256(form)
    total.update(content)
    return total.hexdigest()


def _stored(archive: zipfile.ZipFile, name: str) -> zipfile.ZipInfo:
    info = archive.getinfo(name)
    if info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size:
        raise DamagedFile(f"{name} is packed, and nothing that bilevax writes is")
    return info


def _header(archive: zipfile.ZipFile) -> dict[str, Any]:
    info = _stored(archive, _HEADER)
    if info.file_size > _MOST_HEADER:
        raise DamagedFile(f"its header has {info.file_size} bytes, more than {_MOST_HEADER}")
    text = archive.read(info)
    if hashlib.sha256(text).hexdigest().encode() != archive.comment:
        raise DamagedFile("the checksum of its header is wrong")
    header = json.loads(text)
    if not isinstance(header, dict):
        raise DamagedFile("its header is not a table")
    return header


def _array(archive: zipfile.ZipFile, name: str, total: Any) -> np.ndarray:
    info = _stored(archive, f"{name}.npy")
    with archive.open(info) as member:
        kind, shape, fortran, length = zips.array_header(member)
        size = math.prod(shape) * kind.itemsize
        if fortran or size != info.file_size - length:
            raise DamagedFile(f"the size of {name} is not that of its numbers")
        content = zips.fill(member, size)
    array = np.frombuffer(content, kind).reshape(shape) if size else np.zeros(shape, kind)
    if _sum(_form(array), content) != total:
        raise DamagedFile(f"the checksum of {name} is wrong")
    return array
