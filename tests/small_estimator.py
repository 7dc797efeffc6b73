"""The smallest estimator with a model file: one ridge regression per task, as an example of a `ModelFormat`."""

import numpy as np
from sklearn.base import BaseEstimator

from bilevax.estimators.choices import Choice
from bilevax.estimators.model_file import ModelFormat


class SmallRidge(BaseEstimator):
    """A ridge regression for each task."""

    def __init__(self, ridge=1.0, checkpoint=None):
        self.ridge = ridge
        self.checkpoint = checkpoint

    def fit(self, X, y, task):
        self.tasks_, numbers = np.unique(task, return_inverse=True)
        self.mean_ = float(np.mean(y))
        eye = self.ridge * np.eye(X.shape[1])
        rows = [X[numbers == t] for t in range(len(self.tasks_))]
        residuals = [y[numbers == t] - self.mean_ for t in range(len(self.tasks_))]
        self.coef_ = np.array([np.linalg.solve(A.T @ A + eye, A.T @ b) for A, b in zip(rows, residuals, strict=True)])
        self.coef_std_ = None
        self.choices_ = [Choice("ridge", f"{self.ridge:g}", "no ridge", 0.01, 0.002)]
        return self

    def predict(self, X, task):
        return self.mean_ + np.sum(X * self.coef_[np.searchsorted(self.tasks_, task)], axis=1)

    def __str__(self):
        return "\n".join([f"SmallRidge of {len(self.tasks_)} tasks", *(choice.words() for choice in self.choices_)])


def _check(model):
    """`predict` searches for tasks in their order."""
    if np.any(model.tasks_[1:] <= model.tasks_[:-1]):
        raise ValueError("the tasks are not distinct and sorted")


FORMAT = ModelFormat(
    kind="bilevax small ridge",
    estimator=SmallRidge,
    numbers={"mean_": float},
    arrays={"coef_": "tf", "coef_std_": "tf"},
    labels={"tasks_": "t"},
    optional=frozenset({"coef_std_"}),
    check=_check,
)
