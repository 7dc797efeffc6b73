"""BlockIBCG, ours: IBCG's tracked direction with many atoms at a time, accelerated, on sets of low-rank matrices."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree

from bilevax import trees
from bilevax.estimation import estimate_constants, for_steps
from bilevax.linalg.blas import one_blas_thread
from bilevax.problem import BilevelProblem
from bilevax.sets import Basis
from bilevax.solvers.pieces.defaults import check_counts
from bilevax.solvers.pieces.lower_estimate import LowerEstimate, evaluate, has_solutions, inner_of_differences
from bilevax.solvers.protocol import Counts, Info, Observation
from bilevax.theory import Constants

GIVE_UP = 40  # times a step is shortened before it is taken as it is


class BlockIBCGState(eqx.Module):
    """x and the x before it, the lower level and the direction at x, and what the next step begins with."""

    x: PyTree
    previous: PyTree
    estimate: LowerEstimate
    k: Int[Array, ""]
    momentum: float
    L: float
    """The inverse of the last step."""
    curvature: float
    """That of ell along the last step."""
    basis: Basis

    y = property(lambda self: self.estimate.y)
    w = property(lambda self: self.estimate.w)


class BlockIBCG(eqx.Module):
    """Rank-r steps on the nuclear ball and the spectraplex.

    x moves to the projection of `x - F/L`, made of the leading singular vectors alone: their number grows until all
    others would be clipped to zero, so that the truncation is exact (every `verify` steps it looks for more outside
    them). Momentum restarts when the step turns against it. L is found by a test on directions: it is the curvature per
    whole matrix, small where little of it is observed. y and the adjoint are solved where the problem has formulas for
    them. Otherwise `lower_steps` gradient steps track each of them, by default kappa of them and at most 20.

    One step costs two directions and one projection of low rank, more when L was too small.

    >>> import bilevax as bx
    >>> solver = bx.BlockIBCG(max_rank=50)
    """

    oracle: ClassVar[str] = "low rank"
    loops: ClassVar[int] = 1
    max_rank: int | None = eqx.field(static=True, default=None)
    lower_steps: Int[Array, ""] | int = eqx.field(default=None, kw_only=True)
    verify: int | None = eqx.field(static=True, default=10, kw_only=True)
    constants: Constants = eqx.field(default=None, kw_only=True)

    def __check_init__(self) -> None:
        check_counts(self, max_rank=self.max_rank, lower_steps=self.lower_steps, verify=self.verify)

    def prepare(self, problem: BilevelProblem, x: PyTree, y: PyTree, key: Array) -> BlockIBCG:
        """Nothing where y and the adjoint are solved; otherwise what their steps need."""
        if has_solutions(problem):
            return self
        constants = estimate_constants(problem, x, y, key) if self.constants is None else self.constants
        count = jnp.clip(jnp.ceil(for_steps(constants).kappa), 1, 20) if self.lower_steps is None else self.lower_steps
        return replace(self, constants=constants, lower_steps=jnp.asarray(count, jnp.int32))

    def init(self, problem: BilevelProblem, x: PyTree, y: PyTree) -> tuple[BlockIBCGState, Counts]:
        """The direction at the start, and a quarter of the curvature along it."""
        at_x = self.evaluate(problem, x, y, None if has_solutions(problem) else trees.zeros_like(y))
        size = float(trees.norm(at_x.F)) or 1.0
        length = float(jnp.finfo(trees.dtype(x)).eps) ** 0.33 * (1 + float(trees.norm(x))) / size
        nearby = self.evaluate(problem, trees.axpy(trees.scalar(-length, x), at_x.F, x), at_x.y, at_x.w)
        L = float(trees.norm(trees.sub(nearby.F, at_x.F))) / (4 * length * size) or 1.0
        counts, estimating = self._cost(problem, 2), 0 if self.constants is None else self.constants.products
        counts = replace(counts, hvps=counts.hvps + estimating)
        k, basis = jnp.zeros((), jnp.int32), problem.domain.low_rank_start(x)
        return BlockIBCGState(x, x, at_x, k, 1.0, L, L, basis), counts

    def observe(self, problem: BilevelProblem, state: BlockIBCGState) -> Observation:
        """What the state tells of its point."""
        return Observation(state.estimate.F, state.y, state.w)

    def step(self, problem: BilevelProblem, state: BlockIBCGState, key: Array) -> tuple[BlockIBCGState, Info]:
        """A step for the curvature met last, shortened until the direction changes no faster than L allows."""
        x, L, basis = state.x, max(0.5 * state.L, 1.05 * state.curvature), state.basis
        verify = self.verify is not None and int(state.k) % self.verify == self.verify - 1
        momentum = (1 + (1 + 4 * state.momentum**2) ** 0.5) / 2
        ahead = trees.move(x, state.previous, trees.scalar((1 - state.momentum) / momentum, x))
        at_ahead = self.evaluate(problem, ahead, state.y, state.w)
        if not bool(trees.all_finite(at_ahead.F)):  # no factorization accepts it; the loop names it
            state = replace(state, estimate=at_ahead, k=state.k + 1)
            return state, Info(x, at_ahead.F, Counts())
        if has_solutions(problem):
            at_ahead = replace(at_ahead, y=state.y)  # as good a start for the next evaluation, and held already
        rounding = 1e3 * float(jnp.finfo(trees.dtype(x)).eps * trees.inner(x, x))
        for tries in itertools.count(1):
            with one_blas_thread():
                shift = trees.scale(trees.scalar(-1 / L, x), at_ahead.F)
                moved = problem.domain.low_rank_step(ahead, shift, basis, max_rank=self.max_rank, verify=verify)
            estimate = self.evaluate(problem, moved.x, at_ahead.y, at_ahead.w)
            product, basis = inner_of_differences(estimate.F, at_ahead.F, moved.x, ahead), moved.basis
            curvature = product / moved.squared if moved.squared > rounding else L / 1.05
            if curvature <= L or tries == GIVE_UP:
                break
            L = max(2 * L, curvature)
        if inner_of_differences(ahead, moved.x, moved.x, x) > 0:  # against the momentum
            momentum = 1.0
        following = BlockIBCGState(moved.x, x, estimate, state.k + 1, momentum, L, curvature, basis)
        counts = replace(self._cost(problem, 1 + tries), projections=tries)
        return following, Info(x, state.estimate.F, counts)

    def evaluate(self, problem: BilevelProblem, x: PyTree, y: PyTree, w: PyTree) -> LowerEstimate:
        """y, the adjoint and the direction at x, from those nearby."""
        return evaluate(problem, x, y, w, self.constants, self.lower_steps)

    def _cost(self, problem: BilevelProblem, evaluations: int) -> Counts:
        steps = 0 if has_solutions(problem) else int(self.lower_steps)
        each = Counts(upper_grads=2, lower_grads=steps, hvps=steps, crosses=1)
        return jax.tree.map(lambda calls: evaluations * calls, each)
