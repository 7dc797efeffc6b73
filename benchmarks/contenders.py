"""Who takes part in `benchmarks/auto.py`, and how long each takes to a relative gap.

A contender is a function `play(budget, visit)`. It runs for at most `budget` seconds, calls `visit(seconds, x, calls)`
at iterates whose distance grows by 15 %, and ends when that returns true. Compilation and visits are not on its clock.
"""

import dataclasses
import functools
import statistics
from typing import NamedTuple

import jax
import numpy as np
from baselines import BASELINES, GROWTH

import bilevax as bx
from bilevax.estimation import estimate_constants
from bilevax.runs import checks
from bilevax.runs.clock import Clock
from bilevax.runs.plan import make_plan
from bilevax.runs.solve import start
from bilevax.runs.stopping import Status
from bilevax.solvers.pieces.smoothness import estimate_smoothness

PRINTED_STEPS = 10_000
SCALES = (0.25, 1, 4, 16)
"""Steps of x on the grid, as multiples of 1/(2 L_ell)."""
LOWER_STEPS = (1, 5, 20)
"""Steps of y and of the adjoint on the grid."""
REPEATED = 5.0
"""Runs of more seconds are not repeated."""
REFUSED = "refused:"
PRODUCTS = ("upper_grads", "lower_grads", "hvps", "crosses")


class Visit(NamedTuple):
    """What was measured at one iterate: seconds and calls so far, and the true gap over that at the start."""

    seconds: float
    gap: float
    calls: int


class Outcome(NamedTuple):
    """How a contender went."""

    seconds: float
    """To the target, the median of the repeats; infinite if it was not reached."""
    visits: list
    note: str = ""

    @property
    def best(self):
        """The smallest relative gap."""
        return min((visit.gap for visit in self.visits), default=float("nan"))

    @property
    def calls(self):
        """Oracle calls up to the end."""
        return self.visits[-1].calls if self.visits else 0

    def seconds_to(self, gap):
        """When the relative gap was first this small."""
        return next((visit.seconds for visit in self.visits if visit.gap <= gap), float("inf"))


def compete(play, truth, first_gap, target, budget, repeats=1):
    """Run a contender until its relative true gap is at most `target`, then again to take the time.

    A first short run compiles. The clock of a run leaves compilation out, but not what surrounds it, such as reading
    compiled code from a cache.
    """
    visits = []

    def measure(seconds, x, calls):
        visits.append(Visit(seconds, truth.measure(x) / first_gap, calls))
        return visits[-1].gap <= target or np.isnan(visits[-1].gap)

    truth.forget()
    try:
        if getattr(play, "func", None) in (play_solver, play_printed):  # baselines warm up by themselves
            play(budget, lambda *_: True)
        note = play(budget, measure) or ""
    except (TypeError, ValueError, NotImplementedError, ImportError) as error:
        return Outcome(float("inf"), [], f"{REFUSED} {error or type(error).__name__}".splitlines()[0])
    if not visits or not visits[-1].gap <= target:
        return Outcome(float("inf"), visits, note)
    times = [visits[-1].seconds]
    while len(times) < repeats and times[0] < REPEATED:
        seen = []

        def count(seconds, x, calls):
            seen.append(seconds)  # noqa: B023 - used within this turn only
            return len(seen) == len(visits)  # noqa: B023

        play(10 * budget, count)
        times.append(seen[-1])
    return Outcome(statistics.median(times), visits, note.removesuffix("TIME_LIMIT").strip())


def play_solver(instance, solver, budget, visit, steps=10**9):
    """A method of the library, or with None the one that `bx.auto` chooses; returns how the run ended."""
    x, y = checks.check_start(instance.problem, instance.x0, instance.y0)
    plan = make_plan(steps=steps, every=10**9, time_limit=budget, compute_gap=False)
    run = start(instance.problem, solver, x, y, plan)
    name = type(run.solver).__name__ if solver is None else ""
    while True:
        before = run.k
        stop = run.go(min(max(1, int(run.k * (GROWTH - 1))), steps - run.k), [])
        seen = run.k > before and visit(run.clock.seconds, run.state.x, sum(run.counts[part] for part in PRODUCTS))
        if stop.status is not Status.MAX_STEPS:
            return f"{name} {stop.status.name}".strip()
        if seen or run.k >= steps:
            return name


