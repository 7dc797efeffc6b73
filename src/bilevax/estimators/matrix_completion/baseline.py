"""The baseline of every completion: a mean, an effect of each row and an effect of each column."""

from __future__ import annotations

from typing import Any

import numpy as np

from bilevax.estimators.matrix_completion.entries import Entries, at, valid_entries
from bilevax.estimators.matrix_completion.factors import Factors
from bilevax.estimators.matrix_completion.observed import observe
from bilevax.linalg.blas import one_blas_thread


class EffectsOnly:
    """Mean, row effect and column effect, by ridge regression of both; `tails` are degrees of freedom of the noise."""

    def __init__(self, entries: Entries, ridge: float | None = None, tails: float = np.inf):
        nothing = np.zeros(len(entries.values), bool)
        self.range = float(entries.values.min()), float(entries.values.max())
        factors = Factors(observe(entries, nothing), tails=tails)
        factors.fixed_ridge = ridge
        with one_blas_thread():
            factors.go(200, 1e-5 if ridge is not None else 2e-3, lambda: False)
        self.mean, rows, cols = factors.in_units()
        self.rows, self.cols = rows[:, -1], cols[:, -1]
        self.ridges = factors.ridges()

    def predict(self, rows: Any, cols: Any) -> np.ndarray:
        """Predictions in the range of the values; rows and columns never seen have no effect."""
        return np.clip(self.mean + at(self.rows, rows) + at(self.cols, cols), *self.range)


def effects_only(rows: Any, cols: Any, values: Any, *, ridge: float | None = None) -> EffectsOnly:
    """Fit mean, row and column effects alone.

    `ridge` is in units of one observation. Without it the ridge of rows and that of columns are estimated from the
    data.
    """
    return EffectsOnly(valid_entries(rows, cols, values), ridge)
