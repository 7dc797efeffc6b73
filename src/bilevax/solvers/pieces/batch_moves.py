"""How x moves on mini-batches: with every batch where a projection costs little, otherwise once by their mean."""

from __future__ import annotations

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import PyTree, Scalar

from bilevax import trees
from bilevax.problem import BilevelProblem
from bilevax.sets import WholeSpace
from bilevax.solvers.protocol import Counts, Info, add_counts

BATCHES = 64
"""Mini-batches in one step of a method that begins with them."""
_SHARE = 0.02
"""The first step of x for a batch, over the one at which a linear f would fall to zero."""


_PART = 0.25
"""The first step towards the answer of an lmo is at most such a part of the way."""


class Mover(eqx.Module):
    """Moves by the oracle of a method, in which xi is the step for one batch.

    With an lmo, `BATCHES` times xi is the part of the way to its answer, at most the whole of it.
    """

    oracle: str = eqx.field(static=True)

    def often(self, problem: BilevelProblem) -> bool:
        """Whether x moves with each batch: not where an oracle decomposes matrices or is an lmo."""
        vectors = problem.domain.tells_faces or isinstance(problem.domain, WholeSpace)
        return self.oracle == "project" and vectors

    def with_one_batch(self, problem: BilevelProblem, x: PyTree, F: PyTree, xi: Scalar) -> PyTree:
        """x after a batch with the direction F."""
        return problem.domain.project(trees.axpy(-xi, F, x)) if self.often(problem) else x

    def after_all_batches(self, problem: BilevelProblem, x: PyTree, F: PyTree, xi: Scalar) -> PyTree:
        """x after all batches, with their mean direction F."""
        if self.often(problem):
            return x
        if self.oracle == "project":
            return problem.domain.project(trees.axpy(-BATCHES * xi, F, x))
        return trees.move(x, self._lmo(problem, x, F)[0], jnp.minimum(BATCHES * xi, 1))

    def info(self, problem: BilevelProblem, x: PyTree, F: PyTree, spent: Counts) -> Info:
        """What a step on mini-batches from x saw, whose mean direction is F; `spent` are other calls in it."""
        projections = BATCHES if self.often(problem) else int(self.oracle == "project")
        calls = Counts(2 * BATCHES, BATCHES, BATCHES, BATCHES, int(self.oracle == "lmo"), projections)
        s, error = self._lmo(problem, x, F) if self.oracle == "lmo" else (None, 0.0)
        return as_arrays(Info(x, F, add_counts(calls, spent), s, error))

    def _lmo(self, problem: BilevelProblem, x: PyTree, F: PyTree) -> tuple[PyTree, Scalar]:
        """The answer of the lmo, without a memory of those before, and its error."""
        s, memory = problem.domain.lmo(F, problem.domain.start(x))
        return s, memory.error

    def first_step(self, problem: BilevelProblem, x: PyTree, y: PyTree, w: PyTree) -> Scalar:
        """A share of the step at which f would fall to zero if it were linear, with F on all rows; zero if F is."""
        f, (f_x, _) = problem.upper_value_and_grads(x, y)
        F = trees.sub(f_x, problem.lower_cross(x, y, w))
        fall = trees.gap(F, x, self._lmo(problem, x, F)[0]) if self.oracle == "lmo" else trees.inner(F, F)
        xi = _SHARE * jnp.abs(f) / jnp.where(fall > 0, fall, 1)
        longest = _PART / BATCHES if self.oracle == "lmo" else jnp.inf
        return jnp.where(fall > 0, jnp.minimum(xi, longest), 0)


def as_arrays(info: Info) -> Info:
    """The same with arrays instead of numbers, so that both ways of a step have one form."""
    counts = jax.tree.map(lambda calls: jnp.asarray(calls, jnp.int32), info.counts)
    return replace(info, counts=counts, lmo_error=jnp.asarray(info.lmo_error, trees.dtype(info.direction)))
