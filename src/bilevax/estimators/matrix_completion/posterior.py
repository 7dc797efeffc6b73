"""The mean of many matrices drawn from the posterior: what to predict where entries are few.

The factors of `factors.py` are one point, and what is not known of rows counts against columns as if both were
independent. With less than about three entries for each degree of freedom this shrinks too much and drops factors. Here
rows, columns, priors and noise are drawn in turn, each given all others (Gibbs sampling), and predictions are averaged.
Factors that the data do not support average to nothing, so that the rank need not be chosen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from bilevax.estimators.matrix_completion.factors import Axis, Factors
from bilevax.linalg import low_rank
from bilevax.linalg.low_rank import Operator
from bilevax.linalg.row_ridges import Lines, Regression, residuals, solve_rows

_MORE_FACTORS = 20  # are drawn beside those that the start has
_CHAINS = 4  # of draws, each from the start: one alone does not reach all likely matrices
_SWEEPS, _FIRST, _EVERY = 80, 20, 3  # of a chain: all sweeps, those before a draw is kept, those for each draw kept
_NEGLIGIBLE = 1e-5  # the share of the largest singular value of the mean below which a direction is left out
_TINY = 1e-12


def posterior_mean(start: Factors, most_factors: int, late: Callable[[], bool]) -> Factors:
    """Factors whose product is the posterior mean of the matrix, from a start at a mode of the posterior.

    `most_factors` limits the rank of each matrix drawn and of their mean.
    """
    room = min(most_factors, *(n - 1 for n in start.observed.shape)) - start.rank
    grown = start.copy()
    if room > 0:
        grown.grow(min(_MORE_FACTORS, room))
    kept: list[Factors] = []
    for seed in range(_CHAINS):
        chain = _Chain(grown.copy(), np.random.default_rng(seed))
        for sweep in range(_SWEEPS):
            if late():
                return _mean(kept, most_factors) if kept else start
            chain.sweep()
            if sweep >= _FIRST and sweep % _EVERY == 0:
                kept.append(chain.factors.copy())
    return _mean(kept, most_factors)


class _Chain:
    """Factors that move from one draw to the next."""

    def __init__(self, factors: Factors, rng: np.random.Generator):
        self.factors, self.rng = factors, rng

    def sweep(self) -> None:
        """Draw rows, columns and noise."""
        factors, observed = self.factors, self.factors.observed
        factors.unknown = 0.0  # both sides are known at each draw
        self._draw(factors.rows, factors.cols, observed.by_row)
        self._draw(factors.cols, factors.rows, observed.by_col)
        design, _ = factors.rows.design(factors.effects)
        left = residuals(observed.by_col, design, factors.offset(factors.rows), factors.cols.factors)
        factors.noise = max(0.5 * float(left @ left) / self.rng.gamma(observed.count / 2), factors.least)

    def _draw(self, own: Axis, other: Axis, lines: Lines) -> None:
        """All rows given the columns, then their prior.

        The ridge regression of values and prior means to which noise of their own variance is added has the posterior
        as the distribution of its solution.
        """
        factors, rng = self.factors, self.rng
        design, doubt = other.design(factors.effects)
        ridge = np.maximum(factors.noise * own.precision, _TINY * factors.noise)
        shaken = replace(lines, values=lines.values + np.sqrt(factors.noise) * rng.standard_normal(len(lines.values)))
        centre = own.centre + rng.standard_normal(own.centre.shape) / np.sqrt(ridge / factors.noise)
        if not factors.effects:
            centre[:, -1] = 0
        nothing = np.zeros((len(own.counts), len(doubt)), np.float32)
        regression = Regression(design, factors.offset(other), ridge, nothing, np.zeros_like(doubt), factors.weighting)
        own.factors, _ = solve_rows(shaken, regression, own.factors, centre)
        if own.features is not None:
            self._draw_slopes(own)
        squares = np.sum((own.factors - own.centre) ** 2, axis=0) + _TINY
        own.precision = rng.gamma(0.5 * len(own.counts) + 1, size=len(squares)) / (0.5 * squares)

    def _draw_slopes(self, own: Axis) -> None:
        assert own.features is not None and own.spectrum is not None
        values, vectors = own.spectrum
        bottom = values[:, None] * own.precision + own.feature_precision
        along = vectors.T @ (own.features.T @ own.factors) * own.precision / bottom
        slopes = along + self.rng.standard_normal(along.shape) / np.sqrt(bottom)
        shape = 0.5 * len(values) + 1
        own.feature_precision = self.rng.gamma(shape, size=len(own.precision)) / (0.5 * np.sum(slopes**2, axis=0))
        own.slopes = vectors @ slopes
        own.centre = own.features @ own.slopes


def _mean(draws: list[Factors], most_factors: int) -> Factors:
    """The mean of matrices; its leading singular directions are the factors."""
    axes = [(one.rows, one.cols) for one in draws]
    left, right = (np.hstack([axis.factors[:, :-1] for axis in part]) for part in zip(*axes, strict=True))
    left = left / len(draws)
    shape = draws[0].observed.shape
    product = Operator(shape, lambda block: left @ (right.T @ block), lambda block: right @ (left.T @ block))
    u, sizes, v = low_rank.leading(product, min(most_factors, min(shape) - 1), dtype=float)
    large = sizes > _NEGLIGIBLE * sizes.max(initial=0)
    bases = [vectors[:, large] * np.sqrt(sizes[large]) for vectors in (u, v)]
    found = draws[-1].copy()
    found.noise = float(np.mean([one.noise for one in draws]))
    _set_mean(found.rows, bases[0], bases[1], axes)
    _set_mean(found.cols, bases[1], bases[0], [pair[::-1] for pair in axes])
    return found


def _set_mean(axis: Axis, factors: np.ndarray, others: np.ndarray, draws: list[tuple[Axis, Axis]]) -> None:
    """Give an axis these factors and the mean effect, and the prior that fits them; `others` are those beside them."""

    def mean(parts: list[np.ndarray]) -> np.ndarray:
        return np.asarray(np.mean(parts, axis=0))

    axis.factors = np.column_stack([factors, mean([own.factors[:, -1] for own, _ in draws])])
    axis.centre = np.zeros_like(axis.factors)
    if axis.features is not None:
        # The slopes whose products with the new factors of the other axis are the mean of those that were drawn.
        products = mean([own.slopes[:, :-1] @ (other.factors[:, :-1].T @ others) for own, other in draws])
        slopes = products / np.sum(others**2, axis=0)
        axis.slopes = np.column_stack([slopes, mean([own.slopes[:, -1] for own, _ in draws])])
        axis.centre = axis.features @ axis.slopes
    axis.precision = 1 / np.maximum(np.mean((axis.factors - axis.centre) ** 2, axis=0), _TINY)
