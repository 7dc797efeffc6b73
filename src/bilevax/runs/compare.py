"""Several methods on one problem: the same start, key, metrics, rows and clock for each."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from jaxtyping import PyTree

from bilevax.problem import BilevelProblem
from bilevax.runs import checks
from bilevax.runs.comparison import CALLS, HEADINGS, OWN_COLUMNS, Comparison, Entry
from bilevax.runs.plan import Plan, make_plan
from bilevax.runs.result import Result
from bilevax.runs.solve import solve, start
from bilevax.runs.stopping import Status
from bilevax.solvers.protocol import Solver

FAILED, NOT_RUN = "FAILED", "NOT RUN"


def compare(
    problem: BilevelProblem, solvers: Mapping[str, Solver], x0: PyTree = None, y0: PyTree = None, **options: Any
) -> Comparison:
    """Run several methods one after the other, each as `bx.solve` would with the same options.

    A method that cannot run is a row that says why; the others run all the same. Ctrl-C ends the present method and
    leaves out the rest. Methods that differ in numbers only share compiled code: the first of them pays for it.

    Args:
        problem: two functions, a set and data.
        solvers: named methods, in the order of the table.
        x0, y0: starts, as in `bx.solve`.
        options: those of `bx.solve`: `steps`, `tol`, `stop`, `time_limit`, `key`, `metrics`, `every` and so on. Limits
            hold for each method. With `progress`, each method draws a line of its own; a string goes before its name.

    >>> import jax.numpy as jnp, bilevax as bx
    >>> problem = bx.BilevelProblem(
    ...     lambda x, y, _: jnp.sum((y - 0.2) ** 2), lambda x, y, _: jnp.sum((y - x) ** 2), bx.Simplex()
    ... )
    >>> methods = {"open loop": bx.IBCG(), "constant": bx.IBCG(gamma=0.001)}
    >>> comparison = bx.compare(problem, methods, jnp.array([1.0, 0.0, 0.0]), jnp.zeros(3), steps=50)
    >>> comparison.best("upper"), comparison["constant"].status.name
    ('open loop', 'MAX_STEPS')
    """
    _check_solvers(solvers)
    _check_options(options)
    plan = make_plan(**options)
    _check_metrics(plan)
    x, y = checks.check_start(problem, x0, y0)

    def run(name: str) -> Result:
        label = f"{plan.progress} {name}" if isinstance(plan.progress, str) and plan.progress else name
        return start(problem, solvers[name], x, y, plan._replace(progress=plan.progress and label)).finish()

    return Comparison(_in_turn(solvers, run))


def _in_turn(solvers: Mapping[str, Solver], run: Callable[[str], Result]) -> dict[str, Entry]:
    entries: dict[str, Entry] = {}
    try:
        for name, solver in solvers.items():
            try:
                result = run(name)
            except Exception as error:
                entries[name] = Entry(name, solver, None, FAILED, _words(error))
                continue
            entries[name] = Entry(name, solver, result, result.status.name, result.message)
            if _interrupted(result):
                break
    except KeyboardInterrupt:  # a second Ctrl-C, or one while a method was being prepared
        if all(entry.result is None for entry in entries.values()):
            raise
    for name, solver in solvers.items():
        entries.setdefault(name, Entry(name, solver, None, NOT_RUN, "interrupted before it had a result"))
    return entries


def _interrupted(result: Result) -> bool:
    """Whether Ctrl-C ended the run; a rule that says STOPPED ends its own method only."""
    return result.status is Status.STOPPED and result.message.startswith(f"interrupted at step {result.steps};")


def _words(error: Exception) -> str:
    kind, text = type(error).__name__, str(error).strip()
    first = text.splitlines()[0] if text else ""
    if first and isinstance(error, (TypeError, ValueError, NotImplementedError)):
        return first
    return f"{kind}: {first}" if first else kind


def _check_solvers(solvers: Any) -> None:
    if not isinstance(solvers, Mapping):
        raise TypeError(
            f"compare: the second argument must be a dictionary of named solvers such as {{'IBCG': bx.IBCG()}}, "
            f"got {type(solvers).__name__}."
        )
    if not solvers:
        raise ValueError("compare: there are no solvers; give a dictionary with at least one.")
    for name, solver in solvers.items():
        if not isinstance(name, str) or not name.strip():
            raise TypeError(f"compare: the name of a method must be a string with something in it, got {name!r}.")
        if solver is None:
            raise TypeError(f"compare: the solver {name!r} is None; write bx.auto(problem, x0) for the default method.")
        try:
            checks.check_solver(solver)
        except TypeError as error:
            raise TypeError(f"compare: the solver {name!r} is not one. {error}") from None


def _check_options(options: Mapping[str, Any]) -> None:
    names = [name for name, p in inspect.signature(solve).parameters.items() if p.kind is p.KEYWORD_ONLY]
    for name in options:
        if name not in names:
            raise TypeError(f"compare: there is no option {name!r}; it takes those of bx.solve: {', '.join(names)}.")


def _check_metrics(plan: Plan) -> None:
    """Refuse a metric named like another column of the table; `solve` knows only those of the trace."""
    taken = {*OWN_COLUMNS, *HEADINGS, CALLS}
    for metric in plan.metrics:
        for name in metric if isinstance(metric, Mapping) else ():
            if name in taken:
                raise ValueError(f"compare: a metric is named {name!r}, which is taken; rename it.")
            taken.add(name)
