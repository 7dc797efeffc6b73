"""The minimum of a quadratic model of ell over a set, by projections alone.

A direction of ell is dear and a projection cheap, so that a model is minimised over the whole set before ell is asked
again (Schmidt, van den Berg, Friedlander, Murphy 2009).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Int, PyTree, Scalar

from bilevax import trees
from bilevax.linalg import host_loops
from bilevax.sets import ConvexSet
from bilevax.solvers.pieces.quasi_newton import Model

_TRIALS = 24
_GRADIENT_TURNS = 20
"""Without the help of faces, more turns find little more."""
_ENOUGH_WHOLE, _ENOUGH_LAST_STEPS = 1e-6, 1e-3
"""A round of turns is the last if it lowers the model by less than this share of all so far; a model that knows ell
along the last steps only is not worth more."""


class _At(NamedTuple):
    """A point, and gradient and value of the model there."""

    z: Array
    gradient: Array
    value: Scalar


class _Search(NamedTuple):
    """Where the search over the faces stands."""

    here: _At
    normal: Array
    """A normal of the set at z, which tells the face of z: z is the projection of z + normal."""
    length: Scalar
    """Of the last gradient step."""
    on_face: Bool[Array, ""]
    """Whether the next step stays on the face."""
    began: Scalar
    """The value when the face was chosen."""
    k: Int[Array, ""]
    projections: Int[Array, ""]
    done: Bool[Array, ""]


class _Arc(NamedTuple):
    """The lowest point so far of those that are the projection of z + t d for some t."""

    there: _At
    hit: Array
    """What the projection has taken away."""
    whole: Bool[Array, ""]
    """Whether t is 1."""
    falling: Bool[Array, ""]
    """Whether the last try was lower than those before."""
    promise: Scalar
    """How far the value would fall to the last try if the model were not curved."""
    tries: Int[Array, ""]


def minimize_model(domain: ConvexSet, x: PyTree, F: PyTree, B: Model, most: int) -> tuple[PyTree, Array]:
    """The point of the set where <F, z - x> + 1/2 <z - x, B (z - x)> is least, and the projections it took.

    In at most so many turns, never above x. A set with `lowest` finds the point by itself. Where the loop steps on the
    host and the set does not, the search is compiled by itself.
    """
    alone = trees.is_concrete((x, F)) and not domain.kernels.on_host
    return (_compiled_minimum if alone else _minimum)(domain, x, F, B, most)


def _minimum(domain: ConvexSet, x: PyTree, F: PyTree, B: Model, most: int) -> tuple[PyTree, Array]:
    if domain.minimizes_models:
        return domain.lowest(x, F, B.matrix()), jnp.ones((), jnp.int32)
    start, back = ravel_pytree(x)
    g, _ = ravel_pytree(F)
    project = lambda z: ravel_pytree(domain.project(back(z)))[0]  # noqa: E731

    def at(z: Array) -> _At:
        slope = B.times(z - start)
        return _At(z, g + slope, g @ (z - start) + 0.5 * (z - start) @ slope)

    here = _At(start, g, jnp.zeros_like(B.scale))
    if domain.tells_faces:
        here, projections = _from_face_to_face(project, at, here, B, most)
    else:
        here, projections = _by_gradients(project, at, here, B, most, host=domain.kernels.on_host)
    return back(here.z), projections


_compiled_minimum = jax.jit(_minimum, static_argnums=4)


def _from_face_to_face(project: Any, at: Any, here: _At, B: Model, most: int) -> tuple[_At, Array]:
    """Newton's method on a face until its minimum or its border is reached; at the minimum, a gradient step chooses
    the next face (Moré and Toraldo 1991).

    The face of z is known by a normal there: the derivative of the projection at z + normal keeps what moves along the
    face. A step goes to P(z + t d) with t = 1, 1/2, 1/4... as long as the value falls, and what the projection takes
    away is a normal of the borders that were hit. The unconstrained minimum, projected, is tried first.
    """
    unconstrained = here.z - B.inverse_times(here.gradient)
    no, yes, none = jnp.asarray(False), jnp.asarray(True), jnp.zeros((), jnp.int32)
    enough = _ENOUGH_WHOLE if len(B.W) == here.z.size else _ENOUGH_LAST_STEPS

    def along_face(now: _Search) -> Array:
        z, gradient, normal = now.here.z, now.here.gradient, now.normal
        # A curved set bends the more, the harder the gradient presses against it.
        size = normal @ normal
        pressure = jnp.maximum(-gradient @ normal, 0) / (B.scale * jnp.where(size > 0, size, 1))
        move = lambda v: jax.jvp(project, (z + pressure * normal,), (v,))[1]  # noqa: E731
        moved = jax.vmap(move)(jnp.concatenate([B.W, -gradient[None] / B.scale]))
        bent, r = moved[:-1], moved[-1]
        u = jnp.linalg.solve(jnp.eye(len(bent), dtype=r.dtype) - B.M @ (B.W @ bent.T) / B.scale, B.M @ (B.W @ r))
        return r + u @ bent / B.scale

    def downhill(now: _Search) -> Array:
        return -4 * now.length * now.here.gradient

    def turn(now: _Search) -> _Search:
        d = jax.lax.cond(now.on_face, along_face, downhill, now)
        first = jnp.where(now.k == 0, unconstrained, now.here.z + d)

        def unfinished(arc: _Arc) -> Array:
            # Where even the slope promises nothing more, the minimum is found.
            at_minimum = ~now.on_face & (now.k > 0) & (arc.promise <= 1e-2 * enough * -now.here.value)
            return (arc.falling | ~(arc.there.value < now.here.value)) & ~at_minimum & (arc.tries < _TRIALS)

        def shorten(arc: _Arc) -> _Arc:
            beyond = jnp.where(arc.tries == 0, first, now.here.z + 0.5 ** arc.tries.astype(d.dtype) * d)
            there = at(project(beyond))
            falling, promise = there.value < arc.there.value, now.here.gradient @ (now.here.z - there.z)
            lowest = _Arc(there, beyond - there.z, arc.tries == 0, falling, promise, arc.tries + 1)
            return trees.choose(falling, lowest, arc._replace(falling=no, promise=promise, tries=arc.tries + 1))

        no_trial = _Arc(
            now.here._replace(value=jnp.full_like(B.scale, jnp.inf)), d, no, yes, jnp.full_like(B.scale, jnp.inf), none
        )
        there, hit, whole, *_, tries = jax.lax.while_loop(unfinished, shorten, no_trial)
        lower = there.value < now.here.value
        here = trees.choose(lower, there, now.here)
        hit = jnp.where(lower, hit, 0)
        p = here.z - now.here.z
        bend = p @ B.times(p)
        length = jnp.where(bend > 0, p @ p / jnp.where(bend > 0, bend, 1), now.length)

        k, projections = now.k + 1, now.projections + tries
        at_border = ~whole | (jnp.linalg.norm(hit) > 1e-3 * jnp.linalg.norm(d))
        stayed = _Search(here, now.normal + hit, now.length, lower & at_border, now.began, k, projections, no)
        little = (now.k > 0) & (now.began - here.value <= enough * -here.value)
        left = _Search(here, hit, length, lower, here.value, k, projections, ~lower | little)
        return trees.choose(now.on_face, stayed, left)

    unfinished = lambda now: ~now.done & (now.k < most)  # noqa: E731
    first = _Search(here, jnp.zeros_like(here.z), 1 / B.scale, no, here.value, none, none, no)
    last = jax.lax.while_loop(unfinished, turn, first)
    return last.here, last.projections


def _lower(a: _At, b: _At) -> _At:
    return trees.choose(a.value < b.value, a, b)


def _by_gradients(project: Any, at: Any, here: _At, B: Model, most: int, *, host: bool) -> tuple[_At, Array]:
    """Spectral projected gradient steps with an exact search, from the best of three points: here, the unconstrained
    minimum, projected, and a gradient step. The curvature may be larger than the scale: both may lie higher."""
    z, g = here.z, here.gradient
    here = _lower(at(project(z - B.inverse_times(g))), here)
    here = _lower(at(project(z - g / B.scale)), here)

    def unfinished(carry: tuple[Any, ...]) -> Array:
        *_, k, done = carry
        return ~done & (k < min(most, _GRADIENT_TURNS))

    def turn(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        here, length, k, _ = carry
        p = project(here.z - length * here.gradient) - here.z
        Bp = B.times(p)
        slope, bend = here.gradient @ p, p @ Bp
        share = jnp.where(bend > 0, jnp.minimum(1, -slope / jnp.where(bend > 0, bend, 1)), 1)
        share = jnp.where(slope < 0, share, 0)
        there = _At(here.z + share * p, here.gradient + share * Bp, here.value + share * (slope + 0.5 * share * bend))
        length = jnp.where(bend > 0, p @ p / jnp.where(bend > 0, bend, 1), 1 / B.scale)
        return there, length, k + 1, ~(slope < 0) | (-slope <= 1e-3 * -there.value)

    carry = (here, 1 / B.scale, jnp.zeros((), jnp.int32), jnp.asarray(False))
    here, _, k, _ = host_loops.loop_while(unfinished, turn, carry, host=host)
    return here, k + 2
