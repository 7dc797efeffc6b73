"""Whether methods on mini-batches, without a step given, stand rows that are far larger than the rest.

    python benchmarks/heavy_tails.py [--quick] [--only NAME ...] [--sets NAME ...] [--json FILE]

One row in twenty is 16 or 100 times as large as the others. Every run must end within its steps or name the cause in
its message, and y must stay within ten times the size of the largest y*(x) on the way, which numpy computes at the rows
of the trace. The table has the status, the largest |y| over that size, and f(x, y*(x)) at the end over that at the
start.
"""

import argparse
import itertools
import json
import time
from pathlib import Path

import jax
import numpy as np
from families import heavy_rows

import bilevax as bx
from bilevax.drawing.tables import markdown

METHODS = {
    name: getattr(bx, name)
    for name in (
        "SOBA", "MASOBA", "SABA", "SRBA", "FSLA", "AmIGO", "StocBiO", "BSA", "TTSA", "SUSTAIN", "F2SA", "F3SA", "SBFW",
        "StochasticIBCG", "IBCG", "BA", "ABA", "PBGD", "AIDBiO", "ITDBiO", "RAHGD", "SampledIBCG",
    )
}  # fmt: skip
FEW = {"SampledIBCG": 40, "BA": 400, "ABA": 200, "AIDBiO": 400, "ITDBiO": 400, "RAHGD": 200, "SBFW": 300, "TTSA": 300}
FEW |= {"BSA": 300, "SUSTAIN": 300, "StocBiO": 1000, "AmIGO": 1000, "F2SA": 2000}
"""Steps of methods whose steps are long; the others take STEPS."""
STEPS = 10_000


def steps_of(name):
    """The steps of a whole run."""
    return FEW.get(name, STEPS)


def measure(name, heavy, batch, loss, domain="box", *, steps=None, key=0, **problem_options):
    """One run: its status, message, the largest |y| and the last one over |y0| + max |y*(x)|, f over the first f."""
    options = {"blocks": name == "SABA", **problem_options}
    problem, x, y = heavy_rows.regression(heavy, batch, loss, domain, **options)
    solution, sizes, reach = heavy_rows.lower_minimum(problem, loss), [], [0.0]

    def watch(row, state):
        sizes.append(float(np.linalg.norm(state.y)))
        reach.append(float(np.linalg.norm(solution(np.asarray(state.x, float)))))

    steps = steps_of(name) if steps is None else steps
    begun = time.perf_counter()
    result = bx.solve(
        problem, METHODS[name](), x, y, steps=steps, every=max(1, steps // 30), observers=watch, key=jax.random.key(key)
    )
    ell = lambda x: float(problem.upper(x, jax.numpy.asarray(solution(np.asarray(x, float)), x.dtype), problem.data))  # noqa: E731
    return {
        "method": name, "heavy": heavy, "batch": batch, "loss": loss, "set": domain, "status": result.status.name,
        "steps": result.steps, "largest |y|": max(sizes) / max(reach), "last |y|": sizes[-1] / max(reach),
        "f / first f": ell(result.x) / ell(x), "seconds": time.perf_counter() - begun, "message": result.message,
    }  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of the steps")
    parser.add_argument("--only", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--sets", nargs="+", default=["box"], choices=heavy_rows.SETS)
    parser.add_argument("--heavy", nargs="+", type=float, default=[16.0, 100.0])
    parser.add_argument("--batches", nargs="+", type=int, default=[2, 8, 64])
    parser.add_argument("--losses", nargs="+", default=list(heavy_rows.LOSSES), choices=heavy_rows.LOSSES)
    parser.add_argument("--features", type=int, default=6, help="the number of lower variables")
    parser.add_argument("--single", action="store_true", help="in single precision")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", not options.single)
    rows, before = [], None
    for case in itertools.product(options.only, options.losses, options.batches, options.sets, options.heavy):
        name, loss, batch, domain, heavy = case
        if name != before:
            before = name
            jax.clear_caches()  # the memory maps of thousands of executables are more than a system allows
        if domain == "space" and getattr(METHODS[name], "oracle", None) == "lmo":
            continue
        steps = max(20, steps_of(name) // 10) if options.quick else None
        rows.append(measure(name, heavy, batch, loss, domain, steps=steps, n=options.features))
        print(*(f"{v:.3g}" if isinstance(v, float) else v for v in rows[-1].values()), flush=True)
        if options.json:
            options.json.write_text(json.dumps(rows, indent=1) + "\n")
    print(markdown([{k: v for k, v in row.items() if k != "message"} for row in rows]))
    told = [row for row in rows if "x has moved to where lower" in row["message"]]
    bad = [
        row for row in rows if row not in told and (row["last |y|"] > 10 or row["status"] in ("NONFINITE", "STALLED"))
    ]
    print(f"{len(told)} runs end because x is where the lower level is far more curved, and say so.")
    print(f"{len(bad)} of {len(rows)} runs fail: {', '.join(sorted({row['method'] for row in bad})) or 'none'}")


if __name__ == "__main__":
    main()
