"""ITD-BiO: differentiate f through the lower gradient steps themselves."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree, Scalar

from bilevax import trees
from bilevax.estimation import for_steps
from bilevax.problem import BilevelProblem
from bilevax.schedules import Schedule, as_schedule
from bilevax.solvers.pieces.defaults import batch_constants, check_counts, outer_schedule
from bilevax.solvers.pieces.x_step import XMemory, check_x_step, move_x, oracle_of_x_step, start_x
from bilevax.solvers.protocol import Counts, Info
from bilevax.theory import Constants


class ITDBiOState(eqx.Module):
    """x and the y that the next unrolled steps start from."""

    x: PyTree
    y: PyTree
    k: Int[Array, ""]
    memory: XMemory


class ITDBiO(eqx.Module):
    """Bilevel optimization by iterative differentiation.

    f(x, y_D(x)) is differentiated through D = `lower` gradient steps from the last y, which itself counts as constant.
    The share ((kappa-1)/(kappa+1))^D of the derivative of y*(x) is thereby lost: 50 steps, our default, leave less
    than 1e-4 for kappa = 10, and an ill-conditioned lower level needs about 5 kappa. D is fixed when the method is
    built, since the steps are unrolled backwards and memory grows with it. Lower steps are 2/(mu_g + L_g), steps of
    x 1/(2 L_ell), estimated if not given; `x_step="fw"` moves x by Frank-Wolfe with 2/(k+2) instead.

    The method is one for all rows and ignores a sampler; `StocBiO` is its form on mini-batches.

    One step costs two gradients of f, D of g, D Hessian products, D cross products and a projection. It reads the
    lower level by autodiff only and ignores formulas in `structure`.

    >>> import bilevax as bx
    >>> solver = bx.ITDBiO(0.1, lower=20)

    Reference: Ji, Yang, Liang, "Bilevel Optimization: Convergence Analysis and Enhanced Design".
    """

    oracle = oracle_of_x_step
    loops: ClassVar[int] = 2
    all_rows: ClassVar[bool] = True
    xi: Schedule = eqx.field(converter=as_schedule, default=None)
    lower: int = eqx.field(static=True, default=50, kw_only=True)
    differentiates_steps: ClassVar[bool] = True
    x_step: str = eqx.field(static=True, default="project", kw_only=True)
    constants: Constants = eqx.field(default=None, kw_only=True)

    def __check_init__(self) -> None:
        check_x_step(self, self.xi)
        check_counts(self, lower=self.lower)

    def prepare(self, problem: BilevelProblem, x: PyTree, y: PyTree, key: Array) -> ITDBiO:
        """Estimate what was not given."""
        problem = replace(problem, sampler=None)
        constants = batch_constants(self.constants, problem, x, y, key)
        xi = outer_schedule(self.xi, self.x_step, problem, x, y, key)
        return trees.cast(replace(self, xi=xi, constants=constants), trees.dtype(x))

    def init(self, problem: BilevelProblem, x: PyTree, y: PyTree) -> tuple[ITDBiOState, Counts]:
        """The start as it is."""
        counts = Counts(hvps=self.constants.products)
        return ITDBiOState(x, y, jnp.zeros((), jnp.int32), start_x(problem, x, self.xi)), counts

    def step(self, problem: BilevelProblem, state: ITDBiOState, key: Array) -> tuple[ITDBiOState, Info]:
        """One gradient of the unrolled objective."""
        x, k = state.x, state.k
        alpha = jnp.asarray(for_steps(self.constants).alpha, trees.dtype(x))

        def unrolled(x: PyTree) -> tuple[Scalar, PyTree]:
            inner = lambda y, _: (trees.axpy(-alpha, problem.lower_grad(x, y), y), None)  # noqa: E731
            y, _ = jax.lax.scan(inner, state.y, None, length=self.lower)
            return problem.upper_value(x, y), y

        (_, y), F = jax.value_and_grad(unrolled, has_aux=True)(x)
        x_next, s, memory, calls = move_x(problem, x, F, self.xi(k), state.memory, self.x_step)

        counts = Counts(upper_grads=2, lower_grads=self.lower, hvps=self.lower, crosses=self.lower, **calls)
        return ITDBiOState(x_next, y, k + 1, memory), Info(x, F, counts, s, memory.error)
