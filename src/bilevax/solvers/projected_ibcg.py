"""ProjectedIBCG, ours: IBCG's tracked direction with projected quasi-Newton steps; nothing to tune."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, PyTree

from bilevax import trees
from bilevax.problem import BilevelProblem
from bilevax.solvers.pieces.defaults import check_counts
from bilevax.solvers.pieces.ell_hessian import ell_hessian
from bilevax.solvers.pieces.line_search import search
from bilevax.solvers.pieces.model_minimum import minimize_model
from bilevax.solvers.pieces.quasi_newton import LastSteps, WholeMatrix, last_steps, pair, unknown_matrix, whole_matrix
from bilevax.solvers.pieces.tracking import Tracked, begin, has_inverse
from bilevax.solvers.protocol import Counts, Info, Observation

FEW = 100
"""Up to so many variables the model is kept whole."""


class ProjectedIBCGState(eqx.Module):
    """x, the lower level there, and the last steps."""

    x: PyTree
    lower: Tracked
    curvature: LastSteps | WholeMatrix
    stale: Bool[Array, ""]
    """Whether the whole Hessian should be computed again."""
    k: Int[Array, ""]

    y = property(lambda self: self.lower.y)
    w = property(lambda self: self.lower.w)


class ProjectedIBCG(eqx.Module):
    """Projected quasi-Newton steps.

    y and the adjoint are solved at every x to a share of what is new there: by the problem's own formulas, by the
    inverse of H where there are few lower variables, otherwise by Newton's method and conjugate gradients from the
    last ones. The direction changes along the last `memory` steps make a quadratic model of ell. x moves towards the
    minimum of the model over the set, found by at most `inner` projections, as far as a line search on the value and
    the slope of ell allows.

    One step costs one hypergradient, rarely more, and about `inner` projections.

    >>> import bilevax as bx
    >>> solver = bx.ProjectedIBCG()
    """

    oracle: ClassVar[str] = "project"
    loops: ClassVar[int] = 2
    memory: int | None = eqx.field(static=True, default=None)
    inner: int = eqx.field(static=True, default=20, kw_only=True)

    def __check_init__(self) -> None:
        check_counts(self, memory=self.memory, inner=self.inner)

    def prepare(self, problem: BilevelProblem, x: PyTree, y: PyTree, key: Array) -> ProjectedIBCG:
        """There is nothing to estimate."""
        return self

    def init(self, problem: BilevelProblem, x: PyTree, y: PyTree) -> tuple[ProjectedIBCGState, Counts]:
        """The lower level at the start."""
        lower, counts = begin(problem, x, y)
        whole = self.memory is None and trees.size(x) <= FEW and has_inverse(problem, x, y)
        # A first step about as long as x is large, which the line search corrects.
        scale = trees.norm(lower.F) / (1 + trees.norm(x))
        curvature = unknown_matrix(x) if whole else last_steps(x, self.memory or 10, jnp.where(scale > 0, scale, 1))
        return ProjectedIBCGState(x, lower, curvature, jnp.asarray(True), jnp.zeros((), jnp.int32)), counts

    def observe(self, problem: BilevelProblem, state: ProjectedIBCGState) -> Observation:
        """What the state tells of its point."""
        return Observation(state.lower.F, state.y, state.w)

    def step(self, problem: BilevelProblem, state: ProjectedIBCGState, key: Array) -> tuple[ProjectedIBCGState, Info]:
        """The minimum of the model over the set, a line search towards it, and one pair more."""
        x, lower, curvature, n = state.x, state.lower, state.curvature, trees.size(state.x)
        counts = Counts()
        if isinstance(curvature, WholeMatrix):
            curvature = jax.lax.cond(
                state.stale, lambda: whole_matrix(ell_hessian(problem, x, lower)), lambda: state.curvature
            )
            counts = Counts(hvps=jnp.where(state.stale, n, 0), crosses=jnp.where(state.stale, 2 * n, 0))
        B = curvature.model()
        target, projections = minimize_model(problem.domain, x, lower.F, B, self.inner)
        found = search(problem, x, lower, trees.sub(target, x))
        new = pair(trees.sub(found.x, x), lower.F, found.lower.F)
        stale = ~found.accepted | (new.useful & (B.surprise(new) > 0.5))
        curvature = trees.choose(found.accepted, curvature.add(new), curvature.forget())
        counts = replace(jax.tree.map(jnp.add, found.counts, counts), projections=projections)
        return ProjectedIBCGState(found.x, found.lower, curvature, stale, state.k + 1), Info(x, lower.F, counts)
