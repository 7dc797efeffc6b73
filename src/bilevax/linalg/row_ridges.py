"""Many small ridge regressions, one for each row of a matrix of which some entries are known."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from bilevax.linalg.row_blocks import side_by_side

_BLOCKS = 8  # of rows, on any machine: the sums depend on them in the last digits
_PARALLEL = 1 << 14  # entries from which on blocks run side by side
_CHUNK = 1024  # entries of a row that are multiplied at once without numba


@dataclass(frozen=True)
class Lines:
    """The known entries of each row: `index[t]` is the column and `values[t]` the value, for t from `starts[i]`.

    Entries before `middles[i]` are to be learned from. Those from there to `ends[i]` are held out.
    """

    starts: np.ndarray
    middles: np.ndarray
    ends: np.ndarray
    index: np.ndarray
    values: np.ndarray

    def counts(self) -> np.ndarray:
        """How many entries of each row are to be learned from."""
        return np.asarray(self.middles - self.starts)

    def held_out(self) -> np.ndarray:
        """The places of the entries held out."""
        counts = self.ends - self.middles
        return np.asarray(np.repeat(self.middles - np.cumsum(counts) + counts, counts) + np.arange(counts.sum()))


class Weighting(NamedTuple):
    """The weights of entries by their residuals: those of Student's t distribution, or one for all."""

    tails: float = np.inf
    """Degrees of freedom; infinite for weights of one."""
    noise: float = 1.0
    """The variance of the noise."""
    unknown: float = 0.0
    """The variance of the predictions, which is added to the square of each residual."""

    def of(self, residual: np.ndarray) -> np.ndarray:
        """The weight for each residual."""
        if np.isinf(self.tails):
            return np.ones_like(residual)
        return np.asarray((self.tails + 1) / (self.tails + (residual**2 + self.unknown) / self.noise))


class Regression(NamedTuple):
    """What all rows share: for row i the u that minimises, with `t_j = value - offset_j` over its entries,

        sum_j w_j (t_j - d_j . u)^2  +  u . D_i u  +  sum_k ridge_k (u_k - m_ik)^2,   D_i = sum_b shares[i, b] doubt[b].

    D_i is what is not known of the d_j, and is multiplied by the mean weight of the row. The weights w_j are those for
    the residuals at the present u.
    """

    design: np.ndarray
    offset: np.ndarray
    ridge: np.ndarray
    shares: np.ndarray
    doubt: np.ndarray
    weighting: Weighting


class Summary(NamedTuple):
    """Sums over all entries."""

    moved: float
    """Weighted squares of the changes of the predictions."""
    squares: float
    """Weighted squares of the residuals after the change."""
    weights: float


def solve_rows(lines: Lines, regression: Regression, own: np.ndarray, centre: np.ndarray) -> tuple[np.ndarray, Summary]:
    """The solution for each row, from the present rows `own`; `centre` holds the m_i, which rows without entries get.

    Changes are computed from residuals, so that errors of single precision do not add up. A compiled loop where numba
    is installed.
    """
    found, loop, r = own.copy(), _compiled(), regression
    flat = r.doubt.reshape(len(r.doubt), -1).astype(float)
    tails, *others = r.weighting
    numbers = np.array([tails if np.isfinite(tails) else 0.0, *others])
    arguments = _contiguous(
        lines.starts, lines.middles, lines.index, lines.values, r.design, r.offset, r.shares, flat,
        np.asarray(r.ridge, float), centre, found, numbers,
    )  # fmt: skip
    sums = _in_blocks(lines, lambda a, b: loop(a, b, *arguments))
    return found, Summary(*(float(sum(part)) for part in zip(*sums, strict=True)))


