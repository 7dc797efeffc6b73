"""Plain models of scikit-learn, tuned by cross-validation on the training rows, that stand beside ours."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bilevax.linalg.blas import one_blas_thread

_RIDGES = np.logspace(-3, 5, 25)
_PENALTIES = np.logspace(-3, 2, 11)
_FEW_PENALTIES = np.logspace(-3, 1, 5)  # for saga, which is slow
_FEWEST = 5
"""A task with fewer rows gets the model of all rows."""


def pooled(X: np.ndarray, y: np.ndarray, loss: str, *, sparse: bool = False) -> Callable[[np.ndarray], np.ndarray]:
    """One regression of all rows on standardized features: ridge, or lasso if `sparse`; logistic for classes.

    The function that is returned predicts: numbers, or the probability of each class.
    """
    from sklearn.linear_model import LassoCV, RidgeCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    # Threads of BLAS wait for each other: with two busy cores one thread was a hundred times faster.
    with one_blas_thread(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a penalty of the grid that does not converge is no news
        if loss == "logistic":
            model = make_pipeline(StandardScaler(), _tuned_logistic(StandardScaler().fit_transform(X), y, sparse))
        else:
            folds = min(5, len(y))
            linear = LassoCV(cv=folds, max_iter=5000) if sparse else RidgeCV(alphas=_RIDGES)
            model = make_pipeline(StandardScaler(), linear)
        model.fit(X, y)
    return model.predict_proba if loss == "logistic" else model.predict


def per_task(X: np.ndarray, y: np.ndarray, task: np.ndarray, loss: str) -> Callable[..., np.ndarray]:
    """A regression for each task alone; tasks with few rows, or one class, get that of all rows."""
    of_all = pooled(X, y, loss)
    own: dict[Any, Callable[[np.ndarray], np.ndarray]] = {}
    for name in np.unique(task):
        rows = task == name
        enough = rows.sum() >= _FEWEST and (loss == "squared" or min(np.bincount(y[rows].astype(int))) >= 2)
        if enough and (loss == "squared" or len(np.unique(y[rows])) == len(np.unique(y))):
            own[name] = pooled(X[rows], y[rows], loss)

    def predict(X: np.ndarray, task: np.ndarray) -> np.ndarray:
        predictions = np.array(of_all(X))
        for name in np.unique(task):
            if name in own:
                predictions[task == name] = own[name](X[task == name])
        return predictions

    return predict


def _tuned_logistic(X: np.ndarray, y: np.ndarray, sparse: bool) -> Any:
    """The logistic regression whose penalty has the lowest loss on held-out rows."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import log_loss
    from sklearn.model_selection import StratifiedKFold

    several = len(np.unique(y)) > 2

    def make(strength: float) -> Any:
        options: dict[str, Any] = {"C": strength, "max_iter": 500}
        if sparse:
            options |= {"solver": "saga", "max_iter": 100, "tol": 1e-3} if several else {"solver": "liblinear"}
            # scikit-learn 1.8 gave the penalty another name.
            options |= (
                {"l1_ratio": 1.0} if LogisticRegression().get_params().get("penalty") != "l2" else {"penalty": "l1"}
            )
        return LogisticRegression(**options)

    fewest = int(np.unique(y, return_counts=True)[1].min())
    if fewest < 2:
        return make(1.0)
    folds = list(StratifiedKFold(min(5, fewest), shuffle=True, random_state=0).split(X, y))

    def loss(strength: float) -> float:
        parts: Sequence[float] = [
            log_loss(y[held], make(strength).fit(X[kept], y[kept]).predict_proba(X[held]), labels=np.unique(y))
            for kept, held in folds
        ]
        return float(np.mean(parts))

    return make(min(_FEW_PENALTIES if sparse and several else _PENALTIES, key=loss))
