"""What `bilevax multitask` and `bilevax weights` tell: a table of errors, a verdict, and files."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bilevax.cli.fit_report import fit_words
from bilevax.cli.output import rounded
from bilevax.cli.table_trial import Trial
from bilevax.files import write_csv
from bilevax.tables import Schema, Table
from bilevax.tables.schema import as_words

_SURE = 2  # standard errors


def compute_metrics(table: Table, trial: Trial, options: argparse.Namespace) -> dict[str, Any]:
    """Everything that metrics.json holds."""
    estimator, schema = trial.estimator, trial.schema
    tasks = schema.tasks_of(table)
    return {
        "table": options.table.name,
        "target": schema.target,
        "loss": schema.loss,
        "classes": None if schema.labels is None else list(schema.labels),
        "tasks": None if tasks is None else len(np.unique(tasks)),
        "features": schema.encoder.names,
        "training_rows": len(trial.train),
        "held_out": len(trial.truth),
        "seed": options.seed,
        "errors": _errors(trial) if len(trial.truth) else None,
        "verdict": verdict(trial) if len(trial.truth) else None,
        "choices": [choice.as_plain() for choice in estimator.choices_],
        "seconds": float(estimator.seconds_),
        "status": estimator.status_,
        "message": estimator.message_,
    }


def verdict(trial: Trial) -> str:
    """Whether the estimator predicts better than the best of the plain models, and how sure that is."""
    from bilevax.estimators.choices import Choice, root_gain, standard_error

    losses = trial.losses()
    name = type(trial.estimator).__name__
    ours = losses.pop(name)
    other = min(losses, key=lambda one: losses[one].mean())
    if trial.schema.labels is None:
        gain, error = root_gain(ours, losses[other])
    else:
        gain, error = float(losses[other].mean() - ours.mean()), standard_error(losses[other] - ours)
    unit = "RMSE" if trial.schema.labels is None else "log loss"
    difference = Choice("", "", f"with {other}", gain, error, unit).difference()
    if gain > _SURE * error:
        return f"{name} predicts better than the best plain model: {difference}."
    if gain < -_SURE * error:
        return f"{name} predicts worse than the best plain model: {difference}."
    return f"{name} predicts as well as the best plain model, within two standard errors: {difference}."


def report(metrics: Mapping[str, Any], trial: Trial) -> str:
    """The model in words, the table of errors and the verdict."""
    from bilevax.drawing.tables import markdown

    told = getattr(trial.estimator, "describe", None)  # names features where that says something
    words = str(trial.estimator) if told is None else told(trial.schema.encoder.names)
    model = fit_words(words, metrics["status"])
    if metrics["errors"] is None:
        return f"{model}\nNothing was held out, so there is no error to tell."
    rows = [
        {"method": name, **{measure: f"{value:.4f}" for measure, value in errors.items()}}
        for name, errors in metrics["errors"].items()
    ]
    counts = f"{metrics['held_out']} rows held out at random, seed {metrics['seed']}."
    return f"{markdown(rows)}\n\n{counts} {metrics['verdict']}\n\n{model}"


def write_predictions(folder: Path, table: Table, trial: Trial) -> None:
    """predictions.csv: the rows held out, with target and prediction."""
    test = table.subset(trial.held_out)
    numbers = (np.flatnonzero(trial.held_out) + 1).tolist()
    names, columns = prediction_columns(trial.schema, test, trial.predictions[type(trial.estimator).__name__])
    truth = as_words(test[trial.schema.target])
    write_csv(
        folder / "predictions.csv",
        ["row", *names[:-1], trial.schema.target, names[-1]],
        zip(numbers, *columns[:-1], truth, columns[-1], strict=True),
    )


def prediction_columns(schema: Schema, table: Table, predictions: np.ndarray) -> tuple[list[str], list[list[str]]]:
    """Names and columns of predictions as text: the task, the probability of each class, and last what is predicted."""
    names: list[str] = []
    columns: list[list[str]] = []
    tasks = schema.tasks_of(table)
    if tasks is not None and schema.task is not None:
        names, columns = [schema.task], [tasks.tolist()]
    if schema.labels is None:
        return [*names, "prediction"], [*columns, rounded(predictions)]
    names += [f"probability of {label}" for label in schema.labels]
    columns += [rounded(column) for column in predictions.T]
    return [*names, "prediction"], [*columns, [schema.labels[number] for number in predictions.argmax(axis=1)]]


def _errors(trial: Trial) -> dict[str, dict[str, float]]:
    """Two measures for each model."""
    if trial.schema.labels is None:
        return {
            name: {"RMSE": float(np.sqrt(losses.mean())), "MAE": float(np.mean(np.sqrt(losses)))}
            for name, losses in trial.losses().items()
        }
    wrong = {name: part.argmax(axis=1) != trial.truth for name, part in trial.predictions.items()}
    return {
        name: {"log loss": float(losses.mean()), "error rate": float(wrong[name].mean())}
        for name, losses in trial.losses().items()
    }
