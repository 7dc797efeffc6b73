"""How the coefficients of tasks vary and what they share, as a Gaussian prior, and what rows then say about them.

    w_t = s_t + sum over q of u_tq z_q,   s_tf ~ N(0, own_tf),   z_qf ~ N(0, shared_qf)

s_t belongs to the task alone, z_q to all tasks; the loading u_tq says how strongly task t uses it. Tasks are linked by
cov(w_tf, w_rf) = sum over q of u_tq u_rq shared_qf. Only the moments of the rows are read.
"""

from __future__ import annotations

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

    def covariance(self) -> np.ndarray:
        """Of the tasks, averaged over features."""
        linked = (self.loadings * self.shared.mean(axis=1)) @ self.loadings.T
        return linked + np.diag(self.own.mean(axis=1))


class Posterior(NamedTuple):
    """The parts given the rows; what is large stays in the form that the next formula needs."""

    own: np.ndarray
    """Expected s, tasks by features."""
    shared: np.ndarray
    """Expected z, shared parts by features."""
    own_spread: np.ndarray
    """Covariance of s_t, tasks by features by features."""
    shared_spread: np.ndarray
    """Covariance of z, (parts * parts) by (features * features)."""
    spread: np.ndarray
    """Covariance of w_t, tasks by features by features."""
    coefficients: np.ndarray
    """Expected w, tasks by features."""
    left: tuple[np.ndarray, np.ndarray]
    """Matrix and vector of the least squares problem of the shared part of each task, own parts integrated out."""


def posterior(rows: Moments, prior: Prior) -> Posterior:
    """The parts, if the rows have noise of variance 1."""
    T, d = rows.h.shape
    U, Q = prior.loadings, prior.loadings.shape[1]
    # Own parts out: row sums weighted by the inverse of I + A_t diag(own) A_t^T. Roots of the variances keep the
    # matrices symmetric, and a variance of zero harmless.
    root = np.sqrt(prior.own)
    inner = np.linalg.inv(np.eye(d) + root[:, :, None] * rows.G * root[:, None, :])
    P = root[:, :, None] * inner * root[:, None, :]
    B = P @ rows.G
    rest = np.eye(d) - B
    C = rows.G @ rest
    C = 0.5 * (C + C.swapaxes(1, 2))
    g = np.einsum("tji,tj->ti", rest, rows.h)
    if Q == 0:
        s = np.einsum("tij,tj->ti", P, rows.h)
        return Posterior(s, np.zeros((0, d)), P, np.zeros((0, d * d)), P, s, (C, g))
    weights = (U[:, :, None] * U[:, None, :]).reshape(T, Q * Q)
    matrix = (weights.T @ C.reshape(T, d * d)).reshape(Q, Q, d, d).swapaxes(1, 2).reshape(Q * d, Q * d)
    size = np.sqrt(prior.shared).reshape(Q * d)
    covariance = np.linalg.inv(np.eye(Q * d) + size[:, None] * matrix * size)
    covariance = size[:, None] * covariance * size
    z = (covariance @ (U.T @ g).reshape(Q * d)).reshape(Q, d)
    covariance = covariance.reshape(Q, d, Q, d).swapaxes(1, 2).reshape(Q * Q, d * d)
    of_shared = (weights @ covariance).reshape(T, d, d)
    middle = U @ z
    s = np.einsum("tij,tj->ti", P, rows.h - np.einsum("tij,tj->ti", rows.G, middle))
    own_spread = P + B @ of_shared @ B.swapaxes(1, 2)
    spread = P + rest @ of_shared @ rest.swapaxes(1, 2)
    return Posterior(s, z, own_spread, covariance, spread, middle + s, (C, g))
