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
    """A line for each feature, the most useful first: its l2 weight, coefficients and effects."""
    model, names = trial.estimator, trial.schema.encoder.names
    coef, effects = np.atleast_2d(model.coef_), _effects(trial)
    labels = trial.schema.labels
    of = [""] if len(coef) == 1 or labels is None else [f" of {label}" for label in labels]
    rows = (
        [place + 1, names[f], *(f"{value:.6g}" for value in (model.weights_[f], *coef[:, f], *effects[:, f]))]
        for place, f in enumerate(np.asarray(model.ranking_).tolist())
    )
    heads = [f"{word}{label}" for word in ("coefficient", "effect of one standard deviation") for label in of]
    return write_csv(folder / "weights.csv", ["rank", "feature", "weight", *heads], rows).name


def _draw(file: Path, trial: Trial) -> bool:
    model, effects = trial.estimator, _effects(trial)
    # Of several classes, the largest effect of each feature is drawn.
    largest = effects[np.abs(effects).argmax(axis=0), np.arange(effects.shape[1])]
    weights = np.asarray(model.weights_) / np.maximum(_deviations(trial), 1e-300) ** 2
    return draw_weights(file, trial.schema.encoder.names, np.asarray(model.ranking_), weights, largest)


def _effects(trial: Trial) -> np.ndarray:
    """Coefficients times the standard deviation of their feature, classes by features."""
    effects: np.ndarray = np.atleast_2d(trial.estimator.coef_) * _deviations(trial)
    return effects


def _deviations(trial: Trial) -> np.ndarray:
    """The standard deviation of each feature in the training rows."""
    deviations: np.ndarray = trial.schema.features_of(trial.train).std(axis=0)
    return deviations


_COMMAND = TableCommand("weights", _estimator, MOST_CLASSES, _baselines, _write_weights, "weights.png", _draw)
