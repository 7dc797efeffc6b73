"""How long `bx.auto` takes to a true gap of 1e-6 of the first one, against every other method and outside baselines.

    python benchmarks/auto.py [--quick] [--family PATTERN ...] [--methods NAME ...] [--budget SECONDS]
        [--repeats N] [--seeds N ...] [--no-grid] [--audit] [--list] [--verbose] [--json FILE] [--out FOLDER]

A family is a kind of problem (`families/`). The seconds are those of stepping, estimates at the start included and
compilation apart, until the true gap (1e-3 on nonconvex problems, median over three starts) is reached. The true gap is
measured outside the clock, with both inner problems solved by code of its own (`exact.py`). Methods run one after the
other in one process with one BLAS thread; figures are medians over repeats, and what to compare is the last column.

Methods are `auto`, `printed` (IBCG with the paper's steps), the exported solvers, the baselines `lbfgsb`, `slsqp`,
`fista` and `implicit`, and `NAME*`, the best of a grid of steps with the same budget for each try. A call such as
"AIDBiO(lower=20)" is a method too. `implicit` needs jaxopt; without it, its row says so.
"""

import argparse
import fnmatch
import functools
import json
import math
import statistics
import sys
import time
import warnings
from pathlib import Path

import jax

jax.config.update("jax_enable_x64", True)

import contenders  # noqa: E402
from baselines import BASELINES  # noqa: E402
from exact import Hypergradients  # noqa: E402
from families import FAMILIES  # noqa: E402

import bilevax as bx  # noqa: E402
from bilevax.drawing.tables import markdown  # noqa: E402
from bilevax.linalg.blas import one_blas_thread  # noqa: E402
from bilevax.runs import run_directory  # noqa: E402

QUICK = ("auto", "IBCG", "AIDBiO", "AmIGO", "RAHGD", "ABA", "SOBA")


def chosen(instance, family, options):
    """The names of the methods to run."""
    if options.methods:
        return options.methods
    if options.quick:
        return ["auto", "printed", *QUICK[1:], *family.baselines]
    library = contenders.library(instance)
    grids = [f"{name}*" for name in contenders._names() if contenders.grid(instance, name)] if options.grid else []
    return ["auto", "printed", *library, *grids, *family.baselines]


def measure_seed(family, seed, options):
    """The outcome of every method from one start."""
    instance = family.make(seed)
    truth = Hypergradients(instance, 1e-11 if family.kind == "convex" else 1e-9)
    first = truth.measure(instance.x0)
    if options.audit:
        _compare_with_audit(instance, instance.x0, first)
    outcomes = {}
    for name in chosen(instance, family, options):
        began = time.perf_counter()
        target = 0.0 if name == "printed" else family.target
        measure = functools.partial(compete_once, truth, first, target, options.repeats)
        if name.endswith("*"):
            outcome = contenders.tuned(instance, name[:-1], measure, options.budget)
        else:
            play = contenders.contender(family, instance, name)
            outcome = measure(play, options.budget * (3 if name == "printed" else 1))
        if outcome is None:
            continue
        if name == "printed":  # it runs to its last step; the target may have been met on the way
            outcome = outcome._replace(seconds=outcome.seconds_to(family.target))
        outcomes[name] = outcome
        words = f"{outcome.seconds:.3g} s" if math.isfinite(outcome.seconds) else f"gap {outcome.best:.1e}"
        if options.verbose:
            spent = time.perf_counter() - began
            print(f"  {family.name}/{seed} {name}: {words} {outcome.note} ({spent:.0f} s)", file=sys.stderr, flush=True)
    return outcomes


def compete_once(truth, first, target, repeats, play, budget):
    return contenders.compete(play, truth, first, target, budget, repeats)


def _compare_with_audit(instance, x, gap):
    true = bx.audit(instance.problem, x, instance.y0)
    name, value, error = true.measure
    print(f"  audit: {name} {value:.6e} +- {error:.0e}, measured {gap:.6e}", file=sys.stderr, flush=True)


def table(runs):
    """A row for each method: medians over the starts, infinite where a start did not get there."""
    names = list(dict.fromkeys(name for run in runs for name in run if name not in refusals(runs)))
    middle = lambda name: statistics.median(run[name].seconds for run in runs if name in run)  # noqa: E731
    auto = middle("auto") if "auto" in names else float("nan")
    rows = []
    for name in sorted(names, key=lambda name: (name != "auto", middle(name), worst(runs, name))):
        outcomes = [run[name] for run in runs if name in run]
        seconds = middle(name)
        reached = sum(math.isfinite(outcome.seconds) for outcome in outcomes)
        rows.append(
            {
                "method": BASELINES[name][0] if name in BASELINES else name,
                "seconds": f"{seconds:.3g}" if math.isfinite(seconds) else "-",
                "gap": f"{worst(runs, name):.1e}",
                "reached": f"{reached}/{len(outcomes)}",
                "calls": statistics.median_low(outcome.calls for outcome in outcomes),
                "x auto": f"{seconds / auto:.3g}" if math.isfinite(seconds) and math.isfinite(auto) else "-",
                "note": outcomes[0].note[:60],
            }
        )
    return rows


