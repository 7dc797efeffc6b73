"""Skeleton of a command: copy it to src/bilevax/cli/ and add its name to the list in src/bilevax/cli/__init__.py.

The example prints the shape of a table. CONTRIBUTING.md lists what else a new command needs.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def add(commands: Any) -> None:
    """Declare the command and its options."""
    parser = commands.add_parser("shape", help="rows and columns of a table")
    parser.add_argument("table", type=Path, metavar="TABLE", help="a CSV file")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Check the options, do the work, return the exit code; an error of the user is a ValueError with a sentence."""
    # Check everything before the work. Import what is heavy here, so that `bilevax --help` stays fast.
    if not options.table.is_file():
        raise ValueError(f"{options.table} is not a file; give a CSV file.")
    lines = options.table.read_text("utf-8").splitlines()
    print(f"{len(lines)} rows, {len(lines[0].split(',')) if lines else 0} columns")
    return 0
