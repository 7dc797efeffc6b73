"""`bilevax demo`: the paper's methods on its two smallest problems."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from bilevax.cli.checks import check_at_least, check_folder


def add(subparsers: Any) -> None:
    """Declare the command and its options."""
    parser = subparsers.add_parser("demo", help="see IBCG at work: the paper's toy and its synthetic completion")
    parser.set_defaults(run=run)
    parser.add_argument(
        "--out", type=Path, default=Path("demo"), help="folder for pictures, table and runs (default: demo)"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the completion problem (default: 0)")
    parser.add_argument("--steps", type=int, default=1000, help="steps on the completion problem (default: 1000)")
    parser.add_argument(
        "--size", type=int, default=250, help="rows and columns of the completion problem (default: 250)"
    )
    parser.add_argument("--quiet", action="store_true", help="no progress lines")


def run(options: argparse.Namespace) -> int:
    """Run the methods, save runs and pictures, print the tables."""
    check_at_least(options, steps=1, seed=0, size=10)
    check_folder(options.out)
    from bilevax.experiments.demo import demo

    print(demo(options.out, seed=options.seed, steps=options.steps, n=options.size, progress=not options.quiet))
    return 0
