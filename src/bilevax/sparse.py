"""Matrices known on some entries: products with them and entries of low-rank matrices there, on the host.

scipy's kernels on numpy views are five to twenty times as fast as XLA's scatter on a CPU, and a view costs nothing.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import scipy.sparse
import scipy.sparse.linalg
from jaxtyping import Array, Float, Int

Values = Float[Array, " nnz"]
CHUNK = 1 << 16
"""Entries sampled at once: the two gathered factors then stay in cache."""


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

    def sample(self, left: Float[Array, "p r"] | np.ndarray, right: Float[Array, "q r"] | np.ndarray) -> np.ndarray:
        """The entries of `left @ right.T`."""
        left, right, rows, cols = (np.asarray(v) for v in (left, right, self.rows, self.cols))
        found = np.empty(self.size, np.result_type(left, right))
        for begin in range(0, self.size, CHUNK):
            part = slice(begin, begin + CHUNK)
            np.einsum("ij,ij->i", left[rows[part]], right[cols[part]], out=found[part])
        return found


def pattern(rows: Any, cols: Any, shape: tuple[int, int]) -> tuple[Pattern, np.ndarray]:
    """The pattern of some entries in any order, and the order that sorts them."""
    rows, cols = np.asarray(rows), np.asarray(cols)
    order = np.lexsort((cols, rows))
    rows, cols = rows[order].astype(np.int32), cols[order].astype(np.int32)
    if np.any((rows[1:] == rows[:-1]) & (cols[1:] == cols[:-1])):
        raise ValueError("pattern: an entry is there twice; keep one of each pair of row and column.")
    starts = np.searchsorted(rows, np.arange(shape[0] + 1)).astype(np.int32)
    return Pattern(jnp.asarray(rows), jnp.asarray(cols), jnp.asarray(starts), shape), order


def top_pair(
    matrix: scipy.sparse.csr_matrix, start: np.ndarray, tol: float, max_products: int
) -> tuple[float, np.ndarray, np.ndarray, float]:
    """The largest singular value with its vectors, and a bound on how far below the largest it may be.

    ARPACK on A^T A, or A A^T where that is smaller, from `start` (zeros if there is none).
    """
    tall = matrix.shape[0] >= matrix.shape[1]
    A = matrix if tall else matrix.T.tocsr()
    n = A.shape[1]
    size = float(np.abs(A.data).max(initial=0.0))
    if size == 0.0:  # every matrix is as good as zero
        return 0.0, np.zeros(matrix.shape[0], A.dtype), np.zeros(matrix.shape[1], A.dtype), 0.0
    back = A.T
    product = lambda v: back @ (A @ v)  # noqa: E731
    if n < 12:
        _, vectors = np.linalg.eigh((back @ A).toarray())
        v = vectors[:, -1]
    else:
        operator = scipy.sparse.linalg.LinearOperator((n, n), matvec=product, dtype=A.dtype)
        # A dose of noise: no warm start may hide the leading direction.
        noise = np.random.default_rng(20231).standard_normal(n)
        warm = start / np.linalg.norm(start) if np.any(start) else start
        guess = (warm + noise / np.linalg.norm(noise)).astype(A.dtype)
        try:
            _, vectors = scipy.sparse.linalg.eigsh(
                operator, k=1, which="LA", v0=guess, tol=tol, ncv=min(n, 10), maxiter=max(1, max_products // 9)
            )
            v = vectors[:, 0]
        except scipy.sparse.linalg.ArpackNoConvergence as failed:
            v = failed.eigenvectors[:, 0] if failed.eigenvectors.size else guess / np.linalg.norm(guess)
    Av = A @ v
    value = float(np.linalg.norm(Av))
    residual = float(np.linalg.norm(back @ Av - value**2 * v))
    u = Av / value if value > 0 else np.zeros(A.shape[0], A.dtype)
    error = residual / value if value > 0 else 0.0
    return value, *((u, v) if tall else (v, u)), error