def refusals(runs):
    """What the methods that could not run said."""
    said = {name: outcome.note for run in runs for name, outcome in run.items()}
    return {name: note for name, note in said.items() if note.startswith(contenders.REFUSED)}


def worst(runs, name):
    """The largest, over the starts, of the smallest relative gaps."""
    return max(run[name].best for run in runs if name in run)


def against_ibcg(results):
    """How far IBCG gets, as printed in 10^4 steps and by default in the budget, and when auto is as far."""
    rows = []
    for name, runs in results.items():
        for seed, run in enumerate(runs):
            for method, words in {"printed": "as printed", "IBCG": "default"}.items():
                if "auto" not in run or method not in run or not run[method].visits:
                    continue
                gap, seconds = run[method].best, run[method].visits[-1].seconds
                auto = run["auto"].seconds_to(gap)
                rows.append(
                    {
                        "family": f"{name}/{seed}",
                        "IBCG": words,
                        "smallest gap": f"{gap:.1e}",
                        "seconds": f"{seconds:.3g}",
                        "seconds of auto to it": f"{auto:.3g}" if math.isfinite(auto) else "-",
                        "times faster": f"{seconds / auto:.3g}" if math.isfinite(auto) else "-",
                        "note": run[method].note,
                    }
                )
    return rows


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--family", nargs="+", default=[], help="names of families, or patterns such as 'quadratic-*'")
    parser.add_argument("--methods", nargs="+", default=[], help="these methods only")
    parser.add_argument("--quick", action="store_true", help="few families and methods")
    parser.add_argument("--budget", type=float, default=10.0, help="seconds of each run")
    parser.add_argument("--repeats", type=int, default=3, help="runs of which the median counts")
    parser.add_argument("--seeds", type=int, nargs="+", help="by default 0, and 0 1 2 for nonconvex families")
    parser.add_argument("--no-grid", dest="grid", action="store_false", help="leave out the tuned methods")
    parser.add_argument("--audit", action="store_true", help="compare the first gap with bx.audit")
    parser.add_argument("--list", action="store_true", help="print the names of the families")
    parser.add_argument("--verbose", action="store_true", help="a line for each run")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--out", type=Path, help="a folder for auto.json and auto.md")
    options = parser.parse_args()
    options.methods = [name for given in options.methods for name in _split(given)]
    return options


def _split(text):
    """Names separated by commas; a call keeps its own."""
    return [text] if "(" in text else text.split(",")


def selected(options):
    if not options.family:
        return [family for family in FAMILIES.values() if family.quick or not options.quick]
    return [family for name, family in FAMILIES.items() if any(fnmatch.fnmatch(name, p) for p in options.family)]


def main():
    options = parse()
    warnings.filterwarnings("ignore", module="jaxopt")
    families = selected(options)
    if options.list:
        print("\n".join(f"{family.name} ({family.kind})" for family in families))
        return
    results, pages = {}, []
    for family in families:
        results[family.name] = [measure_seed(family, s, options) for s in options.seeds or family.seeds]
        pages.append(page(family, results[family.name], options))
        print(pages[-1], flush=True)
        write(options, results, pages)
        jax.clear_caches()  # the pages of memory for compiled code are limited; all families together pass the limit
    rows = against_ibcg(results)
    if rows:
        pages.append(f"## auto against IBCG\n\n{markdown(rows)}\n")
        print(pages[-1])
    write(options, results, pages)


def page(family, runs, options):
    """The table of a family, and who could not run; why, if methods were asked for by name."""
    rows, refused = table(runs), refusals(runs)
    parts = [f"## {family.name}, relative gap {family.target:g}", markdown(rows) if rows else "No method ran."]
    if refused and options.methods:
        parts += [f"{name} {note}" for name, note in refused.items()]
    elif refused:
        parts.append(f"Not for this set: {', '.join(refused)}.")
    return "\n\n".join(parts) + "\n"


def write(options, results, pages):
    """All visits as JSON, the tables as markdown; after every family, so that nothing is lost."""
    number = lambda v: v if math.isfinite(v) else None  # noqa: E731
    found = {
        family: [
            {
                name: {
                    "seconds": number(outcome.seconds),
                    "note": outcome.note,
                    "visits": [[number(value) for value in visit] for visit in outcome.visits],
                }
                for name, outcome in run.items()
            }
            for run in runs
        ]
        for family, runs in results.items()
    }
    text = json.dumps({**run_directory.machine(), "families": found}) + "\n"
    if options.json:
        options.json.write_text(text)
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "auto.json").write_text(text)
        (options.out / "auto.md").write_text("# bx.auto against other methods\n\n" + "\n".join(pages))


if __name__ == "__main__":
    with one_blas_thread():
        main()
