"""Effects of rows and columns: what is left of a rating when nothing is known of tastes."""

from __future__ import annotations

import numpy as np

from bilevax.linalg.sparse import Pattern


class Effects:
    """A number for each row and column, by ridge regression in closed form, rows and columns in turn."""

    def __init__(self, pattern: Pattern, weights: np.ndarray, ridges: tuple[float, float]):
        self.pattern, self.ridges = pattern, ridges
        self.counted = pattern.matrix(weights)
        self._spread: np.ndarray | None = None
        self.rows, self.cols = (np.zeros(n, weights.dtype) for n in pattern.shape)
        self.row_counts, self.col_counts = self.counted.sum(axis=1).A1, self.counted.sum(axis=0).A1

    def update(self, residual: np.ndarray) -> float:
        """The best rows given the columns, then the best columns; `residual` is prediction minus value, and zero where
        nothing is observed. Returns the largest change."""
        left, (row_ridge, col_ridge) = self.pattern.matrix(residual), self.ridges
        ones = np.ones(self.pattern.shape[1], residual.dtype)
        by_row = -(left @ ones + row_ridge * self.rows) / (self.row_counts + row_ridge)
        by_col = left.T @ np.ones(self.pattern.shape[0], residual.dtype) + self.counted.T @ by_row
        by_col = -(by_col + col_ridge * self.cols) / (self.col_counts + col_ridge)
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
