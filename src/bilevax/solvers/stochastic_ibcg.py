"""StochasticIBCG: IBCG on mini-batches, with recursive momentum on all three directions."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree

from bilevax import trees
from bilevax.estimation import for_steps
from bilevax.problem import BilevelProblem
from bilevax.schedules import OpenLoop, Power, Schedule, as_schedule
from bilevax.sets import Memory
from bilevax.solvers.pieces.defaults import batch_constants, check_steps, decaying
from bilevax.solvers.pieces.directions import Directions, directions, into_ball, storm, weight
from bilevax.solvers.protocol import Counts, Info
from bilevax.theory import Constants


class StochasticIBCGState(eqx.Module):
    """The point z = (x, y, w), the previous one and the averaged directions d."""

    x: PyTree
    y: PyTree
    w: PyTree
    previous: tuple[PyTree, PyTree, PyTree]
    d: Directions
    k: Int[Array, ""]
    memory: Memory


class StochasticIBCG(eqx.Module):
    """Single-loop stochastic Frank-Wolfe with a tracked adjoint.

    The directions of y, w and x are averaged by d = D(z) + (1 - theta) (d - D(z_previous)), both terms on one sample;
    y and w take gradient steps alpha and eta along theirs, x a Frank-Wolfe step gamma. On sampled problems gamma is
    2/(k+8), theta (k+1)^(-2/3), and alpha and eta are 2/(mu_g + L_g), with the L_g of mini-batches, times 0.9
    (k+1)^(-1/3); without a sampler gamma is 2/(k+2), alpha and eta are constant and theta changes nothing. All
    constants are ours. w is clipped to a norm of C_y_f / mu_g if `constants` say what C_y_f is.

    One step costs four gradients of f, two of g, two Hessian and two cross products, and an lmo.

    >>> import bilevax as bx
    >>> solver = bx.StochasticIBCG(0.01, theta=0.1)

    Reference: Hou, Zeng, Cui, Jiang, Sun, "Stochastic Frank-Wolfe Algorithm for Constrained Bilevel Optimization With
    Improved Per-Iteration Complexity", of which this is our reading.
    """

    oracle: ClassVar[str] = "lmo"
    gamma: Schedule = eqx.field(converter=as_schedule, default=None)
    alpha: Schedule = eqx.field(converter=as_schedule, default=None, kw_only=True)
    eta: Schedule = eqx.field(converter=as_schedule, default=None, kw_only=True)
    theta: Schedule = eqx.field(converter=as_schedule, default=None, kw_only=True)
    constants: Constants = eqx.field(default=None, kw_only=True)
    loops: ClassVar[int] = 1
    estimates: ClassVar[tuple[str, str]] = ("before", "before")
    averages: ClassVar[bool] = True

    def __check_init__(self) -> None:
        check_steps(self, alpha=self.alpha, eta=self.eta)
        check_steps(self, 1.0, gamma=self.gamma, theta=self.theta)

    def prepare(self, problem: BilevelProblem, x: PyTree, y: PyTree, key: Array) -> StochasticIBCG:
        """Estimate what was not given."""
        constants = batch_constants(self.constants, problem, x, y, key)
        inner = decaying(problem, 0.9 * for_steps(constants).alpha, 1 / 3)
        outer = OpenLoop() if problem.sampler is None else Power(2.0, 1.0, 8.0)
        steps = {"gamma": outer, "alpha": inner, "eta": inner, "theta": decaying(problem, 1.0, 2 / 3)}
        missing = {name: step for name, step in steps.items() if getattr(self, name) is None}
        return trees.cast(replace(self, constants=constants, **missing), trees.dtype(x))

    def init(self, problem: BilevelProblem, x: PyTree, y: PyTree) -> tuple[StochasticIBCGState, Counts]:
        """The start as it is, with the adjoint at zero; d is filled by the first step."""
        w = trees.zeros_like(y)
        d, k = Directions(w, w, trees.zeros_like(x)), jnp.zeros((), jnp.int32)
        counts = Counts(hvps=self.constants.products)
        return StochasticIBCGState(x, y, w, (x, y, w), d, k, problem.domain.start(x)), counts

    def step(self, problem: BilevelProblem, state: StochasticIBCGState, key: Array) -> tuple[StochasticIBCGState, Info]:
        """Directions at two points on one sample, their averages, three steps."""
        x, y, w, k, dtype = state.x, state.y, state.w, state.k, trees.dtype(state.x)
        gamma, alpha, eta = (step(k).astype(dtype) for step in (self.gamma, self.alpha, self.eta))
        p = problem.sample(key)
        new, old = directions(p, x, y, w), directions(p, *state.previous)
        d = storm(new, old, state.d, weight(self.theta, k, x))
        y_next = trees.axpy(-alpha, d.y, y)
        w_next = into_ball(trees.axpy(-eta, d.w, w), self.constants.C_y_f / self.constants.mu_g)
        s, memory = problem.domain.lmo(d.x, state.memory)
        x_next = trees.move(x, s, jnp.clip(gamma, 0, 1))  # beyond 1 the next x would leave the set

        counts = Counts(upper_grads=4, lower_grads=2, hvps=2, crosses=2, lmos=1)
        following = StochasticIBCGState(x_next, y_next, w_next, (x, y, w), d, k + 1, memory)
        return following, Info(x, d.x, counts, s, memory.error)
