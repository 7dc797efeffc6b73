"""One file per method, `auto` that chooses one, and the protocol they follow; `pieces` holds what they share."""

from bilevax.solvers.aba import ABA
from bilevax.solvers.aid_bio import AIDBiO
from bilevax.solvers.amigo import AmIGO
from bilevax.solvers.auto import auto
from bilevax.solvers.ba import BA
from bilevax.solvers.block_ibcg import BlockIBCG
from bilevax.solvers.bsa import BSA
from bilevax.solvers.f2sa import F2SA
from bilevax.solvers.f3sa import F3SA
from bilevax.solvers.fsla import FSLA
from bilevax.solvers.ibcg import IBCG
from bilevax.solvers.itd_bio import ITDBiO
from bilevax.solvers.masoba import MASOBA
from bilevax.solvers.pbgd import PBGD
from bilevax.solvers.protocol import COUNTS, Counts, Info, Solver, State
from bilevax.solvers.rahgd import RAHGD
from bilevax.solvers.saba import SABA
from bilevax.solvers.sbfw import SBFW
from bilevax.solvers.soba import SOBA
from bilevax.solvers.srba import SRBA
from bilevax.solvers.stoc_bio import StocBiO
from bilevax.solvers.stochastic_ibcg import StochasticIBCG
from bilevax.solvers.sustain import SUSTAIN
from bilevax.solvers.ttsa import TTSA

__all__ = [
    "ABA",
    "AIDBiO",
    "AmIGO",
    "BA",
    "BSA",
    "COUNTS",
    "Counts",
    "F2SA",
    "F3SA",
    "FSLA",
    "BlockIBCG",
    "IBCG",
    "ITDBiO",
    "Info",
    "MASOBA",
    "PBGD",
    "RAHGD",
    "SABA",
    "SBFW",
    "SOBA",
    "SRBA",
    "SUSTAIN",
    "Solver",
    "State",
    "StocBiO",
    "StochasticIBCG",
    "TTSA",
    "auto",
]
