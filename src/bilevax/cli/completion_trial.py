"""A fit on the training ratings, tried on those held out."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from bilevax.ratings import Ratings


class Trial(NamedTuple):
    """A fitted estimator, the ratings it learned from, and its predictions of those held out."""

    estimator: Any
    train: Ratings
    seconds: float
    held_out: np.ndarray
    predictions: np.ndarray
    baseline: np.ndarray
    """Predictions of a model with effects of users and items only."""
    cold_start: int
    """Held-out ratings whose user or item has no training rating."""

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended the fit."""
        return bool(self.estimator.status_ == "STOPPED")


def run_trial(estimator: Any, ratings: Ratings, held_out: np.ndarray) -> Trial:
    """Fit on what is not held out, and predict what is."""
    from bilevax.estimators import effects_only

    train = ratings.subset(~held_out)
    known = train.rows, train.cols, train.values
    estimator.fit(known)
    rows = _training_numbers(ratings.rows, held_out)
    cols = _training_numbers(ratings.cols, held_out)
    predictions = baseline = np.zeros(0)
    if len(rows):
        predictions = np.asarray(estimator.predict(rows, cols))
        baseline = np.asarray(effects_only(*known).predict(rows, cols))
    cold_start = int(np.sum((rows < 0) | (cols < 0)))
    return Trial(estimator, train, estimator.seconds_, held_out, predictions, baseline, cold_start)


def _training_numbers(numbers: np.ndarray, held_out: np.ndarray) -> np.ndarray:
    """The held-out numbers as `Ratings.subset` renumbers the others, -1 for those that have no training rating."""
    renumbered = np.full(numbers.max() + 1, -1)
    trained = np.unique(numbers[~held_out])
    renumbered[trained] = np.arange(len(trained))
    return renumbered[numbers[held_out]]
