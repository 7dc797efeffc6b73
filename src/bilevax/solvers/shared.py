"""Pieces that several methods share: how x moves, how y and w are advanced, and what is estimated before the start."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree, Scalar

from bilevax import control, trees
from bilevax.estimation import estimate_constants, estimate_smoothness
from bilevax.hypergradient import adjoint_step
from bilevax.problem import BilevelProblem
from bilevax.schedules import Constant, OpenLoop, Power, Schedule
from bilevax.sets import Memory
from bilevax.theory import Constants

X_STEPS = ("project", "fw")


def check_x_step(solver: Any) -> None:
    """Refuse an unknown way to move x by name."""
    if solver.x_step not in X_STEPS:
        raise ValueError(
            f"{type(solver).__name__}: x_step must be 'project' (a gradient step, projected onto the set) or 'fw' "
            f"(a Frank-Wolfe step), got {solver.x_step!r}."
        )


def check_counts(solver: Any, **counts: Any) -> None:
    """Refuse inner loops that are not a positive whole number of steps."""
    for name, value in counts.items():
        if value is None or isinstance(value, jax.Array):  # prepared already
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{type(solver).__name__}: {name} must be a whole number of at least 1, got {value!r}.")


def oracle(x_step: str) -> str:
    """Which oracle of the set a step of that kind calls."""
    return "lmo" if x_step == "fw" else "project"


class Moved(NamedTuple):
    """Where x went, and the vertex and memory if an lmo was asked."""

    x: PyTree
    s: PyTree
    memory: Memory
    calls: dict[str, int]


def move_x(problem: BilevelProblem, x: PyTree, d: PyTree, length: Scalar, memory: Memory, x_step: str) -> Moved:
    """`P(x - length d)`, or Frank-Wolfe towards the vertex against `d` with a step clipped to [0, 1]."""
    if x_step == "project":
        return Moved(problem.domain.project(trees.axpy(-length, d, x)), None, memory, {"projections": 1})
    s, memory = problem.domain.lmo(d, memory)
    return Moved(trees.move(x, s, jnp.clip(length, 0, 1)), s, memory, {"lmos": 1})


def constants_for(given: Constants | None, problem: BilevelProblem, x: PyTree, y: PyTree, key: Array) -> Constants:
    """The constants given, or estimated ones."""
    return estimate_constants(problem, x, y, key) if given is None else given


def outer_schedule(
    given: Schedule | None,
    x_step: str,
    problem: BilevelProblem,
    x: PyTree,
    y: PyTree,
    key: Array,
    decay: float = 0.0,
    share: float = 1.0,
) -> Schedule:
    """The step of x if none was given: 2/(k+2) for Frank-Wolfe, otherwise a share of 1/(2 L_ell), perhaps decaying."""
    if given is not None:
        return given
    if x_step == "fw":
        return OpenLoop()
    # Half of 1/L_ell: the estimate is local, and a projected step must not be too long anywhere.
    length = share / (2 * estimate_smoothness(problem, x, y, key))
    return Power(length, decay) if decay else Constant(length)


def lower_steps(
    problem: BilevelProblem, x: PyTree, y: PyTree, alpha: Scalar, count: Int[Array, ""] | int, key: Array | None = None
) -> PyTree:
    """`count` gradient steps on the lower level, each on a fresh sample if a key is given."""

    def step(carry: tuple[Array, PyTree]) -> tuple[Array, PyTree]:
        i, y = carry
        p = problem if key is None else problem.sample(jax.random.fold_in(key, i))
        return i + 1, trees.axpy(-alpha, p.lower_grad(x, y), y)

    return control.repeat(count, step, (jnp.zeros((), jnp.int32), y), host=problem.host)[1]


def accelerated_lower_steps(
    problem: BilevelProblem, x: PyTree, y: PyTree, constants: Constants, count: Int[Array, ""] | int
) -> PyTree:
    """Nesterov's method for strongly convex functions on the lower level."""
    root = jnp.sqrt(constants.kappa)
    momentum = ((root - 1) / (root + 1)).astype(trees.dtype(y))

    def step(carry: tuple[PyTree, PyTree]) -> tuple[PyTree, PyTree]:
        y, ahead = carry
        following = trees.axpy(-1 / constants.L_g, problem.lower_grad(x, ahead), ahead)
        return following, trees.axpy(momentum, trees.sub(following, y), following)

    return control.repeat(count, step, (y, y), host=problem.host)[0]


def adjoint_steps(
    hvp: Callable[[PyTree], PyTree], f_y: PyTree, w: PyTree, eta: Scalar, count: Int[Array, ""] | int, host: bool
) -> PyTree:
    """`count` gradient steps on the quadratic (7)."""
    return control.repeat(count, lambda w: adjoint_step(hvp, f_y, w, eta)[0], w, host=host)


class Directions(NamedTuple):
    """What moves y, w and x at one point."""

    y: PyTree
    w: PyTree
    x: PyTree


def directions(p: BilevelProblem, x: PyTree, y: PyTree, w: PyTree) -> Directions:
    """`g_y`, `H w - f_y` and `f_x - J w`, from one linearisation of the lower gradient."""
    f_x, f_y = p.upper_grads(x, y)
    lower = p.linearize_lower(x, y)
    return Directions(p.lower_grad(x, y), trees.sub(lower.hvp(w), f_y), trees.sub(f_x, lower.cross(w)))


def storm(new: PyTree, old: PyTree, d: PyTree, theta: Scalar) -> PyTree:
    """`new + (1 - theta) (d - old)`, with `new` and `old` from one sample at the present and the previous point."""
    return trees.axpy(1 - theta, trees.sub(d, old), new)
