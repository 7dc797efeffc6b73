"""Default steps over tuned ones, for every method on mini-batches: steps until a tenth and a hundredth are left.

    python benchmarks/batch_defaults.py [--only NAME ...] [--problems NAME ...] [--seeds 3] [--json FILE]

The problems are the quadratics of benchmark_bilevel, and ijcnn1 with its weights in the box [-8, 4], where the infimum
is attained. The measure is h(x) = f(x, y*(x)) on all data, and a level is (h(x) - h*) / (h(x0) - h*). A tuned method
has the best steps of a grid, of x and of y and w; they decay as its own do. The grid is measured on seed 0. The best
setting of each level then runs with every seed, as the default does, and the table has ratios of medians. Steps cost
the same in both, so their numbers are compared. The time that the default spends before its first step is in the table
as a number of steps. Needs the data sets.
"""

import argparse
import itertools
import json
import time
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
from batch_references import logistic_value, quadratic_value, sampled
from batch_steps import ijcnn1, quadratics

import bilevax as bx
from bilevax.drawing.tables import markdown
from bilevax.estimation import for_steps
from bilevax.runs import chunks

LEVELS = (1e-1, 1e-2)
FIELDS = {
    "SOBA": ("xi", 1 / 2, ("rho",), 1 / 2),
    "MASOBA": ("xi", 1 / 2, ("rho",), 1 / 2),
    "SABA": ("xi", 0.0, ("rho",), 0.0),
    "SRBA": ("xi", 0.0, ("rho",), 0.0),
    "FSLA": ("xi", 1 / 2, ("beta", "eta"), 1 / 2),
    "SUSTAIN": ("xi", 1 / 3, ("beta",), 1 / 3),
    "TTSA": ("alpha", 3 / 5, ("beta",), 2 / 5),
    "F2SA": ("xi", 5 / 7, ("gamma",), 4 / 7),
    "F3SA": ("xi", 3 / 5, ("gamma",), 2 / 5),
    "AmIGO": ("xi", 1 / 2, (), 0.0),
    "StocBiO": ("xi", 1 / 2, (), 1 / 2),
    "BSA": ("alpha", 1 / 2, (), 1 / 2),
    "PBGD": ("xi", 1 / 2, (), 0.0),
    "StochasticIBCG": ("gamma", 1.0, ("alpha", "eta"), 1 / 3),
    "IBCG": ("gamma", 1.0, ("alpha", "eta"), 0.0),
    "SBFW": ("eta", 1.0, ("delta",), 2 / 3),
}
"""The field with the step of x, its decay, the fields with the steps of y and w, and their decay. Methods without such
fields make lower steps of the constants."""
LONG = {"AmIGO": 10, "StocBiO": 20, "BSA": 20, "F2SA": 5, "SUSTAIN": 20, "TTSA": 20, "SBFW": 20}
"""How many times fewer steps these methods get, whose steps are longer."""
STEPS, CHUNK, GROWTH = 20_000, 20, 1.25
LOWER = (0.1, 0.3, 1, 3)
"""First steps of y and w over 2/(mu_g + L_g), with the L_g of mini-batches."""
OUTER = {"quadratics": (0.003, 0.01, 0.03, 0.1, 0.3, 1, 3), "ijcnn1": (10, 30, 100, 300, 1e3, 3e3, 1e4, 3e4)}
"""First steps of x."""
SHARES = (0.3, 1, 3)
"""The same for Frank-Wolfe steps, over 2/(k+8)."""


def make_problem(name):
    """The problem without sampler, its start, h, h at the start and h*."""
    if name == "quadratics":
        problem, n = quadratics(), 100
        value = quadratic_value(problem.data)
        least = scipy.optimize.minimize(value, np.zeros(n), method="BFGS").fun
    else:
        problem, n = replace(ijcnn1(), domain=bx.Box(-8.0, 4.0)), 22
        value = logistic_value(problem.data)
        slope = lambda x: value(x, slope=True)  # noqa: E731
        options = {"maxiter": 1000, "ftol": 1e-15, "gtol": 1e-12}
        least = scipy.optimize.minimize(
            slope, np.full(n, -4.0), jac=True, method="L-BFGS-B", bounds=[(-8, 4)] * n, options=options
        ).fun
    return problem, jnp.zeros(n), value, (float(value(np.zeros(n))), float(least))


def tuned(name, solver, lower, outer):
    """A prepared solver with other steps, which decay as the method's own."""
    x_field, decay, fields, lower_decay = FIELDS[name]
    constants = solver.constants
    length = lower * for_steps(constants).alpha
    changed = dict.fromkeys(fields, bx.Power(length, lower_decay))
    if not fields:
        changed["constants"] = replace(constants, L_g=constants.L_g / lower)
    changed[x_field] = bx.Power(2 * outer, 1.0, 8.0) if decay == 1 else bx.Power(outer, decay)
    return replace(solver, **changed)


