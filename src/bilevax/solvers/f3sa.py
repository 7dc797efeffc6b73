"""F3SA: F2SA in a single loop, with every gradient averaged as in STORM."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree

from bilevax import trees
from bilevax.problem import BilevelProblem
from bilevax.schedules import Power, Schedule, as_schedule
from bilevax.solvers.pieces.defaults import check_steps
from bilevax.solvers.pieces.directions import storm, weight
from bilevax.solvers.pieces.penalties import check_noise, noisy, penalised_steps, penalty_direction
from bilevax.solvers.pieces.x_step import XMemory, check_x_step, move_x, oracle_of_x_step, start_x
from bilevax.solvers.protocol import Counts, Info
from bilevax.theory import Constants

EXPONENTS = {"none": (1 / 3, 0.0), "upper": (1 / 2, 1 / 4), "both": (3 / 5, 2 / 5)}
"""(a, c) of x-steps k^-a and lower steps k^-c, by which level is noisy; the penalty then grows like k^(a-c)."""


class F3SAState(eqx.Module):
    """The present and the previous (x, y, z), and the averages: g_y at z, f_y, g_y at y; f_x, the difference of g_x."""

    x: PyTree
    y: PyTree
    z: PyTree
    previous: tuple[PyTree, PyTree, PyTree]
    inner: tuple[PyTree, PyTree, PyTree]
    outer: tuple[PyTree, PyTree]
    k: Int[Array, ""]
    memory: XMemory


class F3SA(eqx.Module):
    """Fully first-order stochastic approximation with momentum: one lower step, all gradients by STORM.

    As F2SA with `lower=1`, except that each gradient is averaged with weight theta_k = k^(-2c) of the new one, from one
    sample at the present and the previous point, and the noise exponents (a, c) are those that this allows. Scales are
    ours, and so is drawing two samples a step, one for y and z and one for x.

    On mini-batches, a step of x that you do not give is found while running (DoG on bounded sets, decision 22).
    To a tenth it takes 55 times the steps of tuned ones on a quadratic without bounds.
    One step costs four gradients of f, eight of g, half of them at the previous point, and a projection.

    >>> import bilevax as bx
    >>> solver = bx.F3SA(0.1, lam=100.0)

    Reference: Kwon, Kwon, Wright, Nowak, "A Fully First-Order Method for Stochastic Bilevel Optimization".
    """

    oracle = oracle_of_x_step
    loops: ClassVar[int] = 1
    xi: Schedule = eqx.field(converter=as_schedule, default=None)
    gamma: Schedule = eqx.field(converter=as_schedule, default=None, kw_only=True)
    lam: Schedule = eqx.field(converter=as_schedule, default=None, kw_only=True)
    theta: Schedule = eqx.field(converter=as_schedule, default=None, kw_only=True)
    noise: str | None = eqx.field(static=True, default=None, kw_only=True)
    x_step: str = eqx.field(static=True, default="project", kw_only=True)
    constants: Constants = eqx.field(default=None, kw_only=True)

    def __check_init__(self) -> None:
        check_x_step(self, self.xi)
        check_noise(self)
        check_steps(self, lam=self.lam, gamma=self.gamma)
        check_steps(self, 1.0, theta=self.theta)

    def prepare(self, problem: BilevelProblem, x: PyTree, y: PyTree, key: Array) -> F3SA:
        """Estimate what was not given."""
        steps = penalised_steps(self, EXPONENTS, 1, problem, x, y, key)
        _, c = EXPONENTS[noisy(self.noise, problem)]
        theta = Power(1.0, 2 * c) if self.theta is None else self.theta
        return trees.cast(replace(self, theta=theta, **steps), trees.dtype(x))

    def init(self, problem: BilevelProblem, x: PyTree, y: PyTree) -> tuple[F3SAState, Counts]:
        """The start as it is, with z at y; the first step takes the averages from itself alone."""
        averages = (trees.zeros_like((y, y, y)), trees.zeros_like((x, x)))
        counts = Counts(hvps=self.constants.products)
        return F3SAState(x, y, y, (x, y, y), *averages, jnp.zeros((), jnp.int32), start_x(problem, x, self.xi)), counts

    def step(self, problem: BilevelProblem, state: F3SAState, key: Array) -> tuple[F3SAState, Info]:
        """z and y, then x, each along averaged gradients."""
        x, y, z, k, dtype = state.x, state.y, state.z, state.k, trees.dtype(state.x)
        xi, gamma, lam = (step(k).astype(dtype) for step in (self.xi, self.gamma, self.lam))
        theta = weight(self.theta, k, x)
        draw_y, draw_x = jax.random.split(key)

        p = problem.sample(draw_y)
        lower = lambda x, y, z: (p.lower_grad(x, z), p.upper_grads(x, y)[1], p.lower_grad(x, y))  # noqa: E731
        inner = storm(lower(x, y, z), lower(*state.previous), state.inner, theta)
        z_next = trees.axpy(-gamma, inner[0], z)
        y_next = trees.axpy(-gamma, trees.axpy(1 / lam, inner[1], inner[2]), y)

        p = problem.sample(draw_x)
        old = penalty_direction(p, state.previous[0], y, z)  # the previous x met the present y and z
        outer = storm(penalty_direction(p, x, y_next, z_next), old, state.outer, theta)
        F = trees.axpy(lam, outer[1], outer[0])
        x_next, s, memory, calls = move_x(p, x, F, xi, state.memory, self.x_step)

        counts = Counts(upper_grads=4, lower_grads=8, **calls)
        following = F3SAState(x_next, y_next, z_next, (x, y, z), inner, outer, k + 1, memory)
        return following, Info(x, F, counts, s, memory.error)
