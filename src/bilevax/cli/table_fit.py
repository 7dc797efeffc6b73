"""The story of `bilevax multitask` and `bilevax weights`: read, hold out, fit, report, write, save."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bilevax.cli import command_file
from bilevax.cli.fit_options import (
    INTERRUPTED,
    add_fit_options,
    check_fit_options,
    check_results,
    check_split,
    checkpoint_part,
)
from bilevax.cli.fit_report import drawn, tell_saved, write_metrics
from bilevax.cli.table_report import compute_metrics, report, write_predictions
from bilevax.cli.table_trial import Predict, Trial, fit, run_trial
from bilevax.tables import Schema, Table, describe, read_table, schema_of


class TableCommand(NamedTuple):
    """What one of the commands does in its own way."""

    name: str
    estimator: Callable[[], Any]
    """Gives the class."""
    most_classes: int
    baselines: Callable[[Schema, Table], Mapping[str, Predict]]
    """Plain models fitted to a table, by name."""
    details: Callable[[Path, Trial], str]
    """Writes the learned numbers into the folder and gives the name of the file."""
    picture: str
    draw: Callable[[Path, Trial], bool]
    """Draws the picture; False if there is nothing to see."""


def add_table_options(parser: argparse.ArgumentParser, files: str) -> None:
    """Declare the options that both commands have."""
    parser.add_argument(
        "table",
        type=Path,
        metavar="TABLE",
        help="CSV with any separator, Parquet, Arrow or Feather; text may be gzipped",
    )
    parser.add_argument("--target", required=True, metavar="COL", help="column to predict: numbers or classes")
    parser.add_argument(
        "--drop", action="append", default=[], metavar="COL", help="column to leave out; may be given several times"
    )
    parser.add_argument(
        "--missing",
        choices=["refuse", "impute"],
        default="refuse",
        help="whether missing values of features are filled in (default: refuse)",
    )
    parser.add_argument(
        "--loss",
        choices=["auto", "squared", "logistic"],
        default="auto",
        help="squared for numbers, logistic for classes (default: auto)",
    )
    parser.add_argument("--separator", metavar="S", help="between the fields of a text (default: guessed)")
    add_fit_options(parser, test_fraction=0.2, files=files, rows="rows")


def run_table_command(command: TableCommand, options: argparse.Namespace) -> int:
    """Read, hold out, fit, report, write and save; an interrupted fit still delivers, with exit code 130."""
    check_fit_options(options, options.table)
    task = getattr(options, "task", None)
    table = read_table(options.table, separator=options.separator, text=[] if task is None else [task])
    schema = schema_of(
        table,
        target=options.target,
        task=task,
        drop=options.drop,
        loss=options.loss,
        most_classes=command.most_classes,
        missing=options.missing,
    )
    held_out = _held_out(schema, table, options)
    of_training = schema.fitted_on(table.subset(~held_out), missing=options.missing)
    check_results(options)
    print(describe(table, schema, options.drop), flush=True)
    if options.checkpoint is not None and options.arguments is not None:
        command_file.write(options.checkpoint, options.arguments)
    estimator = command.estimator()(
        loss=schema.loss,
        time_limit=options.time_limit,
        random_state=options.seed,
        verbose=0 if options.quiet else 1,
        checkpoint=checkpoint_part(options, "trial"),
    )
    trial = run_trial(estimator, of_training, table, held_out, command.baselines)
    metrics = compute_metrics(table, trial, options)
    print(f"\n{report(metrics, trial)}", flush=True)
    if options.out is not None:
        _write(command, options.out, table, trial, metrics)
    saved = trial.estimator if options.model is None else _save(options, schema, table, trial)
    return INTERRUPTED if "STOPPED" in (trial.estimator.status_, saved.status_) else 0


def _held_out(schema: Schema, table: Table, options: argparse.Namespace) -> np.ndarray:
    """True for the rows that the fit must not see: the same share of every task and of every class."""
    from bilevax.tables.hold_out import split_rows

    tasks, y = schema.tasks_of(table), schema.outcomes_of(table)
    groups = [] if tasks is None else [np.unique(tasks, return_inverse=True)[1]]
    groups += [np.zeros(len(y), int) if schema.labels is None else y.astype(int)]
    held_out = split_rows(groups, options.test_fraction, options.seed)
    check_split(options, int(held_out.sum()), len(held_out), "rows")
    if len(np.unique(y[~held_out])) < 2:
        raise ValueError(
            f"{table.name}: the target {schema.target!r} is constant in the {int(np.sum(~held_out))} rows to learn "
            "from; give a smaller --test-fraction."
        )
    return held_out


def _write(command: TableCommand, folder: Path, table: Table, trial: Trial, metrics: Mapping[str, Any]) -> None:
    write_metrics(folder, metrics)
    written = ["metrics.json", command.details(folder, trial)]
    if metrics["held_out"]:
        write_predictions(folder, table, trial)
        written.append("predictions.csv")
    written += drawn(command.name, folder / command.picture, lambda file: command.draw(file, trial))
    print(f"Written to {folder}: {', '.join(written)}.")


def _save(options: argparse.Namespace, schema: Schema, table: Table, trial: Trial) -> Any:
    """Fit all rows and save that fit, which is returned.

    If nothing was held out, the trial is that fit. If the user interrupted the trial, its model is saved as it is.
    """
    if trial.interrupted or not trial.held_out.any():
        trial.estimator.save(options.model, trial.schema)
        interrupted = f"The interrupted fit of {len(trial.train)} rows" if trial.interrupted else None
        tell_saved(options.model, "", "The fit", trial=interrupted)
        return trial.estimator
    from sklearn.base import clone

    estimator = clone(trial.estimator).set_params(checkpoint=checkpoint_part(options, "model"))
    fit(estimator, schema, table).save(options.model, schema)
    tell_saved(options.model, estimator.status_, f"A fit of all {len(table)} rows")
    return estimator
