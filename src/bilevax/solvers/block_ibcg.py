"""BlockIBCG, ours: IBCG's tracked direction with many atoms at a time, accelerated, on sets of low-rank matrices."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree, Scalar

from bilevax import trees
from bilevax.estimation import estimate_constants, for_steps
from bilevax.linalg.low_rank import one_blas_thread
from bilevax.problem import BilevelProblem
from bilevax.sets import Basis
from bilevax.solvers.pieces.defaults import check_counts
from bilevax.solvers.pieces.lower_estimate import Seen, has_solutions, inner_of_differences, solved, tracked
from bilevax.solvers.protocol import Counts, Info
from bilevax.theory import Constants

GIVE_UP = 40
"""Times a step is shortened before it is taken as it is."""


class BlockIBCGState(eqx.Module):
    """x and the x before it, what was seen at x, and what the next step begins with."""

    x: PyTree
    previous: PyTree
    seen: Seen
    k: Int[Array, ""]
    momentum: float
    L: float
    """The inverse of the last step."""
    bent: float
    """The curvature of ell that it met."""
    basis: Basis

    y = property(lambda self: self.seen.y)
    w = property(lambda self: self.seen.w)


class BlockIBCG(eqx.Module):
    """Rank-r steps on the nuclear ball and the spectraplex.

    x moves to the projection of `x - F/L`, made of the leading singular vectors alone: their number grows until all
    others would be clipped to zero, so that the truncation is exact (every `verify` steps it looks for more outside
    them). Momentum restarts when the step turns against it. L is found by a test on directions: it is the curvature per
    whole matrix, small where little of it is observed. y and the adjoint are solved where the problem has formulas for
    them, and otherwise tracked by `inner` gradient steps each, kappa by default (at most 20).

    One step costs two directions and one projection of low rank, more when L was too small.

    >>> import bilevax as bx
    >>> solver = bx.BlockIBCG(max_rank=50)
    """

    uses: ClassVar[str] = "low rank"
    loops: ClassVar[int] = 1
    host: ClassVar[bool] = True
    max_rank: int | None = eqx.field(static=True, default=None)
    inner: Int[Array, ""] | int = eqx.field(default=None, kw_only=True)
    verify: int | None = eqx.field(static=True, default=10, kw_only=True)
    constants: Constants = eqx.field(default=None, kw_only=True)

    def __check_init__(self) -> None:
        check_counts(self, max_rank=self.max_rank, inner=self.inner, verify=self.verify)

    def prepare(self, problem: BilevelProblem, x: PyTree, y: PyTree, key: Array) -> BlockIBCG:
        """Nothing where y and the adjoint are solved; otherwise what their steps need."""
        if has_solutions(problem):
            return self
        constants = estimate_constants(problem, x, y, key) if self.constants is None else self.constants
        inner = jnp.clip(jnp.ceil(for_steps(constants).kappa), 1, 20) if self.inner is None else self.inner
        return replace(self, constants=constants, inner=jnp.asarray(inner, jnp.int32))

    def init(self, problem: BilevelProblem, x: PyTree, y: PyTree) -> tuple[BlockIBCGState, Counts]:
        """The direction at the start, and a quarter of the curvature along it."""
        first = self.look(problem, x, y, None if has_solutions(problem) else trees.zeros_like(y))
        size = float(trees.norm(first.F)) or 1.0
        length = float(jnp.finfo(trees.dtype(x)).eps) ** 0.33 * (1 + float(trees.norm(x))) / size
        beside = self.look(problem, trees.axpy(_number(-length, x), first.F, x), first.y, first.w)
        L = float(trees.norm(trees.sub(beside.F, first.F))) / (4 * length * size) or 1.0
        counts = self._cost(problem, 2)
        if self.constants is not None:
            counts = replace(counts, hvps=counts.hvps + self.constants.products)
        basis = problem.domain.low_rank_start(x)
        return BlockIBCGState(x, x, first, jnp.zeros((), jnp.int32), 1.0, L, L, basis), counts

    def step(self, problem: BilevelProblem, state: BlockIBCGState, key: Array) -> tuple[BlockIBCGState, Info]:
        """A step for the curvature met last, shortened until the direction changes no faster than L allows."""
        x, L, basis = state.x, max(0.5 * state.L, 1.05 * state.bent), state.basis
        verify = self.verify is not None and int(state.k) % self.verify == self.verify - 1
        momentum = (1 + (1 + 4 * state.momentum**2) ** 0.5) / 2
        ahead = trees.move(x, state.previous, _number((1 - state.momentum) / momentum, x))
        there = self.look(problem, ahead, state.y, state.w)
        if has_solutions(problem):
            there = replace(there, y=state.y)  # as good a start for the next look, and held already
        rounding = 1e3 * float(jnp.finfo(trees.dtype(x)).eps * trees.inner(x, x))
        for tries in itertools.count(1):
            with one_blas_thread():
                shift = trees.scale(_number(-1 / L, x), there.F)
                moved = problem.domain.low_rank_step(ahead, shift, basis, max_rank=self.max_rank, verify=verify)
            seen = self.look(problem, moved.x, there.y, there.w)
            turn, basis = inner_of_differences(seen.F, there.F, moved.x, ahead), moved.basis
            bent = turn / moved.squared if moved.squared > rounding else L / 1.05
            if bent <= L or tries == GIVE_UP:
                break
            L = max(2 * L, bent)
        against = inner_of_differences(ahead, moved.x, moved.x, x) > 0
        following = BlockIBCGState(moved.x, x, seen, state.k + 1, 1.0 if against else momentum, L, bent, basis)
        counts = replace(self._cost(problem, 1 + tries), projections=tries)
        return following, Info(x, state.seen.F, counts, residual=state.seen.residual)

    def look(self, problem: BilevelProblem, x: PyTree, y: PyTree, w: PyTree) -> Seen:
        """y, the adjoint and the direction at x, from those nearby."""
        if has_solutions(problem):
            return solved(problem, x, y)
        return tracked(problem, x, y, w, jnp.asarray(for_steps(self.constants).alpha), jnp.asarray(self.inner))

    def _cost(self, problem: BilevelProblem, looks: int) -> Counts:
        steps = 0 if has_solutions(problem) else int(self.inner)
        hvps = 0 if has_solutions(problem) else (steps + 1) * looks
        return Counts(upper_grads=2 * looks, lower_grads=steps * looks, hvps=hvps, crosses=looks)


def _number(value: float, like: PyTree) -> Scalar:
    return jnp.asarray(value, trees.dtype(like))
