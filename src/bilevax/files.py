"""Files read packed or not, and files written whole or not at all."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import os
import tempfile
import zlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from bilevax import limits


def unpacked(path: Path) -> bytes:
    """The bytes of a file, decompressed if it is gzip or bzip2 whatever its name.

    `limits` says how many there may be; a file that unpacks to more is refused as soon as that shows.
    """
    data = limits.read_bytes(path)
    if data.startswith(b"\x1f\x8b"):
        kind: Callable[[io.BytesIO], Any] = lambda stream: gzip.GzipFile(fileobj=stream)  # noqa: E731
    elif data.startswith(b"BZh"):
        kind = bz2.BZ2File
    else:
        return data
    pieces, total = [], 0
    try:
        with kind(io.BytesIO(data)) as stream:
            while piece := stream.read(limits.PIECE):
                pieces.append(piece)
                total += len(piece)
                if total > limits.most_bytes(packed=len(data)):
                    break
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise ValueError(f"{path}: the compressed data are damaged or cut short ({error})") from error
    limits.check_size(path, total, packed=len(data), what="unpacked, its content")
    return b"".join(pieces)


class Disk:
    """The calls by which files are written; tests put a disk here that fails."""

    def create(self, folder: Path, name: str, mode: str) -> Any:
        """A new file with a name that no other process takes, open for writing."""
        handle, path = tempfile.mkstemp(dir=folder, prefix=f".{name}.")
        stream = os.fdopen(handle, mode, newline="" if mode == "w" else None)
        return stream, Path(path)

    def append(self, path: Path) -> Any:
        """A file open for writing at its end."""
        return open(path, "ab")

    def flush(self, stream: Any) -> None:
        """Wait until what was written is on the disk."""
        stream.flush()
        os.fsync(stream.fileno())

    def rename(self, old: Path, new: Path) -> None:
        """Give a file the name of another, which is gone."""
        os.replace(old, new)

    def flush_folder(self, folder: Path) -> None:
        """Wait until the names in a folder are on the disk."""
        if os.name != "posix":
            return
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


DISK = Disk()


def write_atomic(path: str | Path, write: Callable[[Any], Any], mode: str = "w") -> Path:
    """Write through a temporary name in the same folder, flush, rename, and flush the folder."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    stream, temporary = DISK.create(path.parent, path.name, mode)
    try:
        with stream:
            write(stream)
            DISK.flush(stream)
        os.chmod(temporary, 0o644)
        DISK.rename(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    DISK.flush_folder(path.parent)
    return path


def write_text(path: str | Path, text: str) -> Path:
    """Write text in UTF-8, whatever encoding the computer prefers."""
    return write_atomic(path, lambda stream: stream.write(text.encode()), mode="wb")


def csv_text(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Comma-separated values under a header."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows(rows)
    return text.getvalue()


def write_csv(path: str | Path, names: Sequence[str], rows: Iterable[Sequence[Any]]) -> Path:
    """Write comma-separated values under a header."""
    return write_text(path, csv_text(names, rows))
