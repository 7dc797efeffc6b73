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
from bilevax.hypergradient import conjugate_gradient
from bilevax.problem import BilevelProblem
from bilevax.schedules import Schedule, as_schedule
from bilevax.sets.contract import number
from bilevax.solvers.protocol import Counts, Info
from bilevax.solvers.shared import accelerated_lower_steps, check_counts, constants_for, outer_schedule
from bilevax.theory import Constants


class RAHGDState(eqx.Module):
    """x, the point before it, the inner warm starts, steps since the restart and how far they led."""

    x: PyTree
    y: PyTree
    w: PyTree
    before: PyTree
    since: Int[Array, ""]
    travelled: Scalar
    bound: Scalar
    k: Int[Array, ""]


class RAHGD(eqx.Module):
    """Restarted accelerated hypergradient descent.

    A step of momentum 1 - theta, accelerated gradient steps on y, conjugate gradients on w, a projected step xi. It
    restarts without momentum once t * (sum of squared moves since the last restart) exceeds B^2, where t counts the
    steps since then, or when the direction points against the move. Theory takes B and theta from a target accuracy;
    ours start at `bound` (a tenth of |x_0|, at least 0.1) and halve with every restart down to a thousandth, and the
    momentum is t / (t + 3). Inner loops take sqrt(kappa) steps by default, at most 50.

    One step costs two gradients of f, `lower` of g, `adjoint + 1` Hessian products, a cross product and a projection.

    >>> import bilevax as bx
    >>> solver = bx.RAHGD(0.1, lower=5, adjoint=5)

    Reference: Yang, Luo, Li, Jordan, "Accelerating Inexact HyperGradient Descent for Bilevel Optimization".
    """

    uses: ClassVar[str] = "project"
    loops: ClassVar[int] = 2
    xi: Schedule = eqx.field(converter=as_schedule, default=None)
    lower: Int[Array, ""] | int = eqx.field(default=None, kw_only=True)
    adjoint: Int[Array, ""] | int = eqx.field(default=None, kw_only=True)
    bound: Scalar | float = eqx.field(converter=lambda v: None if v is None else number(v), default=None, kw_only=True)
    constants: Constants = eqx.field(default=None, kw_only=True)

    def __check_init__(self) -> None:
        check_counts(self, lower=self.lower, adjoint=self.adjoint)

    def prepare(self, problem: BilevelProblem, x: PyTree, y: PyTree, key: Array) -> RAHGD:
        """Estimate what was not given."""
        constants = constants_for(self.constants, problem, x, y, key)
        xi = outer_schedule(self.xi, "project", problem, x, y, key)
        root = jnp.ceil(jnp.clip(jnp.sqrt(for_steps(constants).kappa), 1, 50))
        counts = {n: jnp.asarray(root if v is None else v, jnp.int32) for n, v in self._counts().items()}
        bound = jnp.maximum(0.1 * trees.norm(x), 0.1) if self.bound is None else self.bound
        return trees.cast(replace(self, xi=xi, bound=bound, constants=constants, **counts), trees.dtype(x))

    def _counts(self) -> dict[str, Int[Array, ""] | int]:
        return {"lower": self.lower, "adjoint": self.adjoint}

    def init(self, problem: BilevelProblem, x: PyTree, y: PyTree) -> tuple[RAHGDState, Counts]:
        """No momentum yet."""
        zero, none = jnp.zeros((), jnp.int32), jnp.zeros((), trees.dtype(x))
        state = RAHGDState(x, y, trees.zeros_like(y), x, zero, none, jnp.asarray(self.bound, none.dtype), zero)
        return state, Counts(hvps=self.constants.products)

    def step(self, problem: BilevelProblem, state: RAHGDState, key: Array) -> tuple[RAHGDState, Info]:
        """Momentum, inner solves at the point ahead, a projected step, and the test for a restart."""
        x, k, dtype, p = state.x, state.k, trees.dtype(state.x), problem.sample(key)
        t = state.since.astype(dtype)
        ahead = trees.axpy(t / (t + 3), trees.sub(x, state.before), x)
        y = accelerated_lower_steps(p, ahead, state.y, for_steps(self.constants), self.lower)
        f_x, f_y = p.upper_grads(ahead, y)
        products = p.linearize_lower(ahead, y)
        w, _, spent = conjugate_gradient(products.hvp, f_y, state.w, max_steps=self.adjoint, host=p.host)
        F = trees.sub(f_x, products.cross(w))
        x_next = p.domain.project(trees.axpy(-self.xi(k).astype(dtype), F, ahead))

        moved = trees.sub(x_next, x)
        travelled = state.travelled + trees.inner(moved, moved)
        restart = ((t + 1) * travelled > state.bound**2) | (trees.inner(F, moved) > 0)
        bound = jnp.where(restart, jnp.maximum(state.bound / 2, self.bound / 1000), state.bound)
        before = jax.tree.map(lambda new, old: jnp.where(restart, new, old), x_next, x)
        following = RAHGDState(
            x_next, y, w, before, jnp.where(restart, 0, state.since + 1), jnp.where(restart, 0, travelled), bound, k + 1
        )
        counts = Counts(upper_grads=2, lower_grads=self.lower, hvps=spent, crosses=1, projections=1)
        return following, Info(x, F, counts)
