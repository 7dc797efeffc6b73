"""How y and the adjoint w are advanced between two steps of x."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree, Scalar

from bilevax import trees
from bilevax.hypergradient import adjoint_step
from bilevax.linalg import host_loops
from bilevax.problem import BilevelProblem
from bilevax.theory import Constants


def lower_steps(
    problem: BilevelProblem,
    x: PyTree,
    y: PyTree,
    alpha: Scalar | float,
    count: Int[Array, ""] | int,
    key: Array | None = None,
) -> PyTree:
    """`count` gradient steps on the lower level, each on a fresh sample if a key is given."""

    def step(carry: tuple[Array, PyTree]) -> tuple[Array, PyTree]:
        i, y = carry
        p = problem if key is None else problem.sample(jax.random.fold_in(key, i))
        return i + 1, trees.axpy(-alpha, p.lower_grad(x, y), y)

    return host_loops.repeat(count, step, (jnp.zeros((), jnp.int32), y), host=problem.host)[1]


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

    return host_loops.repeat(count, step, (y, y), host=problem.host)[0]


def adjoint_steps(
    hvp: Callable[[PyTree, Array], PyTree],
    f_y: PyTree,
    w: PyTree,
    eta: Scalar | float,
    count: Int[Array, ""] | int,
    key: Array,
    host: bool,
) -> PyTree:
    """`count` gradient steps on the quadratic (7), where `hvp(w, key_i)` may use a fresh sample for each."""

    def step(carry: tuple[Array, PyTree]) -> tuple[Array, PyTree]:
        i, w = carry
        return i + 1, adjoint_step(lambda w: hvp(w, jax.random.fold_in(key, i)), f_y, w, eta)

    return host_loops.repeat(count, step, (jnp.zeros((), jnp.int32), w), host=host)[1]
