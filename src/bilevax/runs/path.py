"""`path`: one problem at several radii of its set, each run from the solution before; a held-out score chooses."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Array, PyTree

from bilevax import trees
from bilevax.drawing import tables
from bilevax.problem import BilevelProblem
from bilevax.runs import checks
from bilevax.runs.interrupt import Interrupt
from bilevax.runs.plan import Plan, make_plan
from bilevax.runs.radius_search import best_radius, search_radius
from bilevax.runs.result import Result
from bilevax.runs.solve import start
from bilevax.runs.stopping import Rule, Status
from bilevax.sets import ConvexSet
from bilevax.solvers.protocol import Solver
from bilevax.streaming.blocks import mean


@dataclasses.dataclass(frozen=True, eq=False)
class PathResult:
    """What `path` returns: a row and a result for each radius, in increasing order, and the best radius."""

    rows: list[dict[str, Any]]
    """Radius, score, gap, steps, seconds and status of each run."""
    results: list[Result] = dataclasses.field(repr=False)
    radius: float
    """The radius with the lowest score; NaN if there is no finite score."""

    @property
    def best(self) -> Result:
        """The result at the radius with the lowest score."""
        if np.isnan(self.radius):
            raise ValueError("path: no radius has a finite score, so none is the best. Give score=fn(x, y, data).")
        return self.results[[row["radius"] for row in self.rows].index(self.radius)]

    def __str__(self) -> str:
        radii, best = [row["radius"] for row in self.rows], self.radius
        marks = {"score": lambda row: f"{row['score']:.5g}", "": lambda row: "best" if row["radius"] == best else ""}
        table = tables.markdown([row | {name: mark(row) for name, mark in marks.items()} for row in self.rows])
        words = "No radius has a finite score." if np.isnan(best) else f"The best radius is {best:.4g}."
        ends = {radii[0]: "smallest one tried: also try smaller", radii[-1]: "largest one tried: also try larger"}
        return f"{table}\n\n{words}" + (f" It is the {ends[best]} ones." if best in ends and len(radii) > 1 else "")


def path(
    problem: BilevelProblem,
    radii: float | Sequence[float] | None = None,
    solver: Solver | None = None,
    x0: PyTree = None,
    y0: PyTree = None,
    *,
    score: Callable[[PyTree, PyTree, Any], Any] | None = None,
    steps: int = 200,
    tol: float | None = None,
    stop: Rule | Iterable[Rule] = (),
    time_limit: float | None = None,
    key: Array | None = None,
) -> PathResult:
    """Solve a problem at several radii of its set, and choose the radius with the lowest held-out score.

    Each run starts from the solution at the radius below it. Another radius compiles nothing again.

    Args:
        problem: its domain has a `radius`, or a `trace` as `bx.Spectraplex` has.
        radii: increasing radii; or only the first, by default that of the domain, and the scores choose the others:
            larger radii while the score falls, smaller ones if it does not, then radii around the best one.
        solver, x0, y0: as in `bx.solve`; `path` scales x0 into the first set.
        score: `score(x, y, data)` is one number, such as the error on data that no level uses; lower is better. Radii
            are equally good if their scores differ by less than 1e-4 of the lowest one; the smallest of them is best.
        steps, tol, stop, key: as in `bx.solve`, for each radius.
        time_limit: seconds of stepping for all radii. After them, and after Ctrl-C, `path` returns what it has.

    >>> import jax.numpy as jnp, bilevax as bx
    >>> upper, lower = lambda x, y, data: jnp.sum((y - data) ** 2), lambda x, y, data: jnp.sum((y - x) ** 2)
    >>> problem = bx.BilevelProblem(upper, lower, bx.L2Ball(), data=jnp.array([3.0, 4.0]))
    >>> held_out = lambda x, y, data: jnp.sum((y - 0.8 * data) ** 2)
    >>> bx.path(problem, [2.0, 4.0, 8.0], None, jnp.zeros(2), jnp.zeros(2), score=held_out, steps=50).radius
    4.0
    """
    plan = make_plan(steps=steps, tol=tol, stop=stop, time_limit=time_limit, key=key)
    checks.check_solver(solver)
    checks.check_concrete(problem, x0, y0, solver)
    runs = _Runs(problem, solver, score, plan, checks.check_start(problem, x0, y0))
    listed = _check_radii(runs.own if radii is None else radii, score)
    with runs.interrupt:
        if radii is None or np.ndim(radii) == 0:
            radius = search_radius(runs.evaluate, listed[0], stop=runs.ended).radius
        else:
            for near, radius in zip([None, *listed], listed, strict=False):
                if not runs.done or not runs.ended():
                    runs.evaluate(radius, near)
            radius = best_radius({radius: row["score"] for radius, (row, _) in runs.done.items()})
    rows, results = zip(*(runs.done[radius] for radius in sorted(runs.done)), strict=True)
    return PathResult(list(rows), list(results), radius)


def _check_radii(radii: Any, score: Any) -> list[float]:
    numbers = np.atleast_1d(np.asarray(radii))
    if numbers.ndim != 1 or not numbers.size or numbers.dtype.kind not in "iuf":
        raise TypeError(f"path: radii must be one number or an increasing list of numbers, got {radii!r}.")
    if not (np.all(np.isfinite(numbers)) and np.all(numbers > 0) and np.all(np.diff(numbers) > 0)):
        raise ValueError(f"path: radii must be positive, finite and increasing, got {radii!r}; sort them.")
    if score is None and np.ndim(radii) == 0:
        raise ValueError(f"path: from {radii:g} on, scores choose the radii; give score=fn(x, y, data), or all radii.")
    return [float(number) for number in numbers]


class _Runs:
    """The runs so far: for each radius its row and its result."""

    def __init__(self, problem: BilevelProblem, solver: Any, score: Any, plan: Plan, begin: tuple[PyTree, PyTree]):
        sizes = [field.name for field in dataclasses.fields(problem.domain) if field.name in ("radius", "trace")]
        if not sizes:
            raise ValueError(f"path: {problem.domain!r} has no radius; use a set that has one, such as bx.L2Ball.")
        if score is not None and not callable(score):
            raise TypeError(f"path: score must be a function of (x, y, data), got {score!r}.")
        self.problem, self.solver, self.score, self.plan, self.begin = problem, solver, score, plan, begin
        self.field, self.own = sizes[0], float(getattr(problem.domain, sizes[0]))
        self.done: dict[float, tuple[dict[str, Any], Result]] = {}
        self.interrupt, self.seconds_left = Interrupt(), plan.time_limit
        self.score_at(*begin)  # a score that cannot be used is refused before the first run

    def evaluate(self, radius: float, near: float | None) -> float:
        """Solve at this radius, from the solution at `near` or from the one above; return the score."""
        before, (x, y) = self.own, self.begin
        if self.done:
            before = near if near in self.done else min(self.done)
            x, y = self.done[before][1].x, trees.cast(self.done[before][1].y, trees.dtype(x))
        domain = eqx.tree_at(lambda s: getattr(s, self.field), self.problem.domain, trees.as_leaf(radius))
        try:
            x = _moved_into(trees.cast(domain, trees.dtype(x)), x, radius / before)
        except ValueError:  # no matrix of this size is in the set
            if not self.done:
                raise
            return np.nan
        plan = self.plan._replace(time_limit=self.seconds_left)
        run = start(dataclasses.replace(self.problem, domain=domain), self.solver, x, y, plan)
        result = run.finish()
        self.interrupt.flag |= run.interrupt.flag
        self.seconds_left -= result.seconds
        score = np.nan if result.status is Status.NONFINITE else self.score_at(result.x, result.y)
        row = {"radius": radius, "score": score, "gap": result.trace.last["gap"], "steps": result.steps}
        self.done[radius] = {**row, "seconds": result.seconds, "status": result.status.name}, result
        return score

    def score_at(self, x: PyTree, y: PyTree) -> float:
        """The score at this point; NaN if there is none."""
        score = self.score
        value = np.nan if score is None else mean(self.problem.data, lambda data: score(x, y, data))
        if np.ndim(value) or not np.isreal(value):
            raise ValueError(f"path: score(x, y, data) must return one real number, got shape {np.shape(value)}.")
        return float(value)

    def ended(self) -> bool:
        """Whether Ctrl-C was pressed, or the time limit is over."""
        return self.interrupt.flag or self.seconds_left <= 0


def _moved_into(domain: ConvexSet, x: PyTree, ratio: float) -> PyTree:
    """A start in this set: x, or x scaled by the ratio of the radii, or else a vertex."""
    domain.check_like(trees.coordinates(x))
    if not domain.violations(x):
        return x
    vertex = domain.vertex(trees.coordinates(x))
    if isinstance(vertex, trees.Point):
        return vertex
    scaled = trees.scale(trees.scalar(ratio, x), x)
    return vertex if domain.violations(scaled) else scaled
