"""What an audit computes at one point, in few compiled functions: on a small problem people wait for the compiler.

Answers are flat numpy arrays.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PyTree

from bilevax import trees
from bilevax.linalg.brief import brief_jit
from bilevax.linalg.unit_vectors import at_unit_vectors
from bilevax.problem import BilevelProblem


class Residuals(NamedTuple):
    """Both levels at (x, y, w)."""

    upper: np.ndarray
    lower: np.ndarray
    f_x: np.ndarray
    f_y: np.ndarray
    g_y: np.ndarray
    Hw: np.ndarray
    Jw: np.ndarray

    @property
    def psi(self) -> np.ndarray:
        """`f_x - J w`, the gradient of ell where y and w are exact."""
        return self.f_x - self.Jw

    @property
    def phi(self) -> np.ndarray:
        """`f_y - H w`, what w leaves of the adjoint equation."""
        return self.f_y - self.Hw


def _flat(tree: PyTree) -> Array:
    return ravel_pytree(tree)[0]


@brief_jit
def _residuals(problem: BilevelProblem, x: PyTree, y: PyTree, w: PyTree) -> Residuals:
    upper, (f_x, f_y) = jax.value_and_grad(problem.upper, argnums=(0, 1))(x, y, problem.data)
    lower, g_y = jax.value_and_grad(problem.lower, argnums=1)(x, y, problem.data)
    products = problem.linearize_lower(x, y)
    parts = (upper, lower, f_x, f_y, g_y, products.hvp(w), products.cross(w))
    return Residuals(*map(_flat, parts))  # type: ignore[arg-type]


def residuals(problem: BilevelProblem, x: PyTree, y: PyTree, w: PyTree) -> Residuals:
    """Values, gradients and products at one point."""
    return Residuals(*map(np.asarray, _residuals(problem, x, y, w)))


@brief_jit
def _values(problem: BilevelProblem, x: PyTree, y: PyTree) -> tuple[Array, Array, Array]:
    lower, g_y = jax.value_and_grad(problem.lower, argnums=1)(x, y, problem.data)
    return problem.upper_value(x, y), lower, _flat(g_y)


def values(problem: BilevelProblem, x: PyTree, y: PyTree) -> tuple[float, float, np.ndarray]:
    """f, g and the gradient of g in y."""
    upper, lower, g_y = _values(problem, x, y)
    return float(upper), float(lower), np.asarray(g_y)


def lower_hessian(problem: BilevelProblem, x: PyTree, y: PyTree) -> Array:
    """The whole Hessian of g in y, row by row; for compiled code."""
    hvp = problem.linearize_lower(x, y).hvp
    flat, back = ravel_pytree(y)
    row = lambda unit: _flat(hvp(back(unit)))  # noqa: E731
    return at_unit_vectors(row, flat.size, flat.dtype)


_hessian = brief_jit(lower_hessian)


def hessian(problem: BilevelProblem, x: PyTree, y: PyTree) -> np.ndarray:
    """The same on the host."""
    return np.asarray(_hessian(problem, x, y))


@brief_jit
def _slopes(problem: BilevelProblem, x: PyTree, y: PyTree, w: PyTree, along: Array) -> tuple[Array, ...]:
    _, back = ravel_pytree(y)

    def parts(y: PyTree) -> tuple[PyTree, PyTree]:
        f_x, f_y = problem.upper_grads(x, y)
        lower = problem.linearize_lower(x, y)
        return trees.sub(f_x, lower.cross(w)), trees.sub(f_y, lower.hvp(w))

    def one(direction: Array) -> tuple[Array, ...]:
        d = back(direction)
        d_psi, d_phi = jax.jvp(parts, (y,), (d,))[1]
        return tuple(trees.inner(v, v) for v in (d_psi, d_phi, problem.lower_cross(x, y, d)))

    return jax.lax.map(one, along)


def slopes(problem: BilevelProblem, x: PyTree, y: PyTree, w: PyTree, along: np.ndarray) -> list[np.ndarray]:
    """The derivatives of psi and phi in y along some directions, and J times these directions: squared norms."""
    return [np.asarray(v) for v in _slopes(problem, x, y, w, along)]


@brief_jit
def _bends(problem: BilevelProblem, x: PyTree, y: PyTree, w: PyTree, along: Array) -> tuple[Array, ...]:
    _, back = ravel_pytree(y)

    def products(y: PyTree) -> tuple[PyTree, PyTree]:
        lower = problem.linearize_lower(x, y)
        return lower.cross(w), lower.hvp(w)

    def one(d: Array) -> tuple[Array, ...]:
        return tuple(trees.inner(v, v) for v in jax.jvp(products, (y,), (back(d),))[1])

    return jax.lax.map(one, along)


def bends(problem: BilevelProblem, x: PyTree, y: PyTree, w: Any, along: np.ndarray) -> list[np.ndarray]:
    """How fast J w and H w change with y, along some directions: squared norms."""
    return [np.asarray(v) for v in _bends(problem, x, y, w, along)]
