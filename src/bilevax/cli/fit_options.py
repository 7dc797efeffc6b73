"""Options of every command that holds out data, fits an estimator and saves it; they are checked before the work."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from bilevax.cli.checks import check_at_least, check_file, check_folder, check_given

INTERRUPTED = 130
"""The exit code if Ctrl-C ended a fit."""


def add_fit_options(parser: argparse.ArgumentParser, *, test_fraction: float, files: str, rows: str) -> None:
    """Declare them; `files` are those that go into the folder, and `rows` is what is fitted."""
    parser.add_argument(
        "--test-fraction",
        type=float,
        default=test_fraction,
        metavar="F",
        help=f"share held out, 0 for none (default: {test_fraction:g})",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the split and of the method (default: 0)")
    parser.add_argument(
        "--time-limit", type=float, metavar="SECONDS", help="end each fit after this time (default: no limit)"
    )
    parser.add_argument("--out", type=Path, metavar="FOLDER", help=f"folder for {files}")
    parser.add_argument("--model", type=Path, metavar="FILE", help=f"fit again on all {rows} and save the model")
    parser.add_argument(
        "--checkpoint", type=Path, metavar="FOLDER", help="save the fit there; `bilevax resume FOLDER` goes on with it"
    )
    parser.add_argument("--quiet", action="store_true", help="no progress lines")


def check_fit_options(options: argparse.Namespace, data: Path) -> None:
    """Refuse wrong options before anything is read or written."""
    check_at_least(options, seed=0)
    if not 0 <= options.test_fraction <= 0.9:
        raise ValueError(f"--test-fraction must be from 0 to 0.9, got {options.test_fraction:g}.")
    if options.time_limit is not None and not 0 < options.time_limit < math.inf:
        raise ValueError(f"--time-limit must be a positive number of seconds, got {options.time_limit:g}.")
    check_given(data)


def check_results(options: argparse.Namespace) -> None:
    """Find out whether the results can be written; this makes the folder."""
    if options.out is not None:
        check_folder(options.out)
    if options.model is not None:
        check_file(options.model, "--model")


def check_split(options: argparse.Namespace, held_out: int, total: int, what: str) -> None:
    """Refuse a split that leaves nothing to learn from, or nothing to be tried on."""
    if options.test_fraction > 0 and held_out == 0:
        raise ValueError(
            f"--test-fraction {options.test_fraction:g} of {total} {what} holds out none; give a larger one."
        )
    if total - held_out < 2:
        raise ValueError(f"--test-fraction {options.test_fraction:g} leaves {total - held_out} {what} to learn from.")


def checkpoint_part(options: argparse.Namespace, name: str) -> Path | None:
    """The folder of one of the two fits: "trial" on some of the data, "model" on all of them."""
    return None if options.checkpoint is None else options.checkpoint / name
