"""One file per method."""

from bilevax.solvers.choice import auto
from bilevax.solvers.ibcg import IBCG
from bilevax.solvers.protocol import COUNTS, Counts, Info, Solver, State
from bilevax.solvers.sbfw import SBFW
from bilevax.solvers.ttsa import TTSA

__all__ = ["COUNTS", "IBCG", "SBFW", "TTSA", "Counts", "Info", "Solver", "State", "auto"]
