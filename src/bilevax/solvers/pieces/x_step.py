"""How x moves: along a direction with a projection, or by Frank-Wolfe."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import PyTree, Scalar

from bilevax import trees
from bilevax.problem import BilevelProblem
from bilevax.schedules import Cut, Estimated, Schedule, Travelled, check_fraction
from bilevax.sets import Memory
from bilevax.solvers.pieces.defaults import check_steps
from bilevax.solvers.pieces.travel import Travel, Usual, start_noisy

X_STEPS = {"project": "project", "fw": "lmo"}
"""The ways x can move, and the oracle of the set that each calls."""

oracle_of_x_step = property(lambda solver: X_STEPS[solver.x_step], doc="The oracle of the set that moves x.")
"""For the methods that can do both."""


def moves_both_ways(solver: Any) -> bool:
    """Whether `x_step` is an option of the method."""
    return is_dataclass(solver) and "x_step" in {field.name for field in fields(solver)}


def check_x_step(solver: Any, xi: Schedule | None) -> None:
    """Refuse an unknown way to move x by name, and steps that lead nowhere or out of the set."""
    name = type(solver).__name__
    if solver.x_step not in X_STEPS:
        raise ValueError(
            f"{name}: x_step must be 'project' (a gradient step, projected onto the set) or 'fw' (a Frank-Wolfe "
            f"step), got {solver.x_step!r}."
        )
    check_steps(solver, xi=xi)
    if solver.x_step == "fw" and xi is not None:
        check_fraction(name, "xi", xi)


class Watch(eqx.Module):
    """The last x and direction, and the step that the curvature of ell met lately allows."""

    x: PyTree
    d: PyTree
    length: Scalar
    most: Scalar
    """The step that was estimated at the start."""
    error: Scalar

    def look(self, x: PyTree, d: PyTree, xi: Scalar | None = None) -> Watch:
        """A step that went too far becomes 1/(2 curvature); otherwise it grows back by five percent at a time.

        Too far means beyond 1/curvature and now uphill. The curvature alone would not do: where y still moves, the
        direction turns although x hardly moves.
        """
        moved, turned = trees.sub(x, self.x), trees.sub(d, self.d)
        square = trees.inner(moved, moved)
        curvature = trees.inner(turned, moved) / jnp.where(square > 0, square, 1)
        shorter = jnp.maximum(self.length / 4, 1 / (2 * jnp.where(curvature > 0, curvature, 1)))
        longer = jnp.minimum(1.05 * self.length, self.most)
        too_far = (self.length * curvature > 1) & (trees.inner(d, moved) > 0)
        return Watch(x, d, jnp.where(too_far, shorter, longer), self.most, self.error)


XMemory = Memory | Watch | Travel | Usual
"""What `move_x` may remember."""
OWN = (Watch, Travel, Usual)
"""What is remembered for a step that a method chose itself."""


def start_watch(x: PyTree, xi: Schedule) -> Watch | None:
    """Something to watch if the step is one that we estimated; steps that were given are taken as they are."""
    if not isinstance(xi, Estimated):
        return None
    zero = jnp.zeros((), trees.dtype(x))
    length = jnp.asarray(xi.value, zero.dtype)
    return Watch(x, trees.zeros_like(x), length, length, zero)


def start_x(problem: BilevelProblem, x: PyTree, xi: Schedule) -> XMemory:
    """What `move_x` remembers: what its own step needs, or else the set's memory."""
    if isinstance(xi, (Travelled, Cut)):
        return start_noisy(x, xi)
    return start_watch(x, xi) or problem.domain.start(x)


class Moved(NamedTuple):
    """Where x went, the vertex if an lmo was asked, and what to remember."""

    x: PyTree
    s: PyTree
    memory: XMemory
    calls: dict[str, int]


def move_x(
    problem: BilevelProblem,
    x: PyTree,
    d: PyTree,
    length: Scalar,
    memory: XMemory,
    x_step: str,
    fresh: PyTree = None,
) -> Moved:
    """`P(x - length d)`, or Frank-Wolfe towards the vertex against `d` with a step clipped to [0, 1].

    `fresh` is the direction of this step alone where `d` is an average: its noise decides how long steps may be.
    """
    length = length.astype(trees.dtype(x))
    if isinstance(memory, OWN):  # only projected steps are estimated
        memory = memory.look(x, d if fresh is None else fresh, length)
        length = memory.length
    if isinstance(memory, OWN) or x_step == "project":
        return Moved(problem.domain.project(trees.axpy(-length, d, x)), None, memory, {"projections": 1})
    s, memory = problem.domain.lmo(d, memory)
    return Moved(trees.move(x, s, jnp.clip(length, 0, 1)), s, memory, {"lmos": 1})
