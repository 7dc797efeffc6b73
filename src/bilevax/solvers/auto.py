"""The method to use when none is named."""

from __future__ import annotations

from jaxtyping import PyTree

from bilevax.problem import BilevelProblem
from bilevax.solvers.ibcg import IBCG
from bilevax.solvers.protocol import Solver


def auto(problem: BilevelProblem, x0: PyTree = None) -> Solver:
    """A solver for this problem: so far IBCG with estimated constants, a warm-up and steps 2/(k+2)."""
    return IBCG()
