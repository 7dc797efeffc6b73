"""Many small ridge regressions, one for each row of a matrix of which some entries are known."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from bilevax.linalg.sparse import PARALLEL, side_by_side

_BLOCKS = 8


def solve_rows(
    starts: np.ndarray,
    cols: np.ndarray,
    targets: np.ndarray,
    weights: np.ndarray | None,
    design: np.ndarray,
    doubt: np.ndarray,
    shares: np.ndarray,
    ridge: np.ndarray,
    centre: np.ndarray,
) -> np.ndarray:
    """For each row i the u that minimises `sum_j w_ij (t_ij - d_j . u)^2 + u . D_i u + sum_k ridge_k (u_k - m_ik)^2`.

    The first sum is over the entries of the row. D_i is `sum_b shares[i, b] doubt[b]`: what is not known of the d_j.
    Rows without entries get their centre m_i. A compiled loop where numba is installed.
    """
    found = np.array(centre, float)
    weights = np.ones(0, targets.dtype) if weights is None else weights
    one = _compiled()
    arguments = (starts, cols, targets, weights, design, doubt, shares, ridge, found)
    if len(cols) < PARALLEL:
        one(0, len(starts) - 1, *arguments)
        return found
    bounds = np.searchsorted(starts, np.linspace(0, len(cols), _BLOCKS + 1)[1:-1])
    bounds = np.concatenate([[0], bounds, [len(starts) - 1]])
    side_by_side(lambda a, b: one(int(a), int(b), *arguments), bounds[:-1], bounds[1:])
    return found


def _loop(
    begin: Any,
    end: Any,
    starts: Any,
    cols: Any,
    targets: Any,
    weights: Any,
    design: Any,
    doubt: Any,
    shares: Any,
    ridge: Any,
    found: Any,
) -> None:
    k = design.shape[1]
    flat = doubt.reshape(doubt.shape[0], k * k)
    for i in range(begin, end):
        a, b = starts[i], starts[i + 1]
        if a == b:
            continue
        d = design[cols[a:b]]
        t = targets[a:b].astype(design.dtype)
        weighted = d
        if len(weights):
            weighted = d * weights[a:b].astype(design.dtype).reshape(b - a, 1)
        normal = np.ascontiguousarray(weighted.T) @ d + (shares[i] @ flat).reshape(k, k) + np.diag(ridge)
        right = np.ascontiguousarray(weighted.T) @ t + ridge * found[i]
        found[i] = np.linalg.solve(normal, right)


@functools.cache
def _compiled() -> Any:
    try:
        import numba
    except ImportError:
        return _loop
    return numba.njit(cache=True, nogil=True)(_loop)
