"""`bilevax predict`: ratings that a saved model predicts for a file of pairs."""

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
from bilevax.files import csv_text


def add(subparsers: Any) -> None:
    """Declare the command and its options."""
    parser = subparsers.add_parser("predict", help="ratings that a saved model predicts for pairs of user and item")
    parser.set_defaults(run=run)
    parser.add_argument("model", type=Path, metavar="MODEL", help="file saved by bilevax complete --model")
    parser.add_argument("pairs", type=Path, metavar="PAIRS", help="file with a column of users and one of items")
    add_columns(parser, "user", "item")
    parser.add_argument("--out", type=Path, metavar="FILE", help="CSV file to write (default: standard output)")


def run(options: argparse.Namespace) -> int:
    """Write a prediction for every pair, as CSV, and say how many ids the model does not know."""
    check_given(options.model, options.pairs)
    if options.out is not None:
        check_file(options.out)
    from bilevax.estimators import load
    from bilevax.ratings import read_pairs

    estimator, row_ids, col_ids = load(options.model)
    users, items = read_pairs(options.pairs, user=options.user, item=options.item)
    rows = id_numbers(users, row_ids, len(estimator.row_effects_))
    cols = id_numbers(items, col_ids, len(estimator.col_effects_))
    predictions = rounded(np.asarray(estimator.predict(rows, cols)))
    deliver(csv_text(["user", "item", "prediction"], zip(users, items, predictions, strict=True)), options.out)
    unknown_users, unknown_items = int(np.sum(rows < 0)), int(np.sum(cols < 0))
    if unknown_users or unknown_items:
        print(
            f"bilevax predict: of {len(rows)} pairs, {unknown_users} have an unknown user and {unknown_items} an "
            "unknown item; their predictions come from the known effects only.",
            file=sys.stderr,
        )
    return 0
