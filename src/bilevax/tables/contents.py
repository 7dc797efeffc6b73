"""The bytes of a file that the user named."""

from __future__ import annotations

from pathlib import Path

from bilevax.files import unpacked


def contents(path: Path) -> bytes:
    """The bytes of the file, unpacked; a file without any is refused."""
    if not path.exists():
        raise FileNotFoundError(f"{path}: there is no such file.")
    if path.is_dir():
        raise ValueError(f"{path} is a folder; give a file.")
    try:
        data = unpacked(path)
    except ValueError as error:
        raise ValueError(f"{error}; copy or download the file again.") from error
    if not data[:1000].strip() and not data.strip():  # a copy of all bytes is made only if it must be
        raise ValueError(f"{path}: the file is empty; give a file with one row a line.")
    return data
