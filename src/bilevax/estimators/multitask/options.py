"""Parameters of `MultiTaskRegression`, checked before any work."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


class Options(NamedTuple):
    """Parameters of the estimator, checked."""

    n_folds: int
    max_steps: int
    tol: float
    time_limit: float | None
    random_state: Any
    verbose: int
    checkpoint: Any


def options_of(model: Any) -> Options:
    """The options; a ValueError names one that makes no sense."""
    name = type(model).__name__
    if model.loss not in ("auto", "squared", "logistic"):
        raise ValueError(f"{name}: loss must be 'auto', 'squared' or 'logistic', got {model.loss!r}.")
    for parameter, least in (("n_folds", 2), ("max_steps", 1)):
        value = getattr(model, parameter)
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
            raise ValueError(f"{name}: {parameter} must be a whole number of at least {least}, got {value!r}.")
    if not (isinstance(model.tol, (int, float, np.number)) and 0 < model.tol < np.inf):
        raise ValueError(f"{name}: tol must be a positive number, got {model.tol!r}.")
    limit = model.time_limit
    if limit is not None and not (isinstance(limit, (int, float, np.number)) and limit > 0):
        raise ValueError(f"{name}: time_limit must be a positive number of seconds, got {limit!r}.")
    return Options(
        int(model.n_folds),
        int(model.max_steps),
        float(model.tol),
        None if limit is None else float(limit),
        model.random_state,
        int(model.verbose),
        model.checkpoint,
    )