def play_printed(instance, budget, visit):
    """IBCG as printed with gamma = 1/(4 sqrt K), the constants estimated at the start and on the clock."""
    estimate = estimate_constants if instance.problem.host else jax.jit(estimate_constants)
    clock = Clock()
    constants, seconds = clock.call(estimate, instance.problem, instance.x0, instance.y0, jax.random.key(0))
    solver = bx.IBCG.as_printed(1 / (4 * np.sqrt(PRINTED_STEPS)), constants)
    later = lambda spent, x, calls: visit(spent + seconds, x, calls)  # noqa: E731
    return play_solver(instance, solver, budget, later, PRINTED_STEPS)


def _names():
    return [name for name in dir(bx.solvers) if hasattr(getattr(bx.solvers, name), "prepare") and name != "Solver"]


def _fields(kind):
    return {field.name for field in dataclasses.fields(kind)}


def _projects(instance):
    try:
        instance.problem.domain.project(bx.trees.coordinates(instance.x0))
    except NotImplementedError:
        return False
    return True


def library(instance):
    """Every exported method with its defaults: with a projection, and with an lmo where it can."""
    methods, projects = {}, _projects(instance)
    bounded = np.isfinite(float(instance.problem.domain.diameter(instance.x0).value))
    for name in _names():
        kind = getattr(bx.solvers, name)
        if "x_step" not in _fields(kind):
            methods[name] = kind()
            continue
        if projects:
            methods[name] = kind()
        if bounded:
            methods[f"{name} fw"] = kind(x_step="fw")
    return methods


def grid(instance, name):
    """A projected method with the steps of the grid; empty if it has no step of x to tune."""
    kind = getattr(bx.solvers, name)
    outer = next((field for field in ("xi", "beta") if field in _fields(kind) and name != "TTSA"), None)
    if outer is None or not _projects(instance):
        return {}
    inner = [part for part in ("lower", "adjoint") if part in _fields(kind)]
    solvers = {}
    for scale in SCALES:
        for count in LOWER_STEPS if inner else (None,):
            options = {outer: scale / (2 * _smoothness(instance))} | {part: count for part in inner}
            words = f"{scale:g}/(2 L)" + (f", {count} inner" if inner else "")
            solvers[words] = functools.partial(kind, **options)
    return solvers


_SMOOTHNESS = {}


def _smoothness(instance):
    if id(instance.problem) not in _SMOOTHNESS:
        estimate = estimate_smoothness if instance.problem.host else jax.jit(estimate_smoothness)
        value = estimate(instance.problem, instance.x0, instance.y0, jax.random.key(0))
        _SMOOTHNESS[id(instance.problem)] = float(value), instance.problem  # held, so that its id stays its own
    return _SMOOTHNESS[id(instance.problem)][0]


def tuned(instance, name, measure, budget):
    """The best of the grid: `measure(play, budget)` gives outcomes, each try has as long as the best one took."""
    best = None
    for words, make in grid(instance, name).items():
        limit = budget if best is None else min(budget, best.seconds)
        outcome = measure(functools.partial(play_solver, instance, make()), limit)._replace(note=words)
        if best is None or (outcome.seconds, outcome.best) < (best.seconds, best.best):
            best = outcome
    return best


def _play_baseline(family, instance, name, budget, visit):
    if name not in family.baselines:
        raise ValueError(f"the set of {family.name} is not one for {BASELINES[name][0]}")
    return BASELINES[name][1](family, instance, budget, visit)


def contender(family, instance, name):
    """A contender by its name: auto, printed, a baseline, a method, or a call such as "AIDBiO(lower=20)"."""
    if name == "auto":
        return functools.partial(play_solver, instance, None)
    if name == "printed":
        return functools.partial(play_printed, instance)
    if name in BASELINES:
        return functools.partial(_play_baseline, family, instance, name)
    if "(" in name:
        spaces = {method: getattr(bx, method) for method in bx.__all__}
        return functools.partial(play_solver, instance, eval(name, spaces))
    if name.endswith(" fw"):
        return functools.partial(play_solver, instance, getattr(bx.solvers, name[:-3])(x_step="fw"))
    return functools.partial(play_solver, instance, getattr(bx.solvers, name)())
