"""What an audit costs, and what rows cost.

Hessian products and seconds of an audit are compared with scipy's conjugate gradients for the two systems. For rows it
is the share of a run that their measurements take, and the part of it that only `gap_bound` needs. Everything runs once
before it is measured, so that compilation is apart.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse.linalg

import bilevax as bx
from bilevax.problems import random_quadratic
from bilevax.runs import metrics

jax.config.update("jax_enable_x64", True)
REPEATS = 5


def seconds(function):
    function()
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        function()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def scipy_solves(A, systems):
    """Products and answers of scipy's conjugate gradients to the accuracy that the audit reaches."""
    count = [0]

    def product(v):
        count[0] += 1
        return A @ v

    operator = scipy.sparse.linalg.LinearOperator(A.shape, product, dtype=float)
    for b in systems:
        scipy.sparse.linalg.cg(operator, b, rtol=1e-13, maxiter=100_000)
    return count[0]


def audits(m, kappa):
    known = random_quadratic(bx.Simplex(), jnp.zeros(5), m, jax.random.key(0), kappa=kappa)
    d = {name: np.asarray(v) for name, v in known.problem.data.items()}
    x, y = jnp.full(5, 0.2), jnp.zeros(m)
    lower = d["B"] @ np.asarray(x) + d["b"]
    systems = (lower, np.linalg.solve(d["A"], lower) - d["c"])
    theirs = scipy_solves(d["A"], systems)
    row = {"m": m, "kappa": kappa, "scipy products": theirs, "scipy s": seconds(lambda: scipy_solves(d["A"], systems))}
    for name, factorize in (("factorized", True), ("iterative", False)):
        seen = bx.audit(known.problem, x, y, factorize=factorize)
        row[f"{name} products"] = seen.products
        row[f"{name} ratio"] = round(seen.products / theirs, 2)
        row[f"{name} s"] = seconds(lambda f=factorize: bx.audit(known.problem, x, y, factorize=f))
        row[f"{name} verdict"] = seen.certified
    return row


def rows(m):
    """The share of a run that its rows take for `gap_bound`, at ten steps a row."""
    known = random_quadratic(bx.Simplex(), jnp.zeros(5), m, jax.random.key(0), kappa=10.0)
    spent = {"all": 0.0, "without": 0.0}
    measure = metrics.measure_row

    def timed(problem, state, y, w):
        for name, estimates in (("without", (None, None)), ("all", (y, w))):
            began = time.perf_counter()
            row = measure(problem, state, *estimates)
            spent[name] += time.perf_counter() - began
        return row

    def run():
        spent.update(dict.fromkeys(spent, 0.0))
        return bx.solve(known.problem, bx.IBCG(), jnp.full(5, 0.2), jnp.zeros(m), steps=500, every=10)

    metrics.measure_row = timed
    try:
        run()
        shares, bounds, steps = [], [], []
        for _ in range(REPEATS):
            result = run()
            shares.append(spent["all"] / result.seconds)
            bounds.append((spent["all"] - spent["without"]) / result.seconds)
            steps.append(result.seconds / result.steps)
    finally:
        metrics.measure_row = measure
    median = statistics.median
    return {"m": m, "ms a step": 1e3 * median(steps), "share of rows": median(shares), "of gap_bound": median(bounds)}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the figures there")
    options = parser.parse_args()
    table = {
        "audits": [audits(m, kappa) for m in (300, 1500) for kappa in (10.0, 1e2, 1e4)],
        "rows": [rows(m) for m in (500, 2000, 4000)],
    }
    for name, lines in table.items():
        print(name)
        for line in lines:
            print("  ", "  ".join(f"{k} {v:.3g}" if isinstance(v, float) else f"{k} {v}" for k, v in line.items()))
    if options.json:
        options.json.write_text(json.dumps(table, indent=1))


if __name__ == "__main__":
    main()
