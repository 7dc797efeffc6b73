"""The losses of the regressions, in numpy: value, slope and curvature of rows with one score per output."""

from __future__ import annotations

import numpy as np
from scipy.special import expit, logsumexp, softmax

Scores = np.ndarray
"""One row per observation, one column per output: 1 for squared and binary logistic loss, else one per class."""


class Squared:
    """Half the squared error."""

    name = "squared"

    def values(self, Z: Scores, T: Scores) -> np.ndarray:
        """The loss of each row."""
        return 0.5 * np.sum((Z - T) ** 2, axis=1)

    def slopes(self, Z: Scores, T: Scores) -> Scores:
        """Its derivative in the scores."""
        return Z - T

    def curved(self, Z: Scores, V: Scores) -> Scores:
        """The second derivative times V."""
        return V

    def diagonal(self, Z: Scores) -> Scores:
        """The diagonal of the second derivative."""
        return np.ones_like(Z)


class Logistic:
    """The logistic loss of targets 0 and 1."""

    name = "logistic"

    def values(self, Z: Scores, T: Scores) -> np.ndarray:
        """The loss of each row."""
        return np.sum(np.logaddexp(0, Z) - T * Z, axis=1)

    def slopes(self, Z: Scores, T: Scores) -> Scores:
        """Its derivative in the scores."""
        return expit(Z) - T

    def curved(self, Z: Scores, V: Scores) -> Scores:
        """The second derivative times V."""
        return self.diagonal(Z) * V

    def diagonal(self, Z: Scores) -> Scores:
        """The diagonal of the second derivative."""
        return expit(Z) * expit(-Z)


class Softmax:
    """The cross-entropy of more than two classes, with targets of zeros and a one."""

    name = "softmax"

    def values(self, Z: Scores, T: Scores) -> np.ndarray:
        """The loss of each row."""
        return logsumexp(Z, axis=1) - np.sum(T * Z, axis=1)

    def slopes(self, Z: Scores, T: Scores) -> Scores:
        """Its derivative in the scores."""
        return softmax(Z, axis=1) - T

    def curved(self, Z: Scores, V: Scores) -> Scores:
        """The second derivative times V."""
        P = softmax(Z, axis=1)
        return P * (V - np.sum(P * V, axis=1, keepdims=True))

    def diagonal(self, Z: Scores) -> Scores:
        """The diagonal of the second derivative."""
        P = softmax(Z, axis=1)
        return P * (1 - P)


Loss = Squared | Logistic | Softmax
