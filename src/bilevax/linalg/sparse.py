"""The places at which a matrix is known, as arrays of JAX; the work with them is done on the host."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import scipy
from jaxtyping import Array, Float, Int

from bilevax.linalg.low_rank import Operator
from bilevax.linalg.row_blocks import row_blocks, sample

Values = Float[Array, " nnz"]


class Pattern(eqx.Module):
    """The entries (rows[i], cols[i]) of a matrix, sorted by row and then by column, none twice."""

    rows: Int[Array, " nnz"]
    cols: Int[Array, " nnz"]
    starts: Int[Array, " p+1"]
    """Where each row begins."""
    shape: tuple[int, int] = eqx.field(static=True)

    @property
    def size(self) -> int:
        """How many entries are known."""
        return int(self.cols.shape[0])

    def matrix(self, values: Values | np.ndarray) -> scipy.sparse.csr_matrix:
        """The sparse matrix with these values; shares their memory."""
        parts = (np.asarray(values), np.asarray(self.cols), np.asarray(self.starts))
        return scipy.sparse.csr_matrix(parts, shape=self.shape, copy=False)

    def operator(self, values: np.ndarray) -> Operator:
        """The sparse matrix with these values by its products, row blocks side by side on several cores."""
        return row_blocks(np.asarray(self.starts), np.asarray(self.cols), values, self.shape)

    def sample(self, left: Float[Array, "p r"] | np.ndarray, right: Float[Array, "q r"] | np.ndarray) -> np.ndarray:
        """The entries of `left @ right.T`."""
        left, right = (np.ascontiguousarray(v) for v in (left, right))
        return sample(np.asarray(self.rows), np.asarray(self.cols), left, right)

    def scaled(self, values: np.ndarray, by_row: np.ndarray, by_col: np.ndarray) -> np.ndarray:
        """Each value times the numbers of its row and of its column."""
        return values * by_row[np.asarray(self.rows)] * by_col[np.asarray(self.cols)]

    def spread(self, by_row: np.ndarray, by_col: np.ndarray) -> np.ndarray:
        """The number of its row plus that of its column for each entry."""
        return by_row[np.asarray(self.rows)] + by_col[np.asarray(self.cols)]


def sorted_pattern(rows: Any, cols: Any, shape: tuple[int, int]) -> tuple[Pattern, np.ndarray]:
    """The pattern of some entries in any order, and the order that sorts them."""
    rows, cols = np.asarray(rows), np.asarray(cols)
    order = np.lexsort((cols, rows))
    rows, cols = rows[order].astype(np.int32), cols[order].astype(np.int32)
    if np.any((rows[1:] == rows[:-1]) & (cols[1:] == cols[:-1])):
        raise ValueError("sorted_pattern: an entry is there twice; keep one of each pair of row and column.")
    starts = np.searchsorted(rows, np.arange(shape[0] + 1)).astype(np.int32)
    return Pattern(jnp.asarray(rows), jnp.asarray(cols), jnp.asarray(starts), shape), order
