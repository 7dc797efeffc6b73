"""Repeating a solver's step: `run` as one pure function, `advance` as chunks that the loop cuts as it likes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree, Scalar

from bilevax import trees
from bilevax.linalg.brief import brief_jit
from bilevax.linalg.host_loops import Kernels
from bilevax.problem import BilevelProblem
from bilevax.randomness import at_step
from bilevax.solvers.protocol import Counts, Info, Observation, Solver, add_counts, kernels, no_counts, takes_few_steps

_FEW_NUMBERS = 20_000
"""Up to so many numbers in problem and state, methods that take few steps are compiled with little effort: four seconds
of compilation for a millisecond of steps otherwise."""


def run(
    problem: BilevelProblem,
    solver: Solver,
    x0: PyTree,
    y0: PyTree,
    *,
    steps: int,
    key: Array | None = None,
    collect: Callable[[Any, Info], PyTree] | None = None,
) -> tuple[Any, PyTree]:
    """`steps` steps as one pure function: jit it, vmap it over step sizes, starts, data or keys.

    Returns the last state and, stacked over steps, what `collect(state, info)` returned for each step, where `state`
    is the one the step started from. Nothing is validated and no clock runs; use `solve` for that.

    >>> import jax, jax.numpy as jnp, bilevax as bx
    >>> problem = bx.BilevelProblem(
    ...     lambda x, y, _: jnp.sum((y - 0.2) ** 2), lambda x, y, _: jnp.sum((y - x) ** 2), bx.Simplex()
    ... )
    >>> x0, y0 = jnp.ones(3) / 3, jnp.zeros(3)
    >>> end = lambda gamma: bx.run(problem, bx.IBCG(gamma), x0, y0, steps=50)[0].x
    >>> jax.vmap(end)(jnp.array([0.01, 0.02])).shape
    (2, 3)
    """
    if problem.streamed:
        raise ValueError("run: data hold a bx.Stream, whose rows are read outside compiled code; use solve.")
    if problem.kernels is Kernels.HOST:
        raise ValueError(
            f"run: {problem.domain!r} or the lower structure steps on the host and cannot be traced; use solve."
        )
    if kernels(solver) is Kernels.HOST:
        raise ValueError(f"run: {type(solver).__name__} steps on the host and cannot be traced; use solve.")
    key = jax.random.key(0) if key is None else key
    x, y = jax.tree.map(jnp.asarray, (x0, y0))
    problem, solver = cast_numbers(problem, solver, trees.dtype(x))
    solver = solver.prepare(problem, x, y, key)
    state, _ = solver.init(problem, x, y)

    def step(state: Any, _: None) -> tuple[Any, PyTree]:
        following, info = solver.step(problem, state, at_step(key, state.k))
        return following, None if collect is None else collect(state, info)

    return jax.lax.scan(step, state, None, length=steps)


def cast_numbers(problem: BilevelProblem, solver: Solver, dtype: Any) -> tuple[BilevelProblem, Solver]:
    """Numbers inside the set and the solver in the precision of x; data are the user's."""
    return replace(problem, domain=trees.cast(problem.domain, dtype)), trees.cast(solver, dtype)


class StepSummary(NamedTuple):
    """The scalars of the last step's info; they describe the point it started from."""

    gap: Scalar
    lmo_error: Scalar
    grad_norm: Scalar
    direction: PyTree = None
    """Kept for methods without an lmo: the loop computes their gap at its rows."""


class Chunk(NamedTuple):
    """Where some steps led, a summary of the last of them, and what they cost."""

    state: Any
    summary: StepSummary
    counts: Counts
    finite: Array


def summarize(solver: Solver, info: Info) -> StepSummary:
    """What a row needs of a step's info."""
    error = jnp.asarray(info.lmo_error, info.gap.dtype)
    direction = info.direction if solver.oracle != "lmo" else None
    return StepSummary(info.gap, error, info.grad_norm, direction)


def observed(direction: PyTree) -> StepSummary:
    """A summary of a direction that no step computed; the loop adds the gap."""
    nan = jnp.full((), jnp.nan, trees.dtype(direction))
    return StepSummary(nan, jnp.zeros_like(nan), trees.norm(direction), direction)


