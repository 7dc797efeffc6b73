"""Rounds of steps on mini-batches: the mean of f over a round, with its noise, decides about the next step sizes.

A round that shows nothing is followed by one twice as long, whose mean has less noise, with shorter steps.
Before the first round x stays until y and w have caught up with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, PyTree, Scalar

from bilevax import trees
from bilevax.problem import BilevelProblem
from bilevax.solvers.pieces.batch_moves import Mover
from bilevax.solvers.pieces.batch_steps import Moved, Point, batch_steps
from bilevax.solvers.protocol import Counts, add_counts, no_counts

_OFF = 0.3  # a distance of y from the lower solution, over its size
_NOISY, _SETTLING = 1, 16
"""From the first on, a change of f that is not more than noise is enough; after the second, x moves anyway."""


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

    settling: Bool[Array, ""]
    """Whether x stays because y and w still have to catch up with it."""
    start: Scalar
    """f in the first step."""

    def step(
        self, problem: BilevelProblem, mover: Mover, point: Point, before: PyTree, k: Int[Array, ""], key: Array
    ) -> tuple[Rounds, Point, PyTree]:
        """One step on mini-batches: the next step sizes, the point to go on from, and the mean direction.

        `before` is the direction of the last step.
        """
        moved = batch_steps(problem, mover, point, self.xi, self.pace, k, key)
        if not mover.often(problem):
            # The longer the rounds, the more noise: the mean is over as many steps, those of late count more.
            weight = jnp.where(self.settling, 1, 2 / (1 + self.length.astype(self.xi.dtype)))
            direction = jax.tree.map(
                lambda a, b: jnp.where(weight < 1, a + weight * (b - a), b), before, moved.direction
            )
            x = mover.after_all_batches(problem, moved.point.x, direction, self.xi)
            moved = moved._replace(point=moved.point._replace(x=x), direction=direction)

        def settle() -> tuple[Rounds, Point]:
            rounds, point = self.settle(moved, k)
            first = lambda: mover.first_step(problem, point.x, point.y, point.w)  # noqa: E731
            return replace(rounds, xi=jax.lax.cond(rounds.settling, lambda: self.xi, first)), point

        return *jax.lax.cond(self.settling, settle, lambda: self.after(moved)), moved.direction

    def settle(self, moved: Moved, k: Int[Array, ""]) -> tuple[Rounds, Point]:
        """One step more in which x stays, until f changes by no more than its noise or a tenth of its whole change.

        x would be led astray by a y that is far from the lower solution.
        """
        sound = trees.all_finite((moved.f, moved.point))
        start = jnp.where(k == 0, moved.f, self.start)
        noise = 2 * (moved.f_error + self.f.error)
        change = jnp.abs(moved.f - self.f.value)
        small = (change <= 0.1 * jnp.abs(moved.f - start)) | ((change <= noise) & (k >= _NOISY))
        point = trees.choose(sound, moved.point, self.began)
        following = replace(
            self,
            settling=~small & (k < _SETTLING),
            start=start,
            pace=jnp.where(sound, self.pace, self.pace / 4),
            f=trees.choose(sound, Mean(moved.f, moved.f_error), self.f),
            began=point,
        )
        return following, point

    def after(self, moved: Moved) -> tuple[Rounds, Point]:
        """One step more, and the point to go on from."""
        taken = replace(self, done=self.done + 1, total=self.total + moved.f, squares=self.squares + moved.f_error**2)
        complete = (taken.done >= self.length) | ~trees.all_finite((moved.f, moved.point))
        judged, point = taken._judged(moved.point)
        return trees.choose(complete, (judged, point), (taken, moved.point))

    def _judged(self, point: Point) -> tuple[Rounds, Point]:
        count = self.done.astype(self.total.dtype)
        mean = Mean(self.total / count, jnp.sqrt(self.squares) / count)
        noise = 2 * (mean.error + self.f.error)
        sound = jnp.isfinite(mean.value) & trees.all_finite(point)
        falls = sound & (mean.value < self.f.value - noise)
        rises = ~falls & ~(sound & (mean.value <= self.f.value + noise))
        nothing = ~falls & ~rises
        grow = jnp.where(mean.value < self.f.value - 2 * noise, 2, 1.2)
        xi = self.xi * jnp.where(falls, grow, jnp.where(rises, 0.25, 0.5))
        pace = jnp.where(falls, self.pace, self.pace / 1.4)
        f, point = trees.choose(rises, (self.f, self.began), (mean, point))
        zero, none = jnp.zeros_like(self.total), jnp.zeros_like(self.done)
        length = jnp.where(nothing, 2 * self.length, self.length)
        following = replace(
            self, xi=xi, pace=pace, length=length, done=none, total=zero, squares=zero, f=f, began=point
        )
        return following, point


def first_round(point: Point) -> Rounds:
    """Before the first step: x stays, and y and w move by the whole inverse curvature."""
    zero, none = jnp.zeros_like(point.curvature), jnp.zeros((), jnp.int32)
    f = Mean(zero + jnp.inf, zero)
    return Rounds(zero, zero + 1, none + 1, none, zero, zero, f, point, jnp.asarray(True), zero)


def lower_start(
    begin: Callable[[PyTree], tuple[Any, Counts]], x: PyTree, first: PyTree, y: PyTree, like: Any
) -> tuple[Any, Counts]:
    """The state on all rows at x; at the first x if y was far off and ell is lower there. `like` is any such state.

    A y that is far from the lower solution makes f tell little of x.
    """

    def unfinished(carry: tuple[Any, ...]) -> Array:
        tries, doubtful, *_ = carry
        return (tries == 0) | ((tries == 1) & doubtful)

    def attempt(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        tries, _, best, spent = carry
        state, counts = begin(trees.choose(tries == 0, x, first))
        off = trees.norm(trees.sub(state.y, y))
        best = trees.choose((tries == 0) | (state.lower.value < best.lower.value), state, best)
        return tries + 1, ~(off <= _OFF * trees.norm(state.y)), best, add_counts(spent, counts)

    start = jnp.zeros((), jnp.int32), jnp.asarray(False), like, no_counts()
    *_, best, counts = jax.lax.while_loop(unfinished, attempt, start)
    return best, counts
