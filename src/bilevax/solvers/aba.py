"""ABA: the accelerated form of BA, with three sequences of x."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree

from bilevax import trees
from bilevax.estimation import for_steps
from bilevax.hypergradient import adjoint_solution
from bilevax.problem import BilevelProblem
from bilevax.schedules import Schedule, as_schedule
from bilevax.solvers.ba import lower_count
from bilevax.solvers.pieces.defaults import batch_constants, check_counts, check_steps, outer_schedule
from bilevax.solvers.pieces.lower_steps import lower_steps
from bilevax.solvers.pieces.x_step import Watch, start_watch
from bilevax.solvers.protocol import Counts, Info, Observation
from bilevax.theory import Constants


class ABAState(eqx.Module):
    """The averaged point is the answer; `lead` is the one the gradient steps accumulate in."""

    x: PyTree
    y: PyTree
    w: PyTree
    lead: PyTree
    k: Int[Array, ""]
    watch: Watch | None


class ABA(eqx.Module):
    """Accelerated bilevel approximation, three sequences as in Ghadimi and Lan's method.

    `beta` is the step 1/(2 L_ell), estimated if not given; the leading sequence takes k beta / 2 if `convex` and beta
    otherwise. Acceleration amplifies errors of the direction, and diverges if y lags: t_k lower steps per step, with
    t_k = (k+1)^2 / 2 rounded up but at most `most`, keep them small. By default `most` is kappa, between 50 and 5000.
    That rule is ours, theirs is (k+1)^(1/2) / 2 from a cold start.

    The method is one for all rows and ignores a sampler.

    One step costs two gradients of f, t_k of g, an adjoint solve, one cross product and two projections.

    >>> import bilevax as bx
    >>> solver = bx.ABA(0.1, constants=bx.Constants(mu_g=1.0, L_g=2.0))

    Reference: Ghadimi, Wang, "Approximation Methods for Bilevel Programming".
    """

    oracle: ClassVar[str] = "project"
    loops: ClassVar[int] = 2
    all_rows: ClassVar[bool] = True
    beta: Schedule = eqx.field(converter=as_schedule, default=None)
    convex: bool = eqx.field(static=True, default=True, kw_only=True)
    most: Int[Array, ""] | int = eqx.field(default=None, kw_only=True)
    constants: Constants = eqx.field(default=None, kw_only=True)

    def __check_init__(self) -> None:
        check_steps(self, beta=self.beta)
        check_counts(self, most=self.most)

    def prepare(self, problem: BilevelProblem, x: PyTree, y: PyTree, key: Array) -> ABA:
        """Estimate what was not given."""
        problem = replace(problem, sampler=None)
        constants = batch_constants(self.constants, problem, x, y, key)
        beta = outer_schedule(self.beta, "project", problem, x, y, key)
        most = jnp.ceil(jnp.clip(for_steps(constants).kappa, 50, 5000)) if self.most is None else self.most
        prepared = replace(self, beta=beta, most=jnp.asarray(most, jnp.int32), constants=constants)
        return trees.cast(prepared, trees.dtype(x))

    def init(self, problem: BilevelProblem, x: PyTree, y: PyTree) -> tuple[ABAState, Counts]:
        """All sequences at the start."""
        counts = Counts(hvps=self.constants.products)
        return ABAState(x, y, trees.zeros_like(y), x, jnp.zeros((), jnp.int32), start_watch(x, self.beta)), counts

    def _direction(self, p: BilevelProblem, at: PyTree, state: ABAState) -> tuple[PyTree, PyTree, PyTree, Any, Any]:
        """The direction at a point, the y and w it is made of, the lower steps and the Hessian products."""
        t = lower_count(state.k, 2.0, self.most)
        y = lower_steps(p, at, state.y, for_steps(self.constants).alpha, t)
        f_x, f_y = p.upper_grads(at, y)
        adjoint = adjoint_solution(p, at, y, f_y, state.w)
        return trees.sub(f_x, p.lower_cross(at, y, adjoint.w)), y, adjoint.w, t, adjoint.products

    def observe(self, problem: BilevelProblem, state: ABAState) -> Observation:
        """The direction at x itself; a step computes it at the middle point."""
        F, y, w, *_ = self._direction(problem, state.x, state)
        return Observation(F, y, w)

    def step(self, problem: BilevelProblem, state: ABAState, key: Array) -> tuple[ABAState, Info]:
        """The middle point, lower steps and adjoint there, then both projections."""
        k, dtype = state.k, trees.dtype(state.x)
        count, beta = k.astype(dtype) + 1, self.beta(k).astype(dtype)  # theirs begins at 1
        middle = trees.move(state.x, state.lead, 2 / (count + 1))

        F, y, w, t, products = self._direction(problem, middle, state)
        watch = None if state.watch is None else state.watch.look(middle, F)
        beta = beta if watch is None else watch.length
        lead_step = count * beta / 2 if self.convex else beta
        lead = problem.domain.project(trees.axpy(-lead_step, F, state.lead))
        x = problem.domain.project(trees.axpy(-beta, F, middle))
        counts = Counts(upper_grads=2, lower_grads=t, hvps=products, crosses=1, projections=2)
        return ABAState(x, y, w, lead, k + 1, watch), Info(state.x, F, counts)
