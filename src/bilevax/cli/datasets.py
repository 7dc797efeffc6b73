"""`bilevax datasets`: list or fetch the data sets of the experiments."""

from __future__ import annotations

import argparse
from typing import Any


def add(subparsers: Any) -> None:
    """Declare the command and its options."""
    parser = subparsers.add_parser("datasets", help="list or fetch the data sets of the experiments")
    parser.set_defaults(run=run)
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    actions.add_parser("list", help="every data set, and where it was found")
    fetch = actions.add_parser("fetch", help="find or download data sets and check them")
    fetch.add_argument("names", nargs="+", metavar="NAME")


def run(options: argparse.Namespace) -> int:
    """Print the table of data sets, or the files of those that were fetched."""
    from bilevax import datasets
    from bilevax.drawing.tables import markdown

    if options.action == "list":
        print(markdown(datasets.table()))
        return 0
    for name in options.names:
        datasets.describe(name)  # unknown names are refused before anything is fetched
    for name in options.names:
        for role, path in datasets.fetch(name).items():
            print(f"{name}  {role}  {path}")
    return 0
