"""BlockIBCG, ours: IBCG's tracked direction with many atoms at a time, accelerated, on sets of low-rank matrices."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree, Scalar

from bilevax import control, trees
from bilevax.estimation import estimate_constants, for_steps
from bilevax.hypergradient import adjoint_step
from bilevax.problem import BilevelProblem
from bilevax.sets import Basis
from bilevax.solvers.defaults import check_counts
from bilevax.solvers.protocol import Counts, Info
from bilevax.theory import Constants

GIVE_UP = 40
"""Times a step is shortened by half before it is taken as it is."""


class Seen(eqx.Module):
    """y, the adjoint and the direction at one x."""

    y: PyTree
    w: PyTree
    F: PyTree
    residual: PyTree


class BlockIBCGState(eqx.Module):
    """x and the x before it, what was seen at x, the momentum, the curvature 1/step and the leading vectors."""

    x: PyTree
    previous: PyTree
    seen: Seen
    k: Int[Array, ""]
    momentum: float
    L: float
    bent: float
    """The curvature that the last step met."""
    basis: Basis

    y = property(lambda self: self.seen.y)
    w = property(lambda self: self.seen.w)


class BlockIBCG(eqx.Module):
    """Rank-r steps on the nuclear ball and the spectraplex.

    x moves to the projection of `x - F/L`, made of the leading singular vectors alone: their number grows until all
    others would be clipped to zero, so that the truncation is exact (looked for outside them every `verify` steps).
    Momentum restarts when it points uphill. L is found by a test on directions, and is small: it is the curvature per
    whole matrix, of which only a part may be observed. y and the adjoint are solved where the problem has formulas for
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
    verify: int = eqx.field(static=True, default=10, kw_only=True)
    constants: Constants = eqx.field(default=None, kw_only=True)

    def __check_init__(self) -> None:
        check_counts(self, max_rank=self.max_rank, inner=self.inner, verify=self.verify)

    def prepare(self, problem: BilevelProblem, x: PyTree, y: PyTree, key: Array) -> BlockIBCG:
        """Nothing where y and the adjoint are solved; otherwise what their steps need."""
        if _solved(problem):
            return self
        constants = estimate_constants(problem, x, y, key) if self.constants is None else self.constants
        inner = jnp.clip(jnp.ceil(for_steps(constants).kappa), 1, 20) if self.inner is None else self.inner
        return replace(self, constants=constants, inner=jnp.asarray(inner, jnp.int32))

    def init(self, problem: BilevelProblem, x: PyTree, y: PyTree) -> tuple[BlockIBCGState, Counts]:
        """The direction at the start, and the curvature of ell along it."""
        first = self.look(problem, x, y, trees.zeros_like(y))
        size = trees.norm(first.F)
        length = jnp.finfo(trees.dtype(x)).eps ** 0.33 * (1 + trees.norm(x)) / jnp.where(size > 0, size, 1)
        beside = self.look(problem, trees.axpy(-length, first.F, x), first.y, first.w)
        bent = float(trees.norm(trees.sub(beside.F, first.F)) / (length * jnp.where(size > 0, size, 1)))
        L = bent / 4 if bent > 0 else 1.0
        k, products = jnp.zeros((), jnp.int32), 0 if self.constants is None else self.constants.products
        counts = replace(self._cost(problem, 2), hvps=self._cost(problem, 2).hvps + products)
        return BlockIBCGState(x, x, first, k, 1.0, L, 0.0, problem.domain.low_rank_start(x)), counts

    def step(self, problem: BilevelProblem, state: BlockIBCGState, key: Array) -> tuple[BlockIBCGState, Info]:
        """A longer step than the last, shortened until the direction changes no faster than L allows."""
        x, domain, verify = state.x, problem.domain, int(state.k) % self.verify == 0
        L, basis = state.L * min(1.0, max(0.5, 1.05 * state.bent / state.L)), state.basis
        for tries in itertools.count(1):
            momentum = (1 + (1 + 4 * L / state.L * state.momentum**2) ** 0.5) / 2
            ahead = trees.move(x, state.previous, _number(-max(0.0, state.momentum - 1) / momentum, x))
            there = self.look(problem, ahead, state.seen.y, state.seen.w)
            shift = trees.scale(_number(-1 / L, x), there.F)
            x_next, squared, basis = domain.low_rank_step(ahead, shift, basis, max_rank=self.max_rank, verify=verify)
            seen = self.look(problem, x_next, there.y, there.w)
            bent = float(trees.gap(trees.sub(seen.F, there.F), x_next, ahead))
            rounding = 1e3 * float(jnp.finfo(trees.dtype(x)).eps * trees.inner(x, x))
            if bent <= L * squared or squared <= rounding or tries == GIVE_UP:
                break
            L = max(2 * L, bent / squared)
        uphill = float(trees.gap(there.F, x_next, x)) > 0
        following = BlockIBCGState(x_next, x, seen, state.k + 1, 1.0 if uphill else momentum, L, bent / squared if squared > rounding else L, basis)
        counts = replace(self._cost(problem, 2 * tries), projections=tries)
        return following, Info(x, state.seen.F, counts, residual=state.seen.residual)

    def look(self, problem: BilevelProblem, x: PyTree, y: PyTree, w: PyTree) -> Seen:
        """y, the adjoint and the direction at x, from those nearby."""
        if _solved(problem):
            return (_solve if problem.structure.host else _compiled_solve)(problem, trees.coordinates(x), y, w)
        return _track(problem, trees.coordinates(x), y, w, for_steps(self.constants).alpha, self.inner)

    def _cost(self, problem: BilevelProblem, looks: int) -> Counts:
        steps = 0 if _solved(problem) else int(self.inner)
        return Counts(upper_grads=2 * looks, lower_grads=steps * looks, hvps=steps * looks, crosses=looks)


def _number(value: float, like: PyTree) -> Scalar:
    return jnp.asarray(value, trees.dtype(like))


def _solved(problem: BilevelProblem) -> bool:
    return problem.structure.solve_lower is not None and problem.structure.solve_adjoint is not None


def _solve(problem: BilevelProblem, x: PyTree, y: PyTree, w: PyTree) -> Seen:
    y = problem.structure.solve_lower(x, y, problem.data)
    f_x, f_y = problem.upper_grads(x, y)
    w = problem.structure.solve_adjoint(x, y, f_y, problem.data)
    return Seen(y, w, trees.sub(f_x, problem.lower_cross(x, y, w)), trees.zeros_like(y))


_compiled_solve = jax.jit(_solve)


@jax.jit
def _track(problem: BilevelProblem, x: PyTree, y: PyTree, w: PyTree, alpha: Scalar, inner: Array) -> Seen:
    y = control.repeat(inner, lambda y: trees.axpy(-alpha, problem.lower_grad(x, y), y), y)
    f_x, f_y = problem.upper_grads(x, y)
    lower = problem.linearize_lower(x, y)
    w = control.repeat(inner, lambda w: adjoint_step(lower.hvp, f_y, w, alpha)[0], w)
    return Seen(y, w, trees.sub(f_x, lower.cross(w)), trees.sub(lower.hvp(w), f_y))
