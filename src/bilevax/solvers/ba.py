"""BA: gradient steps on y, an exact adjoint, a projected step of x."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree

from bilevax import trees
from bilevax.estimation import for_steps
from bilevax.hypergradient import adjoint_solution
from bilevax.problem import BilevelProblem
from bilevax.schedules import Schedule, as_schedule
from bilevax.solvers.pieces.defaults import batch_constants, outer_schedule
from bilevax.solvers.pieces.lower_steps import lower_steps
from bilevax.solvers.pieces.x_step import XMemory, check_x_step, move_x, oracle_of_x_step, start_x
from bilevax.solvers.protocol import Counts, Info
from bilevax.theory import Constants


def lower_count(k: Int[Array, ""], exponent: float, most: Int[Array, ""] | int = 10**6) -> Int[Array, ""]:
    """`(k+1)^exponent / 2` rounded up, the number of lower steps at step k (counted from 0), and at most `most`."""
    count = jnp.ceil((k.astype(jnp.result_type(float)) + 1) ** exponent / 2)
    return jnp.minimum(count, jnp.asarray(most, count.dtype)).astype(jnp.int32)  # before it exceeds an integer


class BAState(eqx.Module):
    """x, y and the adjoint, from which the next solves start."""

    x: PyTree
    y: PyTree
    w: PyTree
    k: Int[Array, ""]
    memory: XMemory


class BA(eqx.Module):
    """Bilevel approximation: t_k lower steps, the exact adjoint H^-1 f_y, one step of x.

    t_k is (k+1)^(1/4) / 2 rounded up, or with the square root if `convex`, as the authors' theory has it. They start
    every lower solve afresh; we start from the last y and w. Lower steps are 2/(mu_g + L_g), steps of x 1/(2 L_ell),
    estimated if not given. `x_step="fw"` moves x by Frank-Wolfe with 2/(k+2) instead.

    The method is one for all rows and ignores a sampler; `BSA` is its form on mini-batches.

    One step costs two gradients of f, t_k of g, one cross product, one projection and an adjoint solve: the user's
    formula, or conjugate gradients as far as rounding allows, which is at least fifty Hessian products.

    >>> import bilevax as bx
    >>> solver = bx.BA(0.1, constants=bx.Constants(mu_g=1.0, L_g=2.0))

    Reference: Ghadimi, Wang, "Approximation Methods for Bilevel Programming". Constants beyond t_k are ours.
    """

    oracle = oracle_of_x_step
    loops: ClassVar[int] = 2
    all_rows: ClassVar[bool] = True
    estimates: ClassVar[tuple[str, str]] = ("after", "after")
    xi: Schedule = eqx.field(converter=as_schedule, default=None)
    convex: bool = eqx.field(static=True, default=False, kw_only=True)
    x_step: str = eqx.field(static=True, default="project", kw_only=True)
    constants: Constants = eqx.field(default=None, kw_only=True)

    def __check_init__(self) -> None:
        check_x_step(self, self.xi)

    def prepare(self, problem: BilevelProblem, x: PyTree, y: PyTree, key: Array) -> BA:
        """Estimate what was not given."""
        problem = replace(problem, sampler=None)
        constants = batch_constants(self.constants, problem, x, y, key)
        xi = outer_schedule(self.xi, self.x_step, problem, x, y, key)
        return trees.cast(replace(self, xi=xi, constants=constants), trees.dtype(x))

    def init(self, problem: BilevelProblem, x: PyTree, y: PyTree) -> tuple[BAState, Counts]:
        """The start as it is, with the adjoint at zero."""
        memory, counts = start_x(problem, x, self.xi), Counts(hvps=self.constants.products)
        return BAState(x, y, trees.zeros_like(y), jnp.zeros((), jnp.int32), memory), counts

    def step(self, problem: BilevelProblem, state: BAState, key: Array) -> tuple[BAState, Info]:
        """Lower steps, adjoint, x."""
        x, k = state.x, state.k
        t = lower_count(k, 0.5 if self.convex else 0.25)
        y = lower_steps(problem, x, state.y, for_steps(self.constants).alpha, t)
        f_x, f_y = problem.upper_grads(x, y)
        adjoint = adjoint_solution(problem, x, y, f_y, state.w)
        w, products = adjoint.w, adjoint.products
        F = trees.sub(f_x, problem.lower_cross(x, y, w))
        x_next, s, memory, calls = move_x(problem, x, F, self.xi(k), state.memory, self.x_step)

        counts = Counts(upper_grads=2, lower_grads=t, hvps=products, crosses=1, **calls)
        return BAState(x_next, y, w, k + 1, memory), Info(x, F, counts, s, memory.error)
