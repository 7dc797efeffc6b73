"""Models that estimators saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bilevax.estimators import model_file
from bilevax.estimators.feature_weights import model_format as feature_weights
from bilevax.estimators.matrix_completion import model_file as completion
from bilevax.estimators.multitask import model_format as multitask

FORMATS: tuple[model_file.Format, ...] = (completion.FORMAT, multitask.FORMAT, feature_weights.FORMAT)
"""A new estimator adds its `ModelFormat` here."""


def load(path: str | Path) -> tuple[Any, ...]:
    """A saved model, and what its rows and columns are called.

    A `MatrixCompletion` comes as `(model, row_ids, col_ids)`. Every other estimator comes as `(model, schema)`, where
    the `bilevax.tables.Schema` says how a table becomes the arrays that the model takes; None if it was saved without.
    The file says which of them it holds.
    """
    found: tuple[Any, ...] = model_file.load(path, FORMATS)
    return found
