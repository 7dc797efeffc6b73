"""`bilevax multitask`: one regression for each task, which learn from each other as far as the data say so."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bilevax.cli.table_baselines import per_task, pooled
from bilevax.cli.table_fit import TableCommand, add_table_options, run_table_command
from bilevax.cli.table_trial import Predict, Trial
from bilevax.cli.task_picture import draw_tasks
from bilevax.files import write_csv
from bilevax.tables import Schema, Table


def add(subparsers: Any) -> None:
    """Declare the command and its options."""
    parser = subparsers.add_parser(
        "multitask", help="learn a regression for each task of a table, and how tasks relate"
    )
    parser.set_defaults(run=run)
    parser.add_argument("--task", required=True, metavar="COL", help="column that says to which task a row belongs")
    add_table_options(parser, "metrics, coefficients, predictions and a picture of how tasks relate")


def run(options: argparse.Namespace) -> int:
    """Read, hold out, fit, report, write and save."""
    return run_table_command(_COMMAND, options)


def _estimator() -> Any:
    from bilevax.estimators import MultiTaskRegression

    return MultiTaskRegression


def _baselines(schema: Schema, train: Table) -> Mapping[str, Predict]:
    X, y, task = schema.features_of(train), schema.outcomes_of(train), schema.tasks_of(train)
    assert task is not None
    one, each = pooled(X, y, schema.loss), per_task(X, y, task, schema.loss)
    word = "ridge" if schema.labels is None else "logistic regression"
    return {
        f"one {word} for all rows": lambda table: one(schema.features_of(table)),
        f"one {word} per task": lambda table: each(schema.features_of(table), schema.tasks_of(table)),
    }


def _write_coefficients(folder: Path, trial: Trial) -> str:
    """A line for each task and feature: its coefficient, how sure that is, and those of the task alone and of all."""
    model, names = trial.estimator, trial.schema.encoder.names
    tasks, features = np.shape(model.coef_)
    parts = {"coefficient": model.coef_, "own": model.own_coef_, "pooled": model.pooled_coef_}
    parts["standard_deviation"] = model.coef_std_
    kept = {name: np.broadcast_to(part, (tasks, features)) for name, part in parts.items() if part is not None}
    rows = (
        [task, name, *(f"{part[t, f]:.6g}" for part in kept.values())]
        for t, task in enumerate(np.asarray(model.tasks_).tolist())
        for f, name in enumerate(names)
    )
    return write_csv(folder / "coefficients.csv", ["task", "feature", *kept], rows).name


def _draw(file: Path, trial: Trial) -> bool:
    tasks = [str(task) for task in np.asarray(trial.estimator.tasks_).tolist()]
    return draw_tasks(file, tasks, np.asarray(trial.estimator.task_correlation_))


_COMMAND = TableCommand("multitask", _estimator, 2, _baselines, _write_coefficients, "tasks.png", _draw)
