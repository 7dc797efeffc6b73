"""A fit on the training rows of a table, tried on those held out, beside plain models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from bilevax.tables import Schema, Table

Predict = Callable[[Table], np.ndarray]
"""Numbers, or a probability for each class in a row."""


class Trial(NamedTuple):
    """A fitted estimator and its predictions of the rows held out."""

    estimator: Any
    schema: Schema
    """Its encoder was fitted on the training rows."""
    train: Table
    held_out: np.ndarray
    truth: np.ndarray
    """Targets of the rows held out; for classes their numbers."""
    predictions: dict[str, np.ndarray]
    """Those of the estimator under its name, and those of the plain models."""

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended the fit."""
        return bool(self.estimator.status_ == "STOPPED")

    def losses(self) -> dict[str, np.ndarray]:
        """The squared error, or the logarithmic loss, of every row held out, by model."""
        return {name: self._loss(part) for name, part in self.predictions.items()}

    def _loss(self, predictions: np.ndarray) -> np.ndarray:
        if self.schema.labels is None:
            return (predictions - self.truth) ** 2
        of_truth = predictions[np.arange(len(self.truth)), self.truth.astype(int)]
        return -np.log(np.clip(of_truth, 1e-12, 1.0))


def fit(estimator: Any, schema: Schema, table: Table) -> Any:
    """Fit the estimator to a table."""
    tasks = schema.tasks_of(table)
    given = {} if tasks is None else {"task": tasks}
    y = schema.outcomes_of(table)
    return estimator.fit(schema.features_of(table), y if schema.labels is None else y.astype(int), **given)


def predict(estimator: Any, schema: Schema, table: Table) -> np.ndarray:
    """Numbers, or a probability for each class, of every row of a table."""
    tasks = schema.tasks_of(table)
    given = {} if tasks is None else {"task": tasks}
    X = schema.features_of(table)
    found = estimator.predict(X, **given) if schema.labels is None else estimator.predict_proba(X, **given)
    return np.asarray(found, float)


def run_trial(
    estimator: Any,
    schema: Schema,
    table: Table,
    held_out: np.ndarray,
    baselines: Callable[[Schema, Table], Mapping[str, Predict]],
) -> Trial:
    """Fit on what is not held out, and predict what is; `schema` has an encoder of the training rows."""
    train, test = table.subset(~held_out), table.subset(held_out)
    fit(estimator, schema, train)
    if not held_out.any():
        return Trial(estimator, schema, train, held_out, np.zeros(0), {})
    predictions = {name: model(test) for name, model in baselines(schema, train).items()}
    predictions[type(estimator).__name__] = predict(estimator, schema, test)
    return Trial(estimator, schema, train, held_out, schema.outcomes_of(test), predictions)
