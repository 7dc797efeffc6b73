"""The Hessian of ell at one point, for problems with few variables.

With y' = -H^-1 J' d, the change of y*(x) along d, and L = f - <w, g_y>:  Hess ell d = L_x' - J H^-1 L_y', where the
primes denote changes along (d, y'). This is exact where y and w are; third derivatives of g are in it.
"""

from __future__ import annotations

import jax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from bilevax import trees
from bilevax.linalg.unit_vectors import at_unit_vectors
from bilevax.problem import BilevelProblem
from bilevax.solvers.pieces.tracking import Tracked, apply_inverse


@jax.jit
def ell_hessian(problem: BilevelProblem, x: PyTree, lower: Tracked) -> Float[Array, "n n"]:
    """All of it, from three products of second or third derivatives and two solves for each variable."""
    y, w, data = lower.y, lower.w, problem.data
    flat, back = ravel_pytree(x)
    gradient = lambda x, y: jax.grad(problem.lower, argnums=1)(x, y, data)  # noqa: E731
    rest = jax.grad(lambda x, y: problem.upper(x, y, data) - trees.inner(w, gradient(x, y)), argnums=(0, 1))
    solve = lambda b: apply_inverse(problem, x, lower, b)  # noqa: E731

    def column(unit: Array) -> Array:
        d = back(unit)
        _, turned = jax.jvp(lambda x: gradient(x, y), (x,), (d,))
        moved = trees.scale(-1, solve(turned))
        _, (along_x, along_y) = jax.jvp(rest, (x, y), (d, moved))
        return ravel_pytree(trees.sub(along_x, problem.lower_cross(x, y, solve(along_y))))[0]

    return at_unit_vectors(column, flat.size, flat.dtype)
