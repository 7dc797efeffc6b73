"""Ratings and pairs from NPZ and Parquet files, which hold columns as arrays."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

import numpy as np
from scipy.sparse import load_npz

from bilevax.ratings.columns import OPTIONAL_ROLES, ColumnChoice, find_positions
from bilevax.ratings.fields import NO_TIMES, integers_if_whole, parse_time
from bilevax.ratings.ids import Numbering, sorted_ids
from bilevax.ratings.table import Ratings

NPZ_NAMES = {"user": "rows", "item": "cols", "rating": "values", "time": "times"}
# What NumPy and zipfile raise for a file that is cut or overwritten.
NPZ_DAMAGE = (ValueError, OSError, EOFError, KeyError, TypeError, RuntimeError, zipfile.BadZipFile, zlib.error)


def is_array_file(data: bytes) -> bool:
    """Whether these are bytes of NPZ or Parquet."""
    return data.startswith((b"PK\x03\x04", b"PAR1"))


def read_columns(path: Path, data: bytes, choice: ColumnChoice) -> dict[str, np.ndarray]:
    """The column of each role, all of one length, without missing entries."""
    arrays = _npz_columns(path, data, choice) if data.startswith(b"PK") else _parquet_columns(path, data, choice)
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
        with np.load(io.BytesIO(data), allow_pickle=False) as archive:
            if {"format", "shape", "data"} <= set(archive.files):
                matrix = load_npz(io.BytesIO(data)).tocoo()
                stored = {"rows": matrix.row, "cols": matrix.col, "values": matrix.data}
            else:
                stored = {name: archive[name] for name in names.values() if name in archive.files}
            held = sorted(archive.files)
    except NPZ_DAMAGE as error:
        raise ValueError(f"{path}: this NPZ file cannot be read ({error}); write or download it again.") from error
    needed = [names[role] for role, given in choice.items() if role not in OPTIONAL_ROLES or given is not None]
    missing = [name for name in needed if name not in stored]
    if missing:
        raise ValueError(
            f"{path}: expected NPZ with rows, cols and values, or from scipy.sparse.save_npz, but {', '.join(missing)} "
            f"is missing; the archive has {', '.join(held[:10])}. Unpack it if it is a plain zip archive."
        )
    return {role: stored[names[role]] for role in choice if names[role] in stored}


def _parquet_columns(path: Path, data: bytes, choice: ColumnChoice) -> dict[str, np.ndarray]:
    try:
        parquet, damage = import_module("pyarrow.parquet"), import_module("pyarrow").ArrowException
    except ImportError:
        raise ImportError(f"{path}: Parquet files need pyarrow: pip install 'bilevax[files]'.") from None
    damaged = f"{path}: this Parquet file is damaged; write or download it again"
    try:
        file = parquet.ParquetFile(io.BytesIO(data))
    except (OSError, damage) as error:
        raise ValueError(f"{damaged} ({error}).") from error
    names = file.schema_arrow.names
    positions, _ = find_positions(path, names, len(names), choice)
    try:
        table = file.read(columns=[names[position] for position in positions.values()])
    except (OSError, damage) as error:
        raise ValueError(f"{damaged} ({error}).") from error
    arrays = {}
    for role, position in positions.items():
        column = table.column(names[position])
        if column.null_count:
            entry = column.is_null().to_pylist().index(True) + 1
            raise ValueError(f"{path}, entry {entry}: the {role} (column {names[position]!r}) is missing.")
        arrays[role] = column.to_numpy()
    return arrays


def _numbered(path: Path, role: str, array: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The sorted ids, and the number of each entry among them."""
    if array.dtype.kind == "f":
        _finite_numbers(path, role, array)
        if np.all(array == np.floor(array)):
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
    try:
        as_dates = role == "time" and array.dtype.kind in "OU"
        numbers = np.array([parse_time(str(field)) for field in array.tolist()]) if as_dates else array.astype(float)
        bad = np.flatnonzero(~np.isfinite(numbers))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: expected numbers in the column of the {role} ({error}).") from None
    if len(bad):
        raise ValueError(f"{path}, entry {bad[0] + 1}: the {role} is {numbers[bad[0]]}; correct or remove it.")
    return numbers
