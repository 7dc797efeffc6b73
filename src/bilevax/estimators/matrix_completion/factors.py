"""Effects and factors whose priors, ridges and noise are estimated from the data: nothing to tune but the rank.

A value is `r_i + c_j + u_i . v_j` plus noise. Rows have normal priors around what their similarity to other rows says,
and so do columns. A sweep computes the posterior means of all rows given the columns, then of all columns given the
rows, and then the variances of the priors and of the noise that make the data most likely (variational Bayes). What is
not known of a column counts as a ridge in the regression of each row that has an entry in it. So a factor that the data
do not support shrinks to nothing, and one that they support is hardly shrunk.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy.sparse

from bilevax.linalg import low_rank
from bilevax.linalg.low_rank import Operator
from bilevax.linalg.row_ridges import solve_rows
from bilevax.linalg.sparse import Pattern, sample

_BINS = 24  # rows with about as many entries are known about as well
_TINY = 1e-12
_UNSUPPORTED = 1e-6  # the share of the largest factor below which one is left out


class Axis:
    """The rows, or the columns: their factors with the effect in the last column, the prior, and what is not known."""

    def __init__(self, counts: np.ndarray, features: np.ndarray | None):
        self.counts, self.features = counts, features
        self.bins, self.bin_counts = _bins(counts)
        self.factors = self.centre = np.zeros((len(counts), 1))
        self.precision = self.feature_precision = np.full(1, _TINY)
        self.doubt = np.zeros((len(self.bin_counts), 1, 1))
        self.slopes = np.zeros((0 if features is None else features.shape[1], 1))
        self.spectrum = None if features is None else np.linalg.eigh(features.T @ features)

    def design(self, effects: bool) -> tuple[np.ndarray, np.ndarray]:
        """What the other axis is regressed on, and what is not known of it: the effect becomes a constant."""
        factors, doubt = self.factors.copy(), self.doubt.copy()
        factors[:, -1] = effects
        doubt[:, -1, :] = doubt[:, :, -1] = 0
        return factors, doubt

    def per_entry(self, factors: np.ndarray | None, doubt: np.ndarray | None) -> np.ndarray:
        """The mean over entries of the squares of these factors plus these covariances."""
        total = np.zeros(self.doubt.shape[1:])
        if factors is not None:
            total += (factors.T * self.counts) @ factors
        if doubt is not None:
            total += np.tensordot(np.bincount(self.bins, self.counts, len(doubt)), doubt, 1)
        return total / self.counts.sum()

    def learn_prior(self, normal: np.ndarray, noise: float) -> None:
        """The posterior covariances for the mean normal matrix of an entry, then the prior that fits best."""
        self.doubt = np.linalg.inv(self.bin_counts[:, None, None] / noise * normal + np.diag(self.precision))
        if self.features is not None:
            self._learn_slopes()
        spread = np.einsum("b,bkk->k", np.bincount(self.bins, minlength=len(self.doubt)), self.doubt)
        spread = spread + np.sum((self.factors - self.centre) ** 2, axis=0)
        self.precision = 1 / np.maximum(spread / len(self.counts), _TINY)

    def _learn_slopes(self) -> None:
        """Ridge regression of the factors on the features; the ridge of each factor by its own evidence."""
        assert self.features is not None and self.spectrum is not None
        values, vectors = self.spectrum
        along = vectors.T @ (self.features.T @ self.factors)
        bottom = values[:, None] * self.precision + self.feature_precision
        slopes = along * self.precision / bottom
        self.feature_precision = len(values) / (np.sum(slopes**2, axis=0) + np.sum(1 / bottom, axis=0))
        self.slopes = vectors @ slopes
        self.centre = self.features @ self.slopes

    def add(self, factors: np.ndarray) -> None:
        """More factors, before the effect."""
        more = factors.shape[1]
        within = lambda old, new: np.concatenate([old[..., :-1], new, old[..., -1:]], axis=-1)  # noqa: E731
        none = lambda like: np.zeros((*like.shape[:-1], more))  # noqa: E731
        self.factors = within(self.factors, factors)
        self.centre, self.slopes = within(self.centre, none(self.centre)), within(self.slopes, none(self.slopes))
        self.precision = within(self.precision, 1 / np.maximum(np.mean(factors**2, axis=0), _TINY))
        self.feature_precision = within(self.feature_precision, np.ones(more))
        doubt = np.zeros((len(self.doubt), len(self.precision), len(self.precision)))
        old = np.r_[: doubt.shape[1] - more - 1, doubt.shape[1] - 1]
        doubt[:, old[:, None], old] = self.doubt
        self.doubt = doubt

    def keep(self, factors: np.ndarray) -> None:
        """Go on with these factors only; the effect stays."""
        kept = np.append(factors, True)
        self.factors, self.centre, self.slopes = self.factors[:, kept], self.centre[:, kept], self.slopes[:, kept]
        self.precision, self.feature_precision = self.precision[kept], self.feature_precision[kept]
        self.doubt = self.doubt[:, kept][:, :, kept]


class Known(NamedTuple):
    """The entries to learn from, by row and by column."""

    rows: np.ndarray
    cols: np.ndarray
    values: np.ndarray
    row_starts: np.ndarray
    col_starts: np.ndarray
    by_col: np.ndarray
    """The order that sorts the entries by column."""
    rows_by_col: np.ndarray


def known_entries(pattern: Pattern, values: np.ndarray, chosen: np.ndarray) -> Known:
    """Those entries of a pattern that are chosen."""
    rows, cols = (np.asarray(part)[chosen] for part in (pattern.rows, pattern.cols))
    by_col = np.argsort(cols, kind="stable").astype(np.int32)
    starts = [np.searchsorted(v, np.arange(n + 1)) for v, n in zip((rows, cols[by_col]), pattern.shape, strict=True)]
    return Known(rows, cols, values[chosen], starts[0], starts[1], by_col, rows[by_col])


class Factors:
    """A factorisation of known entries: effects alone at first, then as many factors as `grow` adds."""

    def __init__(
        self,
        known: Known,
        shape: tuple[int, int],
        features: tuple[np.ndarray | None, np.ndarray | None] = (None, None),
        effects: bool = True,
        tails: float = np.inf,
    ):
        self.known, self.shape, self.effects, self.tails = known, shape, effects, tails
        counts = [np.bincount(part, minlength=n).astype(float) for part, n in zip(known[:2], shape, strict=True)]
        self.rows, self.cols = (Axis(*parts) for parts in zip(counts, features, strict=True))
        self.mean = 0.0
        self.weights: np.ndarray | None = None
        self.fitted = self.predict(known.rows, known.cols)
        spread = float(np.var(known.values))
        # From above: a noise that is too small at first would keep a start that is too close to the values.
        self.noise = max(float(np.mean((known.values - self.fitted) ** 2)), 0.3 * spread, np.finfo(float).tiny)
        self.least = 1e-14 * spread or np.finfo(float).tiny
        self._shares: tuple[np.ndarray, np.ndarray] | None = None

    @property
    def rank(self) -> int:
        """How many factors are left."""
        return int(self.rows.factors.shape[1]) - 1

    def predict(self, rows: np.ndarray, cols: np.ndarray) -> np.ndarray:
        """The entries (rows[i], cols[i])."""
        left, right = self.rows.factors, self.cols.factors
        product = sample(rows, cols, np.ascontiguousarray(left[:, :-1]), np.ascontiguousarray(right[:, :-1]))
        return product + left[rows, -1] + right[cols, -1]

    def sweep(self) -> float:
        """Rows, columns, priors and noise; returns the change of predictions over the noise, or of the noise."""
        known, weights = self.known, self.weights
        if self._shares is None or weights is not None:
            self._shares = self._count_bins()
        self._solve(
            self.rows, self.cols, known.row_starts, known.cols,
            known.values - self.cols.factors[known.cols, -1], weights, self._shares[0],
        )  # fmt: skip
        self._solve(
            self.cols, self.rows, known.col_starts, known.rows_by_col,
            (known.values - self.rows.factors[known.rows, -1])[known.by_col],
            None if weights is None else weights[known.by_col], self._shares[1],
        )  # fmt: skip
        self._leave_out()
        before, self.fitted = self.fitted, self.predict(known.rows, known.cols)
        noise = self.noise
        self._learn_noise()
        moved = float(np.sqrt(np.mean((self.fitted - before) ** 2) / self.noise))
        return max(moved, 0.5 * abs(noise / self.noise - 1))

    def go(self, most: int, tol: float, late: Callable[[], bool]) -> None:
        """Sweeps until nothing changes by more than `tol`, or until it is late; the noise may fall to rounding."""
        for _ in range(most):
            if self.sweep() <= tol or self.noise <= self.least or late():
                break

    def grow(self, more: int) -> None:
        """Add the leading singular directions of what is left."""
        known, shape = self.known, self.shape
        left = known.values - self.fitted
        if self.weights is not None:
            left = left * self.weights
        residual = scipy.sparse.csr_matrix((left, known.cols, known.row_starts), shape=shape, copy=False)
        u, values, v = low_rank.leading(Operator(shape, residual.__matmul__, residual.T.__matmul__), more)
        # As large as the entries seen suggest for all of them.
        size = np.sqrt(values * (shape[0] * shape[1] / len(left)))
        self.rows.add(u * size)
        self.cols.add(v * size)
        self.fitted = self.predict(known.rows, known.cols)

    def _solve(
        self,
        own: Axis,
        other: Axis,
        starts: np.ndarray,
        index: np.ndarray,
        targets: np.ndarray,
        weights: np.ndarray | None,
        shares: np.ndarray,
    ) -> None:
        design, doubt = other.design(self.effects)
        ridge = np.maximum(self.noise * own.precision, _TINY * self.noise)
        own.factors = solve_rows(starts, index, targets, weights, design, doubt, shares, ridge, own.centre)
        own.learn_prior(other.per_entry(design, doubt), self.noise)

    def _count_bins(self) -> tuple[np.ndarray, np.ndarray]:
        """How much weight each row has in each bin of columns, and each column in each bin of rows."""
        found = []
        for other, index, others, n in (
            (self.cols, self.known.rows, self.known.cols, self.shape[0]),
            (self.rows, self.known.cols, self.known.rows, self.shape[1]),
        ):
            bins = len(other.bin_counts)
            place = index.astype(np.int64) * bins + other.bins[others]
            found.append(np.bincount(place, self.weights, n * bins).reshape(n, bins).astype(float))
        return found[0], found[1]

    def _learn_noise(self) -> None:
        (row_design, _), (col_design, _) = (axis.design(self.effects) for axis in (self.rows, self.cols))
        by_row, by_col = self.rows.per_entry(None, self.rows.doubt), self.cols.per_entry(None, self.cols.doubt)
        unknown = np.sum(by_row * self.cols.per_entry(col_design, None))
        unknown += np.sum(by_col * self.rows.per_entry(row_design, None))
        unknown += np.sum(by_row[:-1, :-1] * by_col[:-1, :-1])
        squares = (self.known.values - self.fitted) ** 2 + float(unknown)
        if np.isfinite(self.tails):  # Student's t: the weight that an entry of this distance deserves
            self.weights = (self.tails + 1) / (self.tails + squares / self.noise)
            squares = self.weights * squares
        self.noise = max(float(np.mean(squares)), self.least)

    def _leave_out(self) -> None:
        """Factors that the data do not support go."""
        energy = np.mean(self.rows.factors[:, :-1] ** 2, axis=0) * np.mean(self.cols.factors[:, :-1] ** 2, axis=0)
        detectable = self.noise * sum(self.shape) / len(self.known.values)
        kept = energy > max(_UNSUPPORTED * energy.max(initial=0), 0.01 * detectable)
        if not kept.all():
            self.rows.keep(kept)
            self.cols.keep(kept)


def _bins(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows in bins by the logarithm of their counts, and the mean count in each bin."""
    logs = np.log(np.maximum(counts, 1))
    low, high = logs.min(), logs.max()
    number = max(1, min(_BINS, int(np.ceil((high - low) / 0.2)) + 1))
    bins = np.minimum((number * (logs - low) / max(high - low, _TINY)).astype(int), number - 1)
    members = np.bincount(bins, minlength=number)
    return bins, np.bincount(bins, counts, number) / np.maximum(members, 1)
