"""The `bilevax` command; thin, every job is a function of the layers below."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import jax

from bilevax import __version__, completion_commands


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

    reproduce = commands.add_parser("reproduce", help="run the paper's experiments; figures, tables and a page")
    reproduce.add_argument("name", help="an experiment, or all; an unknown name lists them")
    reproduce.add_argument(
        "--out", type=Path, help="folder for runs and pages (default: reproduction, or reproduction-quick)"
    )
    reproduce.add_argument("--quick", action="store_true", help="small versions of everything, a few minutes in all")
    reproduce.add_argument("--seed", type=int, default=0, help="first seed (default: 0)")
    reproduce.add_argument("--repeats", type=int, help="runs of each method (default: as the experiment says)")
    reproduce.add_argument("--methods", help="only these, separated by commas, for example IBCG,SBFW")
    reproduce.add_argument("--variant", choices=["printed", "repaired"], help="only this variant (default: both)")
    reproduce.add_argument("--quiet", action="store_true", help="no progress lines")

    methods = commands.add_parser(
        "methods", help="every method: the paper's Table 1, what a step costs, how fast it is"
    )
    methods.add_argument("--only", metavar="NAMES", help="only these, separated by commas, for example IBCG,SOBA")
    methods.add_argument("--no-measure", action="store_true", help="run nothing; only what is known beforehand")
    methods.add_argument("--size", type=int, default=50, help="variables of each level of the problem (default: 50)")
    methods.add_argument("--out", type=Path, help="markdown page to write (default: print the tables)")
    methods.add_argument("--quiet", action="store_true", help="no progress lines")

    data = commands.add_parser("datasets", help="list or fetch the data sets of the experiments")
    actions = data.add_subparsers(dest="action", metavar="ACTION", required=True)
    actions.add_parser("list", help="every data set, and where it was found")
    fetch = actions.add_parser("fetch", help="find or download data sets and check them")
    fetch.add_argument("names", nargs="+", metavar="NAME")

    completion_commands.add_parsers(commands)
    return parser


def _check_folder(folder: Path) -> None:
    """Find out before the work whether its results can be written."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"--out {folder} is a file; give a folder.")
    folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK):
        raise ValueError(f"--out {folder} cannot be written to; give another folder.")


def _check_file(file: Path, option: str = "--out") -> None:
    """Find out before the work whether its page can be written."""
    if file.is_dir():
        raise ValueError(f"{option} {file} is a folder; give a file.")
    if file.parent.exists() and not file.parent.is_dir():
        raise ValueError(f"{option} {file} cannot be written, since {file.parent} is a file; give another path.")
    file.parent.mkdir(parents=True, exist_ok=True)
    if not os.access(file.parent, os.W_OK) or (file.exists() and not os.access(file, os.W_OK)):
        raise ValueError(f"{option} {file} cannot be written to; give another file.")


def _check_given(*files: Path) -> None:
    """Find out before anything is made whether there is something to read."""
    for file in files:
        if not file.is_file():
            raise ValueError(f"{file} is {'a folder' if file.is_dir() else 'not there'}; give a file.")


def _check_numbers(options: argparse.Namespace, **least: int) -> None:
    for name, bound in least.items():
        value = getattr(options, name)
        if value is not None and value < bound:
            raise ValueError(f"--{name} must be at least {bound}, got {value}.")


def _demo(options: argparse.Namespace) -> int:
    _check_numbers(options, steps=1, seed=0, size=10)
    _check_folder(options.out)
    from bilevax.experiments.demo import demo

    print(demo(options.out, seed=options.seed, steps=options.steps, n=options.size, progress=not options.quiet))
    return 0


def _reproduce(options: argparse.Namespace) -> int:
    from bilevax.experiments.paper import catalogue
    from bilevax.experiments.paper.jobs import VARIANTS, Options
    from bilevax.experiments.paper.reproduce import reproduce

    experiments = catalogue.named(options.name)
    options.out = options.out or Path("reproduction-quick" if options.quick else "reproduction")
    _check_numbers(options, seed=0, repeats=1)
    _check_folder(options.out)
    asked = Options(
        seed=options.seed,
        repeats=options.repeats,
        methods=tuple(options.methods.split(",")) if options.methods else None,
        variants=(options.variant,) if options.variant else VARIANTS,
        quick=options.quick,
    )
    text, missing = reproduce(experiments, options.out, asked, progress=not options.quiet)
    print(f"{text}\nSaved in {options.out}.")
    for words in missing:
        print(f"bilevax reproduce: not run: {words}", file=sys.stderr)
    return 1 if missing else 0


def _methods(options: argparse.Namespace) -> int:
    from bilevax.experiments.methods import measure as methods
    from bilevax.experiments.methods import page as methods_page
    from bilevax.experiments.methods import table1
    from bilevax.files import write_atomic

    names = table1.chosen(options.only)
    _check_numbers(options, size=2)
    if options.out is not None:
        _check_file(options.out)
    progress = not options.quiet
    found = None if options.no_measure else methods.measure_all(names, options.size, progress=progress)
    if options.out is None:
        print(methods_page.text(names, found, options.size))
    else:
        page = methods_page.page(names, found, options.size)
        print(f"Saved in {write_atomic(options.out, lambda stream: stream.write(page))}.")
    return 0


def _datasets(options: argparse.Namespace) -> int:
    from bilevax import datasets
    from bilevax.drawing.tables import markdown

    if options.action == "list":
        print(markdown(datasets.table()))
        return 0
    for name in options.names:
        datasets.describe(name)  # unknown names are refused before anything is fetched
    for name in options.names:
        for role, path in datasets.fetch(name).items():
            print(f"{name}  {role}  {path}")
    return 0


def _complete(options: argparse.Namespace) -> int:
    _check_numbers(options, seed=0)
    if not 0 <= options.test_fraction <= 0.9:
        raise ValueError(f"--test-fraction must be from 0 to 0.9, got {options.test_fraction:g}.")
    completion_commands.radius_of(options.radius)
    _check_given(options.ratings)
    if options.out is not None:
        _check_folder(options.out)
    if options.model is not None:
        _check_file(options.model, "--model")
    return completion_commands.complete(options)


def _predict(options: argparse.Namespace) -> int:
    _check_given(options.model, options.pairs)
    if options.out is not None:
        _check_file(options.out)
    return completion_commands.predict(options)


def _recommend(options: argparse.Namespace) -> int:
    if options.n < 1:
        raise ValueError(f"-n must be at least 1, got {options.n}.")
    _check_given(options.model, *([options.items] if options.items else []))
    return completion_commands.recommend(options)


_JOBS = {
    "demo": _demo,
    "reproduce": _reproduce,
    "methods": _methods,
    "datasets": _datasets,
    "complete": _complete,
    "predict": _predict,
    "recommend": _recommend,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; errors of the user are one line on standard error and exit code 2."""
    options = _parser().parse_args(arguments)
    jax.config.update("jax_enable_x64", True)
    try:
        return _JOBS[options.command](options)
    except (ValueError, OSError, ImportError) as error:
        print(f"bilevax {options.command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"bilevax {options.command}: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
