"""SampledIBCG, ours: mini-batches as long as they help, with steps that find their own length; then all rows."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, PyTree

from bilevax import trees
from bilevax.problem import BilevelProblem
from bilevax.solvers.adaptive_ibcg import AdaptiveIBCG
from bilevax.solvers.pairwise_ibcg import PairwiseIBCG
from bilevax.solvers.pieces.batch_moves import BATCHES, Mover, as_arrays
from bilevax.solvers.pieces.batch_rounds import Rounds, first_round, lower_start
from bilevax.solvers.pieces.batch_steps import Point, start_point, steps_in_a_pass
from bilevax.solvers.pieces.defaults import check_steps
from bilevax.solvers.projected_ibcg import ProjectedIBCG
from bilevax.solvers.protocol import Counts, Info, Observation, no_counts
from bilevax.theory import Constants

Later = ProjectedIBCG | PairwiseIBCG | AdaptiveIBCG
"""The methods that can go on with all rows."""
_MOST = 200
"""The most steps on mini-batches, unless they are fewer than eight passes over the rows."""


class SampledIBCGState(eqx.Module):
    """The point, the rounds of steps on mini-batches, the first x, the direction; and the state on all rows."""

    point: Point
    k: Int[Array, ""]
    sampling: Bool[Array, ""]  # whether mini-batches are used
    rounds: Rounds
    first: PyTree
    direction: PyTree
    later: Any

    x = property(lambda self: self.point.x)
    y = property(lambda self: self.point.y)
    w = property(lambda self: self.point.w)


class SampledIBCG(eqx.Module):
    """Single-loop steps on mini-batches, then `method` on all rows: `ProjectedIBCG`, `PairwiseIBCG` or `AdaptiveIBCG`.

    One step consists of 64 mini-batches, on each of which x, y and w move once: y and w by the inverse curvature of
    batches, x by xi. On sets of matrices and with an lmo, x moves once after the 64. At first x stays, until y and w
    have caught up; then xi is a fiftieth of the step at which f would fall to zero if it were linear. Steps make
    rounds, at first of one step. If the mean of f over a round falls by more than its noise, xi grows. If f rises, the
    round is undone and xi shrinks. If noise hides the change, xi shrinks and the next round is twice as long. When a
    round costs more than `passes` passes over the rows, `method` goes on with all rows. Directions of y and w that are
    much larger than usual are cut, so that rows far larger than the rest do no harm.

    Samplers of bilevax give every batch once before one comes again, whatever their `replacement` says. The gap of a
    step on mini-batches is an estimate, too large on average, and never taken for convergence. Without a sampler, or
    with kernels on the host, this is `method`. `constants` serve the certificate only.

    >>> import bilevax as bx
    >>> solver = bx.SampledIBCG()
    """

    loops: ClassVar[int] = 2
    all_rows: ClassVar[bool] = True
    few_steps: ClassVar[bool] = True
    batches_per_step: ClassVar[int] = BATCHES
    method: Later = ProjectedIBCG()
    passes: float = eqx.field(static=True, default=2.0, kw_only=True)
    constants: Constants | None = eqx.field(default=None, kw_only=True)

    def __check_init__(self) -> None:
        check_steps(self, passes=self.passes)
        if not isinstance(self.method, Later):
            known = "bx.ProjectedIBCG, bx.PairwiseIBCG or bx.AdaptiveIBCG"
            raise TypeError(f"SampledIBCG: method must be a {known}, got {self.method!r}.")

    @property
    def oracle(self) -> str:
        """That of the method."""
        return self.method.oracle

    def prepare(self, problem: BilevelProblem, x: PyTree, y: PyTree, key: Array) -> SampledIBCG:
        """There is nothing to estimate."""
        return self

    def init(self, problem: BilevelProblem, x: PyTree, y: PyTree, w: PyTree = None) -> tuple[SampledIBCGState, Counts]:
        """The start as it is, with the adjoint at zero; on all rows w is one to begin with."""
        point = start_point(x, y)
        begin = functools.partial(self.method.init, replace(problem, sampler=None), x, y, w)
        sampling = problem.sampler is not None and not problem.host
        later, counts = (trees.zeros_like(jax.eval_shape(begin)[0]), no_counts()) if sampling else begin()
        unknown, none = trees.scale(jnp.nan, trees.zeros_like(x)), jnp.zeros((), jnp.int32)
        state = SampledIBCGState(point, none, jnp.asarray(sampling), first_round(point), x, unknown, later)
        return state if sampling else _at(state, later), counts

    def observe(self, problem: BilevelProblem, state: SampledIBCGState) -> Observation:
        """The direction that is known: a mean over mini-batches, or that of all rows."""
        return Observation(state.direction, state.y, state.w)

    def step(self, problem: BilevelProblem, state: SampledIBCGState, key: Array) -> tuple[SampledIBCGState, Info]:
        """64 mini-batches, or one step on all rows."""
        sampled, everything = problem.sampler is not None and not problem.host, replace(problem, sampler=None)
        mover = Mover(self.method.oracle)
        passes = replace(problem, sampler=None if problem.sampler is None else problem.sampler.in_passes())

        def on_all_rows() -> tuple[SampledIBCGState, Info]:
            later, info = self.method.step(everything, state.later, key)
            return _at(replace(state, k=state.k + 1), later), as_arrays(info)

        def on_batches() -> tuple[SampledIBCGState, Info]:
            rounds, point, direction = state.rounds.step(passes, mover, state.point, state.direction, state.k, key)
            direction = trees.choose(trees.all_finite(direction), direction, state.direction)
            following = replace(state, point=point, k=state.k + 1, rounds=rounds, direction=direction)
            steps = steps_in_a_pass(problem)
            ends = (rounds.length > int(self.passes * steps)) | (state.k >= max(_MOST, int(8 * steps)))
            done = ends | ~(rounds.settling | (rounds.xi > 0))
            following, spent = jax.lax.cond(done, lambda: change(following), lambda: (following, no_counts()))
            F = following.direction  # not finite if the first step overflowed and was undone
            F = trees.choose(trees.all_finite(F), F, trees.zeros_like(F))
            return following, mover.info(problem, state.x, F, spent)

        def change(state: SampledIBCGState) -> tuple[SampledIBCGState, Counts]:
            begin = lambda x: self.method.init(everything, x, state.y, state.w)  # noqa: E731
            later, counts = lower_start(begin, state.x, state.first, state.y, state.later)
            return _at(replace(state, sampling=jnp.asarray(False)), later), counts

        return jax.lax.cond(state.sampling, on_batches, on_all_rows) if sampled else on_all_rows()


def _at(state: SampledIBCGState, later: Any) -> SampledIBCGState:
    """The point of the method on all rows."""
    point = state.point._replace(x=later.x, y=later.y, w=later.w)
    return replace(state, point=point, direction=later.lower.F, later=later)
