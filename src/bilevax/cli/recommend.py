"""`bilevax recommend`: the items that a saved model predicts a user to rate highest."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from bilevax.cli.checks import check_given
from bilevax.cli.model_ids import id_names


def add(subparsers: Any) -> None:
    """Declare the command and its options."""
    parser = subparsers.add_parser("recommend", help="items that a saved model predicts a user to rate highest")
    parser.set_defaults(run=run)
    parser.add_argument("model", type=Path, metavar="MODEL", help="file saved by bilevax complete --model")
    parser.add_argument("--user", required=True, help="the user's id in the ratings file")
    parser.add_argument("-n", type=int, default=10, metavar="N", help="how many items (default: 10)")
    parser.add_argument("--items", type=Path, metavar="FILE", help="file with a column of item ids and one of titles")


def run(options: argparse.Namespace) -> int:
    """Print a table of the items with the highest predictions among those that the user has not rated."""
    if options.n < 1:
        raise ValueError(f"-n must be at least 1, got {options.n}.")
    check_given(options.model, *([options.items] if options.items else []))
    from bilevax.drawing.tables import markdown
    from bilevax.estimators import load
    from bilevax.ratings import read_titles

    estimator, row_ids, col_ids = load(options.model)
    titles = None if options.items is None else read_titles(options.items)
    users = id_names(row_ids, len(estimator.row_effects_))
    if options.user not in users:
        raise ValueError(
            f"user {options.user!r} is not among the {len(users)} users of {options.model}, which are called "
            f"{', '.join(users[:3])} and so on; give one of them, or fit a model to ratings of this user."
        )
    cols, scores = estimator.recommend(users.index(options.user), options.n)
    items = id_names(col_ids, len(estimator.col_effects_))
    rows: list[dict[str, Any]] = [
        {"item": items[col], "predicted": f"{score:.2f}"} for col, score in zip(cols, scores, strict=True)
    ]
    if titles is not None:
        rows = [{**row, "title": titles.get(row["item"], "")} for row in rows]
        if not any(row["title"] for row in rows):
            print(f"bilevax recommend: {options.items} has no title of these items.", file=sys.stderr)
    print(markdown(rows) if rows else f"User {options.user} has rated every item.")
    return 0
