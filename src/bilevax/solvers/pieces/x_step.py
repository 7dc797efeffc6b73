"""How x moves: along a direction with a projection, or by Frank-Wolfe."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import PyTree, Scalar

from bilevax import trees
from bilevax.problem import BilevelProblem
from bilevax.schedules import Schedule, check_fraction
from bilevax.sets import Memory
from bilevax.solvers.pieces.defaults import check_steps

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


class Moved(NamedTuple):
    """Where x went, and the vertex and memory if an lmo was asked."""

    x: PyTree
    s: PyTree
    memory: Memory
    calls: dict[str, int]


def move_x(problem: BilevelProblem, x: PyTree, d: PyTree, length: Scalar, memory: Memory, x_step: str) -> Moved:
    """`P(x - length d)`, or Frank-Wolfe towards the vertex against `d` with a step clipped to [0, 1]."""
    length = length.astype(trees.dtype(x))
    if x_step == "project":
        return Moved(problem.domain.project(trees.axpy(-length, d, x)), None, memory, {"projections": 1})
    s, memory = problem.domain.lmo(d, memory)
    return Moved(trees.move(x, s, jnp.clip(length, 0, 1)), s, memory, {"lmos": 1})
