"""Rows with two classes as targets. Around given coefficients the logistic loss is a squared loss of weighted rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.special import expit

from bilevax.estimators.multitask.candidates import Candidate
from bilevax.estimators.multitask.empirical_bayes import Links
from bilevax.estimators.multitask.prior import Moments, Posterior, Prior
from bilevax.estimators.multitask.rows import Rows, Units
from bilevax.problems.linked_classifiers import linked_classifiers
from bilevax.problems.linked_tasks import LinkedTasks

_ROUNDS = 6  # of a prior for given weights of rows, and weights for given coefficients
_ITERATIONS = 40  # of the prior in a round
_FARTHEST = 12.0  # scores beyond are certain enough; their rows would have no weight at all
_NEWTON = 50
_HALVINGS = 20
_LARGEST = 100.0
"""Of a variance in units of the scaled features: where classes are separated, there is no largest likelihood."""


class LogisticSample:
    """Rows with weights; those that a sample does not have weigh 0."""

    numbers_of_parts: tuple[int, ...] = (2,)

    def __init__(self, rows: Rows, weight: np.ndarray, units: Units) -> None:
        self.rows, self.weight, self.units = rows, weight, units
        self.n_rows = float(weight.sum())
        self._starts = np.searchsorted(rows.task, np.arange(rows.n_tasks + 1))

    def estimate(self, kind: Candidate, stop: Callable[[], Any]) -> Links:
        """The prior of this kind that makes the rows most likely, by Laplace's approximation."""
        W = np.zeros((self.rows.n_tasks, self.rows.A.shape[1]))
        for _ in range(_ROUNDS):
            links = kind.estimate(self._moments(W), self.units, fixed_noise=True, iterations=_ITERATIONS, stop=stop)
            prior = links.prior
            W = links.coefficients
        own, shared = (np.minimum(part, _LARGEST) for part in (prior.own, prior.shared))
        prior = Prior(own, prior.loadings, shared)
        return links._replace(prior=prior, coefficients=self.fitted(prior).coefficients)

    def fitted(self, prior: Prior) -> LogisticFit:
        """The most likely coefficients, by Newton's method; a step that does not lower the objective is halved."""
        (T, d), Q = prior.own.shape, len(prior.shared)
        s, z, W = np.zeros((T, d)), np.zeros((Q, d)), np.zeros((T, d))
        value = self._objective(s, z, W, prior)
        for _ in range(_NEWTON):
            goal = Posterior(self._moments(W), prior)
            length, before = 1.0, value
            for _ in range(_HALVINGS):
                next_s, next_z = s + length * (goal.own - s), z + length * (goal.shared - z)
                next_W = next_s + prior.loadings @ next_z
                value = self._objective(next_s, next_z, next_W, prior)
                if value <= before:
                    s, z, W = next_s, next_z, next_W
                    break
                length /= 2
            if not before - value > 1e-10 * abs(before):
                break
        return LogisticFit(W, Posterior(self._moments(W), prior))

    def losses(self, W: np.ndarray) -> np.ndarray:
        """The sum of the losses of each task."""
        loss = self.weight * np.logaddexp(0.0, -self.rows.b * self._scores(W))
        return np.bincount(self.rows.task, loss, self.rows.n_tasks)

    @staticmethod
    def problem(train: list[Any], rest: list[Any], priors: list[list[Prior]]) -> LinkedTasks:
        """The upper and the lower level for all folds."""
        rows = train[0].rows
        return linked_classifiers(
            (rows.A, rows.b, rows.task),
            np.array([sample.weight for sample in train]),
            np.array([sample.weight for sample in rest]),
            *(np.array([[prior[i] for prior in row] for row in priors]) for i in range(3)),
        )

    def _scores(self, W: np.ndarray) -> np.ndarray:
        scores: np.ndarray = np.einsum("nf,nf->n", self.rows.A, W[self.rows.task])
        return scores

    def _objective(self, s: np.ndarray, z: np.ndarray, W: np.ndarray, prior: Prior) -> float:
        """The losses and the prior; a part of variance 0 is 0."""
        penalty = sum(
            np.sum(part**2 / np.where(size > 0, size, 1.0)) for part, size in ((s, prior.own), (z, prior.shared))
        )
        return float(self.losses(W).sum() + 0.5 * penalty)

    def _moments(self, W: np.ndarray) -> Moments:
        """Of weighted rows whose squared loss has the slope and the curvature of the logistic loss at W."""
        scores = np.clip(self._scores(W), -_FARTHEST, _FARTHEST)
        labels, chance = 0.5 * (1 + self.rows.b), expit(scores)
        curvature = self.weight * chance * (1 - chance)
        target = curvature * scores + self.weight * (labels - chance)
        A, T, d = self.rows.A, self.rows.n_tasks, self.rows.A.shape[1]
        G, h = np.zeros((T, d, d)), np.zeros((T, d))
        for t in range(T):
            own = slice(self._starts[t], self._starts[t + 1])
            G[t] = A[own].T @ (curvature[own, None] * A[own])
            h[t] = A[own].T @ target[own]
        squares = np.divide(target**2, curvature, out=np.zeros_like(target), where=curvature > 0)
        const, count = (np.bincount(self.rows.task, part, T) for part in (squares, self.weight))
        return Moments(G, h, const, count)


class LogisticFit:
    """Coefficients, and how sure they are by Laplace's approximation."""

    def __init__(self, coefficients: np.ndarray, around: Posterior) -> None:
        self.coefficients, self._around = coefficients, around

    def spread(self) -> np.ndarray:
        """Covariance of the coefficients of each task."""
        return self._around.spread()

    def slope_covariances(self) -> np.ndarray:
        """As that of a `Posterior`."""
        return self._around.slope_covariances()


def logistic_samples(
    rows: Rows, units: Units, folds: np.ndarray, n_folds: int
) -> tuple[LogisticSample, list[tuple[LogisticSample, LogisticSample]], np.ndarray]:
    """All rows, those that each fold learns from with those held out, and 1 for each task: losses have no unit."""
    order = np.argsort(rows.task, kind="stable")
    rows, folds = rows.subset(order), folds[order]
    parts = [
        (
            LogisticSample(rows, rows.weight * (folds != k), units),
            LogisticSample(rows, rows.weight * (folds == k), units),
        )
        for k in range(n_folds)
    ]
    return LogisticSample(rows, rows.weight, units), parts, np.ones(rows.n_tasks)
