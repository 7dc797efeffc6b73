"""The leading singular triplets of a matrix that is only multiplied with, many at a time, on the host.

One round is a product with a block of vectors, one with the transpose, and small dense algebra (subspace iteration).
The block begins where the last one ended, so that along a converging sequence of matrices one round for each is enough.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg
import scipy.sparse.linalg
from threadpoolctl import ThreadpoolController

Block = np.ndarray
SPARE, SPARE_SHARE = 4, 0.15
"""Vectors kept beyond the rank: four, or this share of the rank."""


@functools.cache
def _libraries() -> ThreadpoolController:
    return ThreadpoolController()


def one_blas_thread() -> Any:
    """A context in which BLAS uses one thread.

    Its threads wait for each other by spinning: on a busy machine that made small dense algebra ten times slower.
    """
    return _libraries().limit(limits=1, user_api="blas")


class Operator(NamedTuple):
    """A matrix by its products."""

    shape: tuple[int, int]
    times: Callable[[Block], Block]
    """A block of q rows to one of p."""
    back: Callable[[Block], Block]
    """The same with the transpose."""


def dense(matrix: np.ndarray) -> Operator:
    """A matrix at hand."""
    return Operator(matrix.shape, lambda block: matrix @ block, lambda block: matrix.T @ block)


class Shrinkage(NamedTuple):
    """Singular values after a projection of all of them, and how much each lost."""

    values: np.ndarray
    threshold: float


class Shrunk(NamedTuple):
    """`left @ diag(values) @ right.T`: the matrix with its singular values shrunk."""

    left: Block
    values: np.ndarray
    right: Block
    basis: Block
    """Right singular vectors, spare ones included, for the next round."""
    threshold: float
    exact: bool
    """Whether everything left out was seen to be below the threshold."""


def to_l1_ball(values: np.ndarray, radius: float) -> Shrinkage:
    """Non-negative decreasing numbers moved to the nearest ones with a sum of at most the radius."""
    if values.sum() <= radius:
        return Shrinkage(values, 0.0)
    excess = (np.cumsum(values) - radius) / np.arange(1, len(values) + 1)
    threshold = float(excess[np.nonzero(values > excess)[0][-1]])
    return Shrinkage(np.maximum(values - threshold, 0), threshold)


def coordinates(basis: Block, block: Block) -> np.ndarray:
    """The small matrix `basis.T @ block`, in double precision."""
    found: np.ndarray = np.asarray(basis, np.float64).T @ np.asarray(block, np.float64)
    return found


def orthonormal(block: Block) -> Block:
    """A basis of the columns: twice by the Cholesky factor of the Gram matrix, by Householder where that breaks down.

    Tall and thin blocks are then only ever multiplied, which is several times as fast.
    """
    try:
        for _ in range(2):
            gram = coordinates(block, block)
            factor = scipy.linalg.cholesky(gram, check_finite=False)
            diagonal = np.abs(np.diag(factor))
            if diagonal.min(initial=np.inf) <= 1e-6 * diagonal.max(initial=0.0):
                raise np.linalg.LinAlgError
            block = np.asarray(block @ scipy.linalg.solve_triangular(factor, np.eye(len(gram))), block.dtype)
        return block
    except np.linalg.LinAlgError:
        return np.asarray(np.linalg.qr(block)[0])


def _norm_outside(operator: Operator, left: Block, dtype: np.dtype) -> tuple[float, np.ndarray]:
    """The largest singular value of what the columns of `left` do not span, and its right vector."""
    outside = lambda block: block - left @ (left.T @ block)  # noqa: E731
    n = operator.shape[1]
    start = np.random.default_rng(7).standard_normal(n).astype(dtype)
    gram = lambda v: operator.back(outside(operator.times(v.reshape(n, 1)))).ravel()  # noqa: E731
    if n < 12:
        square = np.column_stack([gram(column) for column in np.eye(n, dtype=dtype)])
        values, vectors = np.linalg.eigh(square)
    else:
        product = scipy.sparse.linalg.LinearOperator((n, n), matvec=gram, dtype=dtype)
        try:
            values, vectors = scipy.sparse.linalg.eigsh(product, k=1, v0=start, tol=1e-2, ncv=min(n, 12), maxiter=20)
        except scipy.sparse.linalg.ArpackNoConvergence:
            return np.inf, start / np.linalg.norm(start)
    return float(np.sqrt(max(values[-1], 0.0))), vectors[:, -1]


def shrunk(
    operator: Operator,
    basis: Block,
    shrink: Callable[[np.ndarray], Shrinkage],
    *,
    max_rank: int | None = None,
    rounds: int = 1,
    verify: bool = False,
) -> Shrunk:
    """The matrix with its singular values passed through `shrink`, which sets all below a threshold to zero.

    The block grows until its least singular value is below the threshold, so that those it does not hold would become
    zero as well; `verify` also looks for a larger one outside the block, and goes on if there is one. More than
    `max_rank` are never kept, and the answer is then only the best of that rank.
    """
    most = min(operator.shape) if max_rank is None else min(max_rank, *operator.shape)
    random = np.random.default_rng(basis.shape[1])
    basis, dtype = basis[:, :most], basis.dtype
    while True:
        left = orthonormal(operator.times(basis))
        right = operator.back(left)
        # A tall thin SVD from its Gram matrix would lose half of the digits; from the triangle it does not.
        outer = orthonormal(right)
        inner, values, turn = np.linalg.svd(coordinates(outer, right))
        shrinkage = shrink(values)
        rank = int(np.count_nonzero(shrinkage.values))
        basis = np.asarray(outer @ inner, dtype)
        columns, whole = basis.shape[1], basis.shape[1] >= min(operator.shape)
        rounds -= 1
        if rank >= columns and columns < most:
            grown = min(columns + max(8, columns // 2), most)
            basis = np.column_stack([basis, random.standard_normal((len(basis), grown - columns)).astype(dtype)])
            rounds = max(rounds, 1)
            continue
        if rounds > 0 and not whole:
            continue
        exact = whole
        if verify and not whole and rank < columns:
            largest, found = _norm_outside(operator, left, dtype)
            exact = largest <= shrinkage.threshold
            if not exact and columns < most:
                more = random.standard_normal((len(basis), min(7, most - columns - 1)))
                basis = np.column_stack([basis, found, more]).astype(dtype)
                continue
        break
    kept = min(columns, rank + max(SPARE, int(SPARE_SHARE * rank)))
    return Shrunk(
        np.asarray(left @ turn[:rank].T, dtype),
        shrinkage.values[:rank].astype(dtype),
        np.ascontiguousarray(basis[:, :rank]),
        np.ascontiguousarray(basis[:, :kept]),
        shrinkage.threshold,
        exact,
    )


def leading(operator: Operator, rank: int, *, rounds: int = 6, seed: int = 0) -> tuple[Block, np.ndarray, Block]:
    """The leading singular triplets, decreasing, from a random block: the first ones well, the last ones roughly."""
    rank = min(rank, *operator.shape)
    columns = min(rank + 10, *operator.shape)
    basis = np.random.default_rng(seed).standard_normal((operator.shape[1], columns))
    for _ in range(rounds):
        left = orthonormal(operator.times(basis))
        right = operator.back(left)
        basis = orthonormal(right)
    inner, values, turn = np.linalg.svd(coordinates(basis, right))
    return left @ turn[:rank].T, values[:rank], basis @ inner[:, :rank]
