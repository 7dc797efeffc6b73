"""A row that was not there when the model was fitted: its effect and factors, given the columns."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from bilevax.estimators.matrix_completion.factors import Factors
from bilevax.estimators.matrix_completion.options import norm_weights
from bilevax.estimators.matrix_completion.similarity import (
    AxisFeatures,
    PatternFeatures,
    place_in_pattern,
)


class Shrunk(NamedTuple):
    """The shrunk matrix and the effects beside it, before any factors."""

    mean: float
    left: np.ndarray
    right: np.ndarray
    row_effects: np.ndarray
    col_effects: np.ndarray

    def resized(self, shape: tuple[int, int]) -> Shrunk:
        """With zeros for new rows and columns."""

        def grown(array: np.ndarray, count: int) -> np.ndarray:
            return np.concatenate([array, np.zeros((count - len(array), *array.shape[1:]))])[:count]

        (p, q), (mean, left, right, rows, cols) = shape, self
        return Shrunk(mean, grown(left, p), grown(right, q), grown(rows, p), grown(cols, q))


def place(model: Any, cols: np.ndarray, values: np.ndarray) -> tuple[float, np.ndarray]:
    """Effect and factor of a row with these values in these columns."""
    share, effect, factor = model.share_, 0.0, np.zeros(0)
    if share < 1:
        effect, factor = _in_shrunk(model, cols, values)
    if share > 0:
        found = model.new_rows_.place(cols, values, model.col_counts_)
        factor = np.concatenate([(1 - share) * factor, share * found[:-1]])
        effect = (1 - share) * effect + share * float(found[-1])
    return effect, factor


def _in_shrunk(model: Any, cols: np.ndarray, values: np.ndarray) -> tuple[float, np.ndarray]:
    """The factor of rows with entries in the same places plus its own, by ridge regression.

    At the solution of the ball the ridge of each singular direction is the multiplier over the singular value.
    """
    part: Shrunk = model.shrunk_
    shared = place_in_pattern(cols, model.col_counts_, model.col_components_) @ model.component_factors_
    scale = 1 / norm_weights(len(cols), model.row_counts_) if model.weighted_ else 1.0
    features = scale * part.right[cols]
    target = values - part.mean - part.col_effects[cols] - features @ shared
    design = np.column_stack([features, np.ones(len(cols))])
    norms = np.maximum(model.factor_norms_, 1e-12 * model.factor_norms_.max(initial=1e-300))
    ridge = np.append(model.multiplier_ / norms, model.ridges_[0] if model.effects else 1e12)
    solution = np.linalg.solve(design.T @ design + np.diag(ridge + 1e-9), design.T @ target)
    return float(solution[-1]), scale * (shared + solution[:-1])


class NewRows(NamedTuple):
    """What places a new row among the factors: arrays only, so that a model file can keep it."""

    mean: float
    cols: np.ndarray
    """The factors of the columns, the effect last."""
    ridge: np.ndarray
    slopes: np.ndarray
    scales: np.ndarray
    counts: np.ndarray
    """Centre and width of the logarithm of the count."""
    components: np.ndarray
    """Of the columns in the pattern, over the singular values."""

    @classmethod
    def of(cls, factors: Factors, features: PatternFeatures | None) -> NewRows:
        """From a fit."""
        mean, _, cols = factors.in_units()
        scale = factors.observed.scale
        learned = mean, cols, factors.noise * factors.rows.precision, scale * factors.rows.slopes
        if features is None:
            return cls(*learned, np.zeros(0), np.array([0.0, 1.0]), np.zeros((len(cols), 0)))
        rows, similarity = features.rows, features.similarity
        return cls(*learned, rows.scales, np.array([rows.centre, rows.width]), similarity.cols / similarity.values)

    def place(self, cols: np.ndarray, values: np.ndarray, col_counts: np.ndarray) -> np.ndarray:
        """Factors and effect of a row with these values in these columns."""
        centre = np.zeros(len(self.ridge))
        if len(self.slopes):
            axis = AxisFeatures(np.zeros((0, 0)), self.scales, *(float(v) for v in self.counts))
            centre = axis.of(place_in_pattern(cols, col_counts, self.components), len(cols)) @ self.slopes
        design = self.cols[cols].copy()
        design[:, -1] = np.any(self.cols[:, -1])  # a model without effects gives none to new rows
        target = values - self.mean - self.cols[cols, -1] - design @ centre
        normal = design.T @ design + np.diag(self.ridge)
        return centre + np.linalg.solve(normal + 1e-12 * np.trace(normal) * np.eye(len(normal)), design.T @ target)
