"""One file per method."""

from bilevax.solvers.choice import auto
from bilevax.solvers.ibcg import IBCG
from bilevax.solvers.protocol import COUNTS, Counts, Info, Solver, State

__all__ = ["COUNTS", "IBCG", "Counts", "Info", "Solver", "State", "auto"]
