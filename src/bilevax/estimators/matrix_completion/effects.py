"""Effects of rows and columns: what is left of a rating when nothing is known of tastes."""

from __future__ import annotations

from typing import Any

import numpy as np

from bilevax.estimators.matrix_completion.entries import Entries, valid_entries
from bilevax.linalg.sparse import Pattern, sorted_pattern


class Effects:
    """A number for each row and column, by ridge regression in closed form, rows and columns in turn."""

    def __init__(self, pattern: Pattern, weights: np.ndarray, ridge: float):
        self.pattern, self.ridge = pattern, ridge
        self.counted = pattern.matrix(weights)
        self._spread: np.ndarray | None = None
        self.rows, self.cols = (np.zeros(n, weights.dtype) for n in pattern.shape)
        self.row_counts, self.col_counts = self.counted.sum(axis=1).A1, self.counted.sum(axis=0).A1

    def update(self, residual: np.ndarray) -> float:
        """The best rows given the columns, then the best columns; `residual` is prediction minus value, and zero where
        nothing is observed. Returns the largest change."""
        left = self.pattern.matrix(residual)
        ones = np.ones(self.pattern.shape[1], residual.dtype)
        by_row = -(left @ ones + self.ridge * self.rows) / (self.row_counts + self.ridge)
        by_col = left.T @ np.ones(self.pattern.shape[0], residual.dtype) + self.counted.T @ by_row
        by_col = -(by_col + self.ridge * self.cols) / (self.col_counts + self.ridge)
        self.move_to(self.rows + by_row, self.cols + by_col)
        return float(max(np.abs(by_row).max(), np.abs(by_col).max()))

    def move_to(self, rows: np.ndarray, cols: np.ndarray) -> None:
        """Other effects than these."""
        self.rows, self.cols, self._spread = rows, cols, None

    def spread(self) -> np.ndarray:
        """Their sum for each known entry."""
        if self._spread is None:
            self._spread = self.pattern.spread(self.rows, self.cols)
        return self._spread


class EffectsOnly:
    """The baseline: mean, row effect and column effect."""

    def __init__(self, entries: Entries, ridge: float = 5.0):
        pattern, order = sorted_pattern(entries.rows, entries.cols, entries.shape)
        values = entries.values[order]
        self.mean, self.range = float(values.mean()), (float(values.min()), float(values.max()))
        effects = Effects(pattern, np.ones(len(values)), ridge)
        for _ in range(30):
            if effects.update(self.mean + effects.spread() - values) < 1e-4:
                break
        self.rows, self.cols = effects.rows, effects.cols

    def predict(self, rows: Any, cols: Any) -> np.ndarray:
        """Predictions in the range of the values; rows and columns never seen have no effect."""
        return np.clip(self.mean + at(self.rows, rows) + at(self.cols, cols), *self.range)


def at(effects: np.ndarray, index: Any) -> np.ndarray:
    """The numbers at these places, zero where there are none."""
    index = np.asarray(index)
    known = (index >= 0) & (index < len(effects))
    values = np.zeros(index.shape, effects.dtype)
    values[known] = effects[index[known]]
    return values


def effects_only(rows: Any, cols: Any, values: Any, *, ridge: float = 5.0) -> EffectsOnly:
    """Fit mean, row and column effects alone."""
    return EffectsOnly(valid_entries(rows, cols, values), ridge)
