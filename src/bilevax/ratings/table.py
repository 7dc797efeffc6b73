"""The table of ratings that every reader returns."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Ratings(NamedTuple):
    """Ratings in the order of the file.

    `rows` and `cols` count users and items from zero without gaps; `row_ids` and `col_ids` are the publisher's names.
    """

    rows: np.ndarray
    cols: np.ndarray
    values: np.ndarray
    times: np.ndarray | None
    row_ids: np.ndarray
    col_ids: np.ndarray

    @property
    def shape(self) -> tuple[int, int]:
        """Users and items."""
        return len(self.row_ids), len(self.col_ids)

    def subset(self, keep: np.ndarray) -> Ratings:
        """The ratings where `keep` holds, with users and items numbered anew."""
        users, rows = np.unique(self.rows[keep], return_inverse=True)
        items, cols = np.unique(self.cols[keep], return_inverse=True)
        times = None if self.times is None else self.times[keep]
        return Ratings(rows, cols, self.values[keep], times, self.row_ids[users], self.col_ids[items])
