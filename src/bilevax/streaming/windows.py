"""Windows: some rows of a stream in memory, from which a sampler draws mini-batches.

The key of the run and j alone decide which rows are in window j. Rows are cut into short runs of consecutive rows. In
every pass a random permutation orders the runs, so that each row comes once in a pass. Windows are consecutive parts
of this sequence of rows; a window may contain the end of one pass and the start of the next. The sequence of a pass is
also rotated by a random number of rows. Each place of it then holds each row with the same probability, also if runs
have different lengths.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from bilevax.randomness import below, counter_key, permuted
from bilevax.sampling import Blocks, Minibatch, PerPart, Sampler
from bilevax.streaming.ahead import Ahead
from bilevax.streaming.blocks import has_streams, is_stream, map_streams

RUNS = 64
"""Runs in one window, at least."""
_POOL = 4
"""Windows that the pieces of one pool fill: a piece is read as a whole, and few of them are kept in memory."""
_SALT = 0x77696E64


@functools.partial(jax.jit, static_argnums=(2, 3, 4))
def _drawn_sequence(key: Array, epoch: int, runs: int, pieces: int, rows: int) -> tuple[Array, Array, Array]:
    """A permutation of the runs, one of the pieces, and a random row."""
    of_pieces, of_runs, of_start = jax.random.split(jax.random.fold_in(key, epoch), 3)
    shuffled = lambda key, total: permuted(key, jnp.arange(total, dtype=jnp.uint32), total)  # noqa: E731
    bits = jax.random.bits(of_start, (2,), jnp.uint32)
    return shuffled(of_runs, runs), shuffled(of_pieces, pieces), below(bits[0], bits[1], rows)


class Order:
    """Which rows of a stream are in which window."""

    def __init__(self, rows: int, window: int, pieces: np.ndarray | None, key: Array) -> None:
        self.rows, self.window = rows, window
        self._key = jax.random.fold_in(counter_key(key), _SALT)
        length = max(1, window // RUNS)
        if pieces is None:
            self._starts = np.arange(0, rows, length)
            self._piece = np.zeros(len(self._starts), np.int64)
        else:
            ends = np.append(pieces[1:], rows)
            cut = [np.arange(first, end, length) for first, end in zip(pieces, ends, strict=True)]
            self._starts = np.concatenate(cut)
            self._piece = np.repeat(np.arange(len(pieces)), [len(runs) for runs in cut])
        self._lengths = np.diff(np.append(self._starts, rows))
        self._sizes = np.bincount(self._piece, self._lengths)
        self._sequences = functools.lru_cache(maxsize=2)(self._sequence)

    def _sequence(self, epoch: int) -> tuple[np.ndarray, np.ndarray, int]:
        """The runs of a pass in order, the place of each in the sequence, and the rotation."""
        drawn = _drawn_sequence(self._key, epoch, len(self._starts), len(self._sizes), self.rows)
        rank, pieces, first = (np.asarray(v) for v in drawn)
        # Pieces come in a random order. Those that fill some windows together make a pool, whose runs are mixed.
        filled = np.empty(len(pieces))
        order = np.argsort(pieces)
        filled[order] = np.cumsum(self._sizes[order]) - self._sizes[order]
        pool = filled[self._piece] // max(_POOL * self.window, self._sizes.max())
        runs = np.lexsort((rank, pool))
        return runs, np.append(0, np.cumsum(self._lengths[runs])), int(first)

    def pieces(self, j: int) -> list[tuple[int, int]]:
        """The rows of window j, as pieces of consecutive ones."""
        found: list[tuple[int, int]] = []
        place, end = j * self.window, (j + 1) * self.window
        while place < end:
            epoch, at = divmod(place, self.rows)
            stop = min(end - place, self.rows - at) + at
            found += self._of_pass(epoch, at, stop)
            place += stop - at
        return found

    def _of_pass(self, epoch: int, start: int, stop: int) -> list[tuple[int, int]]:
        runs, begins, turned = self._sequences(epoch)
        found = []
        at, left = (start + turned) % self.rows, stop - start
        while left:
            i = int(np.searchsorted(begins, at, side="right")) - 1
            count = min(left, int(begins[i + 1]) - at)
            first = int(self._starts[runs[i]]) + at - int(begins[i])
            found.append((first, first + count))
            at, left = (at + count) % self.rows, left - count
        return found


class Sampled(NamedTuple):
    """A sampler for windows, the rows of each stream in one, by its number, and the batches that a window serves."""

    sampler: Sampler
    rows: dict[int, int]
    batches: int


def on_windows(sampler: Sampler, data: PyTree) -> Sampled:
    """The same sampler, drawing from windows."""
    numbered = jax.tree.unflatten(jax.tree.structure(data), range(len(jax.tree.leaves(data))))
    rows: dict[int, int] = {}
    batches: list[int] = []
    changed = _changed(sampler, data, numbered, rows, batches)
    for i, leaf in enumerate(jax.tree.leaves(data)):
        if is_stream(leaf):  # one that no sampler draws from stands for all its rows
            rows.setdefault(i, leaf.window)
    if not batches:
        raise ValueError(f"{sampler!r} draws from no bx.Stream; give it the number of rows of the stream.")
    return Sampled(changed, rows, min(batches))


def _changed(sampler: Sampler, data: PyTree, numbered: PyTree, rows: dict[int, int], batches: list[int]) -> Sampler:
    """The sampler for windows; fills in the rows of each stream and the batches of each part."""
    if isinstance(sampler, PerPart):
        parts = {
            name: _changed(part, data[name], numbered[name], rows, batches) if has_streams(data[name]) else part
            for name, part in sampler.parts.items()
        }
        return PerPart(parts)
    kind = type(sampler).__name__
    if not isinstance(sampler, (Minibatch, Blocks)):
        raise TypeError(f"{kind} cannot draw from a bx.Stream; use bx.Minibatch, bx.Blocks, or bx.PerPart of them.")
    found, names = _drawn(sampler, data)
    if not found:
        return sampler
    leaves, numbers = jax.tree.leaves(data), jax.tree.leaves(numbered)
    windows = {leaves[i].window for i in found}
    if len(windows) > 1:
        raise ValueError(f"{kind}: streams whose rows belong together need one window, got {sorted(windows)}.")
    window = windows.pop()
    if window < sampler.size:
        raise ValueError(f"{kind}: a batch of {sampler.size} rows is larger than the window of {window} rows.")
    window -= window % sampler.size
    rows.update({numbers[i]: window for i in found})
    batches.append(window // sampler.size)
    return replace(sampler, total=window, leaves=names)


def _drawn(sampler: Minibatch | Blocks, data: PyTree) -> tuple[list[int], tuple[str, ...]]:
    """The places of the streams that a sampler draws from, and the names of their arrays."""
    name = lambda path: jax.tree_util.keystr(path, simple=True, separator=".")  # noqa: E731
    found: list[int] = []
    names: list[str] = []
    for i, (path, leaf) in enumerate(jax.tree_util.tree_leaves_with_path(data)):
        if is_stream(leaf):
            own = [name((*path, *more)) for more, _ in jax.tree_util.tree_leaves_with_path(leaf.like)]
            if sampler.leaves is not None:
                own = [one for one in own if one in sampler.leaves]
            if own and (len(leaf) if leaf.resumable else leaf.window) == sampler.total:
                found.append(i)
                names += own
        elif np.ndim(leaf) and np.shape(leaf)[0] == sampler.total and name(path) in (sampler.leaves or (name(path),)):
            raise ValueError(
                f"{type(sampler).__name__}: {name(path) or 'data'} is an array with {sampler.total} rows beside a "
                f"bx.Stream; put it into the stream, or wrap it in a bx.Stream too, so that its rows are drawn with it."
            )
    return found, tuple(names)


class Windows:
    """The data of a run with a window of rows in place of each stream; a thread reads the next one."""

    def __init__(self, data: PyTree, rows: dict[int, int], key: Array, steps: int, last: int) -> None:
        self._data, self.steps, self._last = data, steps, last
        self._streams = {i: (leaf, rows[i]) for i, leaf in enumerate(jax.tree.leaves(data)) if is_stream(leaf)}
        pieces: dict[tuple[int, int], np.ndarray | None] = {}
        for stream, window in self._streams.values():
            if stream.resumable:  # streams of one length share an order, so that their rows stay together
                place = (len(stream), window)
                pieces[place] = stream.source.pieces if pieces.get(place) is None else pieces[place]
        self._orders = {place: Order(*place, cut, key) for place, cut in pieces.items()}
        self._now: tuple[int, PyTree] | None = None
        self._next: tuple[int, Ahead] | None = None

    def at(self, k: int) -> PyTree:
        """The data for step k; steps never go back to a window before."""
        j = k // self.steps
        if self._now is None or self._now[0] != j:
            self._now = None  # memory for one window less while the next is read
            if self._next is not None and self._next[0] == j:
                self._now = j, self._next[1].result()
            else:
                self._now = j, self._read(self._pieces(j))
            self._next = None
        if self._next is None and (j + 1) * self.steps < self._last:
            self._next = j + 1, Ahead(self._read, self._pieces(j + 1))
        return self._now[1]

    def left(self, k: int) -> int:
        """Steps until the window of step k ends."""
        return self.steps - k % self.steps

    def _pieces(self, j: int) -> dict[int, list[tuple[int, int]]]:
        pieces = {}
        for i, (stream, window) in self._streams.items():
            order = self._orders[len(stream), window] if stream.resumable else None
            pieces[i] = [(j * window, (j + 1) * window)] if order is None else order.pieces(j)
        return pieces

    def _read(self, pieces: dict[int, list[tuple[int, int]]]) -> PyTree:
        numbers = iter(self._streams)
        on_device = lambda stream: jax.tree.map(jax.device_put, stream.gather(pieces[next(numbers)]))  # noqa: E731
        return map_streams(on_device, self._data)

    def close(self) -> None:
        """Until the reader has ended."""
        if self._next is not None:
            self._next[1].wait()
            self._next = None


def first_window(data: PyTree) -> PyTree:
    """The data with rows of one window in place of each stream, whatever the key; for estimates before a run."""
    streams = {i: leaf for i, leaf in enumerate(jax.tree.leaves(data)) if is_stream(leaf)}
    lengths = {i: len(stream) if stream.resumable else None for i, stream in streams.items()}
    rows = {i: min(s.window for j, s in streams.items() if lengths[j] == lengths[i]) for i in streams}
    window = Windows(data, rows, jax.random.key(0), 1, 1).at(0)
    give_back = lambda stream, rows: stream.resumable or stream.source.give_back(rows)  # noqa: E731
    jax.tree.map(lambda leaf, part: is_stream(leaf) and give_back(leaf, part), data, window)
    return window
