"""How the coefficients of tasks vary and what they share, as a Gaussian prior, and what rows then say about them.

    w_t = s_t + sum over q of u_tq z_q,   s_tf ~ N(0, own_tf),   z_qf ~ N(0, shared_qf)

s_t belongs to the task alone, z_q to all tasks; the loading u_tq says how strongly task t uses it. Tasks are linked by
cov(w_tf, w_rf) = sum over q of u_tq u_rq shared_qf. Only the moments of the rows are read.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np

_NO_ROW = 1e-14
"""Eigenvalues of G below this share of the largest are rounding errors."""


class Moments(NamedTuple):
    """What the squared loss needs of the rows of each task."""

    G: np.ndarray
    """A^T A, tasks by features by features."""
    h: np.ndarray
    """A^T b, tasks by features."""
    const: np.ndarray
    """b^T b"""
    rows: np.ndarray
    """How many there are, or the sum of their weights."""

    def scaled(self, factors: np.ndarray) -> Moments:
        """With the rows of each task multiplied by the root of its factor; their number stays."""
        return Moments(self.G * factors[:, None, None], self.h * factors[:, None], self.const * factors, self.rows)

    def roots(self) -> np.ndarray:
        """A with A^T A = G for each task, with as few rows as the task with the most needs."""
        values, vectors = np.linalg.eigh(self.G)
        kept = values > _NO_ROW * values[:, -1:]
        most = max(int(kept.sum(axis=1).max()), 1)
        sizes = np.sqrt(np.where(kept, values, 0.0))[:, -most:]
        roots: np.ndarray = sizes[:, :, None] * vectors[:, :, -most:].swapaxes(1, 2)
        return roots

    def __sub__(self, other: Moments) -> Moments:
        return Moments(*(all_rows - some for all_rows, some in zip(self, other, strict=True)))


class Prior(NamedTuple):
    """The numbers of the formula above."""

    own: np.ndarray
    """Variances, tasks by features."""
    loadings: np.ndarray
    """u, tasks by shared parts."""
    shared: np.ndarray
    """Variances, shared parts by features."""

    def resized(self, own: float, shared: np.ndarray) -> Prior:
        """With variances multiplied by these factors, one for the own parts and one for each shared part."""
        return Prior(own * self.own, self.loadings, np.asarray(shared)[:, None] * self.shared)


class Posterior:
    """The parts given rows with noise of variance 1. What is costly is computed on request.

    A task with fewer rows than features has a G of low rank. All that is needed of it goes through `roots`, so that no
    product costs more than its rows times the square of its features.
    """

    def __init__(self, rows: Moments, prior: Prior, roots: np.ndarray | None = None) -> None:
        """`roots` are `rows.roots()`, where they are known."""
        (T, d), U, Q = rows.h.shape, prior.loadings, prior.loadings.shape[1]
        A = rows.roots() if roots is None else roots
        self._loadings, self._own = U, prior.own
        # Own parts out: rows weighted by the inverse of I + A diag(own) A^T.
        half = np.linalg.cholesky(np.eye(A.shape[1]) + (A * prior.own[:, None, :]) @ A.swapaxes(1, 2))
        self._A = np.linalg.solve(half, A)
        self.matrix = self._A.swapaxes(1, 2) @ self._A
        """Of the least squares problem of the shared part of each task, own parts integrated out."""
        self.right = rows.h - self._times(prior.own * rows.h)
        """The vector of that problem."""
        self._pairs = (U[:, :, None] * U[:, None, :]).reshape(T, Q * Q)
        normal = (self._pairs.T @ self.matrix.reshape(T, d * d)).reshape(Q, Q, d, d).swapaxes(1, 2)
        size = np.sqrt(prior.shared).reshape(Q * d)
        spread = np.linalg.inv(np.eye(Q * d) + size[:, None] * normal.reshape(Q * d, Q * d) * size)
        spread = size[:, None] * spread * size
        self._joint_spread = spread
        self.shared = (spread @ (U.T @ self.right).reshape(Q * d)).reshape(Q, d)
        """Expected z, shared parts by features."""
        self.shared_spread = spread.reshape(Q, d, Q, d).swapaxes(1, 2).reshape(Q * Q, d * d)
        """Covariance of z, (parts * parts) by (features * features)."""
        middle = U @ self.shared
        self.own = prior.own * (self.right - self._times(middle))
        """Expected s, tasks by features."""
        self.coefficients = middle + self.own
        """Expected w, tasks by features."""

    def _times(self, v: np.ndarray) -> np.ndarray:
        """The matrix of each task times its vector."""
        product: np.ndarray = np.einsum("tij,ti->tj", self._A, np.einsum("tij,tj->ti", self._A, v))
        return product

    @cached_property
    def _task_spread(self) -> np.ndarray:
        """Covariance of the shared part of each task."""
        T, d = self.own.shape
        return (self._pairs @ self.shared_spread).reshape(T, d, d)

    @cached_property
    def _row_spread(self) -> np.ndarray:
        """What the rows of each task see of it."""
        spread: np.ndarray = self._A @ self._task_spread @ self._A.swapaxes(1, 2)
        return spread

    def own_variances(self) -> np.ndarray:
        """Of s, tasks by features."""
        seen = np.sum((self._row_spread @ self._A - self._A) * self._A, axis=1)
        return self._own + self._own**2 * seen

    def spread(self) -> np.ndarray:
        """Covariance of w_t, tasks by features by features."""
        D = self._own[:, :, None]
        rest = np.eye(D.shape[1]) - D * self.matrix
        own = np.eye(D.shape[1]) * D - D * self.matrix * D.swapaxes(1, 2)
        return own + rest @ self._task_spread @ rest.swapaxes(1, 2)

    def slope_covariances(self) -> np.ndarray:
        """The sum over all features but the last of the covariance of w_t and w_r, tasks by tasks."""
        T, d = self.own.shape
        Q = self._loadings.shape[1]
        values, vectors = np.linalg.eigh(self._joint_spread)
        root = (vectors * np.sqrt(np.maximum(values, 0.0))).reshape(Q, d, Q * d)
        rest = (np.eye(d) - self._own[:, :, None] * self.matrix)[:, :-1]
        parts = rest @ np.einsum("tq,qfk->tfk", self._loadings, root)
        flat = parts.reshape(T, -1)
        own = self._own - self._own**2 * np.einsum("tff->tf", self.matrix)
        return flat @ flat.T + np.diag(own[:, :-1].sum(axis=1))

    def uncertain_errors(self) -> np.ndarray:
        """What the uncertainty of w_t adds to the expected sum of squared errors of each task."""
        inner = (self._A * self._own[:, None, :]) @ self._A.swapaxes(1, 2)
        own = np.einsum("tii->t", inner)
        return own + np.einsum("tii->t", self._row_spread) - np.sum(inner * self._row_spread, axis=(1, 2))
