"""What several scores say together of the true label of each row, and which labels are taken for which.

    p(true = k | x) ~ exp(b_k + sum over m of a_m F_m[k]),   p(given = j | true = k) = T[k, j]

The weights a, the offsets b and the noise T maximise the likelihood of the labels that were given, and of the true ones
where they are known. Nobody has to say how many labels are wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize

from bilevax.estimators.label_cleaning.labels import Labels

_PSEUDO_ROWS = 400.0
"""How many rows the prior of T is worth: any other class is as likely a mistake as the next."""
_OFFSETS = 30.0
"""Precision of the prior of b, whose mean is 0."""
_AGREEMENT = 10.0
"""Precision of the prior of the weights, whose mean is an equal share of what each evidence would have alone."""
_TINY = 1e-30


@dataclass(frozen=True)
class Pool:
    """The parameters; `fit` gives better ones."""

    weights: np.ndarray
    offsets: np.ndarray
    noise: np.ndarray
    """T, true classes by given ones."""
    fixed_noise: bool = False
    alone: np.ndarray | None = None
    """The weights that each evidence would have alone."""

    def log_chances(self, scores: Sequence[np.ndarray]) -> np.ndarray:
        """Of the classes, before the given label is looked at."""
        return log_softmax(self.offsets + sum(a * F for a, F in zip(self.weights, scores, strict=True)))

    def seen(self, labels: Labels) -> np.ndarray:
        """How likely what is known of each row is for each true class."""
        found = self.noise[:, labels.given].T
        found[labels.known] = np.eye(len(self.noise))[labels.given[labels.known]]
        return found

    def judge(self, scores: Sequence[np.ndarray], labels: Labels) -> Judgement:
        """The probabilities of the true classes of each row."""
        both = np.exp(self.log_chances(scores)) * self.seen(labels)
        total = np.maximum(both.sum(axis=1), _TINY)
        return Judgement(both / total[:, None], float(np.log(total).mean()))

    def fit(self, scores: Sequence[np.ndarray], labels: Labels, *, rounds: int, tol: float = 1e-5) -> Pool:
        """Better parameters: weights and offsets by gradients, the noise by expectation and maximization, in turn."""
        sizes = np.array([max(float(F.std()), 1e-9) for F in scores])
        scaled = [F / size for F, size in zip(scores, sizes, strict=True)]
        pool, before = self, -np.inf
        for _ in range(rounds):
            pool = pool._with_weights(scaled, sizes, labels)
            for _ in range(0 if self.fixed_noise else 5):
                chances = pool.judge(scores, labels).chances
                pool = replace(pool, noise=likely_noise(chances, labels))
            now = pool.judge(scores, labels).likelihood
            if abs(now - before) < tol:
                break
            before = now
        return pool

    def _with_weights(self, scaled: list[np.ndarray], sizes: np.ndarray, labels: Labels) -> Pool:
        M, n = len(scaled), len(labels.given)
        seen = self.seen(labels)
        expected = None if self.alone is None or M == 1 else np.maximum(self.alone, 1e-3) * sizes / M

        def negative(v: np.ndarray) -> tuple[float, np.ndarray]:
            a, b = v[:M], v[M:]
            P = np.exp(log_softmax(b + sum(w * F for w, F in zip(a, scaled, strict=True))))
            both = P * seen
            total = np.maximum(both.sum(axis=1), _TINY)
            off = both / total[:, None] - P
            value, slope = np.log(total).sum() - 0.5 * _OFFSETS * b @ b, off.sum(axis=0) - _OFFSETS * b
            slopes = np.array([np.sum(off * F) for F in scaled])
            if expected is not None:
                far = a / expected - 1
                value, slopes = value - 0.5 * _AGREEMENT * far @ far, slopes - _AGREEMENT * far / expected
            return -value / n, -np.concatenate([slopes, slope]) / n

        start = np.concatenate([self.weights * sizes, self.offsets])
        bounds = [(0, None)] * M + [(None, None)] * len(self.offsets)
        found = minimize(negative, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": 8}).x
        return replace(self, weights=found[:M] / sizes, offsets=found[M:])


class Judgement(NamedTuple):
    """What a pool says of rows."""

    chances: np.ndarray
    """Of the true classes, rows by classes."""
    likelihood: float
    """The mean logarithm of the likelihood of what is known of a row."""

    def suspicion(self, labels: Labels) -> np.ndarray:
        """The probability that the given label is wrong."""
        return 1 - self.chances[np.arange(len(labels.given)), labels.given]


def uniform_noise(rate: float, n_classes: int) -> np.ndarray:
    """A share of the labels replaced by any class, as often as not by the same one."""
    return (1 - rate) * np.eye(n_classes) + rate / n_classes


def likely_noise(chances: np.ndarray, labels: Labels) -> np.ndarray:
    """The noise that explains the labels best, with a prior: other classes are equally likely."""
    K, unknown = chances.shape[1], ~labels.known
    counts = np.stack([np.bincount(labels.given[unknown], chances[unknown, k], K) for k in range(K)])
    total = max(counts.sum(), 1e-9)
    rate = (total - np.trace(counts)) / total
    prior = np.maximum(np.where(np.eye(K) == 1, 1 - rate, rate / (K - 1)), 1e-8)
    strength = _PSEUDO_ROWS / K
    noise = (counts + strength * prior) / (counts.sum(axis=1) + strength)[:, None]
    return noise / noise.sum(axis=1, keepdims=True)


def log_softmax(Z: np.ndarray) -> np.ndarray:
    """Logarithms of probabilities, a row each."""
    Z = Z - Z.max(axis=1, keepdims=True)
    logs: np.ndarray = Z - np.log(np.exp(Z).sum(axis=1, keepdims=True))
    return logs
