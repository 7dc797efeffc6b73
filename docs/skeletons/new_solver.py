"""Skeleton of a solver: copy it to src/bilevax/solvers/, rename it, and write its pseudo-code into `step`.

The example takes one gradient step for each of y, w and x. CONTRIBUTING.md lists what else a new solver needs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree

from bilevax import trees
from bilevax.hypergradient import adjoint_step
from bilevax.problem import BilevelProblem
from bilevax.schedules import Schedule, as_schedule
from bilevax.solvers.pieces.defaults import check_steps, single_loop
from bilevax.solvers.protocol import Counts, Info
from bilevax.theory import Constants


class PlainState(eqx.Module):
    """What the next step needs, and nothing else."""

    x: PyTree
    y: PyTree
    w: PyTree
    k: Int[Array, ""]


class Plain(eqx.Module):
    """One sentence on the idea. One on the default steps. One on what a step costs.

    >>> solver = Plain(xi=0.01)

    Reference: authors, title.
    """

    oracle: ClassVar[str] = "project"  # what x moves by: "lmo", "project" or "low rank"
    loops: ClassVar[int] = 1  # 2 if y or w have a loop of their own
    estimates: ClassVar[tuple[str, str]] = ("before", "after")  # F is made of the old y and the new w: for gap_bound
    x_step: ClassVar[str] = "project"
    xi: Schedule = eqx.field(converter=as_schedule, default=None)
    rho: Schedule = eqx.field(converter=as_schedule, default=None)
    constants: Constants = eqx.field(default=None, kw_only=True)

    def __check_init__(self) -> None:
        check_steps(self, xi=self.xi, rho=self.rho)

    def prepare(self, problem: BilevelProblem, x: PyTree, y: PyTree, key: Array) -> Plain:
        """Estimate what was not given: every solver can be built without arguments."""
        constants, xi, rho = single_loop(self, self.rho, problem, x, y, key, decay=0.5, share=0.9)
        return trees.cast(replace(self, xi=xi, rho=rho, constants=constants), trees.dtype(x))

    def init(self, problem: BilevelProblem, x: PyTree, y: PyTree) -> tuple[PlainState, Counts]:
        """The first state, and the oracle calls it cost."""
        return PlainState(x, y, trees.zeros_like(y), jnp.zeros((), jnp.int32)), Counts(hvps=self.constants.products)

    def step(self, problem: BilevelProblem, state: PlainState, key: Array) -> tuple[PlainState, Info]:
        """Lines of the pseudo-code, in its order and its letters."""
        x, y, w, k = state.x, state.y, state.w, state.k
        xi, rho = (step(k).astype(trees.dtype(x)) for step in (self.xi, self.rho))
        p = problem.sample(key)  # the problem itself where nothing is sampled

        f_x, f_y = p.upper_grads(x, y)
        lower = p.linearize_lower(x, y)
        w = adjoint_step(lower.hvp, f_y, w, rho)  # line 1
        F = trees.sub(f_x, lower.cross(w))  # line 2
        x_next = p.domain.project(trees.axpy(-xi, F, x))  # line 3
        y_next = trees.axpy(-rho, p.lower_grad(x_next, y), y)  # line 4

        counts = Counts(upper_grads=2, lower_grads=1, hvps=1, crosses=1, projections=1)
        return PlainState(x_next, y_next, w, k + 1), Info(x, F, counts)
