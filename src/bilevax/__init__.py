"""Constrained bilevel optimization: projection-free, single-loop, on JAX."""

from bilevax import datasets, problems, theory
from bilevax.diagnosis import Diagnosis, Finding, diagnose
from bilevax.drawing.figures import plot
from bilevax.hypergradient import exact_hypergradient
from bilevax.problem import BilevelProblem, LowerStructure, check_derivatives
from bilevax.problems import minimax
from bilevax.runs.chunks import run
from bilevax.runs.compare import compare
from bilevax.runs.comparison import Comparison
from bilevax.runs.metrics import Audit, audit, basic_metrics, exact_metrics
from bilevax.runs.result import Result, SolveFailed
from bilevax.runs.solve import solve
from bilevax.runs.stopping import Status, Stop, gap_below, plateau, relative_gap
from bilevax.runs.trace import Trace
from bilevax.sampling import Blocks, Minibatch, PerPart, Sampler
from bilevax.schedules import Constant, OpenLoop, Power, Schedule
from bilevax.sets import (
    Birkhoff,
    Box,
    CappedSimplex,
    ConvexSet,
    GroupL2Ball,
    KSparse,
    L1Ball,
    L2Ball,
    LInfBall,
    NuclearBall,
    Polytope,
    Product,
    SampledNuclearBall,
    Simplex,
    Spectraplex,
    UnitSimplex,
    UserSet,
    VertexHull,
    WholeSpace,
)
from bilevax.solvers import (
    ABA,
    BA,
    BSA,
    F2SA,
    F3SA,
    FSLA,
    IBCG,
    MASOBA,
    PBGD,
    RAHGD,
    SABA,
    SBFW,
    SOBA,
    SRBA,
    SUSTAIN,
    TTSA,
    AIDBiO,
    AmIGO,
    BlockIBCG,
    ITDBiO,
    StocBiO,
    StochasticIBCG,
    auto,
)
from bilevax.theory import Constants

__all__ = [
    "ABA",
    "AIDBiO",
    "AmIGO",
    "Audit",
    "BA",
    "BSA",
    "BilevelProblem",
    "Birkhoff",
    "Blocks",
    "Box",
    "CappedSimplex",
    "Comparison",
    "Constant",
    "Constants",
    "ConvexSet",
    "Diagnosis",
    "F2SA",
    "F3SA",
    "FSLA",
    "Finding",
    "GroupL2Ball",
    "BlockIBCG",
    "IBCG",
    "ITDBiO",
    "KSparse",
    "L1Ball",
    "L2Ball",
    "LInfBall",
    "LowerStructure",
    "MASOBA",
    "Minibatch",
    "NuclearBall",
    "SampledNuclearBall",
    "OpenLoop",
    "PBGD",
    "PerPart",
    "Polytope",
    "Power",
    "Product",
    "RAHGD",
    "Result",
    "SABA",
    "SBFW",
    "SOBA",
    "SRBA",
    "SUSTAIN",
    "Sampler",
    "Schedule",
    "Simplex",
    "SolveFailed",
    "Spectraplex",
    "Status",
    "StocBiO",
    "StochasticIBCG",
    "Stop",
    "TTSA",
    "Trace",
    "UnitSimplex",
    "UserSet",
    "VertexHull",
    "WholeSpace",
    "audit",
    "auto",
    "basic_metrics",
    "check_derivatives",
    "compare",
    "datasets",
    "diagnose",
    "exact_hypergradient",
    "exact_metrics",
    "gap_below",
    "minimax",
    "plateau",
    "plot",
    "problems",
    "relative_gap",
    "run",
    "solve",
    "theory",
]
__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """`bx.estimators` on first use, since it needs scikit-learn."""
    if name == "estimators":
        import importlib

        return importlib.import_module("bilevax.estimators")
    raise AttributeError(f"module 'bilevax' has no attribute {name!r}")
