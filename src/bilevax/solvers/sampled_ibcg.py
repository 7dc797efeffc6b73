"""SampledIBCG, ours: mini-batches as long as they help, with steps that find their own length; then all rows."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, PyTree, Scalar

from bilevax import trees
from bilevax.problem import BilevelProblem
from bilevax.solvers.pieces.batch_steps import BATCHES, Point, batch_steps, first_step
from bilevax.solvers.projected_ibcg import ProjectedIBCG, ProjectedIBCGState
from bilevax.solvers.protocol import Counts, Info, Observation, add_counts, no_counts
from bilevax.theory import Constants

_SHARE = 0.02  # the first step of x, over the one at which a linear f would fall to zero
_PATIENCE, _MOST = 6, 200
"""Steps in a row that gain nothing, and steps in all, after which all rows are used."""


class SampledIBCGState(eqx.Module):
    """The point, the step sizes, f where it has fallen last, the first x with its f; and the state on all rows."""

    point: Point
    k: Int[Array, ""]
    sampling: Bool[Array, ""]
    """Whether mini-batches are used."""
    xi: Scalar
    pace: Scalar
    f: tuple[Scalar, Scalar]  # with its standard error
    start: tuple[PyTree, Scalar]
    calm: Int[Array, ""]  # steps in a row that gained nothing
    direction: PyTree
    later: ProjectedIBCGState

    x = property(lambda self: self.point.x)
    y = property(lambda self: self.point.y)
    w = property(lambda self: self.point.w)


class SampledIBCG(eqx.Module):
    """Single-loop steps on mini-batches, then `ProjectedIBCG` on all rows.

    One step consists of 64 mini-batches, on each of which x, y and w move once: y and w by the inverse curvature of
    batches, x by xi. In the first step x stays, while y and w catch up; then xi is a fiftieth of f / |F|^2. It grows
    while f falls by more than its noise, and shrinks where f does not; a step after which f is higher is undone. After
    six steps in a row that gain nothing, `method` goes on with all rows. Directions of y and w that are much larger
    than usual are cut, so that rows far larger than the rest do no harm.

    The gap of a step on mini-batches is an estimate, too large on average, and never taken for convergence. Without a
    sampler, or with kernels on the host, this is `method`. `constants` serve the certificate only.

    >>> import bilevax as bx
    >>> solver = bx.SampledIBCG()
    """

    oracle: ClassVar[str] = "project"
    loops: ClassVar[int] = 2
    all_rows: ClassVar[bool] = True
    few_steps: ClassVar[bool] = True
    batches_per_step: ClassVar[int] = BATCHES
    method: ProjectedIBCG = ProjectedIBCG()
    constants: Constants | None = eqx.field(default=None, kw_only=True)

    def __check_init__(self) -> None:
        if not isinstance(self.method, ProjectedIBCG):
            raise TypeError(f"SampledIBCG: method must be a bx.ProjectedIBCG, got {self.method!r}.")

    def prepare(self, problem: BilevelProblem, x: PyTree, y: PyTree, key: Array) -> SampledIBCG:
        """There is nothing to estimate."""
        return self

    def init(self, problem: BilevelProblem, x: PyTree, y: PyTree) -> tuple[SampledIBCGState, Counts]:
        """The start as it is, with the adjoint at zero."""
        zero, none = jnp.zeros((), trees.dtype(x)), jnp.zeros((), jnp.int32)
        far, point = zero + jnp.inf, Point(x, y, trees.zeros_like(y), (zero, zero), zero)
        begin = functools.partial(self.method.init, replace(problem, sampler=None), x, y)
        sampling = problem.sampler is not None and not problem.host
        later, counts = (trees.zeros_like(jax.eval_shape(begin)[0]), no_counts()) if sampling else begin()
        state = SampledIBCGState(
            point, none, jnp.asarray(sampling), zero, zero + 1, (far, zero), (x, far), none, trees.zeros_like(x), later
        )
        return state if sampling else _at(state, later), counts

    def observe(self, problem: BilevelProblem, state: SampledIBCGState) -> Observation:
        """The direction that is known: a mean over mini-batches, or that of all rows."""
        return Observation(state.direction, state.y, state.w)

    def step(self, problem: BilevelProblem, state: SampledIBCGState, key: Array) -> tuple[SampledIBCGState, Info]:
        """64 mini-batches, or one step on all rows."""
        sampled, everything = problem.sampler is not None and not problem.host, replace(problem, sampler=None)

        def on_all_rows() -> tuple[SampledIBCGState, Info]:
            later, info = self.method.step(everything, state.later, key)
            counts = jax.tree.map(lambda calls: jnp.asarray(calls, jnp.int32), info.counts)
            return _at(replace(state, k=state.k + 1), later), replace(info, counts=counts)

        def on_batches() -> tuple[SampledIBCGState, Info]:
            following = _after_batches(problem, state, key)
            done = (following.calm >= _PATIENCE) | (state.k >= _MOST) | ~(following.xi > 0)
            following, spent = jax.lax.cond(done, lambda: change(following), lambda: (following, no_counts()))
            counts = Counts(*(jnp.full((), BATCHES * calls, jnp.int32) for calls in (2, 1, 1, 1, 0, 1)))
            return following, Info(state.x, following.direction, add_counts(counts, spent))

        def change(state: SampledIBCGState) -> tuple[SampledIBCGState, Counts]:
            (f, f_error), (first, f_first) = state.f, state.start
            x = trees.choose(f <= f_first + 2 * f_error, state.x, first)  # else mini-batches led nowhere
            later, counts = self.method.init(everything, x, state.y, state.w)
            return _at(replace(state, sampling=jnp.asarray(False)), later), counts

        return jax.lax.cond(state.sampling, on_batches, on_all_rows) if sampled else on_all_rows()


def _after_batches(problem: BilevelProblem, state: SampledIBCGState, key: Array) -> SampledIBCGState:
    """Where the mini-batches led, and the step sizes for the next ones."""
    moved = batch_steps(problem, state.point, state.xi, state.pace, state.k, key)
    (f, f_error), k, finite = state.f, state.k, jnp.isfinite(moved.f)
    noise = 2 * (moved.f_error + f_error)
    settling = k <= 1  # while y and w catch up, f tells nothing of x
    falls, rises = settling | (moved.f < f - noise), ~settling & ((moved.f > f + noise) | ~finite)
    calm = jnp.where(falls, 0, state.calm + 1)
    again = ~falls & (calm % 2 == 0)
    xi = state.xi * jnp.where(rises, 0.25, jnp.where(settling, 1, jnp.where(falls, 1.2, jnp.where(again, 0.5, 1))))
    xi = jax.lax.cond(k == 0, lambda: _SHARE * first_step(problem, moved.point), lambda: xi)
    pace = jnp.where(again | rises, state.pace / 1.4, state.pace)
    point = trees.choose(rises | ~finite, state.point, moved.point)
    f_now = trees.choose(falls & finite, (moved.f, moved.f_error), state.f)
    start, d = (state.start[0], jnp.where(k == 0, moved.f, state.start[1])), moved.direction
    return SampledIBCGState(point, k + 1, state.sampling, xi, pace, f_now, start, calm, d, state.later)


def _at(state: SampledIBCGState, later: ProjectedIBCGState) -> SampledIBCGState:
    """The point of the method on all rows."""
    point = state.point._replace(x=later.x, y=later.y, w=later.w)
    return replace(state, point=point, direction=later.lower.F, later=later)
