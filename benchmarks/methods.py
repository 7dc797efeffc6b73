"""What each method costs beyond its oracles: the time of a step against the oracles it calls, in one run.

    python benchmarks/methods.py [--quick] [--only NAME ...] [--json FILE]

Every oracle runs in a compiled loop of its own, and so does every method. Their turns are timed in rounds, so that a
busy machine slows all of them; figures are medians, compilation apart. How often a step calls each oracle is what the
method itself counts. Methods for sums run on blocks of the rows, with oracles on one block; cutting out a block is an
oracle too, and its calls are counted in Python.
"""

import argparse
import functools
import json
import statistics
import time
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from overhead import ORACLES, oracle_loop

import bilevax as bx
from bilevax.drawing.tables import markdown
from bilevax.runs import chunks, run_directory
from bilevax.solvers import COUNTS

jax.config.update("jax_enable_x64", True)

STEP = bx.Power(1e-3, 0.5)  # given, as are the constants, so that nothing is estimated
TOLD = {"constants": bx.Constants(0.2, 1.5, L_yy_f=1.0)}
WITHOUT_NOISE = {
    "IBCG": bx.IBCG(**TOLD),
    "SBFW exact": bx.SBFW("exact", **TOLD),
    "SBFW tracked": bx.SBFW("tracked", **TOLD),
    "TTSA deterministic": bx.TTSA(STEP, deterministic=True, **TOLD),
    "BA": bx.BA(STEP, **TOLD),
    "ABA": bx.ABA(STEP, **TOLD),
    "AIDBiO": bx.AIDBiO(STEP, **TOLD),
    "AIDBiO fw": bx.AIDBiO(x_step="fw", **TOLD),
    "ITDBiO": bx.ITDBiO(STEP, **TOLD),
    "AmIGO gd": bx.AmIGO(STEP, **TOLD),
    "AmIGO cg": bx.AmIGO(STEP, solver="cg", **TOLD),
    "RAHGD": bx.RAHGD(STEP, **TOLD),
    "SOBA": bx.SOBA(STEP, **TOLD),
    "SOBA fw": bx.SOBA(x_step="fw", **TOLD),
    "PBGD": bx.PBGD(STEP, sigma=10.0, **TOLD),
    "PBGD gradient": bx.PBGD(STEP, sigma=10.0, penalty="gradient", **TOLD),
    "F2SA": bx.F2SA(STEP, lam=10.0, **TOLD),
}
ON_BLOCKS = {
    "SBFW": bx.SBFW(**TOLD),
    "TTSA": bx.TTSA(STEP, **TOLD),
    "BSA": bx.BSA(STEP, **TOLD),
    "StocBiO": bx.StocBiO(STEP, **TOLD),
    "AmIGO on blocks": bx.AmIGO(STEP, **TOLD),
    "SUSTAIN": bx.SUSTAIN(STEP, **TOLD),
    "FSLA": bx.FSLA(STEP, **TOLD),
    "SOBA on blocks": bx.SOBA(STEP, **TOLD),
    "MASOBA": bx.MASOBA(STEP, **TOLD),
    "SABA": bx.SABA(STEP, **TOLD),
    "SRBA": bx.SRBA(STEP, **TOLD),
    "F3SA": bx.F3SA(STEP, lam=10.0, **TOLD),
    "StochasticIBCG": bx.StochasticIBCG(**TOLD),
}
ONE_GRADIENT = ("FSLA", "F2SA", "F3SA")
"""Methods that use one of the two gradients of f per call, and count one."""

PARTS = {
    "upper_grads": ORACLES["both gradients of f"],
    "lower_grads": ORACLES["gradient of g"],
    "hvps": ORACLES["Hessian product"],
    "crosses": ORACLES["cross product"],
    "lmos": ORACLES["lmo"],
    "projections": lambda p, z: p.domain.project(z["x"]),
}


def upper(x, y, data):
    """Validation error, and a price for weights."""
    held = data["held"]
    return 0.5 * jnp.mean((held["A"] @ y - held["a"]) ** 2) + 0.05 * jnp.mean(x**2)


def lower(x, y, data):
    """Ridge regression with a weight for each feature; its Hessian lies between 0.2 and 1.5."""
    train = data["train"]
    return 0.5 * jnp.mean((train["A"] @ y - train["a"]) ** 2) + 0.5 * jnp.sum((0.2 + 0.3 * x) * y**2)


def regression(n, blocks):
    """50 rows to train on and 10 to validate for every block, n variables in both levels together, a box."""
    half, keys = n // 2, iter(jax.random.split(jax.random.key(0), 4))
    data = {}
    for part, rows in (("train", 50), ("held", 10)):
        A = jax.random.normal(next(keys), (blocks * rows, half)) / (1 + np.sqrt(half / rows))
        data[part] = {"A": A, "a": jax.random.normal(next(keys), (blocks * rows,))}
    each = {"train": bx.Blocks(50, 50 * blocks), "held": bx.Blocks(10, 10 * blocks)}
    sampler = bx.PerPart(each) if blocks > 1 else None
    problem = bx.BilevelProblem(upper, lower, bx.Box(0.0, 1.0), data, sampler=sampler)
    return problem, jnp.full(half, 0.5), jnp.zeros(half)


