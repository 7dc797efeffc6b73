"""The loops of `row_ridges` as machine code; needs numba.

They are loops over single numbers, since numba takes many times as long to compile slices and products of arrays. Sums
over a chunk of entries are in the precision of the design, sums over chunks in double precision.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import numba
import numpy as np

_CHUNK = 512  # entries of a row that are multiplied at once: they fit into the cache
_FASTMATH = {"reassoc", "contract", "nsz"}  # NaN and infinity keep their meaning


def _jit(loop: Callable[..., Any]) -> Callable[..., Any]:
    options: dict[str, Any] = {"cache": True, "nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}
    return cast(Callable[..., Any], numba.njit(fastmath=_FASTMATH, **options)(loop))


@_jit
def solve_positive(matrix: Any, x: Any) -> None:
    """Solve a positive definite system whose right side is the last column of the matrix, which is overwritten.

    The Cholesky factor is subtracted four rows at a time: LAPACK takes twice as long for so few unknowns.
    """
    k = len(x)
    for r in range(k):
        fours = r - r % 4
        for m in range(0, fours, 4):
            a, b, c, d = matrix[m, r], matrix[m + 1, r], matrix[m + 2, r], matrix[m + 3, r]
            for t in range(r, k + 1):
                matrix[r, t] -= a * matrix[m, t] + b * matrix[m + 1, t] + c * matrix[m + 2, t] + d * matrix[m + 3, t]
        for m in range(fours, r):
            a = matrix[m, r]
            for t in range(r, k + 1):
                matrix[r, t] -= a * matrix[m, t]
        scale = 1.0 / math.sqrt(matrix[r, r] if matrix[r, r] > 1e-300 else 1e-300)
        for t in range(r, k + 1):
            matrix[r, t] *= scale
    for p in range(k - 1, -1, -1):
        total = matrix[p, k]
        for t in range(p + 1, k):
            total -= matrix[p, t] * x[t]
        x[p] = total / matrix[p, p]


def solve_rows(begin: int, end: int, *arguments: np.ndarray) -> Any:
    """See `row_ridges.solve_rows`, for rows from `begin` to `end`."""
    design = arguments[4]
    k, dtype = design.shape[1], design.dtype
    gram, two = np.empty((k, k), dtype), np.empty((2, k * k))
    return _solve_rows(
        begin, end, *arguments, np.empty((_CHUNK, k), dtype), gram, gram.reshape(-1), np.empty(k, dtype),
        np.empty(k, dtype), np.empty(1, dtype), two[0], two[1], np.empty((k, k + 1)), np.empty(k), np.empty(k),
    )  # fmt: skip


@_jit
def _solve_rows(
    begin: Any, end: Any, starts: Any, middles: Any, index: Any, values: Any, design: Any, offset: Any, shares: Any,
    flat: Any, ridge: Any, centre: Any, found: Any, numbers: Any,
    d: Any, gram: Any, flat_gram: Any, u: Any, lean: Any, root: Any, normal: Any, doubt: Any, matrix: Any, right: Any,
    step: Any,
) -> Any:  # fmt: skip
    tails, noise, unknown = numbers[0], numbers[1], numbers[2]
    k = len(u)
    root[0] = 1.0
    moved, squares, weights = 0.0, 0.0, 0.0
    for i in range(begin, end):
        a, b = starts[i], middles[i]
        if a == b:
            for p in range(k):
                found[i, p] = centre[i, p]
            continue
        for p in range(k):
            u[p] = found[i, p]
            right[p] = 0.0
        for q in range(k * k):
            normal[q] = 0.0
            doubt[q] = 0.0
        weight = 0.0
        for at in range(a, b, _CHUNK):
            many = min(_CHUNK, b - at)
            for p in range(k):
                lean[p] = 0.0
            for t in range(many):
                j = index[at + t]
                left = values[at + t] - offset[j]
                for p in range(k):
                    left -= design[j, p] * u[p]
                if tails > 0.0:
                    w = (tails + 1.0) / (tails + (left * left + unknown) / noise)
                    weight += w
                    root[0] = math.sqrt(w)
                    left *= root[0]
                for p in range(k):
                    d[t, p] = root[0] * design[j, p]
                    lean[p] += root[0] * design[j, p] * left
                squares += left * left
            np.dot(d[:many].T, d[:many], gram)
            for p in range(k):
                right[p] += lean[p]
            for q in range(k * k):
                normal[q] += flat_gram[q]
        if tails <= 0.0:
            weight = float(b - a)
        mean_weight = weight / float(b - a)
        for node in range(len(flat)):
            share = shares[i, node] * mean_weight
            for q in range(k * k):
                doubt[q] += share * flat[node, q]
        for p in range(k):
            pull = right[p] - ridge[p] * (u[p] - centre[i, p])
            for q in range(k):
                pull -= doubt[p * k + q] * u[q]
                matrix[p, q] = normal[p * k + q] + doubt[p * k + q]
            matrix[p, k] = pull
            matrix[p, p] += ridge[p]
        solve_positive(matrix, step)
        for p in range(k):
            found[i, p] = u[p] + step[p]
            change = 0.0
            for q in range(k):
                change += normal[p * k + q] * step[q]
            moved += step[p] * change
            squares += step[p] * (change - 2.0 * right[p])
        weights += weight
    return moved, squares, weights


@_jit
def residuals(
    begin: Any, end: Any, starts: Any, middles: Any, index: Any, values: Any, design: Any, offset: Any, own: Any,
    out: Any,
) -> None:  # fmt: skip
    """See `row_ridges.residuals`, for rows from `begin` to `end`."""
    for i in range(begin, end):
        for t in range(starts[i], middles[i]):
            j = index[t]
            product = design[j, 0] * own[i, 0]
            for p in range(1, design.shape[1]):
                product += design[j, p] * own[i, p]
            out[t] = values[t] - offset[j] - product


@_jit
def row_sums(begin: Any, end: Any, starts: Any, middles: Any, index: Any, table: Any, out: Any) -> None:
    """See `row_ridges.row_sums`, for rows from `begin` to `end`."""
    for i in range(begin, end):
        for t in range(starts[i], middles[i]):
            j = index[t]
            for p in range(table.shape[1]):
                out[i, p] += table[j, p]
