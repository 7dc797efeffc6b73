"""Rounds of steps on mini-batches: the mean of f over a round, with its noise, decides about the next step sizes.

A round that shows nothing is followed by one twice as long, whose mean has less noise, with shorter steps.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Scalar

from bilevax import trees
from bilevax.solvers.pieces.batch_steps import Moved, Point


class Mean(NamedTuple):
    """f with its standard error."""

    value: Scalar
    error: Scalar


class Rounds(eqx.Module):
    """The step sizes, the present round and what is known of f."""

    xi: Scalar
    """The step of x."""
    pace: Scalar
    """The steps of y and w, over the inverse curvature of batches."""
    length: Int[Array, ""]
    """Steps in a round."""
    done: Int[Array, ""]
    """Steps of this round that were taken."""
    total: Scalar
    squares: Scalar
    """The sums of f and of its squared error over these steps."""
    f: Mean
    """In the last round that was not undone."""
    began: Point
    """Where the round began."""

    def after(self, moved: Moved, settling: Bool[Array, ""]) -> tuple[Rounds, Point]:
        """One step more, and the point to go on from.

        While y and w catch up with x (`settling`), f tells nothing of the steps of x.
        """
        taken = replace(self, done=self.done + 1, total=self.total + moved.f, squares=self.squares + moved.f_error**2)
        complete = (taken.done >= self.length) | ~trees.all_finite((moved.f, moved.point))
        judged, point = taken._judged(moved.point, settling)
        return trees.choose(complete, (judged, point), (taken, moved.point))

    def _judged(self, point: Point, settling: Bool[Array, ""]) -> tuple[Rounds, Point]:
        count = self.done.astype(self.total.dtype)
        mean = Mean(self.total / count, jnp.sqrt(self.squares) / count)
        noise = 2 * (mean.error + self.f.error)
        sound = jnp.isfinite(mean.value) & trees.all_finite(point)
        falls = sound & (settling | (mean.value < self.f.value - noise))
        rises = ~falls & ~(sound & (mean.value <= self.f.value + noise))
        nothing = ~falls & ~rises
        clearly = ~settling & (mean.value < self.f.value - 2 * noise)
        grow = jnp.where(clearly, 2, jnp.where(settling, 1, 1.2))
        xi = self.xi * jnp.where(falls, grow, jnp.where(rises, 0.25, 0.5))
        pace = jnp.where(falls, self.pace, self.pace / 1.4)
        f, point = trees.choose(rises, (self.f, self.began), (mean, point))
        zero = jnp.zeros_like(self.total)
        length = jnp.where(nothing, 2 * self.length, self.length)
        return Rounds(xi, pace, length, jnp.zeros_like(self.done), zero, zero, f, point), point


def first_round(point: Point, dtype: jnp.dtype) -> Rounds:
    """Before the first step: x stays, and y and w move by the whole inverse curvature."""
    zero, none = jnp.zeros((), dtype), jnp.zeros((), jnp.int32)
    return Rounds(zero, zero + 1, none + 1, none, zero, zero, Mean(zero + jnp.inf, zero), point)
