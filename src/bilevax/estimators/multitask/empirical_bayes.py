"""The prior that makes the rows most likely, by expectation and maximization.

The first shared part is the mean of the tasks: its loading is 1 for every task. Own and shared parts are integrated
out, the other loadings are maximized with a N(0, 1) prior. The variance of a shared part that the rows do not need
shrinks, but slowly, so that a few numbers of parts should be compared.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from bilevax.estimators.multitask.prior import Moments, Posterior, Prior

_PATIENCE = 20  # iterations before a shared part may shrink: its loadings have to find their direction first
_FLOOR = 1e-8  # of a variance, relative to that of the targets: parts that vanish must not divide by zero
_EXACT = 1e-7  # of the noise, likewise: below, rounding errors would decide what the exact solutions are worth
_TYPICAL = 4.0  # features whose worth the size of the own part of one task borrows from the other tasks


class Links(NamedTuple):
    """The prior, and the noise of each task."""

    prior: Prior
    noise: np.ndarray
    """Variances; with rows divided by their roots, the prior holds for noise of variance 1."""
    coefficients: np.ndarray
    """Expected w, tasks by features."""


def estimate_links(
    rows: Moments,
    n_shared: int | None,
    groups: np.ndarray,
    *,
    noise_by_task: bool = False,
    fixed_noise: bool = False,
    iterations: int = 100,
    tol: float = 1e-5,
    stop: Callable[[], Any] = lambda: None,
) -> Links:
    """Estimate a prior.

    Args:
        rows: moments of the rows of each task.
        n_shared: shared parts besides the mean; None for own parts alone, whose size each task has for itself.
        groups: the group of each feature, from 0; features of a group have one variance of their own parts.
        noise_by_task: whether tasks may differ in their noise, as far as the rows show it.
        fixed_noise: whether the noise is known to have variance 1.
        iterations, tol: it ends after so many, or when the noise changes by less than this share.
        stop: it also ends, with what it has, when this is not None.
    """
    T, d = rows.h.shape
    target = max(rows.const.sum() / rows.rows.sum(), 1e-300)
    size = max(np.trace(rows.G, axis1=1, axis2=2).sum() / rows.rows.sum(), 1e-300)  # mean of |a|^2
    start, floor = 0.5 * target / size, _FLOOR * target / size
    noise = np.full(T, 1.0 if fixed_noise else 0.5 * target)
    prior, roots = _first_prior(rows, n_shared, start), rows.roots()

    def posterior() -> Posterior:
        return Posterior(rows.scaled(1 / noise), prior, roots / np.sqrt(noise)[:, None, None])

    for k in range(iterations):
        if stop() is not None:
            break
        found = posterior()
        before = noise
        if not fixed_noise:
            noise = np.maximum(_noise(rows, found, noise, noise_by_task), _EXACT * target)
        patient = bool(n_shared) and k < _PATIENCE
        prior = _next_prior(found, prior, n_shared, groups, floor, patient, rows)
        if not patient and not fixed_noise and abs(np.mean(np.log(noise / before))) < tol:
            break
    found = posterior()
    return Links(prior, noise, found.coefficients)


def _first_prior(rows: Moments, n_shared: int | None, start: float) -> Prior:
    T, d = rows.h.shape
    own = np.full((T, d), start)
    if n_shared is None:
        return Prior(own, np.zeros((T, 0)), np.zeros((0, d)))
    loadings = np.column_stack([np.ones(T), _first_loadings(rows, n_shared)])
    return Prior(own, loadings, np.full((n_shared + 1, d), start))


def _first_loadings(rows: Moments, count: int) -> np.ndarray:
    """Leading directions in which ridge regressions of single tasks differ."""
    T, d = rows.h.shape
    ridge = 0.3 * np.trace(rows.G, axis1=1, axis2=2) / d + 1e-300
    W = np.linalg.solve(rows.G + ridge[:, None, None] * np.eye(d), rows.h[..., None])[..., 0]
    left = np.linalg.svd(W - W.mean(axis=0), full_matrices=False)[0]
    loadings = np.zeros((T, count))
    loadings[:, : min(count, left.shape[1])] = np.sqrt(T) * left[:, :count]
    return loadings


def _noise(rows: Moments, found: Posterior, noise: np.ndarray, by_task: bool) -> np.ndarray:
    """Expected squared errors; those of single tasks as far as they differ more than their rows explain."""
    W = found.coefficients
    errors = rows.const - 2 * np.sum(W * rows.h, axis=1) + np.einsum("ti,tij,tj->t", W, rows.G, W, optimize=True)
    errors = np.maximum(errors, 0) + noise * found.uncertain_errors()
    count = rows.rows.sum()
    common = errors.sum() / count
    if not by_task:
        return np.full(len(errors), common)
    single = errors / np.maximum(rows.rows, 1e-300)
    share = rows.rows / count
    varies = np.sum(share * (single - common) ** 2) - 2 * common**2 * len(errors) / count  # the rest is chance
    known = 2 * common**2 / max(varies, 1e-12 * common**2)  # rows that the common noise is worth
    return (errors + known * common) / (rows.rows + known)


def _sizes_of_tasks(squares: np.ndarray, counts: np.ndarray, rows: Moments) -> np.ndarray:
    """Variances of tasks that share nothing; in units of its target, a task with few features is like the others."""
    unit = _variances(rows)[:, None]
    sizes = np.maximum(squares / counts / unit, 1e-12)
    typical = np.exp(np.log(sizes).mean(axis=0))
    return unit * (counts * sizes + _TYPICAL * typical) / (counts + _TYPICAL)


def _variances(rows: Moments) -> np.ndarray:
    """The variance of the target within each task; the last feature is 1. Tasks of one row are like the others."""
    weights = np.maximum(rows.G[:, -1, -1], 1e-300)
    squares = np.maximum(rows.const - rows.h[:, -1] ** 2 / weights, 0.0)
    common = max(squares.sum(), 1e-12 * rows.const.sum(), 1e-300) / weights.sum()
    one_row = weights / np.maximum(rows.rows, 1e-300)
    return (squares + one_row * common) / (weights + one_row)


def _next_prior(
    found: Posterior,
    prior: Prior,
    n_shared: int | None,
    groups: np.ndarray,
    floor: float,
    patient: bool,
    rows: Moments,
) -> Prior:
    T, d = found.own.shape
    by_group = np.eye(groups.max() + 1)[groups]
    squares = (found.own**2 + found.own_variances()) @ by_group
    counts = by_group.sum(axis=0)
    if n_shared is None:
        sizes = _sizes_of_tasks(squares, counts, rows)
    else:
        sizes = np.tile(squares.mean(axis=0) / counts, (T, 1))
    own = np.maximum(sizes @ by_group.T, floor)
    if n_shared is None:
        return Prior(own, prior.loadings, prior.shared)
    Q = n_shared + 1
    second = found.shared_spread + (found.shared[:, None, :, None] * found.shared[None, :, None, :]).reshape(
        Q * Q, d * d
    )
    sizes = np.einsum("qii->q", second.reshape(Q, Q, d, d)[range(Q), range(Q)]) / d
    sizes = np.maximum(sizes, np.mean(own) if patient else floor)
    loadings = prior.loadings.copy()
    if n_shared:
        quadratic = (found.matrix.reshape(T, d * d) @ second.T).reshape(T, Q, Q)
        right = found.right @ found.shared[1:].T - quadratic[:, 1:, 0]
        u = np.linalg.solve(quadratic[:, 1:, 1:] + np.eye(n_shared), right[..., None])[..., 0]
        scale = np.sqrt(np.mean(u**2, axis=0)) + 1e-12  # loadings have mean square 1
        loadings[:, 1:] = u / scale
        if not patient:
            sizes[1:] = np.maximum(sizes[1:] * scale**2, floor)
    return Prior(own, loadings, np.tile(sizes[:, None], (1, d)))
