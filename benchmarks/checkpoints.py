"""What checkpoints cost: the same run with and without one every ten seconds.

    python benchmarks/checkpoints.py [--seconds 40] [--pairs 3] [--only NAME ...] [--json FILE]

A pair is a run with and one without checkpoints, in turn, with the same number of steps; compilation is apart. The
column "inside" is the share of the time that was spent in the code that writes them, which noise does not touch.
"""

import argparse
import contextlib
import json
import statistics
import tempfile
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import bilevax as bx
from bilevax.drawing.tables import markdown
from bilevax.problems import sparse_completion
from bilevax.runs.checkpoint import Saver

jax.config.update("jax_enable_x64", True)


def _dense(n, solver):
    def upper(x, y, data):
        return 0.5 * jnp.mean((y - data) ** 2) + 0.05 * jnp.mean(x**2)

    def lower(x, y, data):
        return jnp.mean(jnp.sqrt(1 + (y - data) ** 2)) + 0.5 * jnp.mean((y - x) ** 2)

    data = jax.random.normal(jax.random.key(0), (n // 2,))
    return bx.BilevelProblem(upper, lower, bx.L1Ball(1.0), data), solver, jnp.zeros(n // 2), jnp.zeros(n // 2)


def _movielens():
    ratings = bx.datasets.movielens_1m()
    values = ratings.values - ratings.values.mean()
    problem = sparse_completion(ratings.rows, ratings.cols, values, 20_000.0, shape=ratings.shape)[0]
    return problem, bx.IBCG(), None, None


RUNS = {
    "1e6 variables, IBCG": lambda: _dense(1_000_000, bx.IBCG()),
    "MovieLens 1M, sparse IBCG": _movielens,
    "1e7 variables, ProjectedIBCG": lambda: _dense(10_000_000, bx.ProjectedIBCG()),
}


@contextlib.contextmanager
def watched_saves():
    """The seconds of each checkpoint that is written meanwhile."""
    times, save = [], Saver.save

    def timed(saver, run):
        began = time.perf_counter()
        save(saver, run)
        times.append(time.perf_counter() - began)

    Saver.save = timed
    try:
        yield times
    finally:
        Saver.save = save


def measured(make, steps, every):
    """Wall time of a run, and the times of its checkpoints, but for the first, which is written before any step."""
    problem, solver, x, y = make()
    with tempfile.TemporaryDirectory() as folder, watched_saves() as times:
        checkpoint = None if every is None else bx.Checkpoint(Path(folder) / "run", seconds=every)
        began = time.perf_counter()
        result = bx.solve(problem, solver, x, y, steps=steps, every=max(1, steps // 4), checkpoint=checkpoint)
        wall = time.perf_counter() - began - result.compile_seconds
        bytes_ = max((file.stat().st_size for file in Path(folder).rglob("state-*.npz")), default=0)
    return wall, times[1:], bytes_


def steps_for(make, seconds):
    problem, solver, x, y = make()
    tried = bx.solve(problem, solver, x, y, steps=10**7, time_limit=max(3.0, seconds / 10))
    return max(4, int(tried.steps * seconds / tried.seconds))


def compare(name, seconds, pairs):
    make = RUNS[name]
    steps = steps_for(make, seconds)
    ratios, shares, single = [], [], []
    for _ in range(pairs):
        plain, _, _ = measured(make, steps, None)
        saved, times, size = measured(make, steps, 10.0)
        ratios.append(saved / plain)
        shares.append(sum(times) / saved)
        single += times
    return {
        "run": name,
        "steps": steps,
        "seconds": plain,
        "ratios": [round(r, 4) for r in ratios],
        "overhead": statistics.median(ratios) - 1,
        "inside": statistics.median(shares),
        "one checkpoint": statistics.median(single),
        "megabytes": size / 1e6,
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=list(RUNS))
    parser.add_argument("--json")
    options = parser.parse_args()
    rows = [compare(name, options.seconds, options.pairs) for name in options.only]
    shown = [
        row
        | {"ratios": " ".join(f"{r:.3f}" for r in row["ratios"]), "overhead": f"{row['overhead']:.1%}"}
        | {"inside": f"{row['inside']:.2%}"}
        for row in rows
    ]
    print(markdown(shown))
    if options.json:
        Path(options.json).write_text(json.dumps({"rows": rows, "jax": jax.__version__, "numpy": np.__version__}))


if __name__ == "__main__":
    main()
