"""The three directions of a single-loop method, and how noisy ones are averaged."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree, Scalar

from bilevax import trees
from bilevax.problem import BilevelProblem
from bilevax.schedules import Schedule

_LONGEST = 2.0
"""A direction is cut to so many times the usual size."""


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


def weight(theta: Schedule, k: Int[Array, ""], like: PyTree) -> Scalar:
    """The weight of a new direction in an average: all of it at the first step, which has none to average with."""
    return jnp.where(k == 0, 1, jnp.clip(theta(k).astype(trees.dtype(like)), 0, 1))


def into_ball(w: PyTree, radius: Scalar | float) -> PyTree:
    """`w` clipped to a norm of at most `radius`; a radius that is not known (NaN) clips nothing."""
    size = trees.norm(w)
    return trees.scale(jnp.where(size > radius, radius / jnp.where(size > 0, size, 1), 1), w)


def cut_to_usual(d: PyTree, usual: Scalar) -> tuple[Scalar, Scalar]:
    """The size of d, at most twice the usual one, and the factor that makes it so; zero is no usual size."""
    size = trees.norm(d)
    cut = jnp.where(usual > 0, jnp.minimum(size, _LONGEST * usual), size)
    return cut, jnp.where(size > 0, cut / jnp.where(size > 0, size, 1), 1)
