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


def unpacked(path: Path) -> bytes:
    """The bytes of a file, decompressed if it is gzip or bzip2 whatever its name."""
    data = path.read_bytes()
    try:
        if data.startswith(b"\x1f\x8b"):
            return gzip.decompress(data)
        if data.startswith(b"BZh"):
            return bz2.decompress(data)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise ValueError(f"{path}: the compressed data are damaged or cut short ({error})") from error
    return data


def write_atomic(path: str | Path, write: Callable[[Any], Any], mode: str = "w") -> Path:
    """Write through a temporary name in the same folder, flush, then rename."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, mode, newline="" if mode == "w" else None) as stream:
            write(stream)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
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
