"""A quadratic model of ell from the last steps, and its minimum over a set.

The model is that of limited-memory BFGS in its compact form (Byrd, Nocedal, Schnabel 1994), B = s I - W' Q^-1 W. A
direction of ell is dear and a projection cheap, so that each model is minimised over the set by many projected steps
(Schmidt, van den Berg, Friedlander, Murphy 2009).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree, Scalar

from bilevax.sets import ConvexSet


class Pairs(eqx.Module):
    """The last steps of x, each of length one, and how the direction changed along them; the newest is last."""

    steps: Float[Array, "p n"]
    changes: Float[Array, "p n"]
    scale: Scalar
    """The curvature across all steps, used where nothing else is known."""


def no_pairs(x: PyTree, memory: int, scale: Scalar) -> Pairs:
    """Before the first step: zeros stand for pairs that are missing."""
    flat, _ = ravel_pytree(x)
    nothing = jnp.zeros((memory, flat.size), flat.dtype)
    return Pairs(nothing, nothing, jnp.asarray(scale, flat.dtype))


def add_pair(pairs: Pairs, step: PyTree, change: PyTree) -> Pairs:
    """One pair more, unless ell bends down along the step: the model stays convex."""
    s, c = ravel_pytree(step)[0], ravel_pytree(change)[0]
    length = jnp.linalg.norm(s)
    unit = jnp.where(length > 0, length, 1)
    s, c = s / unit, c / unit
    along, across = s @ c, c @ c
    convex = along > 1e-6 * jnp.sqrt(across)
    push = lambda rows, row: jnp.concatenate([rows[1:], row[None]])  # noqa: E731
    grown = Pairs(push(pairs.steps, s), push(pairs.changes, c), across / jnp.where(convex, along, 1))
    return jax.tree.map(lambda new, old: jnp.where(convex, new, old), grown, pairs)


class Model(NamedTuple):
    """B and its inverse."""

    scale: Scalar
    W: Float[Array, "q n"]
    middle: Float[Array, "q q"]
    middle_of_inverse: Float[Array, "q q"]

    def times(self, v: Float[Array, " n"]) -> Float[Array, " n"]:
        """B v."""
        return self.scale * v - (self.middle @ (self.W @ v)) @ self.W

    def inverse_times(self, v: Float[Array, " n"]) -> Float[Array, " n"]:
        """B^-1 v."""
        return v / self.scale + (self.middle_of_inverse @ (self.W @ v)) @ self.W / self.scale**2


def model(pairs: Pairs) -> Model:
    """The model that the pairs define."""
    S, Y, scale = pairs.steps, pairs.changes, pairs.scale
    SY = S @ Y.T
    along = jnp.diag(SY)
    missing = jnp.diag((along == 0).astype(S.dtype))
    below = jnp.tril(SY, -1)
    Q = jnp.block([[scale * (S @ S.T + missing), below], [below.T, -jnp.diag(along) - scale * missing]])
    W = jnp.concatenate([scale * S, Y])
    return Model(scale, W, jnp.linalg.inv(Q), jnp.linalg.inv(Q - W @ W.T / scale))


def minimize_model(domain: ConvexSet, x: PyTree, F: PyTree, B: Model, most: int) -> tuple[PyTree, Array]:
    """The point of the set where <F, z - x> + 1/2 <z - x, B (z - x)> is least, and the projections it took.

    At most so many spectral projected gradient steps, from the better of two points: the unconstrained minimum,
    projected, and a gradient step.
    """
    start, back = ravel_pytree(x)
    g, _ = ravel_pytree(F)
    project = lambda z: ravel_pytree(domain.project(back(z)))[0]  # noqa: E731

    def value(z: Array) -> tuple[Scalar, Array]:
        slope = B.times(z - start)
        return g @ (z - start) + 0.5 * (z - start) @ slope, g + slope

    newton, plain = project(start - B.inverse_times(g)), project(start - g / B.scale)
    (q_newton, at_newton), (q_plain, at_plain) = value(newton), value(plain)
    better = q_newton < q_plain
    z, gradient, q = (jnp.where(better, a, b) for a, b in ((newton, plain), (at_newton, at_plain), (q_newton, q_plain)))

    def unfinished(carry: tuple[Any, ...]) -> Array:
        *_, k, done = carry
        return ~done & (k < most)

    def step(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        z, gradient, q, length, k, _ = carry
        p = project(z - length * gradient) - z
        Bp = B.times(p)
        slope, bend = gradient @ p, p @ Bp
        share = jnp.where(bend > 0, jnp.minimum(1, -slope / jnp.where(bend > 0, bend, 1)), 1)
        share = jnp.where(slope < 0, share, 0)
        q_next = q + share * (slope + 0.5 * share * bend)
        length = jnp.where(bend > 0, p @ p / jnp.where(bend > 0, bend, 1), 1 / B.scale)
        done = ~(slope < 0) | (-slope <= 1e-3 * -q_next)
        return z + share * p, gradient + share * Bp, q_next, length, k + 1, done

    none = jnp.zeros((), jnp.int32)
    carry = (z, gradient, q, 1 / B.scale, none, ~(q < 0))
    z, *_, k, _ = jax.lax.while_loop(unfinished, step, carry)
    return back(z), k + 2
