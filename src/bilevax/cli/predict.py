"""`bilevax predict`: what a saved model predicts for a file of pairs, or for the rows of a table."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np

from bilevax.cli.checks import check_file, check_given
from bilevax.cli.columns import add_columns
from bilevax.cli.model_ids import id_numbers
from bilevax.cli.output import deliver, rounded
from bilevax.cli.table_report import prediction_columns
from bilevax.cli.table_trial import predict
from bilevax.files import csv_text
from bilevax.tables import Schema, Table, read_table
from bilevax.tables.table import listed


def add(subparsers: Any) -> None:
    """Declare the command and its options."""
    parser = subparsers.add_parser("predict", help="what a saved model predicts for pairs or for a table")
    parser.set_defaults(run=run)
    parser.add_argument("model", type=Path, metavar="MODEL", help="file saved with --model")
    parser.add_argument(
        "data", type=Path, metavar="TABLE", help="a table; for ratings a file with a column of users and one of items"
    )
    add_columns(parser, "user", "item")
    parser.add_argument("--separator", metavar="S", help="between the fields of a text (default: guessed)")
    parser.add_argument(
        "--unknown-tasks",
        choices=["refuse", "pooled"],
        default="refuse",
        help="whether rows of tasks that the model did not learn get the regression of all tasks (default: refuse)",
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="CSV file to write (default: standard output)")


def run(options: argparse.Namespace) -> int:
    """Write a prediction for every pair or row, as CSV, and say what the model does not know."""
    check_given(options.model, options.data)
    from bilevax.estimators import MatrixCompletion, load

    model, *names = load(options.model)
    text, note = (_of_pairs if isinstance(model, MatrixCompletion) else _of_table)(options, model, *names)
    if options.out is not None:
        check_file(options.out)
    deliver(text, options.out)
    if note:
        print(f"bilevax predict: {note}.", file=sys.stderr)
    return 0


def _of_pairs(options: argparse.Namespace, model: Any, row_ids: Any, col_ids: Any) -> tuple[str, str]:
    """The predictions as CSV, and a note on ids that the model does not know."""
    from bilevax.ratings import read_pairs

    users, items = read_pairs(options.data, user=options.user, item=options.item, separator=options.separator)
    rows = id_numbers(users, row_ids, len(model.row_effects_))
    cols = id_numbers(items, col_ids, len(model.col_effects_))
    predictions = rounded(np.asarray(model.predict(rows, cols)))
    text = csv_text(["user", "item", "prediction"], zip(users, items, predictions, strict=True))
    unknown_users, unknown_items = int(np.sum(rows < 0)), int(np.sum(cols < 0))
    if not unknown_users and not unknown_items:
        return text, ""
    return text, (
        f"of {len(rows)} pairs, {unknown_users} have an unknown user and {unknown_items} an unknown item; their "
        "predictions come from the known effects only"
    )


def _of_table(options: argparse.Namespace, model: Any, schema: Schema | None) -> tuple[str, str]:
    """The predictions as CSV, and a note on levels and tasks that the model does not know."""
    if options.user is not None or options.item is not None:
        raise ValueError(f"--user and --item belong to models of ratings, and {options.model} learned from a table.")
    if schema is None:
        raise ValueError(f"{options.model} was saved without the columns of its table; save it with `--model`.")
    table = read_table(options.data, separator=options.separator, text=schema.text_columns)
    notes = _notes_on_tasks(table, schema, model, refuse=options.unknown_tasks == "refuse")
    names, columns = prediction_columns(schema, table, predict(model, schema, table))
    text = csv_text(["row", *names], zip(range(1, len(table) + 1), *columns, strict=True))
    return text, "; ".join([*notes, *schema.encoder.notes_on(table)])


def _notes_on_tasks(table: Table, schema: Schema, model: Any, *, refuse: bool) -> list[str]:
    """Refuse tasks that the model did not learn, or say which there are."""
    tasks = schema.tasks_of(table)
    if tasks is None:
        return []
    known = [str(task) for task in np.asarray(model.tasks_).tolist()]
    unknown = sorted(set(tasks.tolist()) - set(known))
    if not unknown:
        return []
    if refuse:
        raise ValueError(
            f"{table.name}: {len(unknown)} tasks ({listed(unknown, 5)}) are not among the {len(known)} that the model "
            f"learned ({listed(known, 5)}); fit a model with rows of these tasks, remove them, or give "
            "--unknown-tasks pooled."
        )
    rows = int(np.sum(np.isin(tasks, unknown)))
    return [f"{rows} rows of {len(unknown)} unknown tasks ({listed(unknown, 5)}) got the regression of all tasks"]
