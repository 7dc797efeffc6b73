"""The `bilevax` command; thin, every job is a function of the layers below."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import jax

from bilevax import __version__


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bilevax", description="Constrained bilevel optimization.")
    parser.add_argument("--version", action="version", version=f"bilevax {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    demo = commands.add_parser("demo", help="see IBCG at work: the paper's toy and its synthetic completion")
    demo.add_argument(
        "--out", type=Path, default=Path("demo"), help="folder for pictures, table and runs (default: demo)"
    )
    demo.add_argument("--seed", type=int, default=0, help="seed of the completion problem (default: 0)")
    demo.add_argument("--steps", type=int, default=1000, help="steps on the completion problem (default: 1000)")
    demo.add_argument("--size", type=int, default=250, help="rows and columns of the completion problem (default: 250)")
    demo.add_argument("--quiet", action="store_true", help="no progress lines")
    return parser


def _check_folder(folder: Path) -> None:
    """Find out before the work whether its results can be written."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"--out {folder} is a file; give a folder.")
    folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK):
        raise ValueError(f"--out {folder} cannot be written to; give another folder.")


def _demo(options: argparse.Namespace) -> None:
    for name, least in (("steps", 1), ("seed", 0), ("size", 10)):
        if getattr(options, name) < least:
            raise ValueError(f"--{name} must be at least {least}, got {getattr(options, name)}.")
    _check_folder(options.out)
    from bilevax.experiments.demo import demo

    print(demo(options.out, seed=options.seed, steps=options.steps, n=options.size, progress=not options.quiet))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; errors of the user are one line on standard error and exit code 2."""
    options = _parser().parse_args(arguments)
    jax.config.update("jax_enable_x64", True)
    try:
        _demo(options)
    except (ValueError, OSError, ImportError) as error:
        print(f"bilevax {options.command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"bilevax {options.command}: interrupted", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
