"""`bilevax weights`: which features of a table matter, by a regression with a learned weight for each of them."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bilevax.cli.table_baselines import pooled
from bilevax.cli.table_fit import TableCommand, add_table_options, run_table_command
from bilevax.cli.table_trial import Predict, Trial
from bilevax.cli.weight_picture import draw_weights
from bilevax.files import write_csv
from bilevax.tables import Schema, Table
from bilevax.tables.schema import MOST_CLASSES


def add(subparsers: Any) -> None:
    """Declare the command and its options."""
    parser = subparsers.add_parser("weights", help="learn which features of a table matter, and predict with them")
    parser.set_defaults(run=run)
    add_table_options(parser, "metrics, weights, predictions and a picture of the leading features")


def run(options: argparse.Namespace) -> int:
    """Read, hold out, fit, report, write and save."""
    return run_table_command(_COMMAND, options)


def _estimator() -> Any:
    from bilevax.estimators import FeatureWeights

    return FeatureWeights


def _baselines(schema: Schema, train: Table) -> Mapping[str, Predict]:
    X, y = schema.features_of(train), schema.outcomes_of(train)
    plain, sparse = pooled(X, y, schema.loss), pooled(X, y, schema.loss, sparse=True)
    words = ("ridge", "lasso") if schema.labels is None else ("l2 logistic regression", "l1 logistic regression")
    return {
        words[0]: lambda table: plain(schema.features_of(table)),
        words[1]: lambda table: sparse(schema.features_of(table)),
    }


def _write_weights(folder: Path, trial: Trial) -> str:
    """A line for each feature, those that matter most first."""
    model, names = trial.estimator, trial.schema.encoder.names
    coef = np.atleast_2d(model.coef_)
    labels = trial.schema.labels
    heads = ["coefficient"] if len(coef) == 1 or labels is None else [f"coefficient of {label}" for label in labels]
    order = np.asarray(model.ranking_).tolist()
    rows = (
        [place + 1, names[f], f"{model.weights_[f]:.6g}", *(f"{value:.6g}" for value in coef[:, f])]
        for place, f in enumerate(order)
    )
    return write_csv(folder / "weights.csv", ["rank", "feature", "weight", *heads], rows).name


def _draw(file: Path, trial: Trial) -> bool:
    model = trial.estimator
    # Of several classes, the largest coefficient of each feature is drawn.
    coef = np.atleast_2d(model.coef_)
    largest = coef[np.abs(coef).argmax(axis=0), np.arange(coef.shape[1])]
    names = trial.schema.encoder.names
    return draw_weights(file, names, np.asarray(model.ranking_), np.asarray(model.weights_), largest)


_COMMAND = TableCommand("weights", _estimator, MOST_CLASSES, _baselines, _write_weights, "weights.png", _draw)
