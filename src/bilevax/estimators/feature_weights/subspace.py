"""From exact fits at a few points to the small bilevel problem that `solve` works on.

The directions of fold k are the fits at the last points and their derivatives in level and adaptivity. The problem in
their span has the same value and the same gradient at these points as the whole problem. They are made orthonormal in
the Hessian of the lower level at the last point, so that the small lower level is well conditioned.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from bilevax.estimators.feature_weights.losses import Loss
from bilevax.estimators.feature_weights.regression import Design, Regression

POINTS = 3
"""How many points span the subspace."""
BINS = 512
"""How many values the profile has: logarithms of weights are rounded to about 0.02."""
_DEPENDENT = 1e-7
"""Directions of less than this share of the largest are left out: their rounding errors, divided by it, would count."""


class Folds(NamedTuple):
    """The K regressions with held-out rows; the last one has all rows."""

    regressions: list[Regression]
    number: np.ndarray
    """The fold that holds each row out."""
    rows: np.ndarray
    """The weights of the rows in the upper level; they add up to 1."""

    @property
    def held_out(self) -> list[Regression]:
        """The regressions of the folds."""
        return self.regressions[:-1]

    @property
    def design(self) -> Design:
        """The features of all rows."""
        return self.regressions[-1].design

    @property
    def loss(self) -> Loss:
        """That of every regression."""
        return self.regressions[-1].loss

    @property
    def targets(self) -> np.ndarray:
        """One column for each output."""
        return self.regressions[-1].T

    def own(self, scores: np.ndarray) -> np.ndarray:
        """Of scores (K, n, ...) those by the fold that holds the row out."""
        return scores[self.number, np.arange(len(self.number))]


class Profile(NamedTuple):
    """The weights of one stage: log weight = base + level + adaptivity * steps[place], for K folds and all rows."""

    base: np.ndarray
    steps: np.ndarray
    place: np.ndarray
    variance: np.ndarray
    """Of the held-out scores, times pi / 8, in one column; 0 where probabilities are not moderated."""
    dispersion: float
    """The noise variance: 1 for log losses."""

    @property
    def adaptive(self) -> bool:
        """Whether the profile has more than a level."""
        return bool(np.any(self.steps))

    def log_weights(self, k: int, level: float, adaptivity: float) -> np.ndarray:
        """Those of fold k."""
        return self.base[k] + level + adaptivity * self.steps[self.place[k]]


class Point(NamedTuple):
    """The exact fits at one x."""

    level: float
    adaptivity: float
    fits: np.ndarray
    """K fits and two derivatives of each, (K, 3, d + 1, C)."""
    scores: np.ndarray
    """Theirs at all rows, (K, n, C, 3)."""


def evaluate(folds: Folds, profile: Profile, level: float, adaptivity: float, start: np.ndarray, tol: float) -> Point:
    """Fit all folds at x, from the fits `start` (K, d + 1, C)."""
    fits, scores = [], []
    for k, regression in enumerate(folds.held_out):
        weights = profile.log_weights(k, level, adaptivity)
        P = regression.fit(weights, start[k], tol)
        along = [np.ones_like(weights), profile.steps[profile.place[k]]]
        vectors = [P, *regression.tangents(P, weights, along)]
        fits.append(np.stack(vectors))
        scores.append(np.stack([folds.design.scores(V) for V in vectors], axis=-1))
    return Point(level, adaptivity, np.stack(fits), np.stack(scores))


def reduced(folds: Folds, profile: Profile, points: list[Point], prior: float) -> tuple[dict[str, Any], np.ndarray]:
    """The data of `bilevax.problems.weight_profile`, and the coordinates of the last fit."""
    points = points[-POINTS:]
    K, n, C, _ = points[-1].scores.shape
    J = 3 * POINTS
    scores, penalties, fixed = np.zeros((K, n, C, J)), np.zeros((K, BINS, J, J)), np.zeros((K, J, J))
    start = np.zeros((K, J))
    for k, regression in enumerate(folds.held_out):
        vectors = np.concatenate([point.fits[k] for point in points])
        rows = np.concatenate([point.scores[k] for point in points], axis=-1)
        at_bins = _penalties(vectors, profile.base[k], profile.place[k])
        of_intercept = regression.with_intercept(profile.base[k])[-1] * vectors[:, -1] @ vectors[:, -1].T
        last = points[-1]
        Z = last.scores[k, ..., 0]
        bent = np.stack([regression.loss.curved(Z, rows[..., j]) for j in range(rows.shape[-1])], axis=-1)
        weights = np.exp(last.level + last.adaptivity * profile.steps)
        H = np.einsum("ncj,nci->ji", rows, regression.rows[..., None] * bent)
        H = H + np.tensordot(weights, at_bins, 1) + of_intercept
        size = np.sqrt(np.maximum(np.diag(H), np.finfo(float).tiny))
        values, turn = np.linalg.eigh(H / size[:, None] / size)
        kept = values > _DEPENDENT * values[-1]
        T, m = (turn[:, kept] / np.sqrt(values[kept])) / size[:, None], int(kept.sum())
        scores[k, ..., :m] = rows @ T
        penalties[k, :, :m, :m] = T.T @ at_bins @ T
        fixed[k, :m, :m] = T.T @ of_intercept @ T
        fixed[k][np.arange(m, J), np.arange(m, J)] = 1.0
        back = np.sqrt(values[kept])[:, None] * turn[:, kept].T * size
        start[k, :m] = back[:, len(vectors) - 3]
    more = _padding(n)
    pad = lambda array, axis=0: np.pad(array, [(0, more * (i == axis)) for i in range(array.ndim)])  # noqa: E731
    data = {
        # The layout in which XLA's products are fast on a CPU.
        "scores": np.ascontiguousarray(np.moveaxis(pad(scores, 1), 3, 1)).reshape(K, J, -1),
        "held_out": np.ascontiguousarray(np.moveaxis(pad(folds.own(scores)), 2, 0)),
        "fold": pad(folds.number.astype(np.int32)),
        "rows": pad(folds.rows),
        "training": pad(np.stack([regression.rows[:, 0] for regression in folds.held_out]), 1),
        "targets": pad(folds.targets),
        "variance": pad(profile.variance),
        "profile": profile.steps,
        "penalties": penalties,
        "fixed": fixed,
        "prior": np.asarray(prior),
    }
    return data, start


def _penalties(vectors: np.ndarray, base: np.ndarray, place: np.ndarray) -> np.ndarray:
    """The Gram matrix of the directions in the metric of the base weights, apart for each value of the profile."""
    J = len(vectors)
    W = vectors[:, :-1] * np.exp(0.5 * base)[None, :, None]
    found = np.zeros((BINS, J, J))
    for i in range(J):
        for j in range(i + 1):
            products = np.einsum("dc,dc->d", W[i], W[j])
            found[:, i, j] = found[:, j, i] = np.bincount(place, products, minlength=BINS)
    return found


def _padding(n: int) -> int:
    """How many rows of weight 0 to add: numbers of rows that differ little then share compiled code."""
    step = max(256, 1 << max(int(n).bit_length() - 3, 0))
    return -n % step
