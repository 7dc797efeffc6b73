"""What a solver is to the loop: a frozen pytree of hyper-parameters with a pure step."""

from __future__ import annotations

from typing import Any, ClassVar, Protocol

import equinox as eqx
from jaxtyping import Array, Int, PyTree, Scalar

from bilevax.problem import BilevelProblem


class Counts(eqx.Module):
    """Oracle calls; both partial gradients of f count, as in the cost table of the documentation."""

    upper_grads: Int[Array, ""] | int = 0
    lower_grads: Int[Array, ""] | int = 0
    hvps: Int[Array, ""] | int = 0
    crosses: Int[Array, ""] | int = 0
    lmos: Int[Array, ""] | int = 0
    projections: Int[Array, ""] | int = 0


class Info(eqx.Module):
    """What one step saw at the point it started from; only observers need it, so it is never checkpointed."""

    direction: PyTree
    """The estimate of the gradient of ell that moved x."""
    gap: Scalar
    """`<direction, x - s>`, the Frank-Wolfe gap by that estimate; NaN without an lmo."""
    lmo_error: Scalar
    """How far from optimal `s` may be."""
    adjoint_residual: Scalar
    """`|H w - f_y|` for the adjoint estimate the step started from; NaN if the method keeps none."""
    counts: Counts


class State(Protocol):
    """Every state has these; a method adds what its next step needs."""

    x: PyTree
    y: PyTree
    k: Int[Array, ""]


class Solver(Protocol):
    """The contract of every method."""

    uses: ClassVar[str]
    """How x moves: "lmo" or "project"."""

    def prepare(self, problem: BilevelProblem, x: PyTree, y: PyTree, key: Array) -> Solver:
        """The same method with every constant it needs and was not given estimated."""
        ...

    def init(self, problem: BilevelProblem, x: PyTree, y: PyTree) -> tuple[Any, Counts]:
        """The first state, and what it cost."""
        ...

    def step(self, problem: BilevelProblem, state: Any, key: Array) -> tuple[Any, Info]:
        """The next state, and what was seen on the way."""
        ...
