"""What is known of the curvature of ell: the whole Hessian where there are few variables, otherwise the last steps."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PyTree

from bilevax import trees
from bilevax.problem import BilevelProblem
from bilevax.solvers.pieces.ell_hessian import ell_hessian
from bilevax.solvers.pieces.line_search import Found
from bilevax.solvers.pieces.quasi_newton import (
    LastSteps,
    Model,
    WholeMatrix,
    last_steps,
    pair,
    unknown_matrix,
    whole_matrix,
)
from bilevax.solvers.pieces.tracking import Tracked, exact, has_inverse, without_set
from bilevax.solvers.protocol import Counts

FEW, VERY_FEW = 300, 30
"""Up to so many variables the Hessian of ell is kept whole: where both inner problems are solved exactly, so that it is
cheap, and where they are not."""
_MEMORY = 10
_SURPRISE = 0.2


class Curvature(eqx.Module):
    """The model's memory, and whether the Hessian should be computed again."""

    memory: LastSteps | WholeMatrix
    stale: Bool[Array, ""]

    def model(self, problem: BilevelProblem, x: PyTree, lower: Tracked) -> tuple[Curvature, Model, Counts]:
        """The model of ell at x, and what a new Hessian cost."""
        if isinstance(self.memory, LastSteps):
            return self, self.memory.model(), Counts()
        memory = _whole_or(without_set(problem), x, lower, self.memory, self.stale)
        n = trees.size(x)
        counts = Counts(hvps=jnp.where(self.stale, n, 0), crosses=jnp.where(self.stale, 2 * n, 0))
        return Curvature(memory, self.stale), memory.model(), counts

    def after(self, B: Model, step: PyTree, before: PyTree, found: Found) -> Curvature:
        """What the step has taught; a model that the step surprised is computed again where that is possible."""
        seen = pair(step, before, found.lower.F)
        memory = trees.choose(found.accepted, self.memory.add(seen), self.memory.forget())
        return Curvature(memory, seen.useful & (B.surprise(seen) > _SURPRISE))


@jax.jit
def _whole_or(problem: BilevelProblem, x: PyTree, lower: Tracked, known: WholeMatrix, stale: Array) -> WholeMatrix:
    return jax.lax.cond(stale, lambda: whole_matrix(ell_hessian(problem, x, lower)), lambda: known)


def first_curvature(problem: BilevelProblem, x: PyTree, lower: Tracked, memory: int | None) -> Curvature:
    """Before the first step; `memory` last steps, by default the whole Hessian where there are few variables."""
    if memory is None and _can_be_whole(problem, x, lower):
        return Curvature(unknown_matrix(x), jnp.asarray(True))
    # A first step about as long as x is large, which the line search corrects.
    scale = trees.norm(lower.F) / (1 + trees.norm(x))
    return Curvature(last_steps(x, memory or _MEMORY, jnp.where(scale > 0, scale, 1)), jnp.asarray(False))


def _can_be_whole(problem: BilevelProblem, x: PyTree, lower: Tracked) -> bool:
    most = FEW if exact(problem, x, lower.y) else VERY_FEW
    if trees.size(x) > most or problem.streamed or not has_inverse(problem, x, lower.y):
        return False
    try:
        jax.eval_shape(ell_hessian, without_set(problem), x, lower)
    except (TypeError, NotImplementedError):  # a function of the user that cannot be differentiated three times
        return False
    return True
