"""How far x moves along a direction: by the value and the slope of ell at each trial, which cost one evaluation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PyTree, Scalar

from bilevax import trees
from bilevax.linalg import host_loops
from bilevax.problem import BilevelProblem
from bilevax.solvers.pieces.tracking import Tracked, follow
from bilevax.solvers.protocol import Counts, add_counts, no_counts

_TRIALS = 12


class Found(NamedTuple):
    """How far a search went, and the lower level there."""

    length: Scalar
    lower: Tracked
    accepted: Bool[Array, ""]
    """Whether a trial passed, or no direction led down."""
    curvature: Scalar
    """<d, Hess ell d>, from the slopes at both ends."""
    counts: Counts


def search(problem: BilevelProblem, x: PyTree, lower: Tracked, d: PyTree, first: Scalar | float = 1.0) -> Found:
    """The first of some t from `first` downward for which ell is lower at x + t d than at x.

    A trial passes if ell has fallen by a share of what the slope promises. Where the fall is lost in the doubt about
    both values, the slope itself must have shrunk (Hager and Zhang 2005). The next trial is where a line through both
    slopes vanishes; y and the adjoint begin on the line through those of the last trial. If no trial passes, the last
    one is x itself: the lower level is solved there once more, in case its value was wrong.
    """
    slope = trees.inner(lower.F, d)
    # At the end of the precision no direction leads down: x stays, and one evaluation improves y and the adjoint.
    t = jnp.where(slope < 0, jnp.asarray(first, trees.dtype(x)), 0)

    def unfinished(carry: tuple[Any, ...]) -> Array:
        *_, accepted, _, k = carry
        return ~accepted & (k < _TRIALS)

    def trial(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        t, guess, before, t_before, bend, _, counts, k = carry
        at_t, spent = follow(problem, trees.axpy(t, d, x), guess)
        steep = trees.inner(at_t.F, d)
        fall, doubt = lower.value - at_t.value, lower.doubt + at_t.doubt
        # Far away the lower level may be solved so badly that the doubt would excuse any rise.
        excused = jnp.minimum(doubt, 10 * lower.doubt - 0.1 * t * slope)
        falls = (fall >= -1e-4 * t * slope + doubt) | ((fall >= -excused) & (steep <= -0.8 * slope))
        sound = trees.all_finite((at_t.value, at_t.doubt, at_t.F, at_t.y, at_t.w))  # functions may overflow far away
        # A fall that is mostly correction is believed if solving the lower level once more confirms it.
        correction, change = jnp.abs(at_t.correction), jnp.abs(at_t.value - before.value)
        open_to_doubt = (correction > 0.2 * jnp.abs(fall)) & (correction > 1e-3 * jnp.abs(at_t.value))
        confirmed = (t == t_before) & (k > 0) & (change <= 0.2 * jnp.abs(fall))
        again = falls & sound & open_to_doubt & ~confirmed
        accepted = (falls & sound & ~again) | (t == 0)

        secant = slope / jnp.where(steep > slope, slope - steep, slope)
        ratio = jnp.where(jnp.isfinite(secant) & (steep > 0), jnp.clip(secant, 0.1, 0.8), 0.5)
        between = lambda a, b: jax.tree.map(lambda u, v: u + ratio * (v - u), a, b)  # noqa: E731
        guess = replace(at_t, y=between(lower.y, at_t.y), w=between(lower.w, at_t.w))
        last = k + 2 >= _TRIALS
        following = trees.choose(again, (t, at_t), (ratio * t, guess))
        following = trees.choose(sound & ~last, following, (jnp.where(last, 0, ratio * t), lower))
        bend = jnp.where(t > 0, (steep - slope) / jnp.where(t > 0, t, 1), bend)
        return *following, at_t, t, bend, accepted, add_counts(counts, spent), k + 1

    none = jnp.zeros((), jnp.int32)
    start = (t, lower, lower, t, jnp.zeros_like(t), jnp.asarray(False), no_counts(), none)
    carry = host_loops.loop_while(unfinished, trial, start, host=problem.host)
    _, _, at_t, t, curvature, _, counts, _ = carry
    return Found(t, at_t, (t > 0) | ~(slope < 0), curvature, counts)
