"""Convex sets: see `contract.py` for what each of them can do."""

from bilevax.sets.composite import Product, UserSet, VertexHull, WholeSpace, as_set
from bilevax.sets.contract import Condition, ConvexSet, Diameter, Memory
from bilevax.sets.spectral import NuclearBall, Spectraplex
from bilevax.sets.vector import Box, L1Ball, L2Ball, LInfBall, Simplex, UnitSimplex

__all__ = [
    "Box",
    "Condition",
    "ConvexSet",
    "Diameter",
    "L1Ball",
    "L2Ball",
    "LInfBall",
    "Memory",
    "NuclearBall",
    "Product",
    "Simplex",
    "Spectraplex",
    "UnitSimplex",
    "UserSet",
    "VertexHull",
    "WholeSpace",
    "as_set",
]
