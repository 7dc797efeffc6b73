"""Ratings and pairs from NPZ and Parquet files, which hold columns as arrays."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from bilevax import zips
from bilevax.ratings.columns import OPTIONAL_ROLES, ColumnChoice
from bilevax.ratings.fields import NO_TIMES, integers_if_whole, parse_time
from bilevax.ratings.ids import Numbering, sorted_ids
from bilevax.ratings.parquet import parquet_columns
from bilevax.ratings.table import Ratings

NPZ_NAMES = {"user": "rows", "item": "cols", "rating": "values", "time": "times"}
SPARSE_NAMES = ("format", "shape", "data", "indices", "indptr", "offsets", "row", "col", "coords")


def is_array_file(data: bytes) -> bool:
    """Whether these are bytes of NPZ or Parquet."""
    return data.startswith((b"PK\x03\x04", b"PAR1"))


def read_columns(path: Path, data: bytes, choice: ColumnChoice) -> dict[str, np.ndarray]:
    """The column of each role, all of one length, without missing entries."""
    arrays = _npz_columns(path, data, choice) if data.startswith(b"PK") else parquet_columns(path, data, choice)
    shapes = {role: array.shape for role, array in arrays.items()}
    if len(set(shapes.values())) > 1 or any(len(shape) != 1 for shape in shapes.values()):
        raise ValueError(f"{path}: expected one-dimensional arrays of one length, got {shapes}.")
    if next(iter(shapes.values())) == (0,):
        raise ValueError(f"{path}: there are columns but no rating in them.")
    return arrays


def ratings_of_arrays(path: Path, arrays: Mapping[str, np.ndarray], *, time_chosen: bool) -> tuple[Ratings, list[str]]:
    """The ratings, and a note if a column of times that nobody chose cannot be used."""
    row_ids, rows = _numbered(path, "user", arrays["user"])
    col_ids, cols = _numbered(path, "item", arrays["item"])
    values = _finite_numbers(path, "rating", arrays["rating"])
    times, notes = None, []
    if "time" in arrays:
        try:
            times = integers_if_whole(_finite_numbers(path, "time", arrays["time"]))
        except ValueError:
            if time_chosen:
                raise
            notes.append(NO_TIMES)
    return Ratings(rows, cols, values, times, row_ids, col_ids), notes


def column_as_text(path: Path, role: str, array: np.ndarray) -> list[str]:
    """A column as strings, ids as `read_ratings` writes them."""
    if role != "title":
        ids, numbers = _numbered(path, role, array)
        array = ids[numbers]
    return [str(entry) for entry in array.tolist()]


def _npz_columns(path: Path, data: bytes, choice: ColumnChoice) -> dict[str, np.ndarray]:
    names = {role: NPZ_NAMES.get(role, role) for role in choice}
    if any(given not in (None, names[role]) for role, given in choice.items()):
        raise ValueError(f"{path}: columns cannot be chosen in NPZ, where they are rows, cols, values and times.")
    try:
        with zips.opened(data) as archive:
            held = zips.array_names(archive)
            if {"format", "shape", "data"} <= set(held):
                stored = _sparse(zips.read_arrays(archive, [name for name in SPARSE_NAMES if name in held]))
            else:
                stored = zips.read_arrays(archive, [name for name in names.values() if name in held])
    except (ValueError, TypeError, KeyError, IndexError, OverflowError) as error:
        raise ValueError(
            f"{path}: this NPZ file cannot be read ({zips.words(error)}); write or download it again."
        ) from error
    needed = [names[role] for role, given in choice.items() if role not in OPTIONAL_ROLES or given is not None]
    missing = [name for name in needed if name not in stored]
    if missing:
        raise ValueError(
            f"{path}: expected NPZ with rows, cols and values, or from scipy.sparse.save_npz, but {', '.join(missing)} "
            f"is missing; the archive has {zips.listed(held)}. Unpack it if it is a plain zip archive."
        )
    return {role: stored[names[role]] for role in choice if names[role] in stored}


def _sparse(parts: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The entries of a matrix that `scipy.sparse.save_npz` wrote.

    SciPy itself would trust positions that are wrong, and make room for every row of a shape that only claims them.
    """
    kind, data = parts["format"].item(), parts["data"]
    kind = kind.decode("ascii") if isinstance(kind, bytes) else str(kind)
    p, q = (int(size) for size in parts["shape"])
    if data.ndim != {"csr": 1, "csc": 1, "coo": 1, "dia": 2, "bsr": 3}.get(kind):
        raise ValueError(f"expected a matrix in a format of SciPy, got {kind[:20]!r} with {data.ndim} dimensions")
    if kind == "coo":
        rows, cols = parts["coords"] if "coords" in parts else (parts["row"], parts["col"])
        for places, count in ((rows, p), (cols, q)):
            zips.check_positions(places, np.array([0, len(data)]), 1, count)
    elif kind == "dia":
        cols = np.broadcast_to(np.arange(data.shape[1]), data.shape)
        rows = cols - parts["offsets"].astype(np.int64)[:, None]
        held = (rows >= 0) & (rows < p) & (cols < q) & (data != 0)
        rows, cols, data = rows[held], cols[held], data[held]
    else:
        height, width = data.shape[1:] if kind == "bsr" else (1, 1)
        lines, count = (q, p) if kind == "csc" else (p // max(height, 1), q // max(width, 1))
        places, starts = parts["indices"], parts["indptr"]
        zips.check_positions(places, starts, lines, count)
        if len(places) != len(data):
            raise ValueError(f"{len(data)} values for {len(places)} positions")
        rows, cols = np.repeat(np.arange(lines), starts[1:] - starts[:-1]), places
        if kind == "bsr":
            rows = (rows[:, None, None] * height + np.arange(height)[:, None] + np.zeros(width, int)).ravel()
            cols = (cols[:, None, None] * width + np.zeros((height, 1), int) + np.arange(width)).ravel()
        elif kind == "csc":
            rows, cols = cols, rows
    return {"rows": rows, "cols": cols, "values": data.ravel()}


def _numbered(path: Path, role: str, array: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The sorted ids, and the number of each entry among them."""
    if array.dtype.kind == "f":
        _finite_numbers(path, role, array)
        if np.all(array == np.floor(array)) and np.all(np.abs(array) < 2.0**53):  # beyond, floats skip integers
            array = array.astype(np.int64)
    if array.dtype.kind in "iu":
        return np.unique(array, return_inverse=True)
    numbering = Numbering()
    numbers = np.array([numbering[str(name)] for name in array.tolist()])
    try:
        ids, sorted_number = sorted_ids(numbering)
    except ValueError as error:
        raise ValueError(f"{path}: {error} (in the column of the {role}).") from None
    return ids, sorted_number[numbers]


def _finite_numbers(path: Path, role: str, array: np.ndarray) -> np.ndarray:
    if array.dtype.kind == "M":
        array = array.astype("datetime64[us]").astype(np.int64) / 1e6
    if array.dtype.kind == "c":
        raise ValueError(f"{path}: the column of the {role} holds complex numbers; expected real ones.")
    try:
        as_dates = role == "time" and array.dtype.kind in "OU"
        numbers = np.array([parse_time(str(field)) for field in array.tolist()]) if as_dates else array.astype(float)
        bad = np.flatnonzero(~np.isfinite(numbers))
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{path}: expected numbers in the column of the {role} ({error}).") from None
    if len(bad):
        raise ValueError(f"{path}, entry {bad[0] + 1}: the {role} is {numbers[bad[0]]}; correct or remove it.")
    return numbers
