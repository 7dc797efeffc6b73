"""TTSA, the paper's projected rival: one lower step and one projected step on a truncated hypergradient."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree, Scalar

from bilevax import trees
from bilevax.estimation import for_steps
from bilevax.hypergradient import neumann, neumann_budget, random_neumann, sampled_hvp
from bilevax.problem import BilevelProblem
from bilevax.schedules import Constant, Power, Schedule, as_schedule
from bilevax.solvers.pieces.defaults import batch_constants, outer_schedule
from bilevax.solvers.pieces.x_step import XMemory, move_x, start_x
from bilevax.solvers.protocol import Counts, Info
from bilevax.theory import Constants, ttsa_steps
from bilevax.trees import as_leaf, is_concrete


class TTSAState(eqx.Module):
    """The point."""

    x: PyTree
    y: PyTree
    k: Int[Array, ""]
    memory: XMemory


class TTSA(eqx.Module):
    """Two-timescale stochastic approximation with projection (appendix C.1 of the IBCG paper).

    By default the Neumann product is randomly truncated below kappa log(k+1) / c_h, and steps decay like (k+1)^(-3/5)
    for x and (k+1)^(-2/5) for y, from 1/(2 L_ell) and 2/(mu_g + L_g), estimated if not given. `deterministic=True`
    sums the series and keeps both steps constant, the one of x until ell turns out to curve more: the right thing
    without sampling noise. `fresh=False` takes the direction at the old y, as the IBCG paper prints it; `as_printed`
    has its steps too.

    On mini-batches, a step of x that you do not give is found while running (DoG on bounded sets, decision 22).
    To a tenth it takes 1.5 times the steps of tuned ones on a quadratic without bounds.
    One step costs two gradients of f, one of g, about kappa log(k) / 2 Hessian products (twice that if deterministic),
    a cross product and a projection.

    >>> import bilevax as bx
    >>> solver = bx.TTSA(0.1, constants=bx.Constants(mu_g=1.0, L_g=2.0), deterministic=True)

    Reference: Hong, Wai, Wang, Yang, "A Two-Timescale Stochastic Algorithm Framework for Bilevel Optimization".
    """

    oracle: ClassVar[str] = "project"
    loops: ClassVar[int] = 1
    alpha: Schedule = eqx.field(converter=as_schedule, default=None)
    beta: Schedule = eqx.field(converter=as_schedule, default=None)
    c_h: Scalar | float = eqx.field(converter=as_leaf, default=1.0, kw_only=True)
    fresh: bool = eqx.field(static=True, default=True, kw_only=True)
    deterministic: bool = eqx.field(static=True, default=False, kw_only=True)
    constants: Constants = eqx.field(default=None, kw_only=True)

    def __check_init__(self) -> None:
        if is_concrete(self.c_h) and not 0 < float(self.c_h) <= 1:
            raise ValueError(f"TTSA: c_h must lie in (0, 1], got {float(self.c_h):g}.")

    @classmethod
    def as_printed(
        cls, constants: Constants, steps: int, *, alpha: float = 1.0, beta: float = 1.0, c_h: float = 1.0
    ) -> TTSA:
        """Constant steps for a horizon of `steps`, direction at the old y; the factors are those of tuned runs."""
        printed = ttsa_steps(constants, steps)
        x_step, y_step = Constant(alpha * printed.alpha), Constant(beta * printed.beta)
        return cls(x_step, y_step, c_h=c_h, fresh=False, constants=constants)

    def prepare(self, problem: BilevelProblem, x: PyTree, y: PyTree, key: Array) -> TTSA:
        """Estimate mu_g, L_g and L_ell where they are needed and were not given."""
        constants = batch_constants(self.constants, problem, x, y, key)
        alpha = outer_schedule(self.alpha, "project", problem, x, y, key, 0.0 if self.deterministic else 0.6)
        beta = self.beta
        if beta is None:
            length = for_steps(constants).alpha
            beta = Constant(length) if self.deterministic else Power(length, 0.4)
        return replace(self, alpha=alpha, beta=beta, constants=constants)

    def init(self, problem: BilevelProblem, x: PyTree, y: PyTree) -> tuple[TTSAState, Counts]:
        """The start as it is."""
        memory = start_x(problem, x, self.alpha)
        return TTSAState(x, y, jnp.zeros((), jnp.int32), memory), Counts(hvps=self.constants.products)

    def step(self, problem: BilevelProblem, state: TTSAState, key: Array) -> tuple[TTSAState, Info]:
        """A lower step, then a projected one."""
        x, y, k, dtype = state.x, state.y, state.k, trees.dtype(state.x)
        alpha, beta = (step(k).astype(dtype) for step in (self.alpha, self.beta))
        draw_y, draw_x, truncation = jax.random.split(key, 3)
        y_next = trees.axpy(-beta, problem.sample(draw_y).lower_grad(x, y), y)

        at = y_next if self.fresh else y
        p = problem.sample(draw_x)
        f_x, f_y = p.upper_grads(x, at)
        lower = p.linearize_lower(x, at)
        safe = for_steps(self.constants)
        budget, L_g = neumann_budget(safe.kappa / self.c_h, k), safe.L_g
        if self.deterministic:
            v, products = neumann(lower.hvp, f_y, self.c_h / L_g, budget, host=problem.host), budget
        else:
            hvp = sampled_hvp(problem, lower, x, at)
            v, products = random_neumann(hvp, f_y, truncation, budget=budget, L_g=L_g, c=self.c_h, host=problem.host)
        F = trees.sub(f_x, lower.cross(v))
        x_next, _, memory, calls = move_x(p, x, F, alpha, state.memory, "project")

        counts = Counts(upper_grads=2, lower_grads=1, hvps=products, crosses=1, **calls)
        return TTSAState(trees.cast(x_next, dtype), y_next, k + 1, memory), Info(x, F, counts)
