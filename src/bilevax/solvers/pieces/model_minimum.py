"""The minimum of a quadratic model of ell over a set, by projections alone.

A direction of ell is dear and a projection cheap, so that a model is minimised over the whole set before ell is asked
again (Schmidt, van den Berg, Friedlander, Murphy 2009).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PyTree, Scalar

from bilevax import trees
from bilevax.linalg import host_loops
from bilevax.sets import ConvexSet
from bilevax.solvers.pieces.quasi_newton import Model


class _At(NamedTuple):
    """A point, and gradient and value of the model there."""

    z: Array
    gradient: Array
    value: Scalar


def minimize_model(domain: ConvexSet, x: PyTree, F: PyTree, B: Model, most: int) -> tuple[PyTree, Array]:
    """The point of the set where <F, z - x> + 1/2 <z - x, B (z - x)> is least, and the projections it took.

    At most so many turns, from the better of two points: the unconstrained minimum, projected, and a gradient step. A
    turn is a spectral projected gradient step, which finds the face, and where the set can tell its faces a Newton step
    on the face. A set with `lowest` finds the point by itself.
    """
    if domain.minimizes_models:
        return domain.lowest(x, F, B.matrix()), jnp.ones((), jnp.int32)
    start, back = ravel_pytree(x)
    g, _ = ravel_pytree(F)
    project = lambda z: ravel_pytree(domain.project(back(z)))[0]  # noqa: E731

    def at(z: Array) -> _At:
        slope = B.times(z - start)
        return _At(z, g + slope, g @ (z - start) + 0.5 * (z - start) @ slope)

    def better(a: _At, b: _At) -> _At:
        return trees.choose(a.value < b.value, a, b)

    def newton(here: _At) -> Array:
        """The zero of z - P(z - gradient / scale), by the derivative of P."""
        forward = here.z - here.gradient / B.scale
        R = here.z - project(forward)
        bent = jax.vmap(lambda v: jax.jvp(project, (forward,), (v,))[1])(B.W)
        u = jnp.linalg.solve(jnp.eye(len(B.W), dtype=R.dtype) - B.M @ (B.W @ bent.T) / B.scale, B.M @ (B.W @ -R))
        return project(here.z - R + u @ bent / B.scale)

    def unfinished(carry: tuple[Any, ...]) -> Array:
        *_, k, done = carry
        return ~done & (k < most)

    def turn(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        here, length, k, _ = carry
        p = project(here.z - length * here.gradient) - here.z
        Bp = B.times(p)
        slope, bend = here.gradient @ p, p @ Bp
        share = jnp.where(bend > 0, jnp.minimum(1, -slope / jnp.where(bend > 0, bend, 1)), 1)
        share = jnp.where(slope < 0, share, 0)
        there = _At(here.z + share * p, here.gradient + share * Bp, here.value + share * (slope + 0.5 * share * bend))
        length = jnp.where(bend > 0, p @ p / jnp.where(bend > 0, bend, 1), 1 / B.scale)
        if domain.tells_faces:
            there = better(at(newton(there)), there)
        done = ~(slope < 0) | (-slope <= 1e-3 * -there.value)
        return there, length, k + 1, done

    # The curvature may be larger than the scale, so that both may lie higher than x itself.
    here = better(at(project(start - B.inverse_times(g))), _At(start, g, jnp.zeros_like(B.scale)))
    here = better(at(project(start - g / B.scale)), here)
    carry = (here, 1 / B.scale, jnp.zeros((), jnp.int32), jnp.asarray(False))
    here, _, k, _ = host_loops.loop_while(unfinished, turn, carry, host=domain.kernels.on_host)
    return back(here.z), k * (3 if domain.tells_faces else 1) + 2
