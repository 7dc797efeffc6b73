"""The host loop: rows, observers, rules, limits, and the only place that grants `CONVERGED`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, PyTree

from bilevax.runs import metrics as measures
from bilevax import trees
from bilevax.runs import chunks
from bilevax.runs import checks
from bilevax.runs.clock import Clock, Interrupt
from bilevax.problem import BilevelProblem
from bilevax.runs.progress import Progress
from bilevax.runs.result import Result
from bilevax.solvers import COUNTS, Solver, auto
from bilevax.runs.stopping import Rule, Status, Stop, as_stop, gap_below
from bilevax.runs.trace import Row, Trace

_CHUNK_SECONDS = 0.2  # how long compiled code may run before the clock and the interrupt flag are looked at

Metrics = Mapping[str, Callable[..., Any]] | Callable[..., Mapping[str, Any]]


def solve(
    problem: BilevelProblem,
    solver: Solver | None = None,
    x0: PyTree = None,
    y0: PyTree = None,
    *,
    steps: int = 1000,
    tol: float | None = None,
    stop: Rule | Iterable[Rule] = (),
    time_limit: float | None = None,
    key: Array | None = None,
    metrics: Metrics | Iterable[Metrics] | None = None,
    observers: Callable[..., Any] | Iterable[Callable[..., Any]] = (),
    every: int | None = None,
    checkpoint: Any = None,
    progress: bool | str = False,
) -> Result:
    """Solve a bilevel problem.

    Args:
        solver: the method; by default `bx.auto(problem, x0)`.
        x0, y0: starts; without them the problem must have `x_like` and `y_like`. Precision follows x0.
        tol: converged when the true Frank-Wolfe gap, with both inner problems solved, is at most this.
        stop: further rules: `bx.gap_below`, `bx.relative_gap`, `bx.plateau`, or your own function of the trace.
        time_limit: seconds of stepping, compilation not counted.
        key: for stochastic methods and estimates; by default `jax.random.key(0)`.
        metrics: `{name: fn(x, y, data)}`, or a function of `(problem, state)` such as `bx.exact_metrics`, or several.
        observers: functions of `(row, state)`, called at every row.
        every: steps per row of the trace; by default `max(1, steps // 100)`.
        checkpoint: not available yet.
        progress: draw a progress line; a string labels it.

    >>> import jax.numpy as jnp, bilevax as bx
    >>> problem = bx.BilevelProblem(
    ...     lambda x, y, data: 0.5 * jnp.sum((y - data) ** 2), lambda x, y, data: 0.5 * jnp.sum((y - 2 * x) ** 2),
    ...     bx.Simplex(), data=jnp.array([0.5, 1.5, -1.0]),
    ... )
    >>> result = bx.solve(problem, bx.IBCG(), jnp.ones(3) / 3, jnp.zeros(3), steps=2000, tol=1e-2)
    >>> result.status.name
    'CONVERGED'
    """
    every = checks.check_steps(steps, every, time_limit)
    if checkpoint is not None:
        raise ValueError("solve: checkpoint= is not available yet; leave it out and use result.save(path) afterwards.")
    if tol is not None and not (isinstance(tol, (int, float, np.number)) and 0 < tol < np.inf):
        raise ValueError(f"solve: tol must be a positive number, the true gap to reach, got {tol!r}.")
    rules = ([gap_below(float(tol))] if tol is not None else []) + _several("stop", stop)
    checks.check_solver(solver)
    x, y = checks.check_start(problem, x0, y0)
    solver = auto(problem, x) if solver is None else solver
    problem, solver = chunks.cast_numbers(problem, solver, trees.dtype(x))
    checks.check_oracle(problem, x, solver)
    key = jax.random.key(0) if key is None else checks.check_key(key)
    plan = _Plan(
        int(steps),
        every,
        np.inf if time_limit is None else float(time_limit),
        rules,
        _several("metrics", metrics),
        _several("observers", observers),
        progress,
    )
    course = _Course(problem, solver, x, y, key, plan)
    with Interrupt() as interrupt:
        return course.finish(interrupt)


def _several(name: str, given: Any) -> list[Any]:
    if given is None:
        return []
    if callable(given) or isinstance(given, Mapping):
        return [given]
    several = list(given) if isinstance(given, Iterable) else [given]
    if not all(callable(one) or isinstance(one, Mapping) for one in several):
        raise TypeError(f"solve: {name}= takes a function or several of them, got {given!r}.")
    return several


class _Plan(NamedTuple):
    """What the caller asked for."""

    steps: int
    every: int
    time_limit: float
    rules: list[Rule]
    metrics: list[Metrics]
    observers: list[Callable[..., Any]]
    progress: bool | str


class _Course:
    """One call of `solve`: the state, the clock and the trace, moved on row by row."""

    def __init__(self, problem: BilevelProblem, solver: Solver, x: PyTree, y: PyTree, key: Array, plan: _Plan):
        self.problem, self.key, self.plan = problem, key, plan
        self.clock, self.trace = Clock(), Trace()
        prepare = (lambda p, s, *a: s.prepare(p, *a)) if problem.host else chunks.prepare
        self.solver, preparing = self.clock.call(prepare, problem, solver, x, y, key)
        if chunks.on_host(solver):
            self.problem = problem = replace(problem, on_host=True)
        self.advance = chunks.advance_on_host if problem.host else chunks.advance
        init = (lambda p, s, *a: s.init(p, *a)) if problem.host else chunks.init
        (self.state, counts), warming = self.clock.call(init, problem, self.solver, x, y)
        self.clock.seconds += preparing + warming
        self.spoiled = not bool(trees.all_finite((self.state.x, self.state.y)))
        if self.spoiled:
            self.state = eqx.tree_at(lambda s: (s.x, s.y), self.state, (x, y))
        self.counts = {name: int(getattr(counts, name)) for name in COUNTS}
        self.bounded = not np.isinf(float(problem.domain.diameter(x).value))
        self.k = 0
        self.verify_after = 0
        self.unverified = ""
        label = plan.progress if isinstance(plan.progress, str) else type(solver).__name__
        self.progress = Progress(plan.steps, label) if plan.progress else None

    def finish(self, interrupt: Interrupt) -> Result:
        """Row, rules, steps, and again."""
        stop: Stop | None = None
        while stop is None:
            # The next step is taken now, for what it sees at the present point, and used below if the run goes on.
            ahead, seconds = self._call(1, self.state)
            self._row(ahead.seen)
            if self.spoiled:
                stop = Stop(Status.NONFINITE, "the warm-up made y non-finite; the start is kept")
            else:
                stop = self._stop(interrupt) or self._steps_to_next_row(ahead, seconds, interrupt)
        if self.trace.last["step"] < self.k:
            self._row(self._call(1, self.state)[0].seen)
        if self.progress:
            self.progress.close(self.k, self.trace.last, stop.status.name)
        return Result(
            x=self.state.x,
            y=self.state.y,
            status=stop.status,
            message=stop.message + self.unverified,
            steps=self.k,
            seconds=self.clock.seconds,
            compile_seconds=self.clock.compiling,
            trace=self.trace,
            state=self.state,
            problem=self.problem,
            solver=self.solver,
        )

    def _call(self, count: int, state: Any) -> tuple[chunks.Chunk, float]:
        return self.clock.call(self.advance, self.problem, self.solver, state, self.key, np.asarray(count, np.int32))

    def _accept(self, chunk: chunks.Chunk, count: int) -> None:
        self.state = chunk.state
        self.k += count
        for name in COUNTS:
            self.counts[name] += int(getattr(chunk.counts, name))

    def _row(self, seen: chunks.Seen) -> None:
        tracked = measures.basic_metrics(self.problem, self.state)
        gap, lmo_error = seen.gap, seen.lmo_error
        if self.bounded and seen.direction is not None:  # a projected method: one lmo for the row, not for the method
            gap, lmo_error = measures.tracked_gap(self.problem, self.state.x, seen.direction)
        row: Row = {"step": self.k, "seconds": self.clock.seconds, "gap": float(gap)}
        row.update({name: float(tracked[name]) for name in ("upper", "lower_grad_norm")})
        row.update({name: float(getattr(seen, name)) for name in ("adjoint_residual", "grad_norm")})
        row["lmo_error"] = float(lmo_error)
        row.update(self.counts)
        for extra in self.plan.metrics:
            if isinstance(extra, Mapping):
                found = {n: f(self.state.x, self.state.y, self.problem.data) for n, f in extra.items()}
            else:
                found = dict(extra(self.problem, self.state))
            taken = sorted(set(row) & set(found))
            if taken:
                raise ValueError(f"solve: a metric is named {taken[0]!r}, which the trace already has; rename it.")
            for name, value in found.items():
                if np.ndim(value) or not np.isreal(value):
                    raise ValueError(
                        f"solve: the metric {name!r} must be one real number, got shape {np.shape(value)}."
                    )
                row[name] = float(value)
        self.trace.append(row)
        for observe in self.plan.observers:
            observe(row, self.state)

    def _stop(self, interrupt: Interrupt) -> Stop | None:
        for rule in self.plan.rules:
            verdict = as_stop(rule(self.trace), rule)
            if verdict is not None and verdict.status is Status.CONVERGED:
                verdict = self._verified(verdict)
            if verdict is not None:
                return verdict
        if self.k >= self.plan.steps:
            return Stop(Status.MAX_STEPS, f"all {self.plan.steps} steps were taken")
        return self._cut(interrupt)

    def _cut(self, interrupt: Interrupt) -> Stop | None:
        if interrupt.flag:
            return Stop(Status.STOPPED, f"interrupted at step {self.k}; the state is kept")
        if self.clock.seconds >= self.plan.time_limit:
            return Stop(Status.TIME_LIMIT, f"the time limit of {self.plan.time_limit:g} s was reached at step {self.k}")
        return None

    def _verified(self, claim: Stop) -> Stop | None:
        """Grant `CONVERGED` only if the gap with both inner problems solved, plus its error, passes too."""
        if self.k < min(self.verify_after, self.plan.steps):
            return None
        true = measures.audit(self.problem, self.state.x, self.state.y, getattr(self.state, "w", None))
        bounded = not np.isnan(float(true.gap))
        value, error = (true.gap, true.gap_error) if bounded else (true.grad_norm, true.grad_error)
        name = "true gap" if bounded else "|grad ell|"
        outside = self.problem.domain.violations(self.state.x)
        if not outside and float(value) < -float(error):
            outside = "its gap is negative"  # no point of the set has one: what a user's oracle says of itself
        if outside:
            self.unverified = f"; at step {self.k} the tracked gap passed but x is not in the set: {outside}"
        elif float(value) + float(error) <= claim.limit:
            self.unverified = ""
            return claim._replace(message=f"{name} {float(value):.3e} (+- {float(error):.0e}) <= {claim.limit:.3e}")
        else:
            found = f"{float(value):.3e} (+- {float(error):.0e})"
            self.unverified = f"; at step {self.k} the tracked gap passed but the {name} was {found}"
        # Verification costs many steps: not again before the run is a quarter longer.
        self.verify_after = self.k + max(self.plan.every, self.k // 4)
        return None

    def _steps_to_next_row(self, chunk: chunks.Chunk, seconds: float, interrupt: Interrupt) -> Stop | None:
        goal = min(self.plan.steps, self.k - self.k % self.plan.every + self.plan.every)
        count = 1
        while True:
            self.clock.seconds += seconds
            if not bool(chunk.finite):
                return self._nonfinite(count)
            self._accept(chunk, count)
            if self.progress:
                self.progress.show(self.k, self.trace.last)
            if self.k >= goal:
                return None
            stop = self._cut(interrupt)
            if stop is not None:
                return stop
            count = max(1, min(goal - self.k, int(_CHUNK_SECONDS * count / max(seconds, 1e-9))))
            chunk, seconds = self._call(count, self.state)

    def _nonfinite(self, count: int) -> Stop:
        """Replay the chunk step by step, to name the step and the quantity; the last finite state is kept."""
        for _ in range(count):
            chunk, _ = self._call(1, self.state)
            if not bool(chunk.finite):
                break
            self._accept(chunk, 1)
        return Stop(Status.NONFINITE, f"step {self.k} made {_culprit(chunk)} non-finite; the state before it is kept")


def _culprit(chunk: chunks.Chunk) -> str:
    parts = {
        "w": getattr(chunk.state, "w", None),
        "the direction": chunk.seen.grad_norm,
        "x": chunk.state.x,
        "y": chunk.state.y,
    }
    bad = [name for name, part in parts.items() if part is not None and not bool(trees.all_finite(part))]
    return bad[0] if bad else "a quantity"
