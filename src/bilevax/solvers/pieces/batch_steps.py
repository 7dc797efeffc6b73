"""Many steps on mini-batches with the same step sizes, and what they tell of f."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree, Scalar

from bilevax import trees
from bilevax.estimation import lower_spectrum
from bilevax.problem import BilevelProblem
from bilevax.randomness import at_step
from bilevax.solvers.pieces.batch_moves import BATCHES, Mover
from bilevax.solvers.pieces.directions import Directions, cut_to_usual, directions

_PROBES, _PRODUCTS = 4, 6
"""Mini-batches whose curvature is measured before, and Hessian products for each."""
_FORGET = 0.9
"""The curvature of batches falls by at most this factor from one call to the next."""
_OVERHEAD = 20_000
"""A step on a mini-batch takes as long as reading so many numbers, however small the batch is."""


class Point(NamedTuple):
    """x, y and w, how large the directions of y and w usually are, and the curvature of batches."""

    x: PyTree
    y: PyTree
    w: PyTree
    sizes: tuple[Scalar, Scalar]
    curvature: Scalar


def start_point(x: PyTree, y: PyTree) -> Point:
    """The start, with the adjoint at zero and nothing known of the batches."""
    zero = jnp.zeros((), trees.dtype(x))
    return Point(x, y, trees.zeros_like(y), (zero, zero), zero)


class Moved(NamedTuple):
    """Where the steps led, the mean direction of x on the way, and the mean of f with its standard error."""

    point: Point
    direction: PyTree
    f: Scalar
    f_error: Scalar


def batch_steps(
    problem: BilevelProblem, mover: Mover, point: Point, xi: Scalar, pace: Scalar, k: Int[Array, ""], key: Array
) -> Moved:
    """`BATCHES` steps of y and w by `pace` over the curvature of some batches; x moves by xi with each, or not.

    The batches are those of the steps `k BATCHES`, `k BATCHES + 1`, ... of the run.
    """
    keys = lambda i: at_step(key, k * BATCHES + i)  # noqa: E731
    curvature = _curvature(problem, point, k, keys)
    rho = pace / jnp.where(curvature > 0, curvature, 1)

    def step(i: Array, carry: tuple[Any, ...]) -> tuple[Any, ...]:
        (x, y, w, sizes, _), mean, total, squares = carry
        p = problem.sample(keys(i))
        D, f = directions(p, x, y, w), p.upper_value(x, y)
        d_y, d_w, sizes = _cut(D, sizes)
        x_next = mover.with_one_batch(problem, x, D.x, xi)
        moved = Point(x_next, trees.axpy(-rho, d_y, y), trees.axpy(-rho, d_w, w), sizes, curvature)
        return moved, trees.axpy(1 / BATCHES, D.x, mean), total + f, squares + f * f

    zero = jnp.zeros((), trees.dtype(point.x))
    start = (point, trees.zeros_like(point.x), zero, zero)
    end, direction, total, squares = jax.lax.fori_loop(0, BATCHES, step, start)
    f = total / BATCHES
    return Moved(end, direction, f, jnp.sqrt(jnp.maximum(squares / BATCHES - f * f, 0) / BATCHES))


def _curvature(problem: BilevelProblem, point: Point, k: Int[Array, ""], keys: Callable[[Array], Array]) -> Scalar:
    """The largest curvature of some batches; in the first step also that of every batch along its gradient.

    One batch in ten with a row far larger than the rest would be missed by a few probes, and y would diverge on it.
    """
    x, y = point.x, point.y
    whole = lambda i: lower_spectrum(problem.sample(keys(i)), x, y, keys(i), _PRODUCTS).high  # noqa: E731

    def along_gradient(i: Array) -> Scalar:
        p = problem.sample(keys(i))
        g_y = p.lower_grad(x, y)
        square = trees.inner(g_y, g_y)
        return trees.inner(g_y, p.lower_hvp(x, y, g_y)) / jnp.where(square > 0, square, 1)

    probes, every = (jnp.arange(count, dtype=jnp.int32) for count in (_PROBES, BATCHES))
    seen = jnp.max(jax.lax.map(whole, probes))
    first = jax.lax.cond(k == 0, lambda: jnp.max(jax.lax.map(along_gradient, every)), lambda: jnp.zeros_like(seen))
    # Where losses are flat, so is the curvature of batches; it comes back when y does, and steps must not be too long.
    return jnp.maximum(jnp.maximum(seen, first), _FORGET * point.curvature)


def _cut(D: Directions, sizes: tuple[Scalar, Scalar]) -> tuple[PyTree, PyTree, tuple[Scalar, Scalar]]:
    """Directions of y and w that are not much larger than usual, so that rows far larger than the rest do no harm."""
    (d_y, of_y), (d_w, of_w) = (_cut_one(d, size) for d, size in zip((D.y, D.w), sizes, strict=True))
    return d_y, d_w, (of_y, of_w)


def _cut_one(d: PyTree, usual: Scalar) -> tuple[PyTree, Scalar]:
    size, cut = cut_to_usual(d, usual)
    return trees.scale(cut, d), jnp.where(usual > 0, 0.9 * usual + 0.1 * size, size)


def steps_in_a_pass(problem: BilevelProblem) -> float:
    """How many calls of `batch_steps` cost as much as one pass over the rows."""
    batch = jax.eval_shape(lambda: problem.sample(jax.random.key(0)).data)
    return trees.size(problem.data) / (BATCHES * (trees.size(batch) + _OVERHEAD))
