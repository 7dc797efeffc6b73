"""SBFW, the paper's projection-free rival: Frank-Wolfe on a variance-reduced, randomly truncated hypergradient."""

from __future__ import annotations

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree

from bilevax import trees
from bilevax.estimation import for_steps
from bilevax.hypergradient import adjoint_solution, adjoint_step, neumann_budget, random_neumann, sampled_hvp
from bilevax.problem import BilevelProblem
from bilevax.schedules import Power, Schedule, as_schedule, check_fraction
from bilevax.sets import Memory
from bilevax.solvers.pieces.defaults import batch_constants, decaying
from bilevax.solvers.protocol import Counts, Info
from bilevax.theory import Constants

ESTIMATORS = ("corrected", "printed", "exact", "tracked")


class SBFWState(eqx.Module):
    """The present and the previous (x, y), the averaged direction d, adjoints where the estimator keeps them."""

    x: PyTree
    y: PyTree
    previous: tuple[PyTree, PyTree, PyTree]
    d: PyTree
    w: PyTree
    k: Int[Array, ""]
    memory: Memory


class SBFW(eqx.Module):
    """Stochastic bilevel Frank-Wolfe (appendix C.1 of the IBCG paper).

    `estimator` of H^-1 f_y: "corrected", a Neumann product of random length below kappa log k; "printed", of length 1
    to k, which lacks the identity term and whose variance grows with k; "exact", the Hessian inverse; "tracked", one
    gradient step as in IBCG. The averages are STORM's, with one sample, truncation index included, at both points.

    By default steps are 2/(k+1), averaging weights 2/k^(2/3) and lower steps 2/(mu_g + L_g), under sampling over
    k^(2/3), all ours; `as_printed` has those of the paper.

    One step costs four gradients of f, one of g, two estimates, two cross products and an lmo.

    >>> import bilevax as bx
    >>> solver = bx.SBFW("exact", constants=bx.Constants(mu_g=1.0, L_g=2.0))

    Reference: Akhtar, Bedi, Thomdapu, Rajawat, "Projection-Free Algorithm for Stochastic Bi-level Optimization".
    """

    oracle: ClassVar[str] = "lmo"
    loops: ClassVar[int] = 1
    estimates: ClassVar[tuple[str, str]] = ("before", "after")
    averages: ClassVar[bool] = True
    estimator: str = eqx.field(static=True, default="corrected")
    rho: Schedule = eqx.field(converter=as_schedule, default=Power(2.0, 2 / 3), kw_only=True)
    eta: Schedule = eqx.field(converter=as_schedule, default=Power(2.0, 1.0, 2.0), kw_only=True)
    delta: Schedule = eqx.field(converter=as_schedule, default=None, kw_only=True)
    constants: Constants = eqx.field(default=None, kw_only=True)

    def __check_init__(self) -> None:
        if self.estimator not in ESTIMATORS:
            raise ValueError(f"SBFW: estimator must be one of {', '.join(ESTIMATORS)}, got {self.estimator!r}.")
        check_fraction("SBFW", "eta", self.eta)

    @classmethod
    def as_printed(
        cls, constants: Constants, estimator: str = "printed", *, rho: float = 1.0, eta: float = 1.0, delta: float = 1.0
    ) -> SBFW:
        """The printed schedules 2/k^(1/2), 2/(k+1)^(3/4), a_0/k^(1/2); the numbers are the factors of tuned runs."""
        a_0 = jnp.minimum(2 / (3 * constants.mu_g), constants.mu_g / (2 * constants.L_g**2))
        steps = {"rho": Power(2.0 * rho, 0.5), "eta": Power(2.0 * eta, 0.75, 2.0), "delta": Power(delta * a_0, 0.5)}
        return cls(estimator, **steps, constants=constants)

    def prepare(self, problem: BilevelProblem, x: PyTree, y: PyTree, key: Array) -> SBFW:
        """Estimate the constants that were not given, and take from them the lower step."""
        constants = batch_constants(self.constants, problem, x, y, key)
        # Under sampling these decay like rho, or the noise they leave in y and w would pile up in d.
        delta = decaying(problem, for_steps(constants).alpha, 2 / 3) if self.delta is None else self.delta
        # not `replace`, which would warn of the same eta again
        return eqx.tree_at(lambda s: (s.constants, s.delta), self, (constants, delta), is_leaf=lambda v: v is None)

    def init(self, problem: BilevelProblem, x: PyTree, y: PyTree) -> tuple[SBFWState, Counts]:
        """x_1 = x_0 and y_1; there is no d_0, and d_1 = h(x_1, y_1)."""
        k = jnp.zeros((), jnp.int32)
        w = trees.zeros_like(y) if self.estimator in ("exact", "tracked") else None
        first = trees.axpy(-self.delta(k).astype(trees.dtype(x)), problem.lower_grad(x, y), y)
        counts = Counts(lower_grads=1, hvps=self.constants.products)
        return SBFWState(x, first, (x, y, w), trees.zeros_like(x), w, k, problem.domain.start(x)), counts

    def step(self, problem: BilevelProblem, state: SBFWState, key: Array) -> tuple[SBFWState, Info]:
        """The four lines of the appendix, for k counted from 1; the last is the first line of the next step."""
        x, y, k, dtype = state.x, state.y, state.k, trees.dtype(state.x)
        rho, eta, delta = (step(i).astype(dtype) for step, i in ((self.rho, k), (self.eta, k), (self.delta, k + 1)))
        eta = jnp.clip(eta, 0, 1)  # beyond 1 the next x would leave the set
        rho = jnp.where(k == 0, 1, jnp.clip(rho, 0, 1))
        draw_h, draw_y, truncation = jax.random.split(key, 3)
        p = problem.sample(draw_h)

        h_before, *_, spent = self._estimate(p, problem, state.previous, k, truncation)
        h, w, products = self._estimate(p, problem, (x, y, state.w), k, truncation)
        d = trees.axpy(1 - rho, trees.sub(state.d, h_before), h)
        s, memory = p.domain.lmo(d, state.memory)
        x_next = trees.move(x, s, eta)
        y_next = trees.axpy(-delta, problem.sample(draw_y).lower_grad(x, y), y)

        counts = Counts(upper_grads=4, lower_grads=1, hvps=products + spent, crosses=2, lmos=1)
        previous = (x, y, state.w)
        return SBFWState(x_next, y_next, previous, d, w, k + 1, memory), Info(x, d, counts, s, memory.error)

    def _estimate(self, p: BilevelProblem, problem: BilevelProblem, at: Any, k: Array, key: Array) -> tuple[Any, ...]:
        """h(x, y) = f_x - J [estimate of H^-1 f_y], the adjoint to keep, and the Hessian products."""
        x, y, w = at
        f_x, f_y = p.upper_grads(x, y)
        lower, safe = p.linearize_lower(x, y), for_steps(self.constants)
        if self.estimator == "exact":
            adjoint = adjoint_solution(p, x, y, f_y, w)
            w, products = adjoint.w, adjoint.products
            return trees.sub(f_x, lower.cross(w)), w, products
        if self.estimator == "tracked":
            w = adjoint_step(lower.hvp, f_y, w, decaying(problem, 0.9 * safe.alpha, 2 / 3)(k))
            return trees.sub(f_x, lower.cross(w)), w, 1
        first, budget = (1, k + 1) if self.estimator == "printed" else (0, neumann_budget(safe.kappa, k))
        hvp = sampled_hvp(problem, lower, x, y)
        v, products = random_neumann(hvp, f_y, key, budget=budget, L_g=safe.L_g, first=first, host=problem.host)
        return trees.sub(f_x, lower.cross(v)), None, products
