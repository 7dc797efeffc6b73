"""Matrices known on some entries: products with them and entries of low-rank matrices there, on the host.

scipy's kernels on numpy views are five to twenty times as fast as XLA's scatter on a CPU, and a view costs nothing.
Nothing here needs JAX.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import scipy.sparse

from bilevax.linalg.low_rank import Operator

BLOCKS, PARALLEL = 4, 1 << 18
"""Row blocks that are multiplied side by side, and the entries from which on that pays."""
CHUNK = 1 << 16
"""Entries sampled at once: the two gathered factors then stay in cache."""


def row_blocks(starts: np.ndarray, cols: np.ndarray, values: np.ndarray, shape: tuple[int, int]) -> Operator:
    """A sparse matrix by its products, row blocks side by side on several cores; shares the memory of its parts."""
    values, cols, starts = (np.ascontiguousarray(v) for v in (values, cols, starts))
    whole = scipy.sparse.csr_matrix((values, cols, starts), shape=shape, copy=False)
    if len(values) < PARALLEL:
        return Operator(shape, lambda block: whole @ block, lambda block: whole.T @ block)
    # As many blocks whatever the machine: the sums of `rmatvec` depend on them in the last digits.
    ends = np.searchsorted(starts, np.linspace(0, len(values), BLOCKS + 1)[1:-1])
    bounds = np.concatenate([[0], ends, [shape[0]]])
    spans = [slice(int(a), int(b)) for a, b in zip(bounds[:-1], bounds[1:], strict=True) if b > a]
    parts = []
    for rows in spans:
        entries = slice(int(starts[rows.start]), int(starts[rows.stop]))
        own = starts[rows.start : rows.stop + 1] - starts[rows.start]
        part = scipy.sparse.csr_matrix((rows.stop - rows.start, shape[1]), dtype=values.dtype)
        # The constructor would copy parts of larger arrays.
        part.data, part.indices, part.indptr = values[entries], cols[entries], own
        parts.append(part)

    def matvec(block: np.ndarray) -> np.ndarray:
        if block.ndim == 1:  # too little work to hand out
            return whole @ block
        return np.concatenate(side_by_side(lambda part: part @ block, parts))

    def rmatvec(block: np.ndarray) -> np.ndarray:
        if block.ndim == 1:
            return whole.T @ block
        return functools.reduce(np.add, side_by_side(lambda part, rows: part.T @ block[rows], parts, spans))

    return Operator(shape, matvec, rmatvec)


def sample(rows: np.ndarray, cols: np.ndarray, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """The entries (rows[i], cols[i]) of `left @ right.T`; a compiled loop where numba is installed."""
    entries = np.empty(len(rows), np.result_type(left, right))
    loop = _compiled_dots()
    if loop is not None and left.shape[1] > 0:
        count = BLOCKS if len(rows) >= PARALLEL else 1
        bounds = np.linspace(0, len(rows), count + 1).astype(int)
        side_by_side(lambda a, b: loop(rows[a:b], cols[a:b], left, right, entries[a:b]), bounds[:-1], bounds[1:])
        return entries
    for begin in range(0, len(rows), CHUNK):
        part = slice(begin, begin + CHUNK)
        np.einsum("ij,ij->i", left[rows[part]], right[cols[part]], out=entries[part])
    return entries


@functools.cache
def _workers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count())


def side_by_side(job: Callable[..., Any], *parts: Iterable[Any]) -> list[Any]:
    """What a job returns for each part; they run in threads, since the kernels let go of the interpreter."""
    return list(_workers().map(job, *parts))


def _dots(rows: Any, cols: Any, left: Any, right: Any, entries: Any) -> None:
    for t in range(len(rows)):
        i, j = rows[t], cols[t]
        total = left[i, 0] * right[j, 0]
        for k in range(1, left.shape[1]):
            total += left[i, k] * right[j, k]
        entries[t] = total


@functools.cache
def _compiled_dots() -> Any:
    """The loop as machine code, or None without numba: it saves gathering both factors, nine tenths of the time."""
    try:
        import numba
    except ImportError:
        return None
    return numba.njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})(_dots)
