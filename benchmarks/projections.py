"""Projections by a threshold against optax's sort and against 30 halvings of a bracket.

    python benchmarks/projections.py [--quick] [--json FILE]

All times are medians in compiled loops, compilation apart; ratios compare calls of one process. Halving 30 times
stands in for jaxopt's `projection_box_section`, which bisects; jaxopt itself is not called. It finds about 9 digits,
the others find all of them.
"""

import argparse
import json
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np
from optax import projections

from bilevax.drawing.tables import markdown
from bilevax.sets.threshold import project_capped, project_simplex

jax.config.update("jax_enable_x64", True)


def seconds(project, values, *numbers, budget=1.0):
    """Median time of one projection in a compiled loop, where solvers run it; one call alone costs 50 us to start."""
    turns = max(1, 20_000 // values.size)
    loop = jax.jit(lambda v: jax.lax.fori_loop(0, turns, lambda _, w: w + 1e-3 * project(w, *numbers), v))
    jax.block_until_ready(loop(values))
    taken = []
    while len(taken) < 5 or sum(taken) < budget:
        start = time.perf_counter()
        jax.block_until_ready(loop(values))
        taken.append((time.perf_counter() - start) / turns)
        if len(taken) > 1000:
            break
    return statistics.median(taken)


def halved(values, total, cap):
    def halve(_, ends):
        low, high = ends
        middle = 0.5 * (low + high)
        enough = jnp.sum(jnp.clip(values - middle, 0, cap)) >= total
        return jnp.where(enough, middle, low), jnp.where(enough, high, middle)

    low, _ = jax.lax.fori_loop(0, 30, halve, (jnp.min(values) - cap, jnp.max(values)))
    return jnp.clip(values - low, 0, cap)


def sorted_by_optax(values, total):
    return projections.projection_simplex(values, total).astype(values.dtype)


def rows(sizes, kinds):
    for kind in kinds:
        for n in sizes:
            values = jnp.asarray(np.random.default_rng(n).standard_normal(n), kind)
            one, tenth = jnp.asarray(1, kind), jnp.asarray(n / 10, kind)
            ours, cut, sort, halvings = (
                seconds(project_capped, values, tenth, one), seconds(project_simplex, values, one),
                seconds(sorted_by_optax, values, one), seconds(halved, values, tenth, one),
            )  # fmt: skip
            yield {
                "numbers": kind.__name__, "n": n, "capped us": 1e6 * ours, "30 halvings us": 1e6 * halvings,
                "capped / halvings": ours / halvings, "simplex us": 1e6 * cut, "optax simplex us": 1e6 * sort,
                "simplex / optax": cut / sort,
            }  # fmt: skip


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json")
    options = parser.parse_args()
    table = list(rows([100, 10**4] if options.quick else [100, 10**4, 10**6], [np.float64, np.float32]))
    print(markdown(table))
    if options.json:
        with open(options.json, "w") as file:
            json.dump(table, file, indent=2)


if __name__ == "__main__":
    main()
