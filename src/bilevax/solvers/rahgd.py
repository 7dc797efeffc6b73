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
from bilevax.linalg.host_loops import either
from bilevax.problem import BilevelProblem
from bilevax.schedules import Schedule, as_schedule
from bilevax.solvers.pieces.defaults import batch_constants, check_counts, check_steps, outer_schedule
from bilevax.solvers.pieces.epoch import Epoch, continued, first_epoch
from bilevax.solvers.pieces.lower_steps import accelerated_lower_steps
from bilevax.solvers.pieces.x_step import Watch, start_watch
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
    """Steps since the last restart; `travelled` is the sum of their squared lengths."""
    travelled: Scalar
    bound: Scalar
    """B before the first restart."""
    restarts: Int[Array, ""]
    k: Int[Array, ""]
    epoch: Epoch | None
    watch: Watch | None


class RAHGD(eqx.Module):
    """Restarted accelerated hypergradient descent.

    A step of momentum 1 - theta, accelerated gradient steps on y, conjugate gradients on w, a projected step xi. It
    restarts without momentum once t * (sum of squared moves since the last restart) exceeds B^2, where t counts the
    steps since then, or when the move goes uphill. By default B is a hundred times the length of the first gradient
    step, halved with every restart down to a thousandth, theta is 3 / (t + 3), xi is 1/(2 L_ell), and inner loops take
    2 sqrt(kappa) steps, at most 200: with fewer, momentum outruns y.

    `epoch=K` is the published form: theta = 1/K, B = `bound` throughout, no test on the direction. An epoch that
    reaches K steps ends: x becomes the average of its points ahead up to the shortest move of its second half. Theirs
    stops there; here the next epoch begins, and the rules of `solve` decide. A sampler is ignored.

    One step costs two gradients of f, `lower` of g, `adjoint + 1` Hessian products, a cross product and a projection.

    >>> import bilevax as bx
    >>> solver = bx.RAHGD(0.1, lower=5, adjoint=5)

    Reference: Yang, Luo, Li, Jordan, "Accelerating Inexact HyperGradient Descent for Bilevel Optimization".
    """

    oracle: ClassVar[str] = "project"
    loops: ClassVar[int] = 2
    all_rows: ClassVar[bool] = True
    xi: Schedule = eqx.field(converter=as_schedule, default=None)
    lower: Int[Array, ""] | int = eqx.field(default=None, kw_only=True)
    adjoint: Int[Array, ""] | int = eqx.field(default=None, kw_only=True)
    bound: Scalar | float = eqx.field(converter=lambda v: None if v is None else as_leaf(v), default=None, kw_only=True)
    epoch: Int[Array, ""] | int | None = eqx.field(default=None, kw_only=True)
    constants: Constants = eqx.field(default=None, kw_only=True)

    def __check_init__(self) -> None:
        check_counts(self, lower=self.lower, adjoint=self.adjoint, epoch=self.epoch)
        check_steps(self, xi=self.xi, bound=self.bound)

    def prepare(self, problem: BilevelProblem, x: PyTree, y: PyTree, key: Array) -> RAHGD:
        """Estimate what was not given."""
        problem = replace(problem, sampler=None)
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
        epoch = None if self.epoch is None else first_epoch(x)
        watch = start_watch(x, self.xi)
        state = RAHGDState(x, y, trees.zeros_like(y), x, zero, none, bound, zero, zero, epoch, watch)
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
        return Observation(*self._direction(problem, state.x, state)[:3])

    def step(self, problem: BilevelProblem, state: RAHGDState, key: Array) -> tuple[RAHGDState, Info]:
        """Momentum, inner solves at the point ahead, a projected step, and the test for a restart."""
        x, k, dtype = state.x, state.k, trees.dtype(state.x)
        t, xi = state.since.astype(dtype), self.xi(k).astype(dtype)
        momentum = t / (t + 3) if self.epoch is None else 1 - 1 / jnp.asarray(self.epoch, dtype)
        ahead = trees.axpy(momentum, trees.sub(x, state.before), x)
        F, y, w, spent = self._direction(problem, ahead, state)
        watch = None if state.watch is None else state.watch.look(ahead, F)
        xi = xi if watch is None else watch.length
        x_next = problem.domain.project(trees.axpy(-xi, F, ahead))
        moved = trees.sub(x_next, x)
        travelled = state.travelled + trees.inner(moved, moved)
        bound = state.bound if self.bound is not None else jnp.where(k == 0, 100 * xi * trees.norm(F), state.bound)
        if self.epoch is None or state.epoch is None:
            B = bound * jnp.maximum(jnp.asarray(0.5, dtype) ** state.restarts.astype(dtype), 1e-3)
            restart = ((t + 1) * travelled > B**2) | (trees.inner(F, moved) > 0)
            epoch, ended = None, jnp.asarray(False)
        else:
            restart = (t + 1) * travelled > bound**2
            epoch = continued(state.epoch, ahead, moved, state.since, self.epoch)
            ended = (state.since + 1 >= self.epoch) & ~restart
            x_next = either(ended, lambda: problem.domain.project(epoch.output), lambda: x_next, host=problem.host)
        restart = restart | ended
        before = jax.tree.map(lambda new, old: jnp.where(restart, new, old), x_next, x)
        since, travelled = jnp.where(restart, 0, state.since + 1), jnp.where(restart, 0, travelled)
        restarts = state.restarts + restart.astype(jnp.int32)
        following = RAHGDState(x_next, y, w, before, since, travelled, bound, restarts, k + 1, epoch, watch)
        projections = 1 + ended.astype(jnp.int32)
        return following, Info(x, F, Counts(2, self.lower, spent, 1, projections=projections))
