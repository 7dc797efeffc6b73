"""The step of x on mini-batches where none was given: what `move_x` then remembers of directions and distances."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree, Scalar

from bilevax import trees
from bilevax.problem import BilevelProblem
from bilevax.schedules import Cut, Travelled
from bilevax.solvers.pieces.directions import cut_to_usual

_FIRST = 0.1
"""The distance that counts as travelled before the first step, over the size of x or of the set."""
_GROWS = 1.05
"""x still travels if it comes so many times as far as before."""
_SLOW = 100.0
"""At first x moves by at most a tenth of the distance in a step: y and w must be able to follow."""


class Usual(eqx.Module):
    """How large directions are: the sum of their squared norms, and their number.

    A direction that is much larger than those before is cut, and counts as one that was cut, so that a batch with rows
    far larger than the rest does not throw x away.
    """

    squares: Scalar
    steps: Scalar
    length: Scalar
    error: Scalar

    def look(self, x: PyTree, d: PyTree, xi: Scalar) -> Usual:
        """What is known with the direction d at x, and the step for it, where xi is meant for usual ones."""
        squares, cut = _with(self.squares, self.steps, d)
        return Usual(squares, self.steps + 1, cut * xi, self.error)


class Travel(eqx.Module):
    """Where x began, how far from there it has been, and the squares of its directions, cut as in `Usual`.

    The step of x is the distance over the root of the sum of squares ("DoG", Ivgi, Hinder, Carmon). Where directions
    agree, the distance grows exponentially; where they are noise, steps decay like (k+1)^(-1/2). Once x has come no
    farther for a while, they decay like 1/(k+1), which is ours: a step that is right on the way is too long at its
    end.
    """

    start: PyTree
    farthest: Scalar
    squares: Scalar
    steps: Scalar
    grown: Scalar
    """The step at which x came farther for the last time; zero before the first time."""
    length: Scalar
    error: Scalar

    def look(self, x: PyTree, d: PyTree, xi: Scalar) -> Travel:
        """What is known with the direction d at x, and the step for it."""
        distance, steps = trees.norm(trees.sub(x, self.start)), self.steps + 1
        grows = distance > _GROWS * self.farthest
        farthest, grown = jnp.where(grows, distance, self.farthest), jnp.where(grows, steps, self.grown)
        squares, cut = _with(self.squares, self.steps, d)
        late = jnp.where(grown > 0, grown / steps, 1)
        length = cut * farthest * jnp.sqrt(late * steps / (steps + _SLOW) / jnp.where(squares > 0, squares, 1))
        return Travel(self.start, farthest, squares, steps, grown, length, self.error)


def _with(squares: Scalar, steps: Scalar, d: PyTree) -> tuple[Scalar, Scalar]:
    """The sum of squares with one direction more, and the factor by which that is cut."""
    used, cut = cut_to_usual(d, jnp.sqrt(squares / jnp.maximum(steps, 1)))
    return squares + used**2, cut


def bounded(problem: BilevelProblem, x: PyTree) -> bool:
    """Whether the set is bounded, as far as that is known while tracing: an unbounded set refuses its lmo."""
    diameter = problem.domain.diameter(x).value
    if trees.is_concrete(diameter):
        return not np.isinf(float(diameter))
    try:
        jax.eval_shape(lambda x: problem.domain.lmo(x, problem.domain.start(x))[0], x)
    except NotImplementedError:
        return False
    return True


def first_distance(problem: BilevelProblem, x: PyTree) -> Scalar:
    """A tenth of the size of x, or of the set if that is smaller."""
    return _FIRST * jnp.minimum(1 + trees.norm(x), jnp.asarray(problem.domain.diameter(x).value, trees.dtype(x)))


def start_noisy(x: PyTree, xi: Travelled | Cut) -> Travel | Usual:
    """Before the first step."""
    zero = jnp.zeros((), trees.dtype(x))
    if isinstance(xi, Cut):
        return Usual(zero, zero, zero, zero)
    return Travel(x, jnp.asarray(xi.value, zero.dtype), zero, zero, zero, zero, zero)