def crossings(points, scale):
    """The first step count at each level, interpolated in logarithms; infinity if there is none."""
    start, least = scale
    share = lambda h: max((h - least) / (start - least), 1e-9)  # noqa: E731
    found = []
    for level in LEVELS:
        crossing = np.inf
        for (before, high), (step, h) in itertools.pairwise(points):
            if share(h) <= level:
                crossing = before + (step - before) * (np.log(share(high) / level) / np.log(share(high) / share(h)))
                break
        found.append(float(crossing))
    return found


class Method:
    """A method on one problem, compiled once."""

    def __init__(self, name, problem, x, value, scale):
        """Estimate the default steps."""
        self.name, self.x, self.value, self.scale = name, x, value, scale
        problem = sampled(problem, equal=name == "SABA")
        self.problem, self.plain = chunks.cast_numbers(problem, getattr(bx, name)(), jnp.float32)
        self.prepare, self.init = jax.jit(chunks.prepare), jax.jit(chunks.init)
        self.limit = STEPS // LONG.get(name, 1)

    def default(self, seed):
        """The prepared solver, and the seconds that took."""
        given = self.problem, self.plain, self.x, self.x, jax.random.key(seed)
        jax.block_until_ready(self.prepare(*given))
        begun = time.perf_counter()
        return jax.block_until_ready(self.prepare(*given)), time.perf_counter() - begun

    def race(self, solver, seed, limit=None):
        """[steps, h] until the last level is reached, and the seconds per step."""
        state, done, spent = self.init(self.problem, solver, self.x, self.x)[0], 0, 0.0
        points, limit, goal = [[0, self.scale[0]]], limit or self.limit, CHUNK
        while done < limit:
            count, begun = np.asarray(goal - done, np.int32), time.perf_counter()
            chunk = jax.block_until_ready(chunks.advance(self.problem, solver, state, jax.random.key(seed), count))
            state, done, spent = chunk.state, goal, spent + time.perf_counter() - begun
            x = np.asarray(state.x, float)
            h = float(self.value(x)) if np.all(np.isfinite(x)) else np.inf
            points.append([done, h])
            if not np.isfinite(h) or np.isfinite(crossings(points, self.scale)[-1]):
                break
            if done > limit / 4 and min(h for _, h in points) >= self.scale[0]:
                break
            goal = min(limit, max(done + CHUNK, CHUNK * round(GROWTH * done / CHUNK)))
        return crossings(points, self.scale), spent / max(done, 1)


def compare(method, outer, seeds):
    """Steps of the default and of the tuned method for each level, as medians over the seeds."""
    default, waiting = method.default(0)
    found = [method.race(method.default(seed)[0], seed) for seed in seeds]
    own = np.median([steps for steps, _ in found], axis=0)
    second = min(second for _, second in found)
    settings = {}
    best = [np.inf] * len(LEVELS)
    for factors in itertools.product(LOWER, outer if FIELDS[method.name][1] < 1 else SHARES):
        limit = min(method.limit, max(CHUNK, int(1.5 * best[-1]))) if np.isfinite(best[-1]) else method.limit
        settings[factors] = method.race(tuned(method.name, default, *factors), seeds[0], limit)[0]
        best = np.minimum(best, settings[factors])
    rows = []
    for i, level in enumerate(LEVELS):
        factors = min(settings, key=lambda f: settings[f][i])  # noqa: B023
        again = [settings[factors]] if np.isfinite(best[i]) else [[np.inf] * len(LEVELS)]
        if np.isfinite(best[i]):
            again += [method.race(tuned(method.name, default, *factors), seed)[0] for seed in seeds[1:]]
        least = float(np.median([steps[i] for steps in again]))
        rows.append({
            "method": method.name, "level": level, "default": float(own[i]), "tuned": least,
            "ratio": float(own[i] / least) if np.isfinite(own[i]) or np.isfinite(least) else np.nan,
            "steps": f"{factors[0]:g}, {factors[1]:g}", "us per step": 1e6 * second,
            "steps of the wait": waiting / second,
        })  # fmt: skip
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", default=list(FIELDS), choices=FIELDS)
    parser.add_argument("--problems", nargs="+", default=["quadratics", "ijcnn1"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    for name in options.problems:
        problem, x, value, scale = make_problem(name)
        for method in options.only:
            if name == "quadratics" and getattr(bx, method).oracle == "lmo":
                continue
            made = Method(method, problem, x, value, scale)
            found = compare(made, OUTER[name], list(range(options.seeds)))
            rows += [{"problem": name, **row} for row in found]
            print(*rows[-2:], sep="\n", flush=True)
            if options.json:
                options.json.write_text(json.dumps(rows, indent=1) + "\n")
    print(markdown(rows))


if __name__ == "__main__":
    main()
