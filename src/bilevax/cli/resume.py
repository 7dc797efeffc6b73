"""`bilevax resume`: run the command again that a folder belongs to; it goes on where it was stopped."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from bilevax.cli import command_file


def add(subparsers: Any) -> None:
    """Declare the command and its options."""
    parser = subparsers.add_parser(
        "resume", help="go on with a fit that has --checkpoint FOLDER, or with `reproduce --out FOLDER`"
    )
    parser.set_defaults(run=run)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="the folder of the command")


def run(options: argparse.Namespace) -> int:
    """Read the command line from the folder, check it as if it were typed, and run it."""
    from bilevax import cli

    return int(cli.run_checked(command_file.read(options.folder, cli.parser)))
