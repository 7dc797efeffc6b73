"""A file is used only if it is known byte by byte, or if it holds the right arrays."""

from __future__ import annotations

import hashlib
from pathlib import Path

from bilevax.datasets.errors import DatasetCorrupt
from bilevax.datasets.fingerprint import fingerprint
from bilevax.datasets.registry import DataFile

# Files found good in this process; one that changes has another size or time.
_verified: set[tuple[str, int, int, str]] = set()


def verify(path: Path, file: DataFile, origin: str | None = None) -> None:
    """Raise if `path` is not a faithful copy of `file`; `origin` is the address of a file just downloaded."""
    status = path.stat()
    key = (str(path.resolve()), status.st_size, status.st_mtime_ns, file.content)
    if key in _verified:
        return
    with path.open("rb") as stream:
        sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
    if sha256 != file.sha256:
        _compare(path, file, sha256, origin)
    _verified.add(key)


def _compare(path: Path, file: DataFile, sha256: str, origin: str | None) -> None:
    subject = f"the download from {origin}" if origin else str(path)
    remedy = (
        "The publisher may have changed it; nothing was kept. Try again, or get a faithful copy by hand."
        if origin
        else "Move the file away and fetch the data set again, or replace it by a faithful copy."
    )
    known = f"expected file sha256 {file.sha256}, found {sha256}"
    try:
        content = fingerprint(file.read(path))
    except ValueError as error:
        raise DatasetCorrupt(f"{subject} is not {file.path}: {error}; {known}. {remedy}") from error
    if content != file.content:
        raise DatasetCorrupt(
            f"{subject} is not {file.path}: expected content sha256 {file.content}, found {content}; {known}. {remedy}"
        )
