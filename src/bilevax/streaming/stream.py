"""A stream: rows that stay on disk, or wherever they are, and stand in `data` like arrays of rows."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from bilevax.streaming.sources import Leaves, Source, as_source

_ALIGNED = 64
"""JAX uses an array of numpy without a copy where it begins at a multiple of so many bytes."""


def _empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    size = int(np.prod(shape)) * dtype.itemsize
    room = np.empty(size + _ALIGNED, np.uint8)
    first = -room.ctypes.data % _ALIGNED
    return room[first : first + size].view(dtype).reshape(shape)


class Stream:
    """Rows of data that are not held in memory.

    A stream stands in `data`, or in a part of it, where arrays of rows would stand: `data={"train": stream, "valid":
    arrays}`. Functions of the problem see arrays with fewer rows, so that losses must be means over rows. The source is

    - a tree of arrays of equal length: `numpy.memmap`, `np.load(path, mmap_mode="r")`, or anything with `shape`,
      `dtype` and slices,
    - an object with `len` and `getitem`, of slices or of single rows,
    - an iterable of trees of rows. It has no length: rows of the trace and audits then see the rows in memory only,
      no run is called converged, and `resumable` is False.

    `bx.Stream.parquet` reads Parquet files. Methods on mini-batches draw from `window` rows at a time, which come from
    64 places or more all over the source; a thread reads the next ones meanwhile. Methods on all rows, rows of the
    trace and audits read smaller blocks, one after the other. `dtype` casts floating-point columns.

    >>> import numpy as np, bilevax as bx
    >>> stream = bx.Stream({"A": np.ones((1000, 3), np.float32), "b": np.arange(1000, dtype=np.float32)}, window=100)
    >>> len(stream), stream.read(10, 12)["b"].tolist()
    (1000, [10.0, 11.0])
    """

    def __init__(self, source: Any, *, window: int = 65_536, dtype: Any = None) -> None:
        self._begin(as_source(source), window, dtype)

    def _begin(self, source: Source, window: int, dtype: Any) -> None:
        if isinstance(window, bool) or not isinstance(window, (int, np.integer)) or window < 1:
            raise ValueError(f"bx.Stream: window must be a whole number of rows of at least 1, got {window!r}.")
        self.source, self.window = source, int(window)
        self._after: tuple[Callable[[int, int, np.ndarray], np.ndarray], ...] = ()
        narrow = not jax.config.read("jax_enable_x64")

        def kind(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
            to = leaf.dtype
            if to.kind == "f" and dtype is not None:
                to = np.dtype(dtype)
            elif to.kind in "iu" and narrow and to.itemsize == 8:
                to = np.dtype(f"{to.kind}4")
            return jax.ShapeDtypeStruct(leaf.shape, to)

        self.like = jax.tree.map(kind, source.like)
        """Shapes and dtypes of one row."""

    @classmethod
    def parquet(
        cls, path: str | Path, columns: Mapping[str, str | list[str]], *, window: int = 65_536, dtype: Any = None
    ) -> Stream:
        """Rows of a Parquet file, or of all `*.parquet` files of a folder in the order of their names.

        `columns` says which columns make which array: `{"A": ["age", "height"], "b": "label"}`. A list makes a matrix
        with a column for each, one name a vector, or a matrix if the column holds lists of equal length. Files are read
        by row groups, a few of which are kept. Row groups of 10,000 to 65,536 rows are best: rows of one window come
        from those that are kept, and larger groups mix less and need more memory. Needs pyarrow.

        >>> import pathlib, tempfile, pyarrow, pyarrow.parquet, bilevax as bx
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "rows.parquet"
        >>> table = pyarrow.table({"age": [1.0, 2.0], "height": [3.0, 4.0], "label": [0, 1]})
        >>> pyarrow.parquet.write_table(table, path)
        >>> stream = bx.Stream.parquet(path, {"A": ["age", "height"], "b": "label"}, dtype="float32")
        >>> stream.read(0, 2)["A"].tolist()
        [[1.0, 3.0], [2.0, 4.0]]
        """
        from bilevax.streaming.parquet import ParquetRows

        stream = cls.__new__(cls)
        stream._begin(ParquetRows(path, columns, 4 * int(window)), window, dtype)
        return stream

    @property
    def resumable(self) -> bool:
        """Whether rows can be read again by their number; an iterable only goes on."""
        return self.source.rows is not None

    def __len__(self) -> int:
        if self.source.rows is None:
            raise TypeError(f"bx.Stream: {self.source.name} is an iterable, which has no length; use stream.window.")
        return self.source.rows

    def __repr__(self) -> str:
        rows = "unknown" if self.source.rows is None else self.source.rows
        return f"Stream({self.source.name}, rows={rows}, window={self.window})"

    def read(self, start: int, stop: int) -> PyTree:
        """Rows start to stop - 1, as arrays of numpy."""
        if not 0 <= start <= stop <= len(self):
            raise IndexError(f"bx.Stream: rows {start} to {stop} were asked for, and there are {len(self)}.")
        return self.gather([(start, stop)])

    def gather(self, pieces: list[tuple[int, int]]) -> PyTree:
        """The rows of several pieces, one after the other."""
        likes, structure = jax.tree.flatten(self.like)
        rows = sum(stop - start for start, stop in pieces)
        out, done = [_empty((rows, *leaf.shape), leaf.dtype) for leaf in likes], 0
        for start, stop in pieces:
            try:
                self._fill([room[done : done + stop - start] for room in out], start, stop)
            except Exception as error:
                words = str(error).split("\n")[0]
                raise RuntimeError(
                    f"bx.Stream: rows {start} to {stop} of {self.source.name} could not be read: "
                    f"{type(error).__name__}: {words}"
                ) from error
            done += stop - start
        return jax.tree.unflatten(structure, out)

    def _fill(self, out: Leaves, start: int, stop: int) -> None:
        stored = [leaf.dtype for leaf in jax.tree.leaves(self.source.like)]
        rooms = [
            room if room.dtype == own and not self._after else np.empty(room.shape, own)
            for room, own in zip(out, stored, strict=True)
        ]
        self.source.fill(rooms, start, stop)
        for i, (room, read) in enumerate(zip(out, rooms, strict=True)):
            if read is room:
                continue
            if read.dtype.kind in "iu" and read.dtype != room.dtype:
                _check_range(read, room.dtype)
            changed = read.astype(room.dtype, copy=False) if self._after else read
            for function in self._after:
                changed = function(start, i, changed)
            room[...] = changed

    def astype(self, dtype: Any) -> Stream:
        """The same rows with floating-point columns in another precision; nothing is read now."""
        other = copy.copy(self)
        kind = lambda leaf: np.dtype(dtype) if leaf.dtype.kind == "f" else leaf.dtype  # noqa: E731
        other.like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, kind(leaf)), self.like)
        return other

    def after(self, function: Callable[[int, int, np.ndarray], np.ndarray]) -> Stream:
        """The same rows changed as they are read, by a function of their first number, of the column, and of them."""
        other = copy.copy(self)
        other._after = (*self._after, function)
        return other


def _check_range(values: np.ndarray, to: np.dtype[Any]) -> None:
    limits = np.iinfo(to)
    if values.size and (values.max() > limits.max or values.min() < limits.min):
        raise OverflowError(
            "integers beyond 32 bits; call jax.config.update('jax_enable_x64', True) before the stream is made"
        )
