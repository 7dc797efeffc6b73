"""RAHGD: accelerated hypergradient descent with restarts."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree, Scalar

from bilevax import trees
from bilevax.estimation import for_steps
from bilevax.linalg.conjugate_gradient import conjugate_gradient
from bilevax.problem import BilevelProblem
from bilevax.schedules import Schedule, as_schedule
from bilevax.solvers.pieces.defaults import batch_constants, check_counts, check_steps, outer_schedule
from bilevax.solvers.pieces.lower_steps import accelerated_lower_steps
from bilevax.solvers.protocol import Counts, Info, Observation
from bilevax.theory import Constants
from bilevax.trees import as_leaf


class RAHGDState(eqx.Module):
    """x, the point before it, the inner warm starts, and what the test for a restart needs."""

    x: PyTree
    y: PyTree
    w: PyTree
    before: PyTree
    since: Int[Array, ""]
    """Steps since the last restart."""
    travelled: Scalar
    """The sum of their squared lengths."""
    bound: Scalar
    """B before the first restart."""
    restarts: Int[Array, ""]
    k: Int[Array, ""]


class RAHGD(eqx.Module):
    """Restarted accelerated hypergradient descent.

    A step of momentum 1 - theta, accelerated gradient steps on y, conjugate gradients on w, a projected step xi. It
    restarts without momentum once t * (sum of squared moves since the last restart) exceeds B^2, where t counts the
    steps since then, or when the move goes uphill. Theory takes B and theta from a target accuracy and does without
    the second test; ours are B = `bound`, a hundred times the length of the first gradient step unless given, halved
    with every restart down to a thousandth, and theta = 3 / (t + 3). Inner loops take 2 sqrt(kappa) steps by default,
    at most 200: with fewer, momentum outruns y. xi is 1/(2 L_ell), estimated if not given; theirs is half of that.

    One step costs two gradients of f, `lower` of g, `adjoint + 1` Hessian products, a cross product and a projection.

    >>> import bilevax as bx
    >>> solver = bx.RAHGD(0.1, lower=5, adjoint=5)

    Reference: Yang, Luo, Li, Jordan, "Accelerating Inexact HyperGradient Descent for Bilevel Optimization".
    """

    oracle: ClassVar[str] = "project"
    loops: ClassVar[int] = 2
    xi: Schedule = eqx.field(converter=as_schedule, default=None)
    lower: Int[Array, ""] | int = eqx.field(default=None, kw_only=True)
    adjoint: Int[Array, ""] | int = eqx.field(default=None, kw_only=True)
    bound: Scalar | float = eqx.field(converter=lambda v: None if v is None else as_leaf(v), default=None, kw_only=True)
    constants: Constants = eqx.field(default=None, kw_only=True)

    def __check_init__(self) -> None:
        check_counts(self, lower=self.lower, adjoint=self.adjoint)
        check_steps(self, xi=self.xi, bound=self.bound)

    def prepare(self, problem: BilevelProblem, x: PyTree, y: PyTree, key: Array) -> RAHGD:
        """Estimate what was not given."""
        constants = batch_constants(self.constants, problem, x, y, key)
        xi = outer_schedule(self.xi, "project", problem, x, y, key)
        enough = jnp.ceil(jnp.clip(2 * jnp.sqrt(for_steps(constants).kappa), 1, 200))
        lower, adjoint = (jnp.asarray(enough if n is None else n, jnp.int32) for n in (self.lower, self.adjoint))
        prepared = replace(self, xi=xi, lower=lower, adjoint=adjoint, constants=constants)
        return trees.cast(prepared, trees.dtype(x))

    def init(self, problem: BilevelProblem, x: PyTree, y: PyTree) -> tuple[RAHGDState, Counts]:
        """No momentum yet."""
        zero, none = jnp.zeros((), jnp.int32), jnp.zeros((), trees.dtype(x))
        bound = none if self.bound is None else jnp.asarray(self.bound, none.dtype)
        state = RAHGDState(x, y, trees.zeros_like(y), x, zero, none, bound, zero, zero)
        return state, Counts(hvps=self.constants.products)

    def _direction(self, p: BilevelProblem, at: PyTree, state: RAHGDState) -> tuple[PyTree, PyTree, PyTree, Array]:
        """The direction at a point, the y and w it is made of, and the Hessian products."""
        y = accelerated_lower_steps(p, at, state.y, for_steps(self.constants), self.lower)
        f_x, f_y = p.upper_grads(at, y)
        products = p.linearize_lower(at, y)
        adjoint = conjugate_gradient(products.hvp, f_y, state.w, max_steps=self.adjoint, host=p.host)
        return trees.sub(f_x, products.cross(adjoint.w)), y, adjoint.w, adjoint.products

    def observe(self, problem: BilevelProblem, state: RAHGDState) -> Observation:
        """The direction at x itself; a step computes it ahead of x."""
        F, y, w, _ = self._direction(problem, state.x, state)
        return Observation(F, y, w)

    def step(self, problem: BilevelProblem, state: RAHGDState, key: Array) -> tuple[RAHGDState, Info]:
        """Momentum, inner solves at the point ahead, a projected step, and the test for a restart."""
        x, k, dtype, p = state.x, state.k, trees.dtype(state.x), problem.sample(key)
        t, xi = state.since.astype(dtype), self.xi(k).astype(dtype)
        ahead = trees.axpy(t / (t + 3), trees.sub(x, state.before), x)
        F, y, w, spent = self._direction(p, ahead, state)
        x_next = p.domain.project(trees.axpy(-xi, F, ahead))

        moved = trees.sub(x_next, x)
        travelled = state.travelled + trees.inner(moved, moved)
        bound = state.bound if self.bound is not None else jnp.where(k == 0, 100 * xi * trees.norm(F), state.bound)
        B = bound * jnp.maximum(jnp.asarray(0.5, dtype) ** state.restarts.astype(dtype), 1e-3)
        restart = ((t + 1) * travelled > B**2) | (trees.inner(F, moved) > 0)
        before = jax.tree.map(lambda new, old: jnp.where(restart, new, old), x_next, x)
        since, travelled = jnp.where(restart, 0, state.since + 1), jnp.where(restart, 0, travelled)
        restarts = state.restarts + restart.astype(jnp.int32)
        following = RAHGDState(x_next, y, w, before, since, travelled, bound, restarts, k + 1)
        counts = Counts(upper_grads=2, lower_grads=self.lower, hvps=spent, crosses=1, projections=1)
        return following, Info(x, F, counts)
