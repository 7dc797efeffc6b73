"""`solve`: one problem, one method, one result."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from jaxtyping import Array, PyTree

from bilevax import trees
from bilevax.problem import BilevelProblem
from bilevax.runs import checks, chunks, oracle_checks
from bilevax.runs.checkpoint import Saved, Saver, restore
from bilevax.runs.clock import CompileTime
from bilevax.runs.fingerprint import about_run, check_same
from bilevax.runs.interrupt import Interrupt
from bilevax.runs.loop import Run
from bilevax.runs.plan import Metrics, Plan, make_plan
from bilevax.runs.result import Result
from bilevax.runs.stopping import Rule
from bilevax.solvers.auto import choose
from bilevax.solvers.protocol import Solver
from bilevax.streaming.blocks import in_memory


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
        problem: two functions, a set and data.
        solver: the method; by default `bx.auto(problem, x0)`.
        x0, y0: starts; without them the problem must have `x_like` and `y_like`. Precision follows x0.
        steps: the most steps to take.
        tol: the run has converged when the true Frank-Wolfe gap, computed with the lower level and the adjoint
            solved accurately, is at most `tol`.
        stop: further rules: `bx.gap_below`, `bx.relative_gap`, `bx.plateau`, or your own function of the trace.
        time_limit: seconds of stepping, compilation not counted.
        key: for stochastic methods and estimates; by default `jax.random.key(0)`.
        metrics: `{name: fn(x, y, data)}`, or a function of `(problem, state)` such as `bx.exact_metrics`, or several.
        observers: functions of `(row, state)`, called at every row.
        every: steps per row of the trace; by default `max(1, steps // 100)`, with rows at 1, 2, 4, 8, ... before.
        checkpoint: a folder, or `bx.Checkpoint(folder, seconds=10)`: the run is saved there and can be continued with
            `bx.resume`, after Ctrl-C, SIGTERM or a crash.
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
    plan = make_plan(
        steps=steps,
        tol=tol,
        stop=stop,
        time_limit=time_limit,
        key=key,
        metrics=metrics,
        observers=observers,
        every=every,
        checkpoint=checkpoint,
        progress=progress,
    )
    checks.check_solver(solver)
    checks.check_concrete(problem, x0, y0, solver)
    with CompileTime() as checking:
        x, y = checks.check_start(problem, x0, y0)
    run = start(problem, solver, x, y, plan)
    run.clock.compiling += checking.seconds
    return run.finish()


def start(
    problem: BilevelProblem, solver: Solver | None, x: PyTree, y: PyTree, plan: Plan, after: Saved | None = None
) -> Run:
    """A run whose start was checked: choose the method if none is given, check its oracle, prepare it.

    `after` a checkpoint it is where that was made.
    """
    saver = None if plan.checkpoint is None else Saver(plan.checkpoint, after)
    try:
        why = ""
        if solver is None:
            solver, why = choose(problem, x, y)
        problem, solver = chunks.cast_numbers(problem, solver, trees.dtype(x))
        problem = replace(problem, data=in_memory(problem.data))
        with CompileTime() as checking:
            oracle_checks.check_oracle(problem, x, solver)
            about = {} if saver is None else about_run(problem, solver, x, y, plan)
        if after is not None:
            check_same(about, after)
        run = Run(problem, solver, x, y, plan, Interrupt(saved=saver is not None))
        run.chosen = why
        run.clock.compiling += checking.seconds
        if after is not None:
            restore(run, after)
        if saver is not None:
            saver.begin(run, about)
        return run
    except BaseException:
        if saver is not None:
            saver.close()
        raise
