"""`bilevax methods`: every method in one table."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from bilevax.cli.checks import check_at_least, check_file
from bilevax.files import write_text


def add(subparsers: Any) -> None:
    """Declare the command and its options."""
    parser = subparsers.add_parser(
        "methods", help="every method: the paper's Table 1, what a step costs, how fast it is"
    )
    parser.set_defaults(run=run)
    parser.add_argument("--only", metavar="NAMES", help="only these, separated by commas, for example IBCG,SOBA")
    parser.add_argument("--no-measure", action="store_true", help="run nothing; only what is known beforehand")
    parser.add_argument("--one-problem", action="store_true", help="only the common problem, not the three others")
    parser.add_argument("--size", type=int, default=50, help="variables of each level of the problem (default: 50)")
    parser.add_argument("--out", type=Path, help="markdown page to write (default: print the tables)")
    parser.add_argument("--quiet", action="store_true", help="no progress lines")


def run(options: argparse.Namespace) -> int:
    """Measure the methods, then print the tables or write the page."""
    from bilevax.experiments.methods import measure, page, table1

    names = table1.chosen(options.only)
    check_at_least(options, size=2)
    if options.out is not None:
        check_file(options.out)
    progress = not options.quiet
    measured = None if options.no_measure else measure.measure_all(names, options.size, progress)
    everywhere = not (options.no_measure or options.one_problem)
    elsewhere = measure.measure_elsewhere(names, options.size, progress) if everywhere else None
    if options.out is None:
        print(page.text(names, measured, elsewhere, options.size))
    else:
        text = page.page(names, measured, elsewhere, options.size)
        print(f"Saved in {write_text(options.out, text)}.")
    return 0
