"""Where rows come from: arrays and files, objects with a length, and iterables."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import jax
import numpy as np
from jaxtyping import PyTree

Leaves = list[np.ndarray]


class Source(Protocol):
    """Rows that can be written into arrays."""

    name: str
    """What messages call it."""
    like: PyTree
    """Shapes and dtypes of one row."""
    rows: int | None
    """How many there are; None if nobody knows."""
    pieces: np.ndarray | None
    """The first rows of pieces that are read as a whole; None if any rows can be read alone."""

    def fill(self, out: Leaves, start: int, stop: int) -> None:
        """Write these rows into arrays of the dtypes of `like`. Where `rows` is None, the next ones."""
        ...


def one_row(leaf: Any) -> jax.ShapeDtypeStruct:
    """Shape and dtype of one row of an array."""
    return jax.ShapeDtypeStruct(tuple(leaf.shape[1:]), np.dtype(leaf.dtype))


def check_numeric(name: str, like: PyTree) -> None:
    """Refuse columns that are no numbers."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(like):
        if leaf.dtype.kind not in "biuf":
            where = jax.tree_util.keystr(path) or "the array"
            raise TypeError(f"bx.Stream: {where} of {name} has dtype {leaf.dtype}; rows hold real numbers only.")


class FileRows:
    """Rows of an array that `numpy.memmap` maps, read from its file: a mapped page would stay in memory."""

    def __init__(self, array: np.memmap) -> None:
        self.shape, self.dtype = array.shape, array.dtype
        mapped = np.frombuffer(array._mmap, np.uint8).ctypes.data  # type: ignore[attr-defined]
        first = array.offset - array.offset % mmap.ALLOCATIONGRANULARITY
        # A slice of a mapped array keeps the offset of the whole array; its address tells where it begins.
        self._offset = first + array.ctypes.data - mapped
        self._row = array.dtype.itemsize * int(np.prod(array.shape[1:]))
        self._path = str(array.filename)

    def fill(self, out: np.ndarray, start: int, stop: int) -> None:
        """Write these rows."""
        room = memoryview(out).cast("B") if out.size else memoryview(b"")  # type: ignore[arg-type]
        with open(self._path, "rb", buffering=0) as file:
            file.seek(self._offset + start * self._row)
            while len(room):
                count = file.readinto(room)
                if not count:
                    raise EOFError(f"{self._path} ends before row {stop}; was it cut while the run read it?")
                room = room[count:]


def _in_file(array: Any) -> bool:
    """Whether the bytes of an array are those of a file in the same order."""
    if type(array) is not np.memmap or not array.flags.c_contiguous or array.mode == "c" or array.filename is None:
        return False
    return isinstance(getattr(array, "_mmap", None), mmap.mmap) and array.dtype.isnative


class ArrayRows:
    """A tree of arrays, or of objects with `shape`, `dtype` and slices, of equal length."""

    pieces: np.ndarray | None = None

    def __init__(self, tree: PyTree) -> None:
        named = jax.tree_util.tree_leaves_with_path(tree)
        if not named:
            raise ValueError("bx.Stream: the source holds no arrays.")
        for path, leaf in named:
            if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype") or not len(leaf.shape):
                where = jax.tree_util.keystr(path) or "the source"
                raise TypeError(
                    f"bx.Stream: {where} is a {type(leaf).__name__}; give arrays with rows, numpy.memmap, an object "
                    f"with len and getitem, an iterable, or use bx.Stream.parquet."
                )
        lengths = {int(leaf.shape[0]) for _, leaf in named}
        if len(lengths) > 1:
            each = ", ".join(f"{jax.tree_util.keystr(path)} {leaf.shape[0]}" for path, leaf in named)
            raise ValueError(f"bx.Stream: all arrays need the same number of rows, got {each}.")
        self.rows: int | None = lengths.pop()
        self.like = jax.tree.map(one_row, tree)
        files = sorted({str(leaf.filename) for _, leaf in named if _in_file(leaf)})
        self.name = ", ".join(files) or "arrays"
        self._leaves = [FileRows(leaf) if _in_file(leaf) else leaf for _, leaf in named]

    def fill(self, out: Leaves, start: int, stop: int) -> None:
        """Write these rows."""
        for room, leaf in zip(out, self._leaves, strict=True):
            if isinstance(leaf, FileRows):
                leaf.fill(room, start, stop)
            else:
                room[...] = leaf[start:stop]


