"""Rows of Parquet files, read by row groups of which a few are kept."""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from bilevax.limits import check_size
from bilevax.streaming.sources import Leaves, check_numeric
from bilevax.zips import listed, words

_TURNED = 4096
"""Rows that are turned from columns into rows at a time: few enough to stay in the cache of the processor."""


def _pyarrow() -> Any:
    try:
        import pyarrow.parquet
    except ImportError:
        raise ImportError("bx.Stream.parquet needs pyarrow: pip install 'bilevax[files]'") from None
    return pyarrow


@contextlib.contextmanager
def _readable(part: Path) -> Iterator[None]:
    """What pyarrow raises for a damaged file, as a ValueError that names the file."""
    try:
        yield
    except FileNotFoundError:
        raise
    except (ValueError, TypeError, OSError, LookupError, ArithmeticError, StopIteration, RuntimeError) as error:
        if str(error).startswith("bx.Stream"):
            raise
        raise ValueError(f"bx.Stream.parquet: {part} is damaged or not a Parquet file ({words(error)}).") from error


class _Group(NamedTuple):
    """One row group: the file, its number there, and its first row in the stream."""

    path: Path
    metadata: Any
    number: int
    first: int
    rows: int


class ParquetRows:
    """A file, or the files of a folder in the order of their names.

    Decoded row groups stay in memory as long as they have fewer than `kept` rows, or those of the largest group, and
    one group more.
    """

    def __init__(self, path: str | Path, columns: Mapping[str, str | list[str]], kept: int) -> None:
        self.name = str(path)
        self._columns = _columns(columns)
        self._groups = self._found(Path(path))
        self.rows: int | None = sum(group.rows for group in self._groups)
        if not self.rows:
            raise ValueError(f"bx.Stream: {self.name} has no rows.")
        self.pieces: np.ndarray | None = np.array([group.first for group in self._groups])
        self._cache: OrderedDict[int, Leaves] = OrderedDict()
        largest = max(group.rows for group in self._groups)
        self._kept, self._lock = max(kept, largest) + largest, threading.Lock()
        arrays = self._group(0)
        self.like: Any = {
            name: jax.ShapeDtypeStruct(v.shape[1:], v.dtype) for name, v in zip(self._columns, arrays, strict=True)
        }
        check_numeric(self.name, self.like)

    def _found(self, path: Path) -> list[_Group]:
        if not path.exists():
            raise FileNotFoundError(f"bx.Stream.parquet: there is no file or folder {path}.")
        parts = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
        if not parts:
            raise FileNotFoundError(f"bx.Stream.parquet: the folder {path} holds no file *.parquet.")
        groups, first, kinds = [], 0, None
        for part in parts:
            with _readable(part):
                metadata = _pyarrow().parquet.read_metadata(part)
                own = self._check(part, metadata)
            if kinds is not None and own != kinds:
                raise ValueError(
                    f"bx.Stream.parquet: the columns of {part} have types {own}, those of {parts[0]} {kinds}."
                )
            kinds = own
            for number in range(metadata.num_row_groups):
                rows = metadata.row_group(number).num_rows
                if rows:
                    groups.append(_Group(part, metadata, number, first, rows))
                first += rows
        return groups

    def _check(self, part: Path, metadata: Any) -> dict[str, str]:
        """The types of the columns, which must be there, hold numbers, and hold no nulls as far as the file tells."""
        schema = metadata.schema.to_arrow_schema()
        wanted = [name for names in self._columns.values() for name in names]
        missing = [name for name in wanted if name not in schema.names]
        if missing:
            raise ValueError(f"bx.Stream.parquet: {part} has no column {missing[0]!r}; it has {listed(schema.names)}.")
        types = _pyarrow().types
        for name in wanted:
            kind = schema.field(name).type
            inside = kind.value_type if types.is_list(kind) or types.is_fixed_size_list(kind) else kind
            if not (types.is_integer(inside) or types.is_floating(inside) or types.is_boolean(inside)):
                raise ValueError(f"bx.Stream.parquet: column {name!r} of {part} holds {kind}; rows hold numbers only.")
        paths = [metadata.schema.column(i).path for i in range(metadata.num_columns)]
        # That of a list goes on with the name of its items; a name may have points itself.
        numbers = [next(i for i, p in enumerate(paths) if p == name or p.startswith(f"{name}.")) for name in wanted]
        for group in range(metadata.num_row_groups):
            # pyarrow ends the process if it is asked for the statistics of a damaged column; reading one row raises.
            self._check_rows(part, metadata.row_group(group).num_rows)
            with _pyarrow().parquet.ParquetFile(part, metadata=metadata, memory_map=True) as file:
                next(file.iter_batches(batch_size=1, row_groups=[group], columns=wanted), None)
            for name, number in zip(wanted, numbers, strict=True):
                statistics = metadata.row_group(group).column(number).statistics
                if statistics is not None and statistics.has_null_count and statistics.null_count:
                    raise ValueError(_nulls(name, part))
        return {name: str(schema.field(name).type) for name in wanted}

    def _check_rows(self, part: Path, rows: int) -> None:
        """A few bytes can stand for a billion equal rows; a row group comes into memory as a whole."""
        if rows < 0:
            raise ValueError(f"bx.Stream.parquet: {part} is damaged: it claims a row group of {rows} rows.")
        columns = sum(len(names) for names in self._columns.values())
        size = part.stat().st_size
        check_size(part, 8 * rows * columns, size, f"a row group of {rows} rows and {columns} columns")

    def _group(self, i: int) -> Leaves:
        """The arrays of one row group, from the few that are kept or from its file."""
        if i in self._cache:
            self._cache.move_to_end(i)
            return self._cache[i]
        group = self._groups[i]
        while self._cache and group.rows + sum(self._groups[g].rows for g in self._cache) > self._kept:
            self._cache.popitem(last=False)
        names = sorted({name for names in self._columns.values() for name in names})
        with (
            _readable(group.path),
            _pyarrow().parquet.ParquetFile(group.path, metadata=group.metadata, memory_map=True) as file,
        ):
            table = file.read_row_group(group.number, columns=names)
            if len(table) != group.rows:
                raise ValueError(f"{group.path} claims {group.rows} rows in a row group that has {len(table)}")
            arrays = [_array(table, names, group.path) for names in self._columns.values()]
        self._cache[i] = arrays
        return arrays

    def fill(self, out: Leaves, start: int, stop: int) -> None:
        """Write these rows."""
        assert self.pieces is not None
        with self._lock:
            i, at = int(np.searchsorted(self.pieces, start, side="right")) - 1, start
            while at < stop:
                group, arrays = self._groups[i], self._group(i)
                end = min(stop, group.first + group.rows)
                for room, values in zip(out, arrays, strict=True):
                    room[at - start : end - start] = values[at - group.first : end - group.first]
                i, at = i + 1, end


