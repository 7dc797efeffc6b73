"""What the rows themselves say about how tasks are linked, by expectation and maximization.

    b_t = A_t w_t + noise,   w_t = s_t + sum over q of u_tq z_q,   s_t ~ N(0, diag(own)),   z_q ~ N(0, shared_q I)

The first loading is 1 for every task, so that z_0 is the mean of the tasks. The parts s and z are integrated out, the
loadings u are maximized with a N(0, 1) prior. The variance of a shared part that the rows do not need shrinks, but
slowly, so that a few numbers of parts should be compared. Only the moments of the rows are read.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

_PATIENCE = 20  # iterations before a shared part may shrink: its loadings have to find their direction first
_FLOOR = 1e-9  # of a variance, relative to that of the targets: without it, parts that vanish divide by zero


class Links(NamedTuple):
    """How tasks are linked."""

    loadings: np.ndarray
    """u, tasks by shared parts; the first column is 1."""
    shared: np.ndarray
    """The variance of the entries of each shared part."""
    own: np.ndarray
    """The variance of the own part of a task, for each feature."""
    noise: float
    coefficients: np.ndarray
    """The expected w, tasks by features."""


def estimate_links(
    G: np.ndarray,
    h: np.ndarray,
    const: np.ndarray,
    rows: np.ndarray,
    n_shared: int,
    *,
    per_feature: bool = False,
    iterations: int = 100,
    tol: float = 1e-5,
) -> Links:
    """Estimate from A^T A, A^T b, b^T b and the number of rows of each task.

    `n_shared` counts the shared parts besides the mean. With `per_feature`, each feature has a variance of its own.
    """
    T, d = h.shape
    Q, eye = n_shared + 1, np.eye(d)
    target = const.sum() / rows.sum()
    size = max(np.trace(G, axis1=1, axis2=2).sum() / rows.sum(), 1e-300)  # mean of |a|^2
    floor = _FLOOR * target / size
    noise, own = 0.5 * target, np.full(d, 0.5 * target / size)
    shared, loadings = np.full(Q, own[0]), np.ones((T, Q))
    loadings[:, 1:] = _first_loadings(G, h, n_shared)
    for k in range(iterations):
        # Own parts out: row sums weighted by the inverse of noise + A_t diag(own) A_t^T.
        P = np.linalg.inv(G / noise + np.diag(1 / own))
        B = P @ G / noise
        rest = eye - B
        C, g = G @ rest / noise, np.einsum("tji,tj->ti", rest, h) / noise
        C = 0.5 * (C + C.swapaxes(1, 2))
        # The shared parts, given the loadings.
        weights = (loadings[:, :, None] * loadings[:, None, :]).reshape(T, Q * Q)
        matrix = (weights.T @ C.reshape(T, d * d)).reshape(Q, Q, d, d).swapaxes(1, 2).reshape(Q * d, Q * d)
        covariance = np.linalg.inv(matrix + np.diag(np.repeat(1 / shared, d)))
        Z = (covariance @ (loadings.T @ g).reshape(Q * d)).reshape(Q, d)
        covariance = covariance.reshape(Q, d, Q, d).swapaxes(1, 2).reshape(Q * Q, d * d)
        second = covariance + (Z[:, None, :, None] * Z[None, :, None, :]).reshape(Q * Q, d * d)
        spread = (weights @ covariance).reshape(T, d, d)  # of the shared part of each task
        middle = loadings @ Z
        s = np.einsum("tij,tj->ti", P, h - np.einsum("tij,tj->ti", G, middle)) / noise
        # Variances.
        around = P + B @ spread @ B.swapaxes(1, 2)
        variances = np.mean(s**2 + np.einsum("tii->ti", around), axis=0)
        own = np.maximum(variances if per_feature else np.full(d, variances.mean()), floor)
        sizes = np.einsum("qii->q", second.reshape(Q, Q, d, d)[range(Q), range(Q)]) / d
        shared = np.maximum(sizes, floor if k >= _PATIENCE else np.mean(own))
        # Loadings, scaled to mean square 1.
        if n_shared:
            quadratic = (C.reshape(T, d * d) @ second.T).reshape(T, Q, Q)
            linear = g @ Z.T
            u = np.linalg.solve(
                quadratic[:, 1:, 1:] + np.eye(n_shared), (linear[:, 1:] - quadratic[:, 1:, 0])[..., None]
            )[..., 0]
            scale = np.sqrt(np.mean(u**2, axis=0)) + 1e-12
            loadings[:, 1:] = u / scale
            if k >= _PATIENCE:
                shared[1:] = np.maximum(shared[1:] * scale**2, floor)
        # Noise.
        W = middle + s
        uncertain = P + rest @ spread @ rest.swapaxes(1, 2)
        errors = const - 2 * np.sum(W * h, axis=1) + np.einsum("ti,tij,tj->t", W, G, W, optimize=True)
        before, noise = noise, max((errors + np.einsum("tij,tji->t", G, uncertain)).sum() / rows.sum(), 1e-12 * target)
        if k > _PATIENCE and abs(noise - before) < tol * noise:
            break
    return Links(loadings, shared, own, float(noise), W)


def _first_loadings(G: np.ndarray, h: np.ndarray, count: int) -> np.ndarray:
    """Leading directions in which ridge regressions of single tasks differ."""
    T, d = h.shape
    ridge = 0.3 * np.trace(G, axis1=1, axis2=2) / d + 1e-300
    W = np.linalg.solve(G + ridge[:, None, None] * np.eye(d), h[..., None])[..., 0]
    left = np.linalg.svd(W - W.mean(axis=0), full_matrices=False)[0]
    found = np.zeros((T, count))
    found[:, : min(count, left.shape[1])] = np.sqrt(T) * left[:, :count]
    return found