def _one(problem: BilevelProblem, solver: Solver, chunk: Chunk, key: Array, last: Array | bool) -> Chunk:
    state, info = solver.step(problem, chunk.state, at_step(key, chunk.state.k))
    # A transient infinity in the direction can leave x finite; the sum is the cheapest reduction that notices it.
    finite = chunk.finite & jnp.isfinite(trees.sum_all(info.direction))
    # Reductions are a good part of a small step, and only those of a chunk's last step are ever read.
    if isinstance(last, jax.Array):
        summary = jax.lax.cond(last, lambda: summarize(solver, info), lambda: chunk.summary)
    else:
        summary = summarize(solver, info) if last else chunk.summary
    return Chunk(state, summary, add_counts(chunk.counts, info.counts), finite)


def _empty(solver: Solver, state: Any) -> Chunk:
    nan = jnp.full((), jnp.nan, trees.dtype(state.x))
    direction = trees.zeros_like(state.x) if solver.oracle != "lmo" else None
    return Chunk(state, StepSummary(nan, nan, nan, direction), no_counts(), jnp.asarray(True))


def _advance(problem: BilevelProblem, solver: Solver, state: Any, key: Array, count: Array) -> Chunk:
    """`count` steps. One executable for every count: cutting a run differently changes no bit of it."""
    chunk = jax.lax.fori_loop(
        0, count, lambda i, chunk: _one(problem, solver, chunk, key, i == count - 1), _empty(solver, state)
    )
    return chunk._replace(finite=chunk.finite & trees.all_finite((chunk.state.x, chunk.state.y)))


advance = jax.jit(_advance)
_advance_few = brief_jit(_advance, _FEW_NUMBERS)


def advance_on_host(problem: BilevelProblem, solver: Solver, state: Any, key: Array, count: Array) -> Chunk:
    """The same, un-jitted: oracles are compiled one by one or are host kernels."""
    chunk = _empty(solver, state)._replace(counts=Counts())  # numbers: each sum of arrays would be a call
    for i in range(int(count)):
        chunk = _one(problem, solver, chunk, key, i == int(count) - 1)
    return chunk._replace(finite=chunk.finite & trees.all_finite((chunk.state.x, chunk.state.y)))


def prepare(problem: BilevelProblem, solver: Solver, x: PyTree, y: PyTree, key: Array) -> Solver:
    """`solver.prepare` as a function that can be compiled."""
    return solver.prepare(problem, x, y, key)


def init(problem: BilevelProblem, solver: Solver, *start: PyTree) -> tuple[Any, Counts]:
    """`solver.init` as a function that can be compiled."""
    return solver.init(problem, *start)


def observe(problem: BilevelProblem, solver: Solver, state: Any) -> tuple[Observation, StepSummary]:
    """`solver.observe` as a function that can be compiled, with a summary; on the full data."""
    seen = solver.observe(replace(problem, sampler=None), state)  # type: ignore[attr-defined]
    return seen, observed(seen.direction)


_prepare, _init, _observe = brief_jit(prepare), brief_jit(init), brief_jit(observe)


class Stepping(NamedTuple):
    """How a problem and a solver advance: the problem with its mark, and four functions, compiled or not."""

    problem: BilevelProblem
    prepare: Callable[..., Solver]
    init: Callable[..., tuple[Any, Counts]]
    advance: Callable[..., Chunk]
    observe: Callable[..., tuple[Observation, StepSummary]]


def place(problem: BilevelProblem, solver: Solver) -> Stepping:
    """Decide between one compiled loop and steps on the host: the only place that does.

    The loop is compiled unless the problem or the solver has a kernel on the host. A solver prepares in compiled code
    also where it only steps on the host itself.
    """
    marked = replace(problem, solver_kernels=kernels(solver))
    prepares = prepare if problem.host else _prepare
    if marked.host:
        return Stepping(marked, prepares, init, advance_on_host, observe)
    return Stepping(marked, prepares, _init, _advance_few if takes_few_steps(solver) else advance, _observe)
