"""`bilevax demo`: two problems told in plain words; `bilevax demo paper`: the paper's two smallest problems."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from bilevax.cli.checks import check_at_least, check_folder


def add(subparsers: Any) -> None:
    """Declare the command and its options."""
    parser = subparsers.add_parser("demo", help="see bilevax at work on two small problems, within a minute")
    parser.set_defaults(run=run)
    parser.add_argument(
        "which",
        nargs="?",
        choices=["story", "paper"],
        default="story",
        help="story (default): two problems in plain words; paper: the IBCG paper's toy and its synthetic completion",
    )
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder for pictures and text (default: demo)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the problems (default: 0)")
    parser.add_argument("--steps", type=int, help="paper only: steps on the completion problem (default: 1000)")
    parser.add_argument(
        "--size", type=int, help="paper only: rows and columns of the completion problem (default: 250)"
    )
    parser.add_argument("--quiet", action="store_true", help="no progress lines")


def run(options: argparse.Namespace) -> int:
    """Solve the problems, print what they show, save pictures and text."""
    check_at_least(options, steps=1, seed=0, size=10)
    if options.which == "story" and not options.steps is options.size is None:
        raise ValueError("--steps and --size belong to `bilevax demo paper`.")
    check_folder(options.out)
    return _paper(options) if options.which == "paper" else _story(options)


def _story(options: argparse.Namespace) -> int:
    from bilevax.experiments.story import tell

    def report(line: str) -> None:
        if not options.quiet:
            print(f"  {line}", file=sys.stderr)

    tell(options.out, seed=options.seed, say=lambda text: print(text, flush=True), report=report)
    return 0


def _paper(options: argparse.Namespace) -> int:
    from bilevax.experiments.paper.demo import demo

    steps, n = options.steps or 1000, options.size or 250
    print(demo(options.out, seed=options.seed, steps=steps, n=n, progress=not options.quiet))
    return 0
