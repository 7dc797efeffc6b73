"""Projections by a threshold against optax's sort and against 30 halvings of a bracket.

    python benchmarks/projections.py [--quick] [--json FILE]

All times are medians of compiled calls, compilation apart; ratios compare calls of one process. Halving 30 times is
what jaxopt's `projection_box_section` does by default. It is right to about 9 digits, the others to all of them.
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


def seconds(call, *args, budget=1.0):
    """Median time of a call."""
    began = time.perf_counter()
    jax.block_until_ready(call(*args))
    taken = []
    while len(taken) < 5 or (sum(taken) < budget and time.perf_counter() - began < 10 * budget):
        start = time.perf_counter()
        jax.block_until_ready(call(*args))
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


@jax.jit
def halved(values, total, cap):
    def halve(_, ends):
        low, high = ends
        middle = 0.5 * (low + high)
        enough = jnp.sum(jnp.clip(values - middle, 0, cap)) >= total
        return jnp.where(enough, middle, low), jnp.where(enough, high, middle)

    low, _ = jax.lax.fori_loop(0, 30, halve, (jnp.min(values) - cap, jnp.max(values)))
    return jnp.clip(values - low, 0, cap)


def rows(sizes, kinds):
    capped, simplex, by_sort = map(jax.jit, (project_capped, project_simplex, projections.projection_simplex))
    for kind in kinds:
        for n in sizes:
            values = jnp.asarray(np.random.default_rng(n).standard_normal(n), kind)
            one, tenth = jnp.asarray(1, kind), jnp.asarray(n / 10, kind)
            ours, cut, sort, halvings = (
                seconds(capped, values, tenth, one), seconds(simplex, values, one),
                seconds(by_sort, values, one), seconds(halved, values, tenth, one),
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
