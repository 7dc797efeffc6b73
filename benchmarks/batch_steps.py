"""Seconds per step on mini-batches, ours over those of the same methods in benchmark_bilevel.

    git clone https://github.com/benchopt/benchmark_bilevel && git -C benchmark_bilevel checkout 3ad65dc
    pip install benchopt
    python benchmarks/batch_steps.py --theirs benchmark_bilevel [--pairs 10] [--json FILE]

Both sides get the same data, start, batch size (64) and step sizes, in single precision and without constraint. Theirs
cut consecutive rows, in a random order; ours cut random blocks of them (`bx.Blocks`). A pair is some thousands of
steps of one and then of the other, compiled before. The table has the median over the pairs. Needs the data sets.
"""

import argparse
import importlib
import json
import statistics
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import bilevax as bx
from bilevax.drawing.tables import markdown
from bilevax.runs.chunks import advance, cast_numbers

BATCH, STEP, OUTER = 64, 0.01, 0.001
INNER = 10
CONSTANTS = bx.Constants(mu_g=0.1, L_g=2.0)


def ours():
    """Our methods with constant or decaying steps as theirs have, and as many inner steps."""
    told = {"constants": CONSTANTS}
    decaying = bx.Power(STEP, 0.5), bx.Power(OUTER, 0.5)
    return {
        "soba": bx.SOBA(decaying[1], decaying[0], **told),
        "saba": bx.SABA(OUTER, STEP, **told),
        "srba": bx.SRBA(OUTER, STEP, **told),
        "amigo": bx.AmIGO(OUTER, lower=INNER, adjoint=INNER, **told),
        "stocbio": bx.StocBiO(OUTER, lower=INNER, factors=INNER, **told),
        "fsla": bx.FSLA(OUTER, beta=STEP, **told),
        "f2sa": bx.F2SA(OUTER, lower=INNER, **told),
        "bsa": bx.BSA(OUTER, lower=INNER, budget=INNER, **told),
    }


def theirs(name, losses, rows, start):
    """One of their solvers, ready to run: a function of the number of steps."""
    module = importlib.import_module(f"solvers.{name}")
    solver = module.Solver()
    for option, values in module.Solver.parameters.items():
        setattr(solver, option, values[0])
    solver.step_size, solver.outer_ratio, solver.batch_size = STEP, STEP / OUTER, BATCH
    y, x = start
    solver.inner_var0, solver.outer_var0 = y, x
    solver.run_once = lambda *_: None  # the warm-up of benchopt
    solver.set_objective(losses[0], losses[1], rows[0], rows[1], y, x)
    state = [solver.init()]

    def advance_theirs(steps):
        if name == "saba":  # its table is overwritten, so each call goes on where the last one ended
            memory, carry = state[0]
            state[0] = solver.one_epoch(carry, memory, steps)
        else:
            return solver.one_epoch(state[0], steps, *([0] if name == "srba" else []))
        return state[0]

    return advance_theirs


def sliced(part, start, size):
    """Consecutive rows of every array."""
    return {name: jax.lax.dynamic_slice_in_dim(v, start, size) for name, v in part.items()}


def two_losses(problem):
    """The two levels as functions of (y, x, first row, number of rows), as theirs are."""
    data = problem.data

    def loss(function, part, y, x, start=0, batch_size=1):
        return function(x, y, {**data, part: sliced(data[part], start, batch_size)})

    return [partial(loss, problem.lower, "train"), partial(loss, problem.upper, "valid")]


def ijcnn1():
    """Weights of features in logistic regression; rows that do not fill a batch are left out."""
    table = bx.datasets.ijcnn1()
    order = np.random.default_rng(0).permutation(len(table.y))
    parts = []
    for rows in (order[:39_936], order[39_936:49_920]):  # a fifth to validate, both a multiple of the batch
        parts.append((np.asarray(table.X)[rows].astype(np.float32), np.asarray(table.y)[rows]))
    return bx.problems.feature_weights(*parts, bx.WholeSpace())


def quadratic_loss(x, y, part):
    """The mean over rows of quadratics in both variables."""
    a, b = part["a"] @ y, part["b"] @ x
    return jnp.mean(0.5 * a**2 + 0.5 * b**2 + 0.1 * a * b + part["c"] @ y + part["d"] @ x)


def quadratics(rows=1024, n=100):
    """Random quadratics with Hessians of rank one for each row, as in their simulated data set."""
    rng = np.random.default_rng(0)
    scales = np.logspace(-0.5, 0, n)
    data = {
        name: {
            "a": rng.standard_normal((rows, n)) * scales,
            "b": rng.standard_normal((rows, n)) * scales,
            "c": rng.standard_normal((rows, n)),
            "d": rng.standard_normal((rows, n)),
        }
        for name in ("train", "valid")
    }
    data = jax.tree.map(lambda v: jnp.asarray(v, jnp.float32), data)
    upper, lower = (lambda x, y, data, name=name: quadratic_loss(x, y, data[name]) for name in ("valid", "train"))
    return bx.BilevelProblem(upper, lower, bx.WholeSpace(), data, x_like=jnp.zeros(n), y_like=jnp.zeros(n))


def pair(problem, solver, name, steps, pairs):
    """Medians of the seconds per step of both."""
    if name == "saba":  # our table has one row for both levels: as many batches in each
        fewest = min(len(next(iter(part.values()))) for part in problem.data.values())
        problem = replace(problem, data=jax.tree.map(lambda v: v[:fewest], problem.data))
    rows = [len(next(iter(problem.data[part].values()))) for part in ("train", "valid")]
    blocks = {part: bx.Blocks(BATCH, n) for part, n in zip(("train", "valid"), rows, strict=True)}
    sampled = replace(problem, sampler=bx.PerPart(blocks))
    like = problem.x_like, problem.y_like
    x, y = (jnp.zeros(v.shape, jnp.float32) if hasattr(v, "shape") else v.zeros() for v in like)
    sampled, solver = cast_numbers(sampled, solver, jnp.float32)
    key = jax.random.key(0)
    solver = solver.prepare(sampled, x, y, key)
    state, _ = solver.init(sampled, x, y)
    advance_theirs = theirs(name, two_losses(problem), rows, (y, x))
    count = jnp.asarray(steps, jnp.int32)
    jobs = {
        "ours": lambda: jax.block_until_ready(advance(sampled, solver, state, key, count).state.x),
        "theirs": lambda: jax.block_until_ready(advance_theirs(steps)),
    }
    seconds = {who: [] for who in jobs}
    for job in jobs.values():
        job()
    for _ in range(pairs):
        for who, job in jobs.items():
            began = time.perf_counter()
            job()
            seconds[who].append((time.perf_counter() - began) / steps)
    return {who: statistics.median(found) for who, found in seconds.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--theirs", type=Path, required=True, help="a checkout of benchmark_bilevel")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--only", nargs="+", default=list(ours()))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    sys.path.insert(0, str(options.theirs))
    rows = []
    for data, make in {"ijcnn1": ijcnn1, "quadratics": quadratics}.items():
        problem = make()
        for name in options.only:
            inner = 1 if name in ("soba", "saba", "srba", "fsla") else INNER
            found = pair(problem, ours()[name], name, options.steps // inner, options.pairs)
            row = {"data": data, "method": name, **{f"us, {who}": 1e6 * s for who, s in found.items()}}
            rows.append({**row, "ratio": found["ours"] / found["theirs"]})
            print(rows[-1], flush=True)
    print(markdown(rows))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
