"""The known entries sorted by row and by column, each value once for each order and no other copy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse

from bilevax.estimators.matrix_completion.entries import MANY, Entries
from bilevax.linalg.low_rank import Operator
from bilevax.linalg.row_blocks import row_blocks
from bilevax.linalg.row_ridges import Lines


@dataclass(frozen=True)
class Observed:
    """Entries to learn from and entries held out; those held out are the last ones of each row and column.

    Values are kept as `(value - centre) / scale`, so that nothing depends on their unit.
    """

    by_row: Lines
    by_col: Lines
    centre: float
    scale: float

    @property
    def shape(self) -> tuple[int, int]:
        """Of the matrix."""
        return len(self.by_row.starts), len(self.by_col.starts)

    @property
    def dtype(self) -> Any:
        """Of values and factors."""
        return self.by_row.values.dtype

    @cached_property
    def count(self) -> int:
        """How many entries there are to learn from."""
        return int(self.by_row.counts().sum())

    @cached_property
    def held_out(self) -> Entries:
        """The entries held out, in their own units, sorted by row and then by column."""
        lines = self.by_row
        rows = np.repeat(np.arange(len(lines.starts), dtype=np.int32), lines.ends - lines.middles)
        at = lines.held_out()
        return Entries(rows, lines.index[at], self.centre + self.scale * lines.values[at].astype(float), self.shape)

    @property
    def tall(self) -> bool:
        """Whether there are more rows than columns."""
        return self.shape[0] >= self.shape[1]

    @property
    def long_axis(self) -> Lines:
        """The order for `operator`: that of the rows if there are more of them, otherwise that of the columns."""
        return self.by_row if self.tall else self.by_col

    def operator(self, values: np.ndarray) -> Operator:
        """The sparse matrix with these entries, in the order of `long_axis`, by its products.

        Entries in one order save memory. Products with the transpose add up in the short axis, which stays in cache.
        """
        lines, shape = self.long_axis, self.shape if self.tall else self.shape[::-1]
        found = row_blocks(np.append(lines.starts, lines.ends[-1:]), lines.index, values, shape)
        return found if self.tall else Operator(self.shape, found.rmatvec, found.matvec)

    def ones(self, dtype: Any) -> np.ndarray:
        """One for each entry to learn from and zero for those held out, in the order of `long_axis`."""
        found = np.ones(len(self.long_axis.index), dtype)
        found[self.long_axis.held_out()] = 0
        return found

    def all_learned(self) -> Observed:
        """The same entries with none held out; they share their memory."""
        rows, cols = (replace(lines, middles=lines.ends) for lines in (self.by_row, self.by_col))
        return replace(self, by_row=rows, by_col=cols)


def observe(entries: Entries, held_out: np.ndarray) -> Observed:
    """Sort entries both ways; `held_out` says for each whether it is held out."""
    centre = float(entries.values.mean())
    centred: Any = np.empty(len(entries.values), np.float32 if len(entries.values) >= MANY else np.float64)
    np.subtract(entries.values, centre, out=centred, casting="same_kind")  # without another copy
    scale = float(np.sqrt(np.dot(centred, centred) / len(centred))) or 1.0
    centred /= scale
    rows, cols = entries.rows, entries.cols
    return Observed(
        _lines(rows, cols, centred, held_out, entries.shape),
        _lines(cols, rows, centred, held_out, entries.shape[::-1]),
        centre,
        scale,
    )


def few_rows(entries: Entries, held_out: np.ndarray, share: float) -> tuple[Entries, np.ndarray]:
    """The entries of a random share of the rows, or of the columns if there are more of them."""
    axis = int(entries.shape[1] > entries.shape[0])
    chosen = np.random.default_rng(0).random(entries.shape[axis]) < share
    keep = chosen[entries[axis]]
    new = np.cumsum(chosen, dtype=np.int32) - 1
    places = [part[keep] for part in entries[:2]]
    places[axis] = new[places[axis]]
    shape = list(entries.shape)
    shape[axis] = max(int(chosen.sum()), 1)
    return Entries(places[0], places[1], entries.values[keep], (shape[0], shape[1])), held_out[keep]


def _lines(own: np.ndarray, other: np.ndarray, values: np.ndarray, held_out: np.ndarray, shape: Any) -> Lines:
    # Two rows for each one, the second with what is held out: scipy then sorts both apart in linear time.
    doubled = 2 * own.astype(np.int32) + held_out
    matrix = scipy.sparse.coo_matrix((values, (doubled, other)), shape=(2 * shape[0], shape[1])).tocsr()
    starts, middles, ends = (np.ascontiguousarray(matrix.indptr[a:b:2]) for a, b in ((0, -1), (1, None), (2, None)))
    return Lines(starts, middles, ends, matrix.indices, matrix.data)
