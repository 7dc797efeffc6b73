"""The `bilevax` command. One file per command: `add` declares its options, `run` checks them and does the work.

Commands import what they need inside `run`, so that `bilevax --help` loads neither estimators nor matplotlib.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from bilevax import __version__
from bilevax.cli import complete, datasets, demo, methods, multitask, predict, recommend, reproduce, resume, weights
from bilevax.runs.lock import Busy

COMMANDS = (demo, reproduce, methods, datasets, complete, multitask, weights, resume, predict, recommend)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; errors of the user are one line on standard error and exit code 2."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    options = parser().parse_args(arguments)
    options.arguments = arguments
    _configure_jax()
    try:
        return run_checked(options)
    except (ValueError, OSError, ImportError, Busy) as error:
        print(f"bilevax {options.command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"bilevax {options.command}: interrupted", file=sys.stderr)
        return 130


def run_checked(options: argparse.Namespace) -> int:
    """Run the command that these options were parsed for."""
    return int(options.run(options))


def parser() -> argparse.ArgumentParser:
    """What the command line may look like."""
    made = argparse.ArgumentParser(prog="bilevax", description="Constrained bilevel optimization.")
    made.add_argument("--version", action="version", version=f"bilevax {__version__}")
    subparsers = made.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add(subparsers)
    return made


def _configure_jax() -> None:
    """Settings for the whole process, which only a command may change."""
    import jax

    from bilevax.cli.compilation_cache import keep_compiled_code

    jax.config.update("jax_enable_x64", True)
    keep_compiled_code()