class ObjectRows:
    """An object with `len` and `getitem`. A slice gives a tree of rows; where it does not, single rows are stacked."""

    pieces: np.ndarray | None = None

    def __init__(self, source: Any) -> None:
        self._source, self.name = source, type(source).__name__
        self.rows: int | None = len(source)
        if not self.rows:
            raise ValueError(f"bx.Stream: {self.name} has no rows.")
        first = jax.tree.map(np.asarray, source[0])
        self.like = jax.tree.map(lambda v: jax.ShapeDtypeStruct(v.shape, v.dtype), first)
        self._slices = self._answers_slices(first)

    def _answers_slices(self, first: PyTree) -> bool:
        count = min(2, self.rows or 0)
        try:
            some = jax.tree.map(np.asarray, self._source[0:count])
        except Exception:  # whatever an object for single rows does with a slice
            return False
        if not _alike(some, first):
            return False
        both = zip(jax.tree.leaves(some), jax.tree.leaves(first), strict=True)
        return all(a.shape == (count, *b.shape) for a, b in both)

    def fill(self, out: Leaves, start: int, stop: int) -> None:
        """Write these rows."""
        if self._slices:
            _copy(out, self._source[start:stop], self.like, f"rows {start} to {stop}")
            return
        for i in range(start, stop):
            row: PyTree = jax.tree.map(lambda v: np.asarray(v)[None], self._source[i])
            _copy([room[i - start : i - start + 1] for room in out], row, self.like, f"row {i}")


def _alike(a: PyTree, b: PyTree) -> bool:
    one: Any = jax.tree.structure(a)
    return bool(one == jax.tree.structure(b))


def _copy(out: Leaves, rows: PyTree, like: PyTree, what: str) -> None:
    if not _alike(rows, like):
        now, before = jax.tree.structure(rows), jax.tree.structure(like)
        raise ValueError(f"{what}: the structure is {now}, and was {before} before")
    for room, leaf in zip(out, jax.tree.leaves(rows), strict=True):
        if np.shape(leaf) != room.shape:
            raise ValueError(f"{what}: the shape is {np.shape(leaf)} where {room.shape} was expected")
        room[...] = leaf


class IterableRows:
    """An iterable of trees of rows, each with as many rows as it likes; when it ends, it is asked to begin again."""

    rows: int | None = None
    pieces: np.ndarray | None = None

    def __init__(self, source: Iterable[PyTree]) -> None:
        self._source, self.name = source, type(source).__name__
        self._chunks: Iterator[PyTree] = iter(source)
        self._left = self._next()
        self.like = jax.tree.map(one_row, self._left)

    def _next(self) -> PyTree:
        for again in (False, True):
            if again:
                self._chunks = iter(self._source)
            for chunk in self._chunks:
                rows = jax.tree.map(np.asarray, chunk)
                leaves = jax.tree.leaves(rows)
                if not leaves or any(not v.ndim for v in leaves) or len({len(v) for v in leaves}) > 1:
                    raise ValueError(f"bx.Stream: {self.name} must give trees of arrays with equal numbers of rows.")
                if len(leaves[0]):
                    return rows
        raise ValueError(f"bx.Stream: {self.name} has no more rows; give an iterable that can begin again.")

    def give_back(self, rows: PyTree) -> None:
        """Put rows back that were only looked at."""
        self._left = jax.tree.map(lambda a, b: np.concatenate([np.asarray(a, b.dtype), b]), rows, self._left)

    def fill(self, out: Leaves, start: int, stop: int) -> None:
        """Write the next rows, whatever their numbers."""
        done, wanted = 0, stop - start
        while done < wanted:
            if not len(jax.tree.leaves(self._left)[0]):
                self._left = self._next()
            count = min(wanted - done, len(jax.tree.leaves(self._left)[0]))
            head: PyTree = jax.tree.map(lambda v, n=count: v[:n], self._left)
            _copy([room[done : done + count] for room in out], head, self.like, "rows")
            self._left = jax.tree.map(lambda v, n=count: v[n:], self._left)
            done += count


def as_source(given: Any) -> Source:
    """What was given, as rows that can be read."""
    containers = (dict, list, tuple)
    has = lambda *names: all(hasattr(given, name) for name in names)  # noqa: E731
    kind: Callable[[Any], Source]
    if isinstance(given, containers) or has("shape", "dtype", "__getitem__"):
        kind = ArrayRows
    elif has("__len__", "__getitem__"):
        kind = ObjectRows
    elif has("__iter__"):
        kind = IterableRows
    else:
        raise TypeError(
            f"bx.Stream: the source is a {type(given).__name__}; give a tree of arrays, an object with len and "
            f"getitem, an iterable of trees of rows, or use bx.Stream.parquet."
        )
    source = kind(given)
    check_numeric(source.name, source.like)
    if source.rows == 0:
        raise ValueError(f"bx.Stream: {source.name} has no rows.")
    return source
