"""How far x moves along a direction: by the value and the slope of ell at each trial, which cost one evaluation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PyTree, Scalar

from bilevax import trees
from bilevax.problem import BilevelProblem
from bilevax.solvers.pieces.tracking import Tracked, follow
from bilevax.solvers.protocol import Counts

_TRIALS = 12


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
    slope = trees.inner(lower.F, d)
    # At the end of the precision no direction leads down: x stays, and one evaluation improves y and the adjoint.
    d = jax.tree.map(lambda v: jnp.where(slope < 0, v, 0), d)
    slope = jnp.minimum(slope, 0)

    def unfinished(carry: tuple[Any, ...]) -> Array:
        *_, accepted, _, k = carry
        return ~accepted & (k < _TRIALS)

    def trial(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        t, guess, *_, counts, k = carry
        x_t = trees.axpy(t, d, x)
        at_t, spent = follow(problem, x_t, guess)
        steep = trees.inner(at_t.F, d)
        fall, doubt = lower.value - at_t.value, lower.doubt + at_t.doubt
        accepted = (fall >= -1e-4 * t * slope + doubt) | ((fall >= -doubt) & (steep <= -0.8 * slope))
        secant = slope / jnp.where(steep > slope, slope - steep, slope)
        ratio = jnp.where(jnp.isfinite(secant) & (steep > 0), jnp.clip(secant, 0.1, 0.8), 0.5)
        between = lambda a, b: jax.tree.map(lambda u, v: u + ratio * (v - u), a, b)  # noqa: E731
        guess = replace(at_t, y=between(lower.y, at_t.y), w=between(lower.w, at_t.w))
        return ratio * t, guess, x_t, at_t, t, accepted, jax.tree.map(jnp.add, counts, spent), k + 1

    none = jnp.zeros((), jnp.int32)
    t = jnp.asarray(longest, trees.dtype(x))
    start = (t, lower, x, lower, t, jnp.asarray(False), Counts(*[none] * 6), none)
    _, _, x_t, at_t, t, accepted, counts, _ = jax.lax.while_loop(unfinished, trial, start)
    x_t, at_t = trees.choose(accepted, (x_t, at_t), (x, lower))
    return Found(x_t, at_t, t, accepted, counts)
