"""Skeleton of an estimator: copy it to src/bilevax/estimators/, rename it, and write the two levels.

The example learns a ridge weight for each feature from validation rows. CONTRIBUTING.md lists what else is needed.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from bilevax.problem import BilevelProblem
from bilevax.runs.solve import solve
from bilevax.sets import Box

# The levels are functions of the module and their numbers are data: a second fit of the same shape compiles nothing.


def upper(x: Any, y: Any, data: Any) -> Any:
    """The error of the model y on validation rows."""
    return jnp.mean(data["validation"] * (data["X"] @ y - data["t"]) ** 2)


def lower(x: Any, y: Any, data: Any) -> Any:
    """The error on training rows plus a ridge of its own for each feature."""
    return jnp.mean(data["training"] * (data["X"] @ y - data["t"]) ** 2) + jnp.exp(x) @ y**2


class RidgeWeights(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """One sentence. The constructor only stores; `fit` checks and works; learned values end in an underscore."""

    def __init__(self, validation_fraction: float = 0.3, steps: int = 200, random_state: Any = 0):
        self.validation_fraction = validation_fraction
        self.steps = steps
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> RidgeWeights:
        """Learn the weights and the model."""
        if not 0 < self.validation_fraction < 1:
            raise ValueError(
                f"RidgeWeights: validation_fraction must lie between 0 and 1, got {self.validation_fraction!r}."
            )
        X, y = validate_data(self, X, y, y_numeric=True, dtype=float, ensure_min_samples=2)
        self.mean_ = float(np.mean(y))
        held = np.random.default_rng(self.random_state).random(len(y)) < self.validation_fraction
        held[0], held[-1] = False, True
        with jax.enable_x64(True):  # estimators compute in float64 and hand out numpy arrays
            data = {"X": X, "t": y - self.mean_, "validation": held / held.sum(), "training": ~held / (~held).sum()}
            data = jax.tree.map(lambda part: jnp.asarray(part, float), data)
            zeros = jnp.zeros(X.shape[1])
            problem = BilevelProblem(upper, lower, Box(-8.0, 3.0), data)
            result = solve(problem, None, zeros, zeros, steps=self.steps)
        self.log_ridge_, self.coef_ = np.asarray(result.x), np.asarray(result.audit().y)
        self.status_, self.message_, self.trace_ = result.status.name, result.message, result.trace
        self.n_iter_ = result.steps
        return self

    def predict(self, X: Any) -> np.ndarray:
        """The values at these rows."""
        check_is_fitted(self, "coef_")
        X = validate_data(self, X, dtype=float, reset=False)
        values: np.ndarray = self.mean_ + X @ self.coef_
        return values