def _columns(columns: Mapping[str, str | list[str]]) -> dict[str, list[str] | tuple[str]]:
    """Names of columns by names of arrays; a tuple of one stands for a column that is an array by itself."""
    if not isinstance(columns, Mapping) or not columns:
        raise TypeError(f"bx.Stream.parquet: columns= maps names of arrays to names of columns, got {columns!r}.")
    found: dict[str, list[str] | tuple[str]] = {}
    for name in sorted(columns):  # the order in which JAX has the leaves of a dictionary
        given = columns[name]
        if not isinstance(given, str) and not all(isinstance(one, str) for one in given):
            raise TypeError(f"bx.Stream.parquet: columns[{name!r}] must be a name or a list of names, got {given!r}.")
        found[name] = (given,) if isinstance(given, str) else list(given)
    return found


def _array(table: Any, names: list[str] | tuple[str], path: Path) -> np.ndarray:
    values = [_values(table.column(name), name, path) for name in names]
    if isinstance(names, tuple):
        return values[0]
    if any(v.ndim > 1 for v in values):
        raise ValueError(
            f"bx.Stream.parquet: {path} has lists in {names}; name a column of lists alone, not in a list."
        )
    rows = np.empty((len(table), len(values)), np.result_type(*values))
    for first in range(0, len(rows), _TURNED):
        for i, column in enumerate(values):
            rows[first : first + _TURNED, i] = column[first : first + _TURNED]
    return rows


def _values(column: Any, name: str, path: Path) -> np.ndarray:
    if column.null_count:
        raise ValueError(_nulls(name, path))
    types, kind = _pyarrow().types, column.type
    if not (types.is_list(kind) or types.is_fixed_size_list(kind)):
        return column.to_numpy()
    parts = [chunk.flatten() for chunk in column.chunks]
    if any(part.null_count for part in parts):
        raise ValueError(_nulls(name, path))
    flat = np.concatenate([part.to_numpy(zero_copy_only=False) for part in parts])
    lengths = {len(v) for v in column.slice(0, 1).to_pylist()} if types.is_list(kind) else {kind.list_size}
    width = lengths.pop()
    if types.is_list(kind):
        every = np.concatenate([chunk.value_lengths().to_numpy(zero_copy_only=False) for chunk in column.chunks])
        if np.any(every != width):
            raise ValueError(f"bx.Stream.parquet: the lists of column {name!r} of {path} have several lengths.")
    return flat.reshape(len(column), width)


def _nulls(name: str, path: Path) -> str:
    return f"bx.Stream.parquet: column {name!r} of {path} holds nulls; fill or drop them first."
