"""The method to use when none is named: chosen from the set, the sizes and the structure, never from the clock."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from bilevax import trees
from bilevax.problem import BilevelProblem
from bilevax.solvers.adaptive_ibcg import AdaptiveIBCG
from bilevax.solvers.block_ibcg import BlockIBCG
from bilevax.solvers.pairwise_ibcg import PairwiseIBCG
from bilevax.solvers.pieces.tracking import MOST_KEPT
from bilevax.solvers.projected_ibcg import ProjectedIBCG
from bilevax.solvers.protocol import Solver
from bilevax.solvers.sampled_ibcg import Later, SampledIBCG
from bilevax.streaming.blocks import shapes

SMALL_MATRIX = 60
"""Up to so many rows or columns a full decomposition costs less than a search for the leading vectors."""
FEW_COORDINATES = 500
"""Up to so many, a quadratic program on the host costs less than as many linear ones."""
MANY_BATCHES = 16
"""From so many in a pass on, mini-batches are used at first."""
CHEAP = 3e8
"""Up to so many numbers read by the first solve of the lower level, a fraction of a second, all rows are used."""
MANY = 1_000_000
"""From so many variables on, vertices are not stored."""


class Choice(NamedTuple):
    """A method, and why."""

    solver: Solver
    why: str


def auto(problem: BilevelProblem, x0: PyTree = None, y0: PyTree = None) -> Solver:
    """The method that suits this problem best; `solve` takes it when none is named.

    With a sampler of many batches and many rows it begins with mini-batches (`SampledIBCG`). Otherwise it uses all rows
    at every step.

    >>> import jax.numpy as jnp, bilevax as bx
    >>> problem = bx.BilevelProblem(
    ...     lambda x, y, _: jnp.sum(y**2), lambda x, y, _: jnp.sum((y - 2 * x) ** 2), bx.Box(-1.0, 1.0)
    ... )
    >>> type(bx.auto(problem, jnp.zeros(3))).__name__
    'ProjectedIBCG'
    """
    return choose(problem, x0, y0).solver


def choose(problem: BilevelProblem, x0: PyTree = None, y0: PyTree = None) -> Choice:
    """The method of `auto` with the reason in words."""
    like = problem.x_like if x0 is None else x0
    if like is None:
        raise ValueError("auto: the shape of x decides; give x0, or a problem with x_like.")
    x = jax.tree.map(jnp.asarray, like.zeros() if isinstance(like, trees.Shapes) else like)
    method, why = _on_all_rows(problem, x)
    if not isinstance(method, Later) or problem.domain.kernels.on_host or not _has_many_batches(problem):
        return Choice(method, why)
    if _first_solve(problem, problem.y_like if y0 is None else y0) <= CHEAP:
        return Choice(method, f"{why}, and all rows cost little")
    return Choice(SampledIBCG(method), f"the problem has a sampler and many rows, and {why}")


def _on_all_rows(problem: BilevelProblem, x: PyTree) -> Choice:
    domain = problem.domain
    if _has_low_rank_steps(problem, x):
        return Choice(BlockIBCG(), "the set holds large matrices of low rank")
    if domain.minimizes_models and trees.size(x) <= FEW_COORDINATES:
        return Choice(ProjectedIBCG(), "the set can minimise a quadratic model")
    if _has_projection(problem, x) and not domain.kernels.on_host:
        return Choice(ProjectedIBCG(), "the set has a cheap projection")
    if np.isinf(float(domain.diameter(x).value)):
        return Choice(ProjectedIBCG(), "the set is unbounded")
    if trees.size(x) < MANY:
        return Choice(PairwiseIBCG(), "the set has no cheap projection")
    return Choice(AdaptiveIBCG(), "the set has no cheap projection, and x is too large to store vertices")


def _has_many_batches(problem: BilevelProblem) -> bool:
    """Whether mini-batches could be a good start."""
    sampler = problem.sampler
    return sampler is not None and sampler.batches >= MANY_BATCHES and problem.structure.solve_lower is None


def _first_solve(problem: BilevelProblem, y: PyTree) -> float:
    """How many numbers are read until the lower level is solved on all rows for the first time, roughly."""
    rows = trees.size(shapes(problem.data, all_rows=True))
    if y is not None and trees.size(y) <= MOST_KEPT:
        return rows * (3 + trees.size(y) / 16)  # the Hessian by products with many vectors at once
    return 30.0 * rows


def _has_projection(problem: BilevelProblem, x: PyTree) -> bool:
    domain = problem.domain
    try:
        _ = domain.project(x) if domain.kernels.on_host else jax.eval_shape(domain.project, x)
    except NotImplementedError:
        return False
    except Exception:  # a projection of the user that fails: the check of the oracle says in words why
        return True
    return True


def _has_low_rank_steps(problem: BilevelProblem, x: PyTree) -> bool:
    """Whether x is a matrix, too large for full decompositions, of a set with low-rank steps."""
    try:
        problem.domain.low_rank_start(x)
    except NotImplementedError:
        return False
    shapes = trees.shapes(x).leaves
    return isinstance(x, trees.Point) or len(shapes) != 1 or min(shapes[0].shape, default=0) > SMALL_MATRIX
