"""IBCG, the paper's method: track y*(x) and the adjoint by one gradient step each, move x by Frank-Wolfe."""

from __future__ import annotations

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PyTree

from bilevax import trees
from bilevax.estimation import for_steps
from bilevax.hypergradient import adjoint_step
from bilevax.linalg import host_loops
from bilevax.problem import BilevelProblem
from bilevax.schedules import Constant, OpenLoop, Schedule, as_schedule
from bilevax.sets import Memory
from bilevax.solvers.pieces.defaults import batch_constants
from bilevax.solvers.protocol import Counts, Info
from bilevax.theory import Constants
from bilevax.trees import is_concrete


class IBCGState(eqx.Module):
    """x, y, the adjoint estimate w, and the set's memory."""

    x: PyTree
    y: PyTree
    w: PyTree
    k: Int[Array, ""]
    memory: Memory


class IBCG(eqx.Module):
    """Inexact bilevel conditional gradient, Algorithm 1.

    By default `gamma = 2/(k+2)`; any schedule is clipped to [0, 1]. `alpha` and `eta` follow from mu_g and L_g, which
    are estimated if `constants` are not given; w starts at zero, and both inner problems are warmed up at x_0.
    `IBCG.as_printed` is the paper's recipe.

    One step costs both gradients of f, one of g, one Hessian product, one cross product and one lmo.

    >>> import jax.numpy as jnp, bilevax as bx
    >>> solver = bx.IBCG(gamma=0.1, constants=bx.Constants(mu_g=1.0, L_g=2.0), warmup=0)

    Reference: Abolfazli, Jiang, Mokhtari, Yazdandoost Hamedani, "An Inexact Conditional Gradient Method for
    Constrained Bilevel Optimization".
    """

    oracle: ClassVar[str] = "lmo"
    loops: ClassVar[int] = 1
    estimates: ClassVar[tuple[str, str]] = ("before", "after")
    gamma: Schedule = eqx.field(converter=as_schedule, default=OpenLoop())
    alpha: Schedule = eqx.field(converter=as_schedule, default=None, kw_only=True)
    eta: Schedule = eqx.field(converter=as_schedule, default=None, kw_only=True)
    constants: Constants = eqx.field(default=None, kw_only=True)
    w0: str = eqx.field(static=True, default="zero", kw_only=True)
    warmup: Int[Array, ""] | int = eqx.field(default=None, kw_only=True)

    def __check_init__(self) -> None:
        if self.w0 not in ("zero", "y0"):
            raise ValueError(f"IBCG: w0 must be 'zero' or 'y0' (as printed), got {self.w0!r}.")
        if isinstance(self.gamma, Constant) and is_concrete(self.gamma) and not 0 <= float(self.gamma.value) <= 1:
            raise ValueError(f"IBCG: gamma must lie between 0 and 1 to keep x in the set, got {self.gamma!r}.")
        whole = self.warmup is None or isinstance(self.warmup, (int, np.integer, jax.Array))
        if not whole or (isinstance(self.warmup, (int, np.integer)) and self.warmup < 0):
            raise ValueError(f"IBCG: warmup must be a whole number of inner steps >= 0, got {self.warmup!r}.")

    @classmethod
    def as_printed(cls, gamma: float | Schedule, constants: Constants) -> IBCG:
        """The paper's experiments: alpha = 2/(mu_g+L_g), eta = 0.9 (1-beta)/mu_g, w_0 = y_0, no warm-up."""
        alpha, eta = as_schedule(constants.alpha), as_schedule(0.9 * constants.eta_limit)
        return cls(as_schedule(gamma), alpha=alpha, eta=eta, w0="y0", warmup=0, constants=constants)

    def prepare(self, problem: BilevelProblem, x: PyTree, y: PyTree, key: Array) -> IBCG:
        """Fill in the step sizes that were not given, from the constants given or estimated at the start."""
        constants, warmup = self.constants, self.warmup
        if constants is None and (self.alpha is None or self.eta is None or warmup is None):
            constants = batch_constants(None, problem, x, y, key)
        alpha, eta = self.alpha, self.eta
        if alpha is None or eta is None or warmup is None:
            safe = for_steps(constants)
            alpha = as_schedule(safe.alpha if alpha is None else alpha)
            eta = as_schedule(0.9 * safe.alpha if eta is None else eta)  # alpha is also the bound of eta
            warmup = jnp.clip(jnp.ceil(safe.kappa), 0, 50) if warmup is None else warmup
        return IBCG(
            self.gamma, alpha=alpha, eta=eta, constants=constants, w0=self.w0, warmup=jnp.asarray(warmup, jnp.int32)
        )

    def init(self, problem: BilevelProblem, x: PyTree, y: PyTree) -> tuple[IBCGState, Counts]:
        """w_0, then `warmup` steps of lines 8 and 4 at x_0, so that the first direction is not noise."""
        w = y if self.w0 == "y0" else trees.zeros_like(y)
        k = jnp.zeros((), jnp.int32)
        alpha, eta = (step(k).astype(trees.dtype(x)) for step in (self.alpha, self.eta))

        def inner(carry: tuple[PyTree, PyTree]) -> tuple[PyTree, PyTree]:
            y, w = carry
            y = trees.axpy(-alpha, problem.lower_grad(x, y), y)
            _, f_y = problem.upper_grads(x, y)
            return y, adjoint_step(problem.linearize_lower(x, y).hvp, f_y, w, eta)

        y, w = host_loops.repeat(self.warmup, inner, (y, w), host=problem.host)
        n, estimating = self.warmup, 0 if self.constants is None else self.constants.products
        counts = Counts(upper_grads=2 * n, lower_grads=n, hvps=n + estimating)
        return IBCGState(x, y, w, k, problem.domain.start(x)), counts

    def step(self, problem: BilevelProblem, state: IBCGState, key: Array) -> tuple[IBCGState, Info]:
        """Lines 4 to 8 of Algorithm 1."""
        x, y, w, k = state.x, state.y, state.w, state.k
        gamma, eta, alpha = (step(k).astype(trees.dtype(x)) for step in (self.gamma, self.eta, self.alpha))
        gamma = jnp.clip(gamma, 0, 1)  # beyond 1 the next x would leave the set
        p = problem.sample(key)

        f_x, f_y = p.upper_grads(x, y)
        lower = p.linearize_lower(x, y)
        w = adjoint_step(lower.hvp, f_y, w, eta)  # line 4
        F = trees.sub(f_x, lower.cross(w))  # line 5: new w, old (x, y)
        s, memory = p.domain.lmo(F, state.memory)  # line 6
        x_next = trees.move(x, s, gamma)  # line 7
        y_next = trees.axpy(-alpha, p.lower_grad(x_next, y), y)  # line 8: new x, old y

        counts = Counts(upper_grads=2, lower_grads=1, hvps=1, crosses=1, lmos=1)
        info = Info(x, F, counts, s, memory.error)
        return IBCGState(x_next, y_next, w, k + 1, memory), info