def _loop(
    begin: Any, end: Any, starts: Any, middles: Any, index: Any, values: Any, design: Any, offset: Any, shares: Any,
    flat: Any, ridge: Any, centre: Any, found: Any, numbers: Any,
) -> Any:  # fmt: skip
    tails, noise, unknown = numbers[0], numbers[1], numbers[2]
    k = design.shape[1]
    moved, squares, weights = 0.0, 0.0, 0.0
    for i in range(begin, end):
        a, b = starts[i], middles[i]
        if a == b:
            found[i] = centre[i]
            continue
        u = found[i].copy()
        normal, right = np.zeros((k, k)), np.zeros(k)
        weight = 0.0
        for at in range(a, b, _CHUNK):
            part = slice(at, min(at + _CHUNK, b))
            d = design[index[part]]
            left = values[part] - offset[index[part]] - np.dot(d, u)
            if tails > 0:
                w = (tails + 1) / (tails + (left * left + unknown) / noise)
                root = np.sqrt(w).astype(d.dtype)
                d, left = d * root.reshape(-1, 1), left * root
                weight += w.sum()
            else:
                weight += len(left)
            normal += np.dot(d.T, d)
            right += np.dot(d.T, left)
            squares += np.dot(left, left)
        share = (shares[i] * (weight / (b - a))).astype(np.float64)
        ridged = normal + np.dot(share, flat).reshape(k, k)
        pull = right - np.dot(ridged - normal, u.astype(np.float64)) - ridge * (u - centre[i])
        for p in range(k):
            ridged[p, p] += ridge[p]
        step = np.linalg.solve(ridged, pull)
        found[i] = u + step
        change = np.dot(step, np.dot(normal, step))
        moved += change
        squares += change - 2 * np.dot(step, right)
        weights += weight
    return moved, squares, weights


def residuals(lines: Lines, design: np.ndarray, offset: np.ndarray, own: np.ndarray) -> np.ndarray:
    """Value minus offset minus `d_j . u_i` for each entry to learn from; zero for entries held out."""
    out, loop = np.zeros(len(lines.index), design.dtype), _compiled_residuals()
    arguments = _contiguous(lines.starts, lines.middles, lines.index, lines.values, design, offset, own, out)
    _in_blocks(lines, lambda a, b: loop(a, b, *arguments))
    return out


def row_sums(lines: Lines, table: np.ndarray) -> np.ndarray:
    """For each row the sum of `table[j]` over its entries to learn from."""
    out, loop = np.zeros((len(lines.starts), table.shape[1]), table.dtype), _compiled_sums()
    _in_blocks(lines, lambda a, b: loop(a, b, lines.starts, lines.middles, lines.index, table, out))
    return out


def _contiguous(*arrays: np.ndarray) -> list[np.ndarray]:
    """The arrays row by row: numba would compile the loop again for another order."""
    return [np.ascontiguousarray(array) for array in arrays]


def _in_blocks(lines: Lines, job: Callable[[int, int], Any]) -> list[Any]:
    """What a job returns for blocks of rows with about as many entries; blocks run side by side."""
    n = len(lines.starts)
    if len(lines.index) < _PARALLEL:
        return [job(0, n)]
    inside = np.searchsorted(lines.starts, np.linspace(0, len(lines.index), _BLOCKS + 1)[1:-1])
    bounds = np.concatenate([[0], inside, [n]])
    return side_by_side(lambda a, b: job(int(a), int(b)), bounds[:-1], bounds[1:])


def _residual_loop(
    begin: Any,
    end: Any,
    starts: Any,
    middles: Any,
    index: Any,
    values: Any,
    design: Any,
    offset: Any,
    own: Any,
    out: Any,
) -> None:
    for i in range(begin, end):
        for at in range(starts[i], middles[i], _CHUNK):
            part = slice(at, min(at + _CHUNK, middles[i]))
            out[part] = values[part] - offset[index[part]] - np.dot(design[index[part]], own[i].copy())


def _sum_loop(begin: Any, end: Any, starts: Any, middles: Any, index: Any, table: Any, out: Any) -> None:
    for i in range(begin, end):
        for at in range(starts[i], middles[i], _CHUNK):
            out[i] += table[index[at : min(at + _CHUNK, middles[i])]].sum(axis=0)


@functools.cache
def _compiled() -> Any:
    return _kernel("solve_rows", _loop)


@functools.cache
def _compiled_residuals() -> Any:
    return _kernel("residuals", _residual_loop)


@functools.cache
def _compiled_sums() -> Any:
    return _kernel("row_sums", _sum_loop)


def _kernel(name: str, otherwise: Any) -> Any:
    """Machine code, or a function of arrays that does the same without numba."""
    try:
        from bilevax.linalg import row_kernels
    except ImportError:
        return otherwise
    return getattr(row_kernels, name)
