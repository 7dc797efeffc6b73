"""Options that name the columns of a file."""

from __future__ import annotations

import argparse


def add_columns(parser: argparse.ArgumentParser, *roles: str) -> None:
    """Declare an option for each role."""
    for role in roles:
        parser.add_argument(f"--{role}", metavar="COL", help=f"column of the {role}, by name or by number from 0")
