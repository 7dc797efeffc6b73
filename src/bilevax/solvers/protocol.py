"""What a solver is to the loop: a frozen pytree of hyper-parameters with a pure step."""

from __future__ import annotations

import operator
from dataclasses import fields
from typing import Any, ClassVar, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree, Scalar

from bilevax import trees
from bilevax.linalg.host_loops import Kernels
from bilevax.problem import BilevelProblem


class Counts(eqx.Module):
    """Oracle calls; both partial gradients of f count, as in the cost table of the documentation."""

    upper_grads: Int[Array, ""] | int = 0
    lower_grads: Int[Array, ""] | int = 0
    hvps: Int[Array, ""] | int = 0
    crosses: Int[Array, ""] | int = 0
    lmos: Int[Array, ""] | int = 0
    projections: Int[Array, ""] | int = 0


def no_counts() -> Counts:
    """Nothing called yet, as arrays that compiled code can carry."""
    return Counts(*(jnp.zeros((), jnp.int32) for _ in fields(Counts)))


def add_counts(a: Counts, b: Counts) -> Counts:
    """The calls of both."""
    return jax.tree.map(operator.add, a, b)


COUNTS = tuple(field.name for field in fields(Counts))
"""The names of the oracle counts, in the order of the columns of a trace."""


class Info(eqx.Module):
    """What one step saw at the point it started from; only observers need it, so it is never checkpointed.

    It holds references, and scalars are computed when asked for: a compiled loop pays for none it does not keep.
    """

    x: PyTree
    """The point the step started from."""
    direction: PyTree
    """The estimate of the gradient of ell that moved x."""
    counts: Counts
    s: PyTree = None
    """The answer of the lmo; None if the method has none."""
    lmo_error: Scalar | float = 0.0
    """How far from optimal `s` may be."""

    @property
    def gap(self) -> Scalar:
        """`<direction, x - s>`, the Frank-Wolfe gap by that estimate; NaN without an lmo."""
        return self._nan if self.s is None else trees.gap(self.direction, self.x, self.s)

    @property
    def grad_norm(self) -> Scalar:
        """The norm of the direction."""
        return trees.norm(self.direction)

    @property
    def _nan(self) -> Scalar:
        return jnp.full((), jnp.nan, trees.dtype(self.direction))


class Observation(eqx.Module):
    """The direction at the point of a state, and the estimates of y*(x) and the adjoint that it is made of."""

    direction: PyTree
    y: PyTree
    w: PyTree = None


class State(Protocol):
    """Every state has these; a method adds what its next step needs."""

    x: PyTree
    y: PyTree
    k: Int[Array, ""]


class Solver(Protocol):
    """The contract of every method.

    A row of the trace describes the point of a state. Most methods compute the direction there in their next step,
    which the loop then takes ahead. `estimates`, a class variable, says which y and w such a direction `f_x - J w` is
    made of: those that the step starts from ("before") or those that it ends with ("after"); a method without an
    adjoint has no such variable, and one whose direction is an average over steps also has `averages = True`. A method
    whose step looks at another point, or whose state holds the direction, has `observe(problem, state) -> Observation`
    instead. A method whose steps are few and rich says so by `few_steps = True`, and one that ends on all rows,
    whatever the sampler, by `all_rows = True`. For windows of a stream, `batches_per_step` is how many batches a step
    of such a method takes before it ends there, `all_batches = True` says that a step needs every batch of a pass, and
    `differentiates_steps = True` that oracles are differentiated.
    """

    @property
    def oracle(self) -> str:
        """What x moves by: "lmo", "project" or "low rank"."""

    loops: ClassVar[int]
    """1 if every step advances all variables once; 2 if y or the adjoint have a loop of their own."""

    def prepare(self, problem: BilevelProblem, x: PyTree, y: PyTree, key: Array) -> Solver:
        """The same method with every constant it needs and was not given estimated."""
        ...

    def init(self, problem: BilevelProblem, x: PyTree, y: PyTree) -> tuple[Any, Counts]:
        """The first state, and what it cost."""
        ...

    def step(self, problem: BilevelProblem, state: Any, key: Array) -> tuple[Any, Info]:
        """The next state, and what was seen on the way."""
        ...


def kernels(solver: Solver) -> Kernels:
    """Where a solver's own kernels run: low-rank steps decide on ranks in Python."""
    return Kernels.HOST if solver.oracle == "low rank" else Kernels.COMPILED


def samples(solver: Solver) -> bool:
    """Whether a method uses mini-batches to the end, if the problem has any; ours end on all rows."""
    return not getattr(solver, "all_rows", False)


def takes_few_steps(solver: Solver) -> bool:
    """Whether a method takes few and rich steps, for which compilation is most of the wait."""
    return getattr(solver, "few_steps", False)
