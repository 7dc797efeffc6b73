"""Plain models with the interface of the estimators that learn from tables, so that commands are tested in no time."""

import numpy as np
from scipy.special import expit, softmax
from sklearn.base import BaseEstimator

from bilevax.estimators.choices import Choice
from bilevax.estimators.model_file import ModelFormat


class _StandIn(BaseEstimator):
    """Counts its fits; `status` is what the next ones end with."""

    fits = 0
    rows: list[int] = []  # noqa: RUF012
    statuses: list[str] = []  # noqa: RUF012

    def __init__(self, loss="auto", time_limit=None, random_state=0, verbose=0, checkpoint=None):
        self.loss = loss
        self.time_limit = time_limit
        self.random_state = random_state
        self.verbose = verbose
        self.checkpoint = checkpoint

    def _end(self, question, rows):
        type(self).fits += 1
        self.rows.append(rows)
        self.status_ = self.statuses.pop(0) if self.statuses else "CONVERGED"
        self.message_, self.seconds_, self.trace_ = "all is well", 0.5, None
        self.choices_ = [Choice(question, "yes", "no", 0.1, 0.01)]
        return self

    def save(self, path, schema=None):
        return FORMATS[type(self)].save(self, path, schema)

    def __str__(self):
        return "\n".join([type(self).__name__, *(choice.words() for choice in self.choices_)])


class StandInTasks(_StandIn):
    """The mean of a ridge of all rows and one of each task."""

    def fit(self, X, y, *, task):
        self.tasks_, number = np.unique(task, return_inverse=True)
        A = np.hstack([X, np.ones((len(X), 1))])
        all_rows = _ridge(A, y)
        own = np.array([_ridge(A[number == t], y[number == t]) for t in range(len(self.tasks_))])
        both = (own + all_rows) / 2
        self.coef_, self.intercept_ = both[:, :-1], both[:, -1]
        self.own_coef_, self.pooled_coef_, self.coef_std_ = own[:, :-1], all_rows[:-1], np.ones_like(self.coef_)
        self.pull_ = np.full(len(self.tasks_), 0.5)
        self.task_correlation_ = self.task_covariance_ = np.eye(len(self.tasks_))
        return self._end("sharing", len(X))

    def predict(self, X, *, task):
        t = np.minimum(np.searchsorted(self.tasks_, task), len(self.tasks_) - 1)
        known = self.tasks_[t] == np.asarray(task).astype(self.tasks_.dtype)
        return np.where(known, np.sum(X * self.coef_[t], axis=1) + self.intercept_[t], X @ self.pooled_coef_)

    def predict_proba(self, X, *, task):
        p = expit(4 * self.predict(X, task=task) - 2)
        return np.stack([1 - p, p], axis=1)


class StandInWeights(_StandIn):
    """One ridge; weights are small for large coefficients."""

    def fit(self, X, y):
        self.n_classes_ = len(np.unique(y)) if self.loss == "logistic" else 0
        A = np.hstack([X, np.ones((len(X), 1))])
        T = np.eye(self.n_classes_)[y.astype(int)].T if self.n_classes_ > 2 else [y]
        solved = np.array([_ridge(A, t) for t in T])
        self.coef_, self.intercept_ = solved[:, :-1], solved[:, -1]
        self.weights_ = 1 / np.abs(self.coef_).max(axis=0)
        self.ranking_ = np.argsort(self.weights_)
        if self.n_classes_ <= 2:
            self.coef_ = self.coef_[0]
        return self._end("weights", len(X))

    def predict(self, X):
        return X @ self.coef_ + self.intercept_[0]

    def predict_proba(self, X):
        if self.n_classes_ > 2:
            return softmax(4 * (X @ self.coef_.T + self.intercept_), axis=1)
        p = expit(4 * self.predict(X) - 2)
        return np.stack([1 - p, p], axis=1)


def _ridge(A, y):
    return np.linalg.solve(A.T @ A + 1e-2 * np.eye(A.shape[1]), A.T @ y)


_TASKS = {"coef_": "tf", "intercept_": "t", "own_coef_": "tf", "pooled_coef_": "f", "coef_std_": "tf", "pull_": "t"}
_TASKS |= {"task_covariance_": "tt", "task_correlation_": "tt"}
FORMATS = {
    StandInTasks: ModelFormat("stand-in tasks", StandInTasks, {}, _TASKS, labels={"tasks_": "t"}),
    StandInWeights: ModelFormat(
        "stand-in weights",
        StandInWeights,
        {"n_classes_": int},
        {"coef_": "f|cf", "intercept_": "c", "weights_": "f", "ranking_": "f"},
    ),
}
