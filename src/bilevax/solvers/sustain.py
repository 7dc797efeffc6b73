"""SUSTAIN: recursive momentum on the directions of y and of x, the latter with a truncated Neumann product."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree

from bilevax import trees
from bilevax.estimation import for_steps
from bilevax.hypergradient import neumann, neumann_budget, random_neumann, sampled_hvp
from bilevax.problem import BilevelProblem
from bilevax.schedules import Schedule, as_schedule
from bilevax.solvers.pieces.defaults import check_steps, decaying, single_loop
from bilevax.solvers.pieces.directions import storm, weight
from bilevax.solvers.pieces.x_step import XMemory, check_x_step, move_x, oracle_of_x_step, start_x
from bilevax.solvers.protocol import Counts, Info
from bilevax.theory import Constants


class SUSTAINState(eqx.Module):
    """The point (x, y), the previous one and the averaged directions of both."""

    x: PyTree
    y: PyTree
    previous: tuple[PyTree, PyTree]
    d_x: PyTree
    d_y: PyTree
    k: Int[Array, ""]
    memory: XMemory


class SUSTAIN(eqx.Module):
    """Single-timescale double-momentum stochastic approximation.

    Both directions are averaged by d = D(z) + (1 - theta) (d - D(z_previous)), the two terms on one sample; for x,
    D = f_x - J [estimate of H^-1 f_y] with a Neumann product of random length below kappa log k, or without a sampler
    the whole sum. On sampled problems xi and beta decay like (k+1)^(-1/3), theta like (k+1)^(-2/3). They start from
    beta = 1.8/(mu_g + L_g), with the L_g of mini-batches, xi = beta mu_g / (2 L_ell), at most 1/(4 L_ell), and 1; the
    scales are ours. `x_step="fw"` moves x by Frank-Wolfe with 2/(k+2).

    On mini-batches, a step of x that you do not give is found while running (DoG on bounded sets, decision 22).
    Tuned steps reach a tenth on a quadratic without bounds; these did not in 1,000 steps. On ijcnn1 in a box both do.
    Steps of y and w then decay only after the time in which both settle.
    One step costs four gradients of f, two of g, about kappa log k Hessian products (twice that without a sampler), two
    cross products and a projection.

    >>> import bilevax as bx
    >>> solver = bx.SUSTAIN(0.01, 0.1, theta=0.2)

    Reference: Khanduri, Zeng, Hong, Wai, Wang, Yang, "A Near-Optimal Algorithm for Stochastic Bilevel Optimization via
    Double-Momentum".
    """

    oracle = oracle_of_x_step
    loops: ClassVar[int] = 1
    xi: Schedule = eqx.field(converter=as_schedule, default=None)
    beta: Schedule = eqx.field(converter=as_schedule, default=None)
    theta: Schedule = eqx.field(converter=as_schedule, default=None, kw_only=True)
    x_step: str = eqx.field(static=True, default="project", kw_only=True)
    constants: Constants = eqx.field(default=None, kw_only=True)

    def __check_init__(self) -> None:
        check_x_step(self, self.xi)
        check_steps(self, beta=self.beta)
        check_steps(self, 1.0, theta=self.theta)

    def prepare(self, problem: BilevelProblem, x: PyTree, y: PyTree, key: Array) -> SUSTAIN:
        """Estimate what was not given."""
        constants, xi, beta = single_loop(self, self.beta, problem, x, y, key, decay=1 / 3, share=0.9)
        theta = decaying(problem, 1.0, 2 / 3) if self.theta is None else self.theta
        return trees.cast(replace(self, xi=xi, beta=beta, theta=theta, constants=constants), trees.dtype(x))

    def init(self, problem: BilevelProblem, x: PyTree, y: PyTree) -> tuple[SUSTAINState, Counts]:
        """The start as it is; both averages are filled by the first step."""
        zeros, k = (trees.zeros_like(x), trees.zeros_like(y)), jnp.zeros((), jnp.int32)
        counts = Counts(hvps=self.constants.products)
        return SUSTAINState(x, y, (x, y), *zeros, k, start_x(problem, x, self.xi)), counts

    def step(self, problem: BilevelProblem, state: SUSTAINState, key: Array) -> tuple[SUSTAINState, Info]:
        """Both directions at two points on one sample, their averages, two steps."""
        x, y, k, dtype = state.x, state.y, state.k, trees.dtype(state.x)
        xi, beta = (step(k).astype(dtype) for step in (self.xi, self.beta))
        theta = weight(self.theta, k, x)
        *draws, truncation = jax.random.split(key, 3)
        f, g = (problem.sample(draw) for draw in draws)  # apart, or J and f_y would be correlated and D biased

        d_y = storm(g.lower_grad(x, y), g.lower_grad(*state.previous), state.d_y, theta)
        new, products = self._estimate(problem, f, g, (x, y), k, truncation)
        old, again = self._estimate(problem, f, g, state.previous, k, truncation)
        d_x = storm(new, old, state.d_x, theta)
        y_next = trees.axpy(-beta, d_y, y)
        x_next, s, memory, calls = move_x(problem, x, d_x, xi, state.memory, self.x_step, new)

        counts = Counts(upper_grads=4, lower_grads=2, hvps=products + again, crosses=2, **calls)
        return SUSTAINState(x_next, y_next, (x, y), d_x, d_y, k + 1, memory), Info(x, d_x, counts, s, memory.error)

    def _estimate(
        self,
        problem: BilevelProblem,
        f: BilevelProblem,
        g: BilevelProblem,
        at: tuple[PyTree, PyTree],
        k: Int[Array, ""],
        key: Array,
    ) -> tuple[PyTree, Int[Array, ""]]:
        """f_x - J [estimate of H^-1 f_y], with f and g each on its sample, and the Hessian products it took."""
        f_x, f_y = f.upper_grads(*at)
        lower, safe = g.linearize_lower(*at), for_steps(self.constants)
        budget = neumann_budget(safe.kappa, k)
        if problem.sampler is None:  # then truncating at random would only add noise
            v, products = neumann(lower.hvp, f_y, 1 / safe.L_g, budget, host=problem.host), budget
        else:
            hvp = sampled_hvp(problem, lower, *at)
            v, products = random_neumann(hvp, f_y, key, budget=budget, L_g=safe.L_g, host=problem.host)
        return trees.sub(f_x, lower.cross(v)), products
