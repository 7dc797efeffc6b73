"""`bilevax reproduce`: the paper's experiments."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from bilevax.cli import command_file
from bilevax.cli.checks import check_at_least, check_folder
from bilevax.runs.lock import Lock


def add(subparsers: Any) -> None:
    """Declare the command and its options."""
    parser = subparsers.add_parser("reproduce", help="run the paper's experiments; figures, tables and a page")
    parser.set_defaults(run=run)
    parser.add_argument("name", help="an experiment, or all; an unknown name lists them")
    parser.add_argument(
        "--out", type=Path, help="folder for runs and pages (default: reproduction, or reproduction-quick)"
    )
    parser.add_argument("--quick", action="store_true", help="small versions of everything, a few minutes in all")
    parser.add_argument("--seed", type=int, default=0, help="first seed (default: 0)")
    parser.add_argument("--repeats", type=int, help="runs of each method (default: as the experiment says)")
    parser.add_argument("--methods", help="only these, separated by commas, for example IBCG,SBFW")
    parser.add_argument("--variant", choices=["printed", "repaired"], help="only this variant (default: both)")
    parser.add_argument("--quiet", action="store_true", help="no progress lines")


def run(options: argparse.Namespace) -> int:
    """Run what is missing, write figures, tables and the page; the exit code is 1 if data are missing."""
    from bilevax.experiments.paper import catalogue
    from bilevax.experiments.paper.jobs import VARIANTS, Options
    from bilevax.experiments.paper.reproduce import reproduce

    experiments = catalogue.named(options.name)
    folder = options.out or Path("reproduction-quick" if options.quick else "reproduction")
    check_at_least(options, seed=0, repeats=1)
    check_folder(folder)
    asked = Options(
        seed=options.seed,
        repeats=options.repeats,
        methods=tuple(options.methods.split(",")) if options.methods else None,
        variants=(options.variant,) if options.variant else VARIANTS,
        quick=options.quick,
    )
    lock = Lock(folder)
    try:
        if options.arguments is not None:
            command_file.write(folder, options.arguments, replace=True)
        text, missing = reproduce(experiments, folder, asked, progress=not options.quiet)
    finally:
        lock.release()
    print(f"{text}\nSaved in {folder}.")
    for words in missing:
        print(f"bilevax reproduce: not run: {words}", file=sys.stderr)
    return 1 if missing else 0
