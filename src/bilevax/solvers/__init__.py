"""One file per method."""

from bilevax.solvers.choice import auto
from bilevax.solvers.ibcg import IBCG
from bilevax.solvers.protocol import Counts, Info, Solver, State

__all__ = ["IBCG", "Counts", "Info", "Solver", "State", "auto"]
