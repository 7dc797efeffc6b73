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
from bilevax.problem import BilevelProblem, compiled_on_arrays


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


@brief_jit
def _lower_residuals(problem: BilevelProblem, x: PyTree, y: PyTree, w: PyTree) -> tuple[Array, ...]:
    lower, g_y = problem.lower_value_and_grad(x, y)
    products = problem.linearize_lower(x, y)
    return tuple(map(_flat, (lower, g_y, products.hvp(w), products.cross(w))))


def residuals(problem: BilevelProblem, x: PyTree, y: PyTree, w: PyTree) -> Residuals:
    """Values, gradients and products at one point."""
    if problem.streamed:
        upper, (f_x, f_y) = problem.upper_value_and_grads(x, y)
        lower, g_y, Hw, Jw = problem.over_rows(_lower_residuals, "lower", x, y, w)
        return Residuals(*map(np.asarray, (_flat(upper), lower, _flat(f_x), _flat(f_y), g_y, Hw, Jw)))
    return Residuals(*map(np.asarray, _residuals(problem, x, y, w)))


@compiled_on_arrays
def _values(problem: BilevelProblem, x: PyTree, y: PyTree) -> tuple[Array, Array, Array]:
    lower, g_y = problem.lower_value_and_grad(x, y)
    return problem.upper_value(x, y), lower, _flat(g_y)


def values(problem: BilevelProblem, x: PyTree, y: PyTree) -> tuple[float, float, np.ndarray]:
    """f, g and the gradient of g in y."""
    upper, lower, g_y = _values(problem, x, y)
    return float(upper), float(lower), np.asarray(g_y)


def lower_hessian(problem: BilevelProblem, x: PyTree, y: PyTree) -> Array:
    """The whole Hessian of g in y, row by row; for compiled code, and for streams."""
    if problem.streamed:
        return problem.over_rows(_hessian, "lower", x, y)
    hvp = problem.linearize_lower(x, y).hvp
    flat, back = ravel_pytree(y)
    row = lambda unit: _flat(hvp(back(unit)))  # noqa: E731
    return at_unit_vectors(row, flat.size, flat.dtype)


# Measured: 1,540 products that read 23,000 numbers each take 4 s after a brief compilation of 0.5 s, and 0.6 s after a
# thorough one of 1.5 s.
_hessian = brief_jit(lower_hessian, 10_000_000, passes=lambda problem, x, y: trees.size(y))


def hessian(problem: BilevelProblem, x: PyTree, y: PyTree) -> np.ndarray:
    """The same on the host."""
    return np.asarray((lower_hessian if problem.streamed else _hessian)(problem, x, y))


def _along(function: Any, y: PyTree, along: Array) -> Any:
    """The derivative of a function of y along each direction, and the direction itself as a tree."""
    _, back = ravel_pytree(y)
    return lambda d: (jax.jvp(function, (y,), (back(d),))[1], back(d))


@brief_jit
def _slopes(problem: BilevelProblem, x: PyTree, y: PyTree, w: PyTree, along: Array) -> tuple[Array, ...]:
    def parts(y: PyTree) -> tuple[PyTree, PyTree]:
        f_x, f_y = problem.upper_grads(x, y)
        lower = problem.linearize_lower(x, y)
        return trees.sub(f_x, lower.cross(w)), trees.sub(f_y, lower.hvp(w))

    def one(direction: Array) -> tuple[Array, ...]:
        (d_psi, d_phi), d = _along(parts, y, along)(direction)
        return tuple(trees.inner(v, v) for v in (d_psi, d_phi, problem.lower_cross(x, y, d)))

    return jax.lax.map(one, along)


@brief_jit
def _upper_slopes(problem: BilevelProblem, x: PyTree, y: PyTree, along: Array) -> tuple[Array, Array]:
    """The derivatives of f_x and f_y in y, one direction in each row."""
    turn = _along(lambda y: problem.upper_grads(x, y), y, along)
    f_x, f_y = jax.lax.map(lambda d: turn(d)[0], along)
    return _rows(f_x), _rows(f_y)


@brief_jit
def _lower_slopes(problem: BilevelProblem, x: PyTree, y: PyTree, w: PyTree, along: Array) -> tuple[Array, ...]:
    """Those of J w and H w, and J times the directions."""

    def products(y: PyTree) -> tuple[PyTree, PyTree]:
        lower = problem.linearize_lower(x, y)
        return lower.cross(w), lower.hvp(w)

    turn = _along(products, y, along)

    def one(direction: Array) -> tuple[PyTree, PyTree, PyTree]:
        (Jw, Hw), d = turn(direction)
        return Jw, Hw, problem.lower_cross(x, y, d)

    return tuple(map(_rows, jax.lax.map(one, along)))


def _rows(tree: PyTree) -> Array:
    return jax.vmap(_flat)(tree)


def _squares(*parts: Any) -> list[np.ndarray]:
    """Squared norms of rows: those of means over blocks are taken after the mean."""
    return [np.sum(np.square(np.asarray(part)), axis=1) for part in parts]


def slopes(problem: BilevelProblem, x: PyTree, y: PyTree, w: PyTree, along: np.ndarray) -> list[np.ndarray]:
    """The derivatives of psi and phi in y along some directions, and J times these directions: squared norms."""
    if problem.streamed:
        f_x, f_y = problem.over_rows(_upper_slopes, "upper", x, y, along)
        Jw, Hw, Jd = problem.over_rows(_lower_slopes, "lower", x, y, w, along)
        return _squares(f_x - Jw, f_y - Hw, Jd)
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
    if problem.streamed:
        return _squares(*problem.over_rows(_lower_slopes, "lower", x, y, w, along)[:2])
    return [np.asarray(v) for v in _bends(problem, x, y, w, along)]
