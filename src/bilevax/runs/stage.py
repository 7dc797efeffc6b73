"""Where the steps of a run take place: on the problem as it is, or on windows of its streams."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
from jaxtyping import Array, PyTree

from bilevax import memory, trees
from bilevax.problem import BilevelProblem
from bilevax.runs import chunks
from bilevax.runs.plan import Plan
from bilevax.solvers.protocol import Counts, Observation, Solver, samples
from bilevax.streaming.blocks import in_memory, is_stream, shapes
from bilevax.streaming.windows import Windows, first_window, on_windows

_LARGE = 10_000_000
"""From so many variables on, the memory that a method needs is estimated before it starts."""


def endless(problem: BilevelProblem) -> bool:
    """Whether the data hold an iterable, all rows of which nobody can ask for."""
    return any(is_stream(leaf) and not leaf.resumable for leaf in jax.tree.leaves(problem.data))


def on_first_window(problem: BilevelProblem) -> BilevelProblem:
    """The problem with the rows of one window, in memory."""
    problem = replace(problem, data=in_memory(problem.data))
    if not problem.streamed:
        return problem
    sampler = None if problem.sampler is None else on_windows(problem.sampler, problem.data).sampler
    return replace(problem, data=first_window(problem.data), sampler=sampler)


def check_streams(problem: BilevelProblem, solver: Any) -> None:
    """Refuse methods that cannot do with a part of the rows, by name."""
    if not problem.streamed:
        return
    name, batched = type(solver).__name__, problem.sampler is not None
    if batched and getattr(solver, "all_batches", False):
        raise ValueError(
            f"{name} needs all batches of a pass in memory, and data hold a bx.Stream; use bx.SOBA, or bx.solve "
            f"without a solver."
        )
    if not batched and getattr(solver, "differentiates_steps", False):
        raise ValueError(
            f"{name} differentiates its steps on the lower level, which passes over a bx.Stream do not allow; give the "
            f"problem a sampler, or use bx.AIDBiO."
        )
    if endless(problem) and (not batched or not samples(solver)):
        raise ValueError(
            f"{name} uses all rows, and data hold a bx.Stream of an iterable, which has no length; give a sampler and "
            f"a method on mini-batches such as bx.SOBA, or a source with len and getitem."
        )


def _check_memory(problem: BilevelProblem, solver: Solver, *start: PyTree) -> None:
    """Refuse a method whose state does not fit into the memory twice, as it must while a step is taken."""
    state, _ = jax.eval_shape(chunks.init, problem, solver, *start)
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
    memory.check(
        f"{type(solver).__name__} on {trees.size(start[0]):,} variables above and {trees.size(start[1]):,} below",
        2 * size,
        "use float32, a method that keeps less, such as bx.IBCG() or bx.ProjectedIBCG(memory=3), or a larger machine",
    )


class Stage:
    """How a run steps: four functions, compiled or not, on data that change with the step."""

    def __init__(self, problem: BilevelProblem, solver: Solver, plan: Plan) -> None:
        check_streams(problem, solver)
        self._windows: Windows | None = None
        self.endless = endless(problem)
        batches = getattr(solver, "batches_per_step", 1)
        self._later = not samples(solver)
        first = problem
        if problem.streamed and problem.sampler is not None and (samples(solver) or batches > 1):
            drawn = on_windows(problem.sampler, problem.data)
            steps = max(1, drawn.batches // batches)
            self._sampler = drawn.sampler
            self._windows = Windows(problem.data, drawn.rows, plan.key, steps, plan.steps)
            first = self.at(problem, 0)
        elif problem.streamed:
            first = on_first_window(problem)
        self._first, self._prepares = first, chunks.place(first, solver).prepare
        marked = self._place(problem if self._windows is None else first, solver)
        self.problem = replace(problem, solver_kernels=marked.solver_kernels)

    def _place(self, problem: BilevelProblem, solver: Solver) -> BilevelProblem:
        stepping = chunks.place(problem, solver)
        self._init, self._advance, self._observe = stepping.init, stepping.advance, stepping.observe
        return stepping.problem

    def prepare(self, solver: Solver, x: PyTree, y: PyTree, key: Array) -> Solver:
        """The solver with what it estimates; on streams from the rows of one window."""
        prepared: Any = self._prepares(self._first, solver, x, y, key)
        if self._windows is not None and hasattr(prepared, "passes"):  # over the rows of a window, as it is told
            share = trees.size(self._first.data) / trees.size(shapes(self.problem.data, all_rows=True))
            prepared = replace(prepared, passes=prepared.passes / share)
        del self._first  # its rows
        return prepared

    def at(self, problem: BilevelProblem, k: int) -> BilevelProblem:
        """The problem of step k."""
        if self._windows is None:
            return problem
        return replace(problem, data=self._windows.at(k), sampler=self._sampler)

    def most(self, k: int, steps: int) -> int:
        """How many of these steps one call may take: none beyond a window, and one before a change to all rows."""
        if self._windows is None:
            return steps
        return 1 if self._later else min(steps, self._windows.left(k))

    def init(self, k: int, problem: BilevelProblem, solver: Solver, *start: PyTree) -> tuple[Any, Counts]:
        """The first state, from x, y and an adjoint if there is one."""
        if not self.problem.host and trees.size(start[:2]) >= _LARGE:
            _check_memory(self.at(problem, k), solver, *start)
        return self._init(self.at(problem, k), solver, *start)

    def advance(
        self, problem: BilevelProblem, solver: Solver, state: Any, key: Array, k: int, count: Array
    ) -> chunks.Chunk:
        """`count` steps from step k."""
        return self._advance(self.at(problem, k), solver, state, key, count)

    def observe(
        self, problem: BilevelProblem, solver: Solver, state: Any, k: int
    ) -> tuple[Observation, chunks.StepSummary]:
        """What a state tells of its point."""
        return self._observe(self.at(problem, k), solver, state)

    def has_sampled(self, state: Any) -> bool:
        """Whether a method that ends on all rows has left the mini-batches of the windows."""
        return self._windows is not None and self._later and not bool(state.sampling)

    def use_all_rows(self, problem: BilevelProblem, solver: Solver) -> None:
        """Step on the problem itself from now on."""
        self.close()
        self._windows = None
        self._place(problem, solver)

    def close(self) -> None:
        """End the thread that reads ahead."""
        if self._windows is not None:
            self._windows.close()
