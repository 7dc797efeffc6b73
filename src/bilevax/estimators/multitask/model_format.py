"""What the file of a `MultiTaskRegression` holds."""

from __future__ import annotations

from typing import Any

import numpy as np

from bilevax.estimators.model_file import ModelFormat
from bilevax.estimators.multitask.estimator import MultiTaskRegression


def _check(model: Any) -> None:
    """What `predict` relies on, and what `print(model)` needs."""
    if not len(model.tasks_) or np.any(model.tasks_[1:] <= model.tasks_[:-1]):
        raise ValueError("the tasks are not distinct and sorted")
    if model.coef_.shape[1] != model.n_features_in_:
        raise ValueError(f"it has {model.coef_.shape[1]} coefficients for {model.n_features_in_} features")
    if model.classes_ is not None and len(model.classes_) != 2:
        raise ValueError(f"it has {len(model.classes_)} classes")
    if model.columns_by_task_ is not None:
        model.columns_by_task_ = [np.array(columns, int).reshape(-1) for columns in model.columns_by_task_]
        if len(model.columns_by_task_) != len(model.tasks_):
            raise ValueError("the columns are not those of its tasks")
        for columns in model.columns_by_task_:
            if len(columns) and not 0 <= columns.min() <= columns.max() < model.n_features_in_:
                raise ValueError("a column is none of its features")
    model.mix_ = [(str(words), float(share)) for words, share in model.mix_]
    str(model)  # numbers that cannot be put into words are not ours


FORMAT: ModelFormat = ModelFormat(
    kind="bilevax multi-task regression",
    estimator=MultiTaskRegression,
    numbers={
        "shares_": bool,
        "held_out_": dict,
        "mix_": list,
        "columns_by_task_": list,
        "n_features_in_": int,
        "status_": str,
        "n_iter_": int,
        "seconds_": float,
    },
    arrays={
        "coef_": "tf",
        "intercept_": "t",
        "coef_std_": "tf",
        "own_coef_": "tf",
        "own_intercept_": "t",
        "pooled_coef_": "f",
        "pooled_intercept_": "",
        "pull_": "t",
        "task_covariance_": "tt",
        "task_correlation_": "tt",
        "n_rows_by_task_": "t",
    },
    labels={"tasks_": "t", "classes_": "c", "feature_names_in_": "f"},
    optional=frozenset({"columns_by_task_", "classes_", "feature_names_in_"}),
    check=_check,
)
