"""AID-BiO: warm-started gradient steps on y, conjugate gradients for the adjoint, one step of x."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree

from bilevax import trees
from bilevax.estimation import for_steps
from bilevax.linalg.conjugate_gradient import conjugate_gradient
from bilevax.problem import BilevelProblem
from bilevax.schedules import Schedule, as_schedule
from bilevax.solvers.pieces.defaults import batch_constants, check_counts, outer_schedule
from bilevax.solvers.pieces.lower_steps import lower_steps
from bilevax.solvers.pieces.x_step import XMemory, check_x_step, move_x, oracle_of_x_step, start_x
from bilevax.solvers.protocol import Counts, Info
from bilevax.theory import Constants


class AIDBiOState(eqx.Module):
    """x, y and the adjoint, both warm starts."""

    x: PyTree
    y: PyTree
    w: PyTree
    k: Int[Array, ""]
    memory: XMemory


class AIDBiO(eqx.Module):
    """Bilevel optimization by approximate implicit differentiation.

    `lower` gradient steps on y and `adjoint` conjugate-gradient steps on w at each step, kappa and its root by default
    (at most 50). Lower steps are 2/(mu_g + L_g), steps of x 1/(2 L_ell), estimated if not given; theirs is of that
    order. `x_step="fw"` moves x by Frank-Wolfe with 2/(k+2) instead.

    The method is one for all rows and ignores a sampler; `AmIGO` is its form on mini-batches.

    One step costs two gradients of f, `lower` of g, `adjoint + 1` Hessian products, a cross product and a projection.

    >>> import bilevax as bx
    >>> solver = bx.AIDBiO(0.1, lower=5, adjoint=3)

    Reference: Ji, Yang, Liang, "Bilevel Optimization: Convergence Analysis and Enhanced Design".
    """

    oracle = oracle_of_x_step
    loops: ClassVar[int] = 2
    all_rows: ClassVar[bool] = True
    estimates: ClassVar[tuple[str, str]] = ("after", "after")
    xi: Schedule = eqx.field(converter=as_schedule, default=None)
    lower: Int[Array, ""] | int = eqx.field(default=None, kw_only=True)
    adjoint: Int[Array, ""] | int = eqx.field(default=None, kw_only=True)
    x_step: str = eqx.field(static=True, default="project", kw_only=True)
    constants: Constants = eqx.field(default=None, kw_only=True)

    def __check_init__(self) -> None:
        check_x_step(self, self.xi)
        check_counts(self, lower=self.lower, adjoint=self.adjoint)

    def prepare(self, problem: BilevelProblem, x: PyTree, y: PyTree, key: Array) -> AIDBiO:
        """Estimate what was not given."""
        problem = replace(problem, sampler=None)
        constants = batch_constants(self.constants, problem, x, y, key)
        xi = outer_schedule(self.xi, self.x_step, problem, x, y, key)
        kappa = jnp.clip(for_steps(constants).kappa, 1, 50**2)
        lower = jnp.asarray(jnp.ceil(jnp.minimum(kappa, 50)) if self.lower is None else self.lower, jnp.int32)
        adjoint = jnp.asarray(jnp.ceil(jnp.sqrt(kappa)) if self.adjoint is None else self.adjoint, jnp.int32)
        return trees.cast(replace(self, xi=xi, lower=lower, adjoint=adjoint, constants=constants), trees.dtype(x))

    def init(self, problem: BilevelProblem, x: PyTree, y: PyTree) -> tuple[AIDBiOState, Counts]:
        """The start as it is, with the adjoint at zero."""
        counts = Counts(hvps=self.constants.products)
        return AIDBiOState(x, y, trees.zeros_like(y), jnp.zeros((), jnp.int32), start_x(problem, x, self.xi)), counts

    def step(self, problem: BilevelProblem, state: AIDBiOState, key: Array) -> tuple[AIDBiOState, Info]:
        """Lower steps, conjugate gradients, x."""
        x, k = state.x, state.k
        y = lower_steps(problem, x, state.y, for_steps(self.constants).alpha, self.lower)
        f_x, f_y = problem.upper_grads(x, y)
        products = problem.linearize_lower(x, y)
        adjoint = conjugate_gradient(products.hvp, f_y, state.w, max_steps=self.adjoint, host=problem.host)
        w, spent = adjoint.w, adjoint.products
        F = trees.sub(f_x, products.cross(w))
        x_next, s, memory, calls = move_x(problem, x, F, self.xi(k), state.memory, self.x_step)

        counts = Counts(upper_grads=2, lower_grads=self.lower, hvps=spent, crosses=1, **calls)
        return AIDBiOState(x_next, y, w, k + 1, memory), Info(x, F, counts, s, memory.error)
