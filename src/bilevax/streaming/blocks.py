"""All rows, block by block: the mean over rows of a function that is itself a mean over the rows it gets."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from bilevax import trees
from bilevax.streaming.ahead import NAME, in_the_setting_of_the_caller
from bilevax.streaming.stream import Stream

_BYTES, _FEWEST = 2**23, 1024
"""A block has about so many bytes and at least so many rows: a pass takes two thirds of the time that it takes in
blocks of 32 MB."""


def is_stream(leaf: Any) -> bool:
    """Whether a leaf of the data is a stream."""
    return isinstance(leaf, Stream)


def has_streams(data: PyTree) -> bool:
    """Whether some rows of the data are not in memory."""
    return any(map(is_stream, jax.tree.leaves(data)))


def map_streams(function: Callable[[Stream], Any], data: PyTree, others: Callable[[Any], Any] = lambda v: v) -> PyTree:
    """The data with something in place of each stream."""
    return jax.tree.map(lambda leaf: function(leaf) if is_stream(leaf) else others(leaf), data)


def cast(data: PyTree, to: Any) -> PyTree:
    """The data with every floating-point number in another precision; those of streams when they are read."""
    return map_streams(lambda stream: stream.astype(to), data, lambda leaf: trees.cast(leaf, to))


def shapes(data: PyTree, *, all_rows: bool = False) -> PyTree:
    """The data with shapes in place of streams: those of one block, or of all rows."""
    sizes = iter(_block_rows(data))

    def of(stream: Stream) -> PyTree:
        block = next(sizes)
        rows = len(stream) if all_rows and stream.resumable else block
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((rows, *leaf.shape), leaf.dtype), stream.like)

    return map_streams(of, data)


def owners(data: PyTree) -> tuple[int, ...]:
    """For every array of `shapes(data)`, in order, the number of its stream among the streams; -1 if in memory."""
    numbers = itertools.count()

    def own(leaf: Any) -> PyTree:
        if not is_stream(leaf):
            return -1
        i = next(numbers)
        return jax.tree.map(lambda _: i, leaf.like)

    return tuple(jax.tree.leaves([own(leaf) for leaf in jax.tree.leaves(data)]))


def _block_rows(data: PyTree) -> list[int]:
    """The rows in a block of each stream, as many for streams of one length: their rows may belong together."""
    streams = [leaf for leaf in jax.tree.leaves(data) if is_stream(leaf)]
    lengths = [len(stream) if stream.resumable else None for stream in streams]
    own = [_block(stream) for stream in streams]
    return [min(b for b, other in zip(own, lengths, strict=True) if other == length) for length in lengths]


def _block(stream: Stream) -> int:
    """Few enough rows to stay in the cache of the processor, in which they are read more than once."""
    row = sum(int(np.prod(leaf.shape)) * leaf.dtype.itemsize for leaf in jax.tree.leaves(stream.like))
    rows = min(stream.window, max(_FEWEST, _BYTES // max(row, 1)))
    return min(rows, len(stream)) if stream.resumable else rows


def in_memory(data: PyTree) -> PyTree:
    """The data with streams that one window holds read as a whole."""
    small = lambda stream: stream.resumable and len(stream) <= stream.window  # noqa: E731
    whole = lambda stream: jax.tree.map(jax.device_put, stream.read(0, len(stream)))  # noqa: E731
    return map_streams(lambda stream: whole(stream) if small(stream) else stream, data)


def _cells(streams: dict[int, Stream], sizes: dict[int, int]) -> list[tuple[float, dict[int, int]]]:
    """Weights, and a block of each stream.

    Blocks of one stream cut the interval from 0 to 1 into pieces as long as their shares of the rows. All cuts of all
    streams make the cells. A sum of functions of one stream each has its exact mean over them.
    """
    edges = {}
    for i, stream in streams.items():
        rows, block = len(stream), sizes[i]
        edges[i] = [Fraction(min(first + block, rows), rows) for first in range(0, rows, block)]
    ends = sorted({edge for own in edges.values() for edge in own})
    cells, at, before = [], dict.fromkeys(streams, 0), Fraction(0)
    for end in ends:
        cells.append((float(end - before), dict(at)))
        at = {i: at[i] + (edges[i][at[i]] == end) for i in streams}
        before = end
    return cells


def blocks(data: PyTree, read: frozenset[int] | None = None) -> Iterator[tuple[float, PyTree]]:
    """Weights, and the tree with a block of rows in place of each stream. The weights sum to one.

    `read` has the numbers of the streams that matter; the others stand as zeros that take no memory.
    """
    leaves, structure = jax.tree.flatten(data)
    places = [i for i, leaf in enumerate(leaves) if is_stream(leaf)]
    sizes = dict(zip(places, _block_rows(data), strict=True))
    streams = {i: leaves[i] for number, i in enumerate(places) if read is None or number in read}
    for stream in streams.values():
        if not stream.resumable:
            raise TypeError(
                f"{stream!r} has no length, and all rows are asked for; give a source with len and getitem."
            )
    filled = [leaf if i in streams or not is_stream(leaf) else _zeros(leaf, sizes[i]) for i, leaf in enumerate(leaves)]
    held: dict[int, tuple[int, PyTree]] = {}

    def load(cell: dict[int, int]) -> list[Any]:
        for i, block in cell.items():
            if i not in held or held[i][0] != block:
                held.pop(i, None)  # memory for one block less
                start = block * sizes[i]
                part = streams[i].read(start, min(start + sizes[i], len(streams[i])))
                held[i] = block, jax.tree.map(jax.device_put, part)
        return [held[i][1] if i in cell else leaf for i, leaf in enumerate(filled)]

    cells = _cells(streams, sizes) if streams else [(1.0, {})]
    load = in_the_setting_of_the_caller(load)
    with ThreadPoolExecutor(1, NAME) as reader:  # its thread begins with the first call and ends here
        ahead = None
        for i, (weight, cell) in enumerate(cells):
            loaded = load(cell) if ahead is None else ahead.result()
            ahead = reader.submit(load, cells[i + 1][1]) if i + 1 < len(cells) else None
            yield weight, jax.tree.unflatten(structure, loaded)


def _zeros(stream: Stream, rows: int) -> PyTree:
    zero = lambda leaf: np.broadcast_to(np.zeros((), leaf.dtype), (rows, *leaf.shape))  # noqa: E731
    return jax.tree.map(zero, stream.like)


@jax.jit
def _weighted(weight: Any, value: PyTree) -> PyTree:
    return jax.tree.map(lambda v: weight.astype(v.dtype) * v, value)


@jax.jit
def _add(total: PyTree, weight: Any, value: PyTree) -> PyTree:
    return jax.tree.map(operator.add, total, _weighted(weight, value))


def mean(data: PyTree, function: Callable[[PyTree], PyTree], read: frozenset[int] | None = None) -> PyTree:
    """The mean over all rows of a function of the data that is a mean over the rows of each stream.

    The data may be any tree that holds streams, such as a whole problem.
    """
    if not has_streams(data):
        return function(data)
    total: PyTree = None
    for weight, part in blocks(data, read):
        value, share = function(part), np.asarray(weight)
        total = _weighted(share, value) if total is None else _add(total, share, value)
        jax.block_until_ready(total)  # bounds what is in memory: calls return before they have finished
    return total
