"""What each method costs and how fast it converges, on one problem, and how fast on three others."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Scalar

from bilevax.estimation import estimate_constants
from bilevax.experiments.methods.table1 import METHODS, MOVES, OURS
from bilevax.problem import BilevelProblem
from bilevax.problems import random_quadratic
from bilevax.runs.result import Result
from bilevax.runs.solve import solve
from bilevax.runs.stopping import Status, Stop
from bilevax.runs.trace import Trace
from bilevax.sampling import Blocks
from bilevax.sets import ConvexSet, L2Ball, NuclearBall, Simplex
from bilevax.solvers import Solver
from bilevax.theory import Constants

SIZE, KAPPA, SLOPE = 50, 10.0, 0.1
RATIO = 1e-3
"""A method has converged once the true gap is at most this share of the first one."""
LIMITS = (200, 2_000, 20_000, 200_000)
ROWS = 200
"""A run of up to `limit` steps computes the true gap every `limit / ROWS` steps."""
SECONDS = 3.0
REPEATS = 5
"""A run that converged is timed so often; the shortest counts."""
DERIVATIVES = {"∇f": "upper_grads", "∇g": "lower_grads", "H": "hvps", "J": "crosses"}


class Place(NamedTuple):
    """A set to measure on: its name, the set, the shape of x, the condition number of g, and the support function."""

    name: str
    domain: ConvexSet
    shape: Callable[[int], tuple[int, ...]]
    kappa: float
    farthest: Callable[[Array], Scalar]
    """The largest `<d, s>` over the set."""


def _spectral_norm(d: Array) -> Scalar:
    return jnp.linalg.svd(d, compute_uv=False)[0]


COMMON = Place("l2 ball", L2Ball(1.0), lambda n: (n,), KAPPA, jnp.linalg.norm)
"""Where an lmo and a projection have the same price."""
ELSEWHERE = (
    Place("simplex", Simplex(1.0), lambda n: (n,), KAPPA, jnp.max),
    Place("nuclear ball", NuclearBall(1.0), lambda n: (max(1, n // 5), 5), KAPPA, _spectral_norm),
    Place("κ = 10^4", L2Ball(1.0), lambda n: (n,), 1e4, jnp.linalg.norm),
)


class Bench(NamedTuple):
    """The problem at a place, the start, and the constants that every method would estimate for itself."""

    place: Place
    problem: BilevelProblem
    x: Array
    y: Array
    constants: Constants


def bench(size: int = SIZE, place: Place = COMMON) -> Bench:
    """A random quadratic problem with `size` variables at each level."""
    x, y, key = jnp.zeros(place.shape(size)), jnp.zeros(size), jax.random.key(0)
    if isinstance(place.domain, Simplex):
        x = x + 1 / size
    problem = random_quadratic(place.domain, x, size, key, kappa=place.kappa, slope=SLOPE).problem
    # Once for all: it is the same estimate, and compiling it would be a good part of the command.
    return Bench(place, problem, x, y, jax.jit(estimate_constants)(problem, x, y, key))


class Measured(NamedTuple):
    """How a method went on the common problem."""

    method: str
    moves: str
    loops: int
    costs: dict[str, float]
    """Calls per step, by the column of the table."""
    steps: int
    calls: int
    """Gradients and products of the whole run, without those of the estimates."""
    start: float
    """Seconds before the first step."""
    run: float
    """Seconds of all steps."""
    status: Status
    left: float
    """The smallest true gap of the run over the first."""

    @property
    def converged(self) -> bool:
        """Whether the true gap became small enough."""
        return self.status is Status.CONVERGED

    @property
    def label(self) -> str:
        """The method and how it moved."""
        return f"{self.method} ({self.moves})"

    @property
    def end(self) -> str:
        """How it ended, in words."""
        late = "not finite" if self.status is Status.NONFINITE else f"{self.left:.2g} left"
        return "yes" if self.converged else f"no, {late}"

    @property
    def products(self) -> float:
        """Hessian and cross products per step."""
        return self.costs["H"] + self.costs["J"]


@functools.cache
def true_gap(farthest: Callable[[Array], Scalar]) -> Callable[[Array, Array, dict[str, Array]], Scalar]:
    """The Frank-Wolfe gap of ell, by the closed forms of y*(x), of the adjoint and of the best vertex."""

    @jax.jit
    def gap(x: Array, y: Array, data: dict[str, Array]) -> Scalar:
        shape, x = data["q"].shape, x.reshape(-1)
        y_star = jnp.linalg.solve(data["A"], data["B"] @ x + data["b"])
        adjoint = jnp.linalg.solve(data["A"], y_star - data["c"])
        slope = data["rho"] * x + data["q"].reshape(-1) + data["B"].T @ adjoint
        return slope @ x + farthest(-slope.reshape(shape))

    return gap


def _converged(trace: Trace) -> Stop | None:
    """Stop by the true gap, which the loop then verifies; the gap that the method tracks plays no part."""
    limit = RATIO * trace.first["true_gap"]
    close = trace.last["true_gap"] <= limit
    return Stop(Status.CONVERGED, f"true gap <= {RATIO:g} of its first value", limit) if close else None


def _uninterrupted(result: Result) -> Result:
    if result.status is Status.STOPPED:  # no rule of ours says so: it was Ctrl-C
        raise KeyboardInterrupt
    return result


def _search(problem: BilevelProblem, solver: Solver, x: Array, y: Array, place: Place) -> Result:
    """Run until the method has converged: rows at every step at first, fewer where many steps are needed."""
    metrics = {"true_gap": true_gap(place.farthest)}
    for limit in LIMITS:
        rules: dict[str, Any] = {"steps": limit, "every": limit // ROWS, "time_limit": SECONDS, "stop": _converged}
        result = _uninterrupted(solve(problem, solver, x, y, metrics=metrics, **rules))
        if result.status is not Status.MAX_STEPS:
            break
    return result


def _timed(problem: BilevelProblem, solver: Solver, x: Array, y: Array, steps: int) -> tuple[float, float]:
    """Seconds before the first step and of all steps, without rows on the way; both the shortest of several runs."""
    runs = [_uninterrupted(solve(problem, solver, x, y, steps=steps, every=steps)) for _ in range(REPEATS)]
    starts = [run.trace.first["seconds"] for run in runs]
    return min(starts), min(run.seconds - start for run, start in zip(runs, starts, strict=True))


def measure(name: str, label: str, solver: Solver, common: Bench) -> Measured:
    """Run one form of a method on a problem."""
    place, problem, x, y, constants = common
    solver = replace(solver, constants=constants)  # type: ignore[type-var]
    if METHODS[name].needs_sampler:
        problem = replace(problem, sampler=Blocks(x.size, x.size))
    if solver.oracle == "low rank" and x.ndim == 1:  # the same ball: the nuclear norm of one row is its length
        problem, x = replace(problem, domain=NuclearBall(1.0), x_like=None), x[None, :]
    result = _search(problem, solver, x, y, place)
    first, last, steps = result.trace.first, result.trace.last, result.steps
    uses = name not in OURS
    if result.success:
        start, run = _timed(problem, solver, x, y, steps)
    else:
        start, run = first["seconds"], result.seconds - first["seconds"]
    return Measured(
        label,
        MOVES[solver.oracle],
        solver.loops,
        {column: (last[count] - first[count]) / max(1, steps) for column, count in DERIVATIVES.items()},
        steps,
        int(sum(last[count] for count in DERIVATIVES.values())) - (int(constants.products) if uses else 0),
        start,
        run,
        result.status,
        float(result.trace["true_gap"].min()) / first["true_gap"],
    )


def measure_all(names: Sequence[str], size: int = SIZE, progress: bool = True, place: Place = COMMON) -> list[Measured]:
    """Measure every form of the methods named at one place, with a line for each on standard error."""
    common = bench(size, place)
    forms = [(name, label, solver) for name in names for label, solver in METHODS[name].forms(name)]
    measured = []
    for number, (name, label, solver) in enumerate(forms, 1):
        if solver.oracle == "low rank" and isinstance(place.domain, Simplex):
            continue
        measured.append(measure(name, label, solver, common))
        if progress:
            print(f"{place.name}: {number}/{len(forms)}  {_outcome(measured[-1])}", file=sys.stderr, flush=True)
    return measured


def measure_elsewhere(names: Sequence[str], size: int = SIZE, progress: bool = True) -> dict[str, list[Measured]]:
    """The same at the other places, by their names."""
    return {place.name: measure_all(names, size, progress, place) for place in ELSEWHERE}


def _outcome(one: Measured) -> str:
    words = "converged after" if one.converged else f"not converged, {one.left:.2g} of the gap left after"
    return f"{one.label}: {words} {one.steps} steps, {one.start + one.run:.2g} s"


def measured_rows(measured: Iterable[Measured]) -> list[dict[str, Any]]:
    """The rows of the second table."""
    return [
        {
            "method": one.method,
            "x moves by": one.moves,
            "loops": one.loops,
            **one.costs,
            "steps": one.steps,
            "calls": one.calls,
            "start ms": _milliseconds(one.start),
            "steps ms": _milliseconds(one.run),
            "converged": one.end,
        }
        for one in measured
    ]


def elsewhere_rows(measured: Sequence[Measured], elsewhere: dict[str, list[Measured]]) -> list[dict[str, Any]]:
    """The rows of the third table: milliseconds of steps at each place, or how much of the gap was left."""

    def words(one: Measured) -> str:
        spent = _milliseconds(one.run)
        return f"no, {one.left:.2g}" if not one.converged else f"{spent:.3g}" if spent < 100 else f"{spent}"

    found = {name: {one.label: words(one) for one in rows} for name, rows in elsewhere.items()}
    return [
        {
            "method": one.method,
            "x moves by": one.moves,
            COMMON.name: words(one),
            **{place: ways.get(one.label, "not for it") for place, ways in found.items()},
        }
        for one in measured
    ]


def _milliseconds(seconds: float) -> float | int:
    """Three digits, but never a power of ten."""
    return 1e3 * seconds if seconds < 0.1 else round(1e3 * seconds)
