"""Convex sets: see `contract.py` for what each of them can do."""

from bilevax.sets.capped import CappedSimplex as CappedSimplex
from bilevax.sets.capped import KSparse as KSparse
from bilevax.sets.composite import Product as Product
from bilevax.sets.composite import UserSet as UserSet
from bilevax.sets.composite import VertexHull as VertexHull
from bilevax.sets.composite import WholeSpace as WholeSpace
from bilevax.sets.composite import as_set as as_set
from bilevax.sets.contract import Basis as Basis
from bilevax.sets.contract import Condition as Condition
from bilevax.sets.contract import ConvexSet as ConvexSet
from bilevax.sets.contract import Diameter as Diameter
from bilevax.sets.contract import LowRankStep as LowRankStep
from bilevax.sets.contract import Memory as Memory
from bilevax.sets.groups import GroupL2Ball as GroupL2Ball
from bilevax.sets.polytope import Birkhoff as Birkhoff
from bilevax.sets.polytope import Polytope as Polytope
from bilevax.sets.sampled import AxisWeights as AxisWeights
from bilevax.sets.sampled import SampledNuclearBall as SampledNuclearBall
from bilevax.sets.spectral import NuclearBall as NuclearBall
from bilevax.sets.spectral import Spectraplex as Spectraplex
from bilevax.sets.vector import Box as Box
from bilevax.sets.vector import L1Ball as L1Ball
from bilevax.sets.vector import L2Ball as L2Ball
from bilevax.sets.vector import LInfBall as LInfBall
from bilevax.sets.vector import Simplex as Simplex
from bilevax.sets.vector import UnitSimplex as UnitSimplex
