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
from bilevax.linalg.blas import one_blas_thread
from bilevax.problem import BilevelProblem
from bilevax.sets import Basis
from bilevax.solvers.pieces.defaults import check_counts
from bilevax.solvers.pieces.tracking import Tracked, begin, exact, follow
from bilevax.solvers.protocol import Counts, Info, Observation, add_counts
from bilevax.theory import Constants

GIVE_UP = 40  # times a step is shortened before it is taken as it is


class BlockIBCGState(eqx.Module):
    """x and the x before it, the lower level and the direction at x, and what the next step begins with."""

    x: PyTree
    previous: PyTree
    lower: Tracked
    before: Tracked | None  # at the x before; None where the direction ahead is computed
    k: Int[Array, ""]
    momentum: float
    L: float
    """The inverse of the last step."""
    curvature: float
    """That of ell along the last step."""
    basis: Basis

    y = property(lambda self: self.lower.y)
    w = property(lambda self: self.lower.w)


class BlockIBCG(eqx.Module):
    """Rank-r steps on the nuclear ball and the spectraplex.

    x moves to the projection of `x - F/L`, made of the leading singular vectors alone: their number grows until all
    others would be clipped to zero, so that the truncation is exact (every `verify` steps it looks for more outside
    them). Momentum restarts when the step turns against it. L is found by a test on directions: it is the curvature per
    whole matrix, small where little of it is observed. y and the adjoint are solved at every x to a share of what is
    new there, as in `ProjectedIBCG`.

    One step costs one direction and one projection of low rank, more when L was too small: the direction ahead is taken
    from the line through the last two. Where the problem changes between the steps, `look_ahead=True` computes it.
    `constants` serve the certificate only; no step needs them.

    >>> import bilevax as bx
    >>> solver = bx.BlockIBCG(max_rank=50)
    """

    oracle: ClassVar[str] = "low rank"
    loops: ClassVar[int] = 1
    all_rows: ClassVar[bool] = True
    max_rank: int | None = eqx.field(static=True, default=None)
    verify: int | None = eqx.field(static=True, default=5, kw_only=True)
    look_ahead: bool = eqx.field(static=True, default=False, kw_only=True)
    constants: Constants | None = eqx.field(default=None, kw_only=True)

    def __check_init__(self) -> None:
        check_counts(self, max_rank=self.max_rank, verify=self.verify)

    def prepare(self, problem: BilevelProblem, x: PyTree, y: PyTree, key: Array) -> BlockIBCG:
        """There is nothing to estimate."""
        return self

    def init(self, problem: BilevelProblem, x: PyTree, y: PyTree) -> tuple[BlockIBCGState, Counts]:
        """The direction at the start, and a quarter of the curvature along it."""
        at_x, first = begin(problem, x, y)
        if not exact(problem, x, y):  # what was left unsolved would look like curvature
            at_x, more = follow(problem, x, at_x)
            first = add_counts(first, more)
        size = float(trees.norm(at_x.F)) or 1.0
        length = 1e-2 * (1 + float(trees.norm(x))) / size
        nearby, second = follow(problem, trees.axpy(trees.scalar(-length, x), at_x.F, x), at_x)
        L = float(trees.norm(trees.sub(nearby.F, at_x.F))) / (4 * length * size) or 1.0
        k, basis = jnp.zeros((), jnp.int32), problem.domain.low_rank_start(x)
        return BlockIBCGState(x, x, at_x, None if self.look_ahead else at_x, k, 1.0, L, L, basis), add_counts(
            first, second
        )

    def observe(self, problem: BilevelProblem, state: BlockIBCGState) -> Observation:
        """What the state tells of its point."""
        return Observation(state.lower.F, state.y, state.w)

    def step(self, problem: BilevelProblem, state: BlockIBCGState, key: Array) -> tuple[BlockIBCGState, Info]:
        """A step for the curvature met last, shortened until the direction changes no faster than L allows."""
        share = 0.5 if self.look_ahead else 0.8  # the curvature of a problem that changes may fall
        x, L, basis = state.x, max(share * state.L, 1.05 * state.curvature), state.basis
        verify = self.verify is not None and int(state.k) % self.verify == self.verify - 1
        momentum = (1 + (1 + 4 * state.momentum**2) ** 0.5) / 2
        ahead, at_ahead, counts = self._ahead(problem, state, (state.momentum - 1) / momentum)
        if not bool(trees.all_finite(at_ahead.F)):  # no factorization accepts it; the loop names it
            return replace(state, lower=at_ahead, k=state.k + 1), Info(x, at_ahead.F, counts)
        rounding = 1e3 * float(jnp.finfo(trees.dtype(x)).eps * trees.inner(x, x))
        for tries in itertools.count(1):
            with one_blas_thread():
                shift = trees.scale(trees.scalar(-1 / L, x), at_ahead.F)
                moved = problem.domain.low_rank_step(ahead, shift, basis, max_rank=self.max_rank, verify=verify)
            lower, spent = follow(problem, moved.x, at_ahead)
            counts = add_counts(counts, jax.device_get(spent))
            product, basis = inner_of_differences(lower.F, at_ahead.F, moved.x, ahead), moved.basis
            curvature = product / moved.squared if moved.squared > rounding else L / 1.05
            if curvature <= L or tries == GIVE_UP:
                break
            L = max(2 * L, curvature)
        if inner_of_differences(ahead, moved.x, moved.x, x) > 0:  # against the momentum
            momentum = 1.0
        before, k = None if self.look_ahead else state.lower, state.k + 1
        following = BlockIBCGState(moved.x, x, lower, before, k, momentum, L, curvature, basis)
        return following, Info(x, state.lower.F, replace(counts, projections=tries))

    def _ahead(self, problem: BilevelProblem, state: BlockIBCGState, share: float) -> tuple[PyTree, Tracked, Counts]:
        """The point ahead and the lower level there, on the line through the last two: exact where ell is quadratic."""
        ahead = trees.move(state.x, state.previous, -(t := trees.scalar(share, state.x)))
        if state.before is None:
            return ahead, *follow(problem, ahead, state.lower)
        y, w, F = _compiled_extrapolation(t, *((lower.y, lower.w, lower.F) for lower in (state.lower, state.before)))
        return ahead, replace(state.lower, y=y, w=w, F=F), Counts()


_compiled_extrapolation = jax.jit(lambda t, a, b: jax.tree.map(lambda u, v: u + t * (u - v), a, b))


def inner_of_differences(a: PyTree, b: PyTree, c: PyTree, d: PyTree) -> float:
    """`<a - b, c - d>` in one pass."""
    return float(_compiled_inner(*map(trees.coordinates, (a, b, c, d))))


_compiled_inner = jax.jit(lambda a, b, c, d: trees.gap(trees.sub(a, b), c, d))
