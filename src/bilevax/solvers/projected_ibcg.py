"""ProjectedIBCG, ours: IBCG's tracked direction with projected quasi-Newton steps; nothing to tune."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree

from bilevax import trees
from bilevax.problem import BilevelProblem
from bilevax.solvers.pieces.curvature import Curvature, first_curvature
from bilevax.solvers.pieces.defaults import check_counts
from bilevax.solvers.pieces.line_search import search
from bilevax.solvers.pieces.model_minimum import minimize_model
from bilevax.solvers.pieces.tracking import Tracked, begin
from bilevax.solvers.protocol import Counts, Info, Observation, add_counts
from bilevax.theory import Constants


class ProjectedIBCGState(eqx.Module):
    """x, the lower level there, and the last steps."""

    x: PyTree
    lower: Tracked
    curvature: Curvature
    k: Int[Array, ""]

    y = property(lambda self: self.lower.y)
    w = property(lambda self: self.lower.w)


class ProjectedIBCG(eqx.Module):
    """Projected quasi-Newton steps.

    y and the adjoint are solved at every x to a share of what is new there: by the problem's own formulas, by the
    inverse of H where there are few lower variables, otherwise by Newton's method and conjugate gradients from the
    last ones. The direction changes along the last `memory` steps make a quadratic model of ell. x moves towards the
    minimum of the model over the set, found in at most `inner` turns from face to face, as far as a line search on the
    value and the slope of ell allows.

    One step costs one hypergradient, rarely more. A turn costs some four projections. On sets of matrices a turn is a
    gradient step on the model, and there are at most twenty.

    `constants` serve the certificate only; no step needs them.

    >>> import bilevax as bx
    >>> solver = bx.ProjectedIBCG()
    """

    oracle: ClassVar[str] = "project"
    loops: ClassVar[int] = 2
    all_rows: ClassVar[bool] = True
    few_steps: ClassVar[bool] = True
    memory: int | None = eqx.field(static=True, default=None)
    inner: int = eqx.field(static=True, default=100, kw_only=True)
    constants: Constants | None = eqx.field(default=None, kw_only=True)

    def __check_init__(self) -> None:
        check_counts(self, memory=self.memory, inner=self.inner)

    def prepare(self, problem: BilevelProblem, x: PyTree, y: PyTree, key: Array) -> ProjectedIBCG:
        """There is nothing to estimate."""
        return self

    def init(
        self, problem: BilevelProblem, x: PyTree, y: PyTree, w: PyTree = None
    ) -> tuple[ProjectedIBCGState, Counts]:
        """The lower level at the start, from an adjoint w if there is one."""
        lower, counts = begin(problem, x, y, w)
        curvature = first_curvature(problem, x, lower, self.memory)
        return ProjectedIBCGState(x, lower, curvature, jnp.zeros((), jnp.int32)), counts

    def observe(self, problem: BilevelProblem, state: ProjectedIBCGState) -> Observation:
        """What the state tells of its point."""
        return Observation(state.lower.F, state.y, state.w)

    def step(self, problem: BilevelProblem, state: ProjectedIBCGState, key: Array) -> tuple[ProjectedIBCGState, Info]:
        """The minimum of the model over the set, a line search towards it, and one pair more."""
        x, lower = state.x, state.lower
        curvature, B, counts = state.curvature.model(problem, x, lower)
        target, projections = minimize_model(problem.domain, x, lower.F, B, self.inner)
        d = trees.sub(target, x)
        found = search(problem, x, lower, d)
        step = trees.scale(found.length, d)
        counts = replace(add_counts(found.counts, counts), projections=projections)
        curvature = curvature.after(B, step, lower.F, found)
        return ProjectedIBCGState(trees.add(x, step), found.lower, curvature, state.k + 1), Info(x, lower.F, counts)