class Noted(bx.Blocks):
    """Blocks that note in a list whenever one is drawn; for steps that are not compiled."""

    drawn: list = ()

    def draw(self, key, k):
        """Note it."""
        self.drawn.append(1)
        return super().draw(key, k)


def draws_per_step(solver, blocks, steps=10):
    """How many blocks a step cuts out, on a small problem stepped in Python."""
    problem, x, y = regression(10, blocks)
    drawn = []
    parts = {name: Noted(part.size, part.total, drawn=drawn) for name, part in problem.sampler.parts.items()}
    problem = replace(problem, sampler=bx.PerPart(parts), structure=bx.LowerStructure(host=True))
    solver = chunks.prepare(*chunks.cast_numbers(problem, solver, jnp.float64), x, y, jax.random.key(0))
    state, _ = solver.init(problem, x, y)
    state = replace(state, k=state.k + 20)
    drawn.clear()
    for k in range(steps):
        state, _ = solver.step(problem, state, jax.random.key(k))
    return len(drawn) / len(parts) / steps


@jax.jit
def draw(problem, key, count):
    """`count` mini-batches, each with a key that the last one decides."""

    def turn(i, carry):
        batch = problem.sample(jax.random.fold_in(key, i)).data
        return jax.tree.map(lambda v, u: v + 1e-300 * u.ravel()[0], batch, carry)

    return jax.lax.fori_loop(0, count, turn, problem.sample(key).data)


def medians(loops, repeats=7, turn_seconds=0.03):
    """Median seconds of one turn of each `loop(count)`, timed in rounds; the seconds of the first call; the counts."""
    counts, compiling = {}, {}
    for name, loop in loops.items():
        began = time.perf_counter()
        jax.block_until_ready(loop(1))
        compiling[name] = time.perf_counter() - began
        count, spent = 1, 0.0
        while spent < turn_seconds / 2 and count < 10**6:
            count = max(2 * count, int(count * turn_seconds / max(spent, 1e-4)))
            began = time.perf_counter()
            jax.block_until_ready(loop(count))
            spent = time.perf_counter() - began
        counts[name] = count
    times = {name: [] for name in loops}
    for _ in range(repeats):
        for name, loop in loops.items():
            began = time.perf_counter()
            jax.block_until_ready(loop(counts[name]))
            times[name].append((time.perf_counter() - began) / counts[name])
    return {name: statistics.median(found) for name, found in times.items()}, compiling, counts


def overheads(methods, n, blocks):
    """A row for each method: its step against the sum of its oracles."""
    problem, x, y = regression(n, blocks)
    key = jax.random.key(0)
    batch = problem if problem.sampler is None else problem.sample(key)
    point = {"x": x + 0.1, "y": y + 0.2, "w": y + 0.3}
    loops = {part: functools.partial(oracle_loop(PARTS[part]), batch, point) for part in COUNTS}
    loops["draws"] = lambda count: draw(problem, key, count)

    def step_loop(solver):
        ready = chunks.prepare(*chunks.cast_numbers(problem, solver, jnp.float64), x, y, key)
        state, _ = chunks.init(problem, ready, x, y)
        state = chunks.advance(problem, ready, state, key, np.int32(20)).state  # past the first, special steps
        return lambda count: chunks.advance(problem, ready, state, key, np.int32(count))

    steps = {name: step_loop(solver) for name, solver in methods.items()}
    seconds, compiling, turns = medians(loops | steps)
    rows = []
    for name, solver in methods.items():
        made = steps[name](turns[name]).counts
        calls = {part: int(getattr(made, part)) / turns[name] for part in COUNTS}
        calls["upper_grads"] /= 2 if name not in ONE_GRADIENT else 1  # a call gives both
        calls["draws"] = draws_per_step(solver, blocks) if blocks > 1 else 0
        total = sum(count * seconds[part] for part, count in calls.items())
        rows.append(
            {
                "method": name,
                "variables": n,
                **calls,
                "oracles us": 1e6 * total,
                "step us": 1e6 * seconds[name],
                "ratio": seconds[name] / total,
                "compile s": compiling[name],
            }
        )
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes only")
    parser.add_argument("--only", nargs="+", help="these methods")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    rows = []
    for n in (10**3,) if options.quick else (10**3, 10**4):
        for methods, blocks in ((WITHOUT_NOISE, 1), (ON_BLOCKS, 8)):
            asked = {name: solver for name, solver in methods.items() if not options.only or name in options.only}
            rows += overheads(asked, n, blocks) if asked else []
    print(markdown(rows))
    if options.json:
        options.json.write_text(json.dumps({**run_directory.machine(), "methods": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
