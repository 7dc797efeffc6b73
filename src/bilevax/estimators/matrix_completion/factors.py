"""Effects and factors whose priors, ridges and noise are estimated from the data: nothing to tune but the rank.

A value is `r_i + c_j + u_i . v_j` plus noise. Rows have normal priors around what their similarity to other rows says,
and so do columns. A sweep computes the posterior means of all rows given the columns, then of all columns given the
rows, and then the variances of the priors and of the noise that make the data most likely (variational Bayes). What is
not known of a column counts as a ridge in the regression of each row that has an entry in it. So a factor that the data
do not support shrinks to nothing, and one that they support is hardly shrunk.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any

import numpy as np

from bilevax.estimators.matrix_completion.observed import Observed
from bilevax.linalg import low_rank
from bilevax.linalg.row_blocks import sample
from bilevax.linalg.row_ridges import Lines, Regression, Summary, Weighting, residuals, row_sums, solve_rows

_NODE_DISTANCE = 1.0  # between the logarithms of counts for which posterior covariances are computed
_TINY = 1e-12
_CHANGING = ("factors", "centre", "precision", "feature_precision", "doubt", "slopes")  # attributes of an axis
_UNSUPPORTED = 1e-6  # the share of the largest factor below which one is left out


class Axis:
    """The rows, or the columns: their factors with the effect in the last column, the prior, and what is not known.

    Posterior covariances (`doubt`) are computed for a few counts, the nodes. Those of a row are between the ones of the
    two nodes next to its own count.
    """

    def __init__(self, lines: Lines, features: np.ndarray | None):
        self.counts, self.features, dtype = lines.counts().astype(float), features, lines.values.dtype
        self.nodes, self.node, self.part = _nodes(self.counts)
        self.factors = self.centre = np.zeros((len(self.counts), 1), dtype)
        self.precision = self.feature_precision = np.full(1, _TINY)
        self.doubt = np.zeros((len(self.nodes), 1, 1))
        self.slopes = np.zeros((0 if features is None else features.shape[1], 1))
        self.spectrum = None if features is None else np.linalg.eigh(features.T @ features)

    def state(self) -> dict[str, np.ndarray]:
        """What sweeps change."""
        return {name: getattr(self, name) for name in _CHANGING}

    def put(self, state: dict[str, np.ndarray]) -> None:
        """Go to such a state."""
        for name in _CHANGING:
            setattr(self, name, state[name])

    def design(self, effects: bool) -> tuple[np.ndarray, np.ndarray]:
        """What the other axis is regressed on, and what is not known of it: the effect becomes a constant."""
        factors, doubt = self.factors.copy(), self.doubt.copy()
        factors[:, -1] = effects
        doubt[:, -1, :] = doubt[:, :, -1] = 0
        return factors, doubt

    def node_weights(self, weights: np.ndarray) -> np.ndarray:
        """The sum of such weights of rows, for each node."""
        n = len(self.nodes)
        near = np.bincount(self.node, weights * (1 - self.part), n)
        return np.asarray(near + np.bincount(np.minimum(self.node + 1, n - 1), weights * self.part, n))

    def hats(self) -> np.ndarray:
        """For each row, how near it is to each node."""
        near = np.zeros((len(self.counts), len(self.nodes)), np.float32)
        place = np.arange(len(near))
        near[place, self.node] = 1 - self.part
        near[place, np.minimum(self.node + 1, len(self.nodes) - 1)] += self.part
        return near

    def second_moment(self, factors: np.ndarray) -> np.ndarray:
        """The mean over entries of the products of these factors."""
        weighted = factors * self.counts[:, None].astype(factors.dtype)
        return np.asarray(low_rank.coordinates(weighted, factors) / self.counts.sum())

    def mean_doubt(self, doubt: np.ndarray) -> np.ndarray:
        """The mean over entries of such covariances."""
        return np.asarray(np.tensordot(self.node_weights(self.counts), doubt, 1) / self.counts.sum())

    def learn_prior(self, normal: np.ndarray, noise: float) -> None:
        """The posterior covariances for the mean normal matrix of an entry, then the prior that fits best."""
        self.doubt = np.linalg.inv(self.nodes[:, None, None] / noise * normal + np.diag(self.precision))
        if self.features is not None:
            self._learn_slopes()
        spread = np.einsum("b,bkk->k", self.node_weights(np.ones(len(self.counts))), self.doubt)
        spread = spread + np.sum((self.factors - self.centre) ** 2, axis=0, dtype=float)
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
        self.centre = (self.features @ self.slopes.astype(self.features.dtype)).astype(self.factors.dtype)

    def take_over(self, other: Axis) -> None:
        """Begin with what was learned of an axis with other entries; if it has other members, with the prior only."""
        k, dtype = len(other.precision), self.factors.dtype
        self.precision, self.feature_precision = other.precision, other.feature_precision
        near = np.abs(np.log(self.nodes)[:, None] - np.log(other.nodes)).argmin(axis=1)
        self.doubt, self.slopes = other.doubt[near], np.zeros((len(self.slopes), k))
        self.factors = self.centre = np.zeros((len(self.counts), k), dtype)
        if len(self.counts) == len(other.counts):
            self.factors = other.factors.astype(dtype)
            if self.features is not None:
                self._learn_slopes()

    def deviation(self) -> np.ndarray:
        """The second moment of the factors around their centres, what is not known of them included."""
        off = self.factors - self.centre
        spread = np.tensordot(self.node_weights(np.ones(len(self.counts))), self.doubt, 1)
        return np.asarray((low_rank.coordinates(off, off) + spread) / len(self.counts))

    def turn(self, change: np.ndarray) -> None:
        """Other factors, each a combination of the present ones, and the prior that fits them."""
        whole = np.eye(len(self.precision))
        whole[:-1, :-1] = change
        small = whole.astype(self.factors.dtype)
        self.factors, self.centre, self.slopes = self.factors @ small, self.centre @ small, self.slopes @ whole
        self.doubt = whole.T @ self.doubt @ whole
        self.precision = 1 / np.maximum(np.diag(self.deviation()), _TINY)
        self.feature_precision = 1 / np.maximum((whole**2).T @ (1 / self.feature_precision), _TINY)

    def add(self, factors: np.ndarray) -> None:
        """More factors, before the effect."""
        more = factors.shape[1]
        within = lambda old, new: np.concatenate([old[..., :-1], new.astype(old.dtype), old[..., -1:]], -1)  # noqa: E731
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


class Factors:
    """A factorisation of the known entries: effects alone at first, then as many factors as `grow` adds."""

    def __init__(
        self,
        observed: Observed,
        features: tuple[np.ndarray | None, np.ndarray | None] = (None, None),
        effects: bool = True,
        tails: float = np.inf,
    ):
        self.observed, self.effects, self.tails = observed, effects, tails
        self.rows, self.cols = Axis(observed.by_row, features[0]), Axis(observed.by_col, features[1])
        self.mean = 0.0 if effects else -observed.centre / observed.scale
        self.noise, self.unknown = (1.0, 0.0) if effects else (1.0 + self.mean**2, 0.0)
        self.least = 1e-14 * self.noise
        self.fixed_ridge: float | None = None
        """The ridge of all rows and columns, where it is not to be estimated."""
        self._shares: tuple[np.ndarray, np.ndarray] | None = None

    @property
    def rank(self) -> int:
        """How many factors are left."""
        return int(self.rows.factors.shape[1]) - 1

    def copy(self) -> Factors:
        """The factors as they are now, which later sweeps do not change."""
        kept = copy(self)
        kept.rows, kept.cols = copy(self.rows), copy(self.cols)
        return kept

    def state(self) -> dict[str, Any]:
        """What sweeps change."""
        axes = {"rows": self.rows.state(), "cols": self.cols.state()}
        return {**axes, "noise": self.noise, "unknown": self.unknown}

    def put(self, state: dict[str, Any]) -> None:
        """Go to a state of factors that were made in the same way."""
        self.rows.put(state["rows"])
        self.cols.put(state["cols"])
        self.noise, self.unknown = state["noise"], state["unknown"]

    def without_entries(self) -> Factors:
        """A copy that is good for `move_to` only, and takes little memory."""
        kept = self.copy()
        del kept.observed
        kept._shares = kept.rows.features = kept.cols.features = None
        return kept

    def predict(self, rows: np.ndarray, cols: np.ndarray) -> np.ndarray:
        """The entries (rows[i], cols[i]), in the units of the values."""
        left, right = self.rows.factors, self.cols.factors
        product = sample(rows, cols, np.ascontiguousarray(left[:, :-1]), np.ascontiguousarray(right[:, :-1]))
        inside = self.mean + product.astype(float) + left[rows, -1] + right[cols, -1]
        return np.asarray(self.observed.centre + self.observed.scale * inside)

    def ridges(self) -> tuple[float, float]:
        """Of the effects of rows and of columns, in units of one observation."""
        if self.fixed_ridge is not None:
            return self.fixed_ridge, self.fixed_ridge
        return float(self.noise * self.rows.precision[-1]), float(self.noise * self.cols.precision[-1])

    def in_units(self) -> tuple[float, np.ndarray, np.ndarray]:
        """The mean, rows and columns whose effects and products are in the units of the values."""
        scale, rows, cols = self.observed.scale, self.rows.factors.astype(float), self.cols.factors.astype(float)
        rows[:, :-1] *= scale
        rows[:, -1] *= scale
        cols[:, -1] *= scale
        return self.observed.centre + scale * self.mean, rows, cols

    def sweep(self) -> float:
        """Rows, columns, priors and noise; returns the change of predictions over the noise, or of the noise."""
        if self._shares is None:
            self._shares = self._near_nodes()
        by_row = self._solve(self.rows, self.cols, self.observed.by_row, self._shares[0])
        by_col = self._solve(self.cols, self.rows, self.observed.by_col, self._shares[1])
        self._leave_out()
        self._rotate()
        before, n = self.noise, self.observed.count
        self._learn_noise(by_col)
        moved = np.sqrt(max(by_row.moved, 0) / n) + np.sqrt(max(by_col.moved, 0) / n)
        return float(max(moved / np.sqrt(self.noise), 0.5 * abs(before / self.noise - 1)))

    def go(self, most: int, tol: float, late: Callable[[], bool]) -> None:
        """Sweeps until nothing changes by more than `tol`, or until it is late; the noise may fall to rounding."""
        for _ in range(most):
            if self.sweep() <= tol or self.noise <= self.least or late():
                break

    def grow(self, more: int) -> None:
        """Add the leading singular directions of what is left."""
        observed = self.observed
        own, other = (self.rows, self.cols) if observed.tall else (self.cols, self.rows)
        left = residuals(observed.long_axis, other.design(self.effects)[0], self.offset(other), own.factors)
        if np.isfinite(self.tails):
            left *= self.weighting.of(left)
        u, values, v = low_rank.leading(observed.operator(left), more, dtype=observed.dtype)
        # As large as the entries seen suggest for all of them.
        size = np.sqrt(values * (observed.shape[0] * observed.shape[1] / observed.count))
        self.rows.add(u * size)
        self.cols.add(v * size)

    def move_to(self, observed: Observed, features: tuple[np.ndarray | None, np.ndarray | None]) -> Factors:
        """The same columns in a matrix with more rows, or the same rows in one with more columns."""
        moved = Factors(observed, features, self.effects, self.tails)
        moved.noise, moved.unknown = self.noise, self.unknown
        moved.rows.take_over(self.rows)
        moved.cols.take_over(self.cols)
        return moved

    def offset(self, other: Axis) -> np.ndarray:
        """What is known of each entry before its row is: the mean, and the effect of its column."""
        return np.asarray((other.factors[:, -1] + self.mean).astype(self.observed.dtype))

    @property
    def weighting(self) -> Weighting:
        """The weights of entries by their residuals."""
        return Weighting(self.tails, self.noise, self.unknown)

    def _solve(self, own: Axis, other: Axis, lines: Lines, shares: np.ndarray) -> Summary:
        design, doubt = other.design(self.effects)
        ridge = np.maximum(self.noise * own.precision, _TINY * self.noise)
        if self.fixed_ridge is not None:
            ridge, doubt = np.full(len(ridge), self.fixed_ridge), np.zeros_like(doubt)
        regression = Regression(design, self.offset(other), ridge, shares, doubt, self.weighting)
        own.factors, summary = solve_rows(lines, regression, own.factors, own.centre)
        own.learn_prior(other.second_moment(design) + other.mean_doubt(doubt), self.noise)
        return summary

    def _near_nodes(self) -> tuple[np.ndarray, np.ndarray]:
        """How many entries each row has near each node of the columns, and each column near each node of the rows."""
        return row_sums(self.observed.by_row, self.cols.hats()), row_sums(self.observed.by_col, self.rows.hats())

    def _learn_noise(self, summary: Summary) -> None:
        (row_design, _), (col_design, _) = (axis.design(self.effects) for axis in (self.rows, self.cols))
        by_row, by_col = self.rows.mean_doubt(self.rows.doubt), self.cols.mean_doubt(self.cols.doubt)
        unknown = np.sum(by_row * self.cols.second_moment(col_design))
        unknown += np.sum(by_col * self.rows.second_moment(row_design))
        unknown += np.sum(by_row[:-1, :-1] * by_col[:-1, :-1])
        self.unknown = float(unknown)
        total = max(summary.squares, 0.0) + summary.weights * self.unknown
        self.noise = max(total / self.observed.count, self.least)

    def _rotate(self) -> None:
        """Turn the factors into those that are uncorrelated among the rows and among the columns at once.

        Predictions stay as they are. Priors take factors to be uncorrelated, and sweeps alone turn them slowly.
        """
        if self.rank < 2:
            return
        moments = [axis.deviation()[:-1, :-1] for axis in (self.rows, self.cols)]
        root = np.linalg.cholesky(moments[0] + 1e-14 * np.trace(moments[0]) * np.eye(self.rank))
        sizes, turn = np.linalg.eigh(root.T @ moments[1] @ root)
        sizes, turn = np.maximum(sizes[::-1], 1e-300), turn[:, ::-1]
        change = np.linalg.solve(root.T, turn) * sizes**0.25
        self.rows.turn(change)
        self.cols.turn(np.linalg.inv(change).T)

    def _leave_out(self) -> None:
        """Factors that the data do not support go."""
        rows, cols = (np.mean(axis.factors[:, :-1] ** 2, axis=0, dtype=float) for axis in (self.rows, self.cols))
        energy = rows * cols
        detectable = self.noise * sum(self.observed.shape) / self.observed.count
        kept = energy > max(_UNSUPPORTED * energy.max(initial=0), 0.01 * detectable)
        if not kept.all():
            self.rows.keep(kept)
            self.cols.keep(kept)


def _nodes(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Counts at equal distances on a log scale; for each row the node below its own count, and how far it is on."""
    logs = np.log(np.maximum(counts, 1))
    low, high = float(logs.min()), float(logs.max())
    number = int(np.ceil((high - low) / _NODE_DISTANCE)) + 1
    distance = (high - low) / max(number - 1, 1) or 1.0
    place = (logs - low) / distance
    node = np.minimum(place.astype(np.int32), max(number - 2, 0))
    return np.exp(low + distance * np.arange(number)), node, place - node
