"""Download from the publisher into the cache: whole and verified, or not at all."""

from __future__ import annotations

import importlib
import tempfile
from pathlib import Path
from typing import IO, Any

from bilevax import zips
from bilevax.datasets.errors import DatasetCorrupt, DatasetUnavailable
from bilevax.datasets.folders import DATA, cache_folder, data_folder
from bilevax.datasets.registry import DataFile, Entry
from bilevax.datasets.verification import verify
from bilevax.files import write_atomic

_MOST_DOWNLOAD = 1_000_000_000  # bytes


def download(entry: Entry, file: DataFile) -> Path:
    """The path in the cache of a file just fetched; an existing file is never overwritten."""
    target = cache_folder() / file.paths[-1]
    if file.url is None:
        raise DatasetUnavailable(_explain(entry, file, "there is no download: no stable address offers this file"))
    pooch = _pooch(entry, file)
    try:
        with tempfile.TemporaryDirectory() as scratch:
            received = Path(scratch) / "received"
            with received.open("wb") as stream:
                pooch.HTTPDownloader()(file.url, _Counted(stream), None)
            data = _member(received, file)
            # Under its own name, which a message may mention.
            copy = Path(scratch) / target.name
            copy.write_bytes(data)
            verify(copy, file, origin=file.url)
        if not target.exists():
            write_atomic(target, lambda stream: stream.write(data), "wb")
    except OSError as error:
        reason = f"the download from {file.url} failed ({type(error).__name__}: {error})"
        raise DatasetUnavailable(_explain(entry, file, reason)) from error
    verify(target, file)
    return target


class _Counted:
    """A file that does not grow for ever."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream, self._left = stream, _MOST_DOWNLOAD

    def write(self, data: bytes) -> int:
        """As that of the file, up to the limit."""
        self._left -= len(data)
        if self._left < 0:
            raise OSError(f"more than {_MOST_DOWNLOAD} bytes came, and no data set here has so many")
        return self._stream.write(data)

    def flush(self) -> None:
        """As that of the file."""
        self._stream.flush()


def _member(received: Path, file: DataFile) -> bytes:
    if file.member is None:
        return received.read_bytes()
    try:
        with zips.opened(received) as archive:
            return zips.read_part(archive, file.member)
    except ValueError as error:
        raise DatasetCorrupt(
            f"the download from {file.url} is not a zip archive with {file.member}: {error}. "
            "Nothing was kept; try again, or get it by hand."
        ) from error


def _pooch(entry: Entry, file: DataFile) -> Any:
    try:
        return importlib.import_module("pooch")
    except ImportError as error:
        reason = "a download needs pooch: pip install 'bilevax[data]'"
        raise ImportError(_explain(entry, file, reason)) from error


def _explain(entry: Entry, file: DataFile, reason: str) -> str:
    """Which data set, where we looked, why there is no download, what to do, under which terms."""
    data, cache = data_folder(), cache_folder()
    looked = f"{DATA} is not set" if data is None else f"not in {data} ({DATA})"
    return (
        f"data set {entry.name!r}: {' or '.join(file.paths)} is missing ({looked}; not in the cache {cache}), "
        f"and {reason}.\n"
        f"By hand: {entry.by_hand} The data folder is the one {DATA} names, or {cache}.\n"
        f"Source: {entry.source}\n"
        f"Terms: {entry.terms}"
    )
