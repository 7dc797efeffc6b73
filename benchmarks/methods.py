"""What each method costs beyond its oracles: the time of a step against the oracles it calls, in one run.

    python benchmarks/methods.py [--quick] [--only NAME ...] [--json FILE]

Every oracle runs in a compiled loop of its own, and so does the whole step. Their turns are timed alternately, so that
a busy machine slows both; all figures are medians, compilation apart. How often a step calls each oracle is what the
method itself counts. Methods for sums run on blocks of the rows, with oracles on one block and one drawing per step.
"""

import argparse
import functools
import json
import statistics
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from overhead import ORACLES, oracle_loop

import bilevax as bx
from bilevax import rundir, stepping
from bilevax.report.tables import markdown
from bilevax.solvers import COUNTS
from bilevax.solvers.aba import ABA
from bilevax.solvers.aid_bio import AIDBiO
from bilevax.solvers.amigo import AmIGO
from bilevax.solvers.ba import BA
from bilevax.solvers.bsa import BSA
from bilevax.solvers.f2sa import F2SA
from bilevax.solvers.f3sa import F3SA
from bilevax.solvers.fsla import FSLA
from bilevax.solvers.ibcg import IBCG
from bilevax.solvers.itd_bio import ITDBiO
from bilevax.solvers.masoba import MASOBA
from bilevax.solvers.pbgd import PBGD
from bilevax.solvers.rahgd import RAHGD
from bilevax.solvers.saba import SABA
from bilevax.solvers.sbfw import SBFW
from bilevax.solvers.soba import SOBA
from bilevax.solvers.srba import SRBA
from bilevax.solvers.stoc_bio import StocBiO
from bilevax.solvers.stochastic_ibcg import StochasticIBCG
from bilevax.solvers.sustain import SUSTAIN
from bilevax.solvers.ttsa import TTSA

jax.config.update("jax_enable_x64", True)

CONSTANTS = bx.Constants(0.2, 1.5)
WITHOUT_NOISE = {
    "IBCG": IBCG(constants=CONSTANTS),
    "SBFW exact": SBFW("exact", constants=CONSTANTS),
    "SBFW tracked": SBFW("tracked", constants=CONSTANTS),
    "TTSA deterministic": TTSA(deterministic=True, constants=CONSTANTS),
    "BA": BA(constants=CONSTANTS),
    "ABA": ABA(constants=CONSTANTS),
    "AIDBiO": AIDBiO(constants=CONSTANTS),
    "AIDBiO fw": AIDBiO(x_step="fw", constants=CONSTANTS),
    "ITDBiO": ITDBiO(constants=CONSTANTS),
    "AmIGO gd": AmIGO(constants=CONSTANTS),
    "AmIGO cg": AmIGO(solver="cg", constants=CONSTANTS),
    "RAHGD": RAHGD(constants=CONSTANTS),
    "SOBA": SOBA(constants=CONSTANTS),
    "SOBA fw": SOBA(x_step="fw", constants=CONSTANTS),
    "PBGD": PBGD(constants=CONSTANTS),
    "F2SA": F2SA(constants=CONSTANTS),
}
ON_BLOCKS = {
    "SBFW": SBFW(constants=CONSTANTS),
    "TTSA": TTSA(constants=CONSTANTS),
    "BSA": BSA(constants=CONSTANTS),
    "StocBiO": StocBiO(constants=CONSTANTS),
    "AmIGO on blocks": AmIGO(constants=CONSTANTS),
    "SUSTAIN": SUSTAIN(constants=CONSTANTS),
    "FSLA": FSLA(constants=CONSTANTS),
    "SOBA on blocks": SOBA(constants=CONSTANTS),
    "MASOBA": MASOBA(constants=CONSTANTS),
    "SABA": SABA(constants=CONSTANTS),
    "SRBA": SRBA(constants=CONSTANTS),
    "F3SA": F3SA(constants=CONSTANTS),
    "StochasticIBCG": StochasticIBCG(constants=CONSTANTS),
}

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


@jax.jit
def draw(problem, key, count):
    """`count` mini-batches, each with a key that the last one decides."""

    def turn(i, carry):
        batch = problem.sample(jax.random.fold_in(key, i)).data
        return jax.tree.map(lambda v, u: v + 1e-300 * u.ravel()[0], batch, carry)

    return jax.lax.fori_loop(0, count, turn, problem.sample(key).data)


def medians(loops, repeats=9, turn_seconds=0.03):
    """Median seconds of one turn of each `loop(count)`, timed in alternation; the last entry is the first call's."""
    counts, compiling = {}, {}
    for name, loop in loops.items():
        began = time.perf_counter()
        jax.block_until_ready(loop(1))
        compiling[name] = time.perf_counter() - began
        count, spent = 1, 0.0
        while spent < turn_seconds and count < 10**6:
            began = time.perf_counter()
            jax.block_until_ready(loop(count))
            spent = time.perf_counter() - began
            counts[name] = count
            count = max(2 * count, int(count * turn_seconds / max(spent, 1e-6)))
    times = {name: [] for name in loops}
    for _ in range(repeats):
        for name, loop in loops.items():
            began = time.perf_counter()
            jax.block_until_ready(loop(counts[name]))
            times[name].append((time.perf_counter() - began) / counts[name])
    return {name: statistics.median(found) for name, found in times.items()}, compiling, counts


def method_overhead(name, solver, n, blocks):
    problem, x, y = regression(n, blocks)
    problem, solver = stepping.cast_numbers(problem, solver, jnp.float64)
    key = jax.random.key(0)
    solver = stepping.prepare(problem, solver, x, y, key)
    state, _ = stepping.init(problem, solver, x, y)
    state = stepping.advance(problem, solver, state, key, np.int32(20)).state  # past the first, special steps

    batch = problem if problem.sampler is None else problem.sample(key)
    point = {"x": x + 0.1, "y": y + 0.2, "w": y + 0.3}
    loops = {part: functools.partial(oracle_loop(PARTS[part]), batch, point) for part in COUNTS}
    if blocks > 1:
        loops["drawing"] = lambda count: draw(problem, key, count)
    loops["step"] = lambda count: stepping.advance(problem, solver, state, key, np.int32(count))
    seconds, compiling, turns = medians(loops)

    made = stepping.advance(problem, solver, state, key, np.int32(turns["step"])).counts
    calls = {part: int(getattr(made, part)) / turns["step"] for part in COUNTS}
    calls["upper_grads"] /= 2  # both at once
    total = sum(calls[part] * seconds[part] for part in COUNTS) + seconds.get("drawing", 0.0)
    return {
        "method": name,
        "variables": n,
        **{part: calls[part] for part in COUNTS},
        "oracles us": 1e6 * total,
        "step us": 1e6 * seconds["step"],
        "ratio": seconds["step"] / total,
        "compile s": compiling["step"],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes only")
    parser.add_argument("--only", nargs="+", help="these methods")
    parser.add_argument("--json", default=Path(__file__).parent / "results" / "methods.json", type=Path)
    options = parser.parse_args()
    rows = []
    for n in (10**3,) if options.quick else (10**3, 10**5):
        for methods, blocks in ((WITHOUT_NOISE, 1), (ON_BLOCKS, 8)):
            for name, solver in methods.items():
                if not options.only or name in options.only:
                    jax.clear_caches()  # a method's compile time should not depend on the ones before it
                    rows.append(method_overhead(name, solver, n, blocks))
                    print(f"{name} {n}: {rows[-1]['ratio']:.2f}", flush=True)
    print(markdown(rows))
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps({**rundir.machine(), "methods": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
