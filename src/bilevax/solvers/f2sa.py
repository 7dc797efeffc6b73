"""F2SA: a bilevel method that takes gradients only, from two lower variables a penalty apart."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree

from bilevax import trees
from bilevax.linalg import host_loops
from bilevax.problem import BilevelProblem
from bilevax.schedules import Schedule, as_schedule
from bilevax.solvers.pieces.defaults import check_counts, check_steps
from bilevax.solvers.pieces.penalties import check_noise, penalised_steps, penalty_direction
from bilevax.solvers.pieces.x_step import XMemory, check_x_step, move_x, oracle_of_x_step, start_x
from bilevax.solvers.protocol import Counts, Info
from bilevax.theory import Constants

EXPONENTS = {"none": (1 / 3, 0.0), "upper": (3 / 5, 2 / 5), "both": (5 / 7, 4 / 7)}
"""(a, c) of x-steps k^-a and lower steps k^-c, by which level is noisy; the penalty then grows like k^(a-c)."""


class F2SAState(eqx.Module):
    """x, y near the minimum of f + lambda g, and z near that of g."""

    x: PyTree
    y: PyTree
    z: PyTree
    k: Int[Array, ""]
    memory: XMemory


class F2SA(eqx.Module):
    """Fully first-order stochastic approximation.

    z follows the minimiser of g(x, .), y that of f/lambda + g, by `lower` steps gamma_k each, on the same samples, so
    that their noise cancels in the direction f_x + lambda (g_x(x, y) - g_x(x, z)), whose bias is O(1/lambda).

    Steps of x, lower steps and lambda follow k^-a, k^-c and k^(a-c), with the authors' exponents for `noise` in "none",
    "upper" or "both" levels (by default "both" if the problem is sampled). They start from xi = 1/(4 L_ell), less where
    y and z lag, gamma = 1/(L_g + L_yy_f/lambda) and lambda = 10 L_yy_f / mu_g; these and the shared samples are ours.
    A number for `lam` keeps lambda fixed, and then a = c. `x_step="fw"` moves x by Frank-Wolfe with 2/(k+2).

    On mini-batches, a step of x that you do not give is found while running (DoG on bounded sets, decision 22).
    Tuned steps reach a tenth on a quadratic without bounds; these did not in 4,000 steps.
    One step costs `lower + 1` gradients of f, `2 lower + 2` of g and a projection, and no second derivatives.

    >>> import bilevax as bx
    >>> solver = bx.F2SA(0.1, lam=100.0, lower=5)

    Reference: Kwon, Kwon, Wright, Nowak, "A Fully First-Order Method for Stochastic Bilevel Optimization".
    """

    oracle = oracle_of_x_step
    loops: ClassVar[int] = 2
    xi: Schedule = eqx.field(converter=as_schedule, default=None)
    gamma: Schedule = eqx.field(converter=as_schedule, default=None, kw_only=True)
    lam: Schedule = eqx.field(converter=as_schedule, default=None, kw_only=True)
    lower: Int[Array, ""] | int = eqx.field(default=5, kw_only=True)
    noise: str | None = eqx.field(static=True, default=None, kw_only=True)
    x_step: str = eqx.field(static=True, default="project", kw_only=True)
    constants: Constants = eqx.field(default=None, kw_only=True)

    def __check_init__(self) -> None:
        check_x_step(self, self.xi)
        check_noise(self)
        check_counts(self, lower=self.lower)
        check_steps(self, lam=self.lam, gamma=self.gamma)

    def prepare(self, problem: BilevelProblem, x: PyTree, y: PyTree, key: Array) -> F2SA:
        """Estimate what was not given."""
        steps = penalised_steps(self, EXPONENTS, self.lower, problem, x, y, key)
        lower = jnp.asarray(self.lower, jnp.int32)
        return trees.cast(replace(self, lower=lower, **steps), trees.dtype(x))

    def init(self, problem: BilevelProblem, x: PyTree, y: PyTree) -> tuple[F2SAState, Counts]:
        """The start as it is, with z at y."""
        counts = Counts(hvps=self.constants.products)
        return F2SAState(x, y, y, jnp.zeros((), jnp.int32), start_x(problem, x, self.xi)), counts

    def step(self, problem: BilevelProblem, state: F2SAState, key: Array) -> tuple[F2SAState, Info]:
        """z and y side by side, then x."""
        x, k, dtype = state.x, state.k, trees.dtype(state.x)
        xi, gamma, lam = (step(k).astype(dtype) for step in (self.xi, self.gamma, self.lam))
        draw_y, draw_x = jax.random.split(key)

        def inner(carry: tuple[Array, PyTree, PyTree]) -> tuple[Array, PyTree, PyTree]:
            t, y, z = carry
            p = problem.sample(jax.random.fold_in(draw_y, t))
            z_next = trees.axpy(-gamma, p.lower_grad(x, z), z)
            # The step of size gamma/lambda on f + lambda g, divided through by lambda, stays stable as lambda grows.
            g_y = trees.axpy(1 / lam, p.upper_grads(x, y)[1], p.lower_grad(x, y))
            return t + 1, trees.axpy(-gamma, g_y, y), z_next

        start = (jnp.zeros((), jnp.int32), state.y, state.z)
        _, y, z = host_loops.repeat(self.lower, inner, start, host=problem.host)
        p = problem.sample(draw_x)
        f_x, g_x = penalty_direction(p, x, y, z)
        F = trees.axpy(lam, g_x, f_x)
        x_next, s, memory, calls = move_x(p, x, F, xi, state.memory, self.x_step)

        counts = Counts(upper_grads=self.lower + 1, lower_grads=2 * self.lower + 2, **calls)
        return F2SAState(x_next, y, z, k + 1, memory), Info(x, F, counts, s, memory.error)
