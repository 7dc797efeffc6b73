"""Convex sets: see `contract.py` for what each of them can do."""

from bilevax.sets.capped import CappedSimplex, KSparse
from bilevax.sets.composite import Product, UserSet, VertexHull, WholeSpace, as_set
from bilevax.sets.contract import Basis, Condition, ConvexSet, Diameter, LowRankStep, Memory
from bilevax.sets.groups import GroupL2Ball
from bilevax.sets.polytope import Birkhoff, Polytope
from bilevax.sets.sampled import AxisWeights, SampledNuclearBall
from bilevax.sets.spectral import NuclearBall, Spectraplex
from bilevax.sets.vector import Box, L1Ball, L2Ball, LInfBall, Simplex, UnitSimplex

__all__ = [
    "Basis",
    "Birkhoff",
    "Box",
    "CappedSimplex",
    "Condition",
    "ConvexSet",
    "Diameter",
    "GroupL2Ball",
    "KSparse",
    "L1Ball",
    "L2Ball",
    "LInfBall",
    "LowRankStep",
    "Memory",
    "NuclearBall",
    "Polytope",
    "Product",
    "SampledNuclearBall",
    "AxisWeights",
    "Simplex",
    "Spectraplex",
    "UnitSimplex",
    "UserSet",
    "VertexHull",
    "WholeSpace",
    "as_set",
]
