"""Rows with numbers as targets. The squared loss needs their moments only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bilevax.estimators.multitask.candidates import ALONE, MEAN, Candidate
from bilevax.estimators.multitask.empirical_bayes import Links
from bilevax.estimators.multitask.prior import Moments, Posterior, Prior
from bilevax.estimators.multitask.rows import Rows, Units, moments_by_fold
from bilevax.problems.linked_tasks import LinkedTasks, linked_tasks

_UNLIKE = 0.5
"""Standard deviation of the logarithms of noise variances from which on tasks are weighted by them."""


class SquaredSample:
    """Some rows, divided by the standard deviation of their noise."""

    numbers_of_parts: tuple[int, ...] = (1, 2, 4)

    def __init__(self, moments: Moments, units: Units) -> None:
        self.moments, self.units = moments, units
        self.n_rows = float(moments.rows.sum())

    def estimate(self, kind: Candidate, stop: Callable[[], Any]) -> Links:
        """The prior of this kind that makes the rows most likely, in units of the noise."""
        links = kind.estimate(self.moments, self.units, stop=stop)
        noise = links.noise.mean()
        prior = Prior(links.prior.own / noise, links.prior.loadings, links.prior.shared / noise)
        return links._replace(prior=prior)

    def fitted(self, prior: Prior) -> Posterior:
        """Coefficients and how sure they are."""
        return Posterior(self.moments, prior)

    def losses(self, W: np.ndarray) -> np.ndarray:
        """The sum of squared errors of each task."""
        G, h, const, _ = self.moments
        return np.maximum(const - 2 * np.sum(W * h, axis=1) + np.einsum("ti,tij,tj->t", W, G, W, optimize=True), 0.0)

    @staticmethod
    def problem(train: list[Any], rest: list[Any], priors: list[list[Prior]]) -> LinkedTasks:
        """The upper and the lower level for all folds."""
        learned, held_out = ([sample.moments for sample in part] for part in (train, rest))
        squares, count = (sum(float(part[i].sum()) for part in held_out) for i in (2, 3))
        return linked_tasks(
            [np.array([part[i] for part in learned]) for i in (0, 1)],
            [*(np.array([part[i] for part in held_out]) for i in (0, 1)), squares, count],
            *(np.array([[prior[i] for prior in row] for row in priors]) for i in range(3)),
        )


def squared_samples(
    rows: Rows, units: Units, folds: np.ndarray, n_folds: int, linked: bool
) -> tuple[SquaredSample, list[tuple[SquaredSample, SquaredSample]], np.ndarray]:
    """All rows, those that each fold learns from with those held out, and the variance of the noise of each task."""
    by_fold = moments_by_fold(rows, folds, n_folds)
    everything = Moments(*(np.sum(part, axis=0) for part in zip(*by_fold, strict=True)))
    noise = _noise(everything, units, linked)
    everything, by_fold = everything.scaled(1 / noise), [part.scaled(1 / noise) for part in by_fold]
    parts = [(SquaredSample(everything - part, units), SquaredSample(part, units)) for part in by_fold]
    return SquaredSample(everything, units), parts, noise


def _noise(everything: Moments, units: Units, linked: bool) -> np.ndarray:
    """The noise of each task, or the same for all unless they differ much."""
    kind = MEAN if linked and len(everything.h) > 1 else ALONE
    by_task = kind.estimate(everything, units, noise_by_task=True).noise
    if np.std(np.log(by_task)) > _UNLIKE:
        return by_task
    return np.full(len(by_task), np.sum(by_task * everything.rows) / everything.rows.sum())
