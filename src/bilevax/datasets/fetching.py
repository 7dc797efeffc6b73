"""Find a data set on this computer, or download it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from bilevax.datasets.download import download
from bilevax.datasets.folders import folders
from bilevax.datasets.registry import ENTRIES, DataFile, Entry, describe
from bilevax.datasets.verification import verify


def fetch(name: str, *roles: str) -> dict[str, Path]:
    """Verified paths of the files of a data set by role (all roles by default).

    Looks in the folder that BILEVAX_DATA names, then in the cache (BILEVAX_CACHE, or that of the platform), then
    downloads from the publisher into the cache.

    Raises:
        DatasetUnavailable: it is nowhere; the message says how to get it by hand.
        DatasetCorrupt: a file is there and holds something else.
    """
    entry = describe(name)
    files = {file.role: file for file in entry.files}
    unknown = [role for role in roles if role not in files]
    if unknown:
        raise ValueError(f"datasets: {name} has no file {unknown[0]!r}; it has {', '.join(files)}.")
    return {role: _path(entry, files[role]) for role in roles or files}


def load(name: str, role: str) -> Any:
    """The parsed content of one file."""
    path = fetch(name, role)[role]
    return next(file for file in describe(name).files if file.role == role).read(path)


def _path(entry: Entry, file: DataFile) -> Path:
    found = _find(file, folders())
    if found is None:
        return download(entry, file)
    verify(found, file)
    return found


def _find(file: DataFile, places: list[Path]) -> Path | None:
    candidates = (folder / path for folder in places for path in file.paths)
    return next((path for path in candidates if path.is_file()), None)


class Availability(NamedTuple):
    """A data set and the folder of its files here, None unless all of them are."""

    name: str
    where: Path | None
    shape: str
    terms: str
    source: str


def available() -> list[Availability]:
    """Every data set known, and where it is on this computer; nothing is verified or downloaded."""
    places = folders()
    rows = []
    for entry in ENTRIES.values():
        paths = [_find(file, places) for file in entry.files]
        where = None if None in paths or paths[0] is None else paths[0].parent
        rows.append(Availability(entry.name, where, entry.shape, entry.terms, entry.source))
    return rows


def table() -> list[dict[str, str]]:
    """`available` as rows of text to print."""
    return [
        {"name": row.name, "size": row.shape, "found": str(row.where or "not here"), "terms": row.terms}
        for row in available()
    ]
