"""How the coefficients of tasks vary and what they share, as a Gaussian prior, and what rows then say about them.

    w_t = s_t + sum over q of u_tq z_q,   s_tf ~ N(0, own_tf),   z_qf ~ N(0, shared_qf)

s_t belongs to the task alone, z_q to all tasks; the loading u_tq says how strongly task t uses it. Tasks are linked by
cov(w_tf, w_rf) = sum over q of u_tq u_rq shared_qf. Only the moments of the rows are read.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np


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
    """The parts given rows with noise of variance 1. What is costly is computed on request."""

    def __init__(self, rows: Moments, prior: Prior) -> None:
        (T, d), U, Q = rows.h.shape, prior.loadings, prior.loadings.shape[1]
        self._rows, self._loadings = rows, U
        # Own parts out: row sums weighted by the inverse of I + A_t diag(own) A_t^T. Roots of the variances keep the
        # matrices symmetric, and a variance of zero harmless.
        root = np.sqrt(prior.own)
        inner = np.linalg.inv(np.eye(d) + root[:, :, None] * rows.G * root[:, None, :])
        self._P = root[:, :, None] * inner * root[:, None, :]
        self._B = self._P @ rows.G
        C = rows.G - rows.G @ self._B
        self.matrix = 0.5 * (C + C.swapaxes(1, 2))
        """Of the least squares problem of the shared part of each task, own parts integrated out."""
        self.right = rows.h - np.einsum("tji,tj->ti", self._B, rows.h)
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
        self.own = np.einsum("tij,tj->ti", self._P, rows.h - np.einsum("tij,tj->ti", rows.G, middle))
        """Expected s, tasks by features."""
        self.coefficients = middle + self.own
        """Expected w, tasks by features."""

    @cached_property
    def _task_spread(self) -> np.ndarray:
        """Covariance of the shared part of each task."""
        return (self._pairs @ self.shared_spread).reshape(self._P.shape)

    def own_variances(self) -> np.ndarray:
        """Of s, tasks by features."""
        return np.einsum("tii->ti", self._P) + np.sum((self._B @ self._task_spread) * self._B, axis=2)

    def spread(self) -> np.ndarray:
        """Covariance of w_t, tasks by features by features."""
        rest = np.eye(self._P.shape[1]) - self._B
        return self._P + rest @ self._task_spread @ rest.swapaxes(1, 2)

    def slope_covariances(self) -> np.ndarray:
        """The sum over all features but the last of the covariance of w_t and w_r, tasks by tasks."""
        T, d = self.own.shape
        Q = self._loadings.shape[1]
        values, vectors = np.linalg.eigh(self._joint_spread)
        root = (vectors * np.sqrt(np.maximum(values, 0.0))).reshape(Q, d, Q * d)
        rest = (np.eye(d) - self._B)[:, :-1]
        parts = rest @ np.einsum("tq,qfk->tfk", self._loadings, root)
        flat = parts.reshape(T, -1)
        return flat @ flat.T + np.diag(np.einsum("tff->tf", self._P)[:, :-1].sum(axis=1))

    def uncertain_errors(self) -> np.ndarray:
        """What the uncertainty of w_t adds to the expected sum of squared errors of each task."""
        rest = self.matrix - self.matrix @ self._B
        return np.einsum("tii->t", self._B) + np.sum(rest * self._task_spread, axis=(1, 2))
