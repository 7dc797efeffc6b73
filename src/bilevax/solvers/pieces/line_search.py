"""How far x moves along a direction: by the value and the slope of ell at each trial, which cost one evaluation."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PyTree, Scalar

from bilevax import trees
from bilevax.problem import BilevelProblem
from bilevax.solvers.pieces.tracking import Tracked, follow
from bilevax.solvers.protocol import Counts

_TRIALS = 20


class Found(NamedTuple):
    """Where a search ended."""

    x: PyTree
    lower: Tracked
    length: Scalar
    accepted: Bool[Array, ""]
    counts: Counts


def search(problem: BilevelProblem, x: PyTree, lower: Tracked, d: PyTree, longest: Scalar | float = 1.0) -> Found:
    """x + t d, where ell is lower than at x, for t from `longest` downward.

    A trial passes if ell has fallen by a share of what the slope promises. Where the fall is lost in the doubt about
    both values, the slope itself must have shrunk (Hager and Zhang 2005). The next trial is where a line through both
    slopes vanishes; y and the adjoint begin on the line through those of the last trial.
    """
    dtype = trees.dtype(x)
    slope = trees.inner(lower.F, d)

    def trial(t: Scalar, guess: Tracked, counts: Counts, k: Array) -> tuple[Any, ...]:
        x_t = trees.axpy(t, d, x)
        at_t, spent = follow(problem, x_t, guess)
        steep = trees.inner(at_t.F, d)
        fall, doubt = lower.value - at_t.value, lower.doubt + at_t.doubt
        accepted = (fall >= -1e-4 * t * slope + doubt) | ((fall >= -doubt) & (steep <= -0.8 * slope))
        return t, x_t, at_t, steep, accepted, jax.tree.map(jnp.add, counts, spent), k + 1

    def unfinished(carry: tuple[Any, ...]) -> Array:
        *_, accepted, _, k = carry
        return ~accepted & (k < _TRIALS)

    def shorten(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        t, _, at_t, steep, _, counts, k = carry
        secant = slope / jnp.where(steep > slope, slope - steep, slope)
        ratio = jnp.where(jnp.isfinite(secant) & (steep > 0), jnp.clip(secant, 0.1, 0.8), 0.5)
        between = lambda a, b: jax.tree.map(lambda u, v: u + ratio * (v - u), a, b)  # noqa: E731
        guess = at_t
        guess = Tracked(
            between(lower.y, at_t.y),
            between(lower.w, at_t.w),
            at_t.F,
            at_t.value,
            at_t.doubt,
            at_t.inverse,
            at_t.excess,
        )
        return trial(ratio * t, guess, counts, k)

    none = Counts(*(jnp.zeros((), jnp.int32) for _ in range(6)))
    first = trial(jnp.asarray(longest, dtype), lower, none, jnp.zeros((), jnp.int32))
    t, x_t, at_t, _, accepted, counts, _ = jax.lax.while_loop(unfinished, shorten, first)
    keep = lambda a, b: jax.tree.map(lambda u, v: jnp.where(accepted, u, v), a, b)  # noqa: E731
    return Found(keep(x_t, x), keep(at_t, lower), t, accepted, counts)
