"""One file per method, `auto` that chooses one, and the protocol they follow; `pieces` holds what they share."""

from bilevax.solvers.aba import ABA as ABA
from bilevax.solvers.adaptive_ibcg import AdaptiveIBCG as AdaptiveIBCG
from bilevax.solvers.aid_bio import AIDBiO as AIDBiO
from bilevax.solvers.amigo import AmIGO as AmIGO
from bilevax.solvers.ba import BA as BA
from bilevax.solvers.block_ibcg import BlockIBCG as BlockIBCG
from bilevax.solvers.bsa import BSA as BSA
from bilevax.solvers.f2sa import F2SA as F2SA
from bilevax.solvers.f3sa import F3SA as F3SA
from bilevax.solvers.fsla import FSLA as FSLA
from bilevax.solvers.ibcg import IBCG as IBCG
from bilevax.solvers.itd_bio import ITDBiO as ITDBiO
from bilevax.solvers.masoba import MASOBA as MASOBA
from bilevax.solvers.pairwise_ibcg import PairwiseIBCG as PairwiseIBCG
from bilevax.solvers.pbgd import PBGD as PBGD
from bilevax.solvers.projected_ibcg import ProjectedIBCG as ProjectedIBCG
from bilevax.solvers.protocol import COUNTS as COUNTS
from bilevax.solvers.protocol import Counts as Counts
from bilevax.solvers.protocol import Info as Info
from bilevax.solvers.protocol import Solver as Solver
from bilevax.solvers.protocol import State as State
from bilevax.solvers.rahgd import RAHGD as RAHGD
from bilevax.solvers.saba import SABA as SABA
from bilevax.solvers.sampled_ibcg import SampledIBCG as SampledIBCG
from bilevax.solvers.sbfw import SBFW as SBFW
from bilevax.solvers.soba import SOBA as SOBA
from bilevax.solvers.srba import SRBA as SRBA
from bilevax.solvers.stoc_bio import StocBiO as StocBiO
from bilevax.solvers.stochastic_ibcg import StochasticIBCG as StochasticIBCG
from bilevax.solvers.sustain import SUSTAIN as SUSTAIN
from bilevax.solvers.ttsa import TTSA as TTSA

def methods() -> list[str]: ...
