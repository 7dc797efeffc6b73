"""PBGD: gradient steps on f plus a penalty that says how far y is from optimal for the lower level."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree, Scalar

from bilevax import trees
from bilevax.estimation import for_steps
from bilevax.problem import BilevelProblem
from bilevax.schedules import Constant, Cut, OpenLoop, Schedule, as_schedule
from bilevax.solvers.pieces.defaults import batch_constants, check_counts, check_steps
from bilevax.solvers.pieces.lower_steps import lower_steps
from bilevax.solvers.pieces.penalties import first_penalty, penalty_smoothness, with_upper_curvature
from bilevax.solvers.pieces.x_step import XMemory, check_x_step, move_x, oracle_of_x_step, start_x
from bilevax.solvers.protocol import Counts, Info
from bilevax.theory import Constants
from bilevax.trees import as_leaf


def _number(value: Any) -> Any:
    return None if value is None else as_leaf(value)


class PBGDState(eqx.Module):
    """The point (x, y), and z, a second lower variable that follows y*(x); None with the gradient penalty."""

    x: PyTree
    y: PyTree
    z: PyTree
    k: Int[Array, ""]
    memory: XMemory


class PBGD(eqx.Module):
    """Penalty-based bilevel gradient descent: one joint step on f + sigma p.

    `penalty="value"` has p = g(x, y) - g(x, z), with z from `lower` gradient steps 1/L_g towards y*(x); "gradient" has
    p = |g_y|^2 / 2, needs no z, and is slower by another factor kappa. x and y end O(1/sigma) from the solution.

    sigma grows linearly from `start` to `sigma` over the first `ramp` steps; with `sigma` alone it is constant. By
    default it goes from 2 L_yy_f / mu_g to fifty times that, for "gradient" from 2 L_yy_f / mu_g^2 to ten times that.
    y takes steps 1/(L_yy_f + sigma L_g) (L_g^2 there), x takes xi start/sigma_k, where xi is half of what the curvature
    of f + start p in x allows; `x_step="fw"` moves it by Frank-Wolfe with 2/(k+2). The scales are ours, and meant for
    problems without sampling, since the noise of z is multiplied by sigma (see F2SA).

    One step costs two gradients of f, `lower + 2` of g and a projection; with "gradient" one of g, a Hessian and a
    cross product.

    >>> import bilevax as bx
    >>> solver = bx.PBGD(0.01, sigma=100.0, start=1.0, ramp=500)

    Reference: Shen, Chen, "On Penalty-based Bilevel Gradient Descent Method".
    """

    oracle = oracle_of_x_step
    loops: ClassVar[int] = 2
    xi: Schedule = eqx.field(converter=as_schedule, default=None)
    sigma: Scalar | float = eqx.field(converter=_number, default=None, kw_only=True)
    start: Scalar | float = eqx.field(converter=_number, default=None, kw_only=True)
    ramp: Int[Array, ""] | int = eqx.field(default=1000, kw_only=True)
    lower: Int[Array, ""] | int = eqx.field(default=1, kw_only=True)
    penalty: str = eqx.field(static=True, default="value", kw_only=True)
    x_step: str = eqx.field(static=True, default="project", kw_only=True)
    constants: Constants = eqx.field(default=None, kw_only=True)

    def __check_init__(self) -> None:
        check_x_step(self, self.xi)
        check_counts(self, lower=self.lower, ramp=self.ramp)
        check_steps(self, sigma=self.sigma, start=self.start)
        if self.penalty not in ("value", "gradient"):
            raise ValueError(f"PBGD: penalty must be 'value' or 'gradient', got {self.penalty!r}.")

    def prepare(self, problem: BilevelProblem, x: PyTree, y: PyTree, key: Array) -> PBGD:
        """Estimate what was not given."""
        constants = batch_constants(self.constants, problem, x, y, key)
        constants = with_upper_curvature(constants, problem, x, y, key)
        start, sigma = (self.sigma if self.start is None else self.start), self.sigma
        if start is None or sigma is None:
            order, growth = (1, 50) if self.penalty == "value" else (2, 10)
            base = first_penalty(constants, problem, x, y, order)
            start, sigma = (base if start is None else start), (growth * base if sigma is None else sigma)
        xi = OpenLoop() if self.xi is None and self.x_step == "fw" else self.xi
        if xi is None:
            curvature = penalty_smoothness(problem, x, y, key, start, self.penalty)
            length = 1 / (2 * curvature)
            xi = Constant(length) if problem.sampler is None else Cut(length, 0.5)
        lower, ramp = (jnp.asarray(count, jnp.int32) for count in (self.lower, self.ramp))
        made = replace(self, xi=xi, sigma=sigma, start=start, lower=lower, ramp=ramp, constants=constants)
        return trees.cast(made, trees.dtype(x))

    def init(self, problem: BilevelProblem, x: PyTree, y: PyTree) -> tuple[PBGDState, Counts]:
        """The start as it is, with z at y."""
        z, counts = (y if self.penalty == "value" else None), Counts(hvps=self.constants.products)
        return PBGDState(x, y, z, jnp.zeros((), jnp.int32), start_x(problem, x, self.xi)), counts

    def step(self, problem: BilevelProblem, state: PBGDState, key: Array) -> tuple[PBGDState, Info]:
        """z, then x and y at once."""
        x, y, z, k, dtype = state.x, state.y, state.z, state.k, trees.dtype(state.x)
        p, draw = problem.sample(key), None if problem.sampler is None else key
        grown = jnp.minimum(k.astype(dtype) / jnp.asarray(self.ramp, dtype), 1)
        sigma = self.start + grown * (self.sigma - self.start)
        L_g, L_f = for_steps(self.constants).L_g, self.constants.L_yy_f

        f_x, f_y = p.upper_grads(x, y)
        if self.penalty == "value":
            z = lower_steps(problem, x, z, jnp.asarray(1 / L_g), self.lower, draw)
            g_x, p_y = p.lower_grads(x, y)
            p_x, curvature = trees.sub(g_x, p.lower_grads(x, z)[0]), L_g
            spent = {"lower_grads": self.lower + 2}
        else:
            products, g_y = p.linearize_lower(x, y), p.lower_grad(x, y)
            p_x, p_y, curvature = products.cross(g_y), products.hvp(g_y), L_g**2
            spent = {"lower_grads": 1, "hvps": 1, "crosses": 1}
        F = trees.axpy(sigma, p_x, f_x)
        xi = self.xi(k).astype(dtype) * (1 if self.x_step == "fw" else self.start / jnp.maximum(sigma, self.start))
        x_next, s, memory, calls = move_x(p, x, F, xi, state.memory, self.x_step)
        y_next = trees.axpy(-1 / (L_f + sigma * curvature), trees.axpy(sigma, p_y, f_y), y)

        counts = Counts(upper_grads=2, **spent, **calls)
        return PBGDState(x_next, y_next, z, k + 1, memory), Info(x, F, counts, s, memory.error)
