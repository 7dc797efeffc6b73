"""The leading singular triplets of a matrix that is only multiplied with, one or many at a time, on the host.

One round is a product with a block of vectors, one with the transpose, and small dense algebra (subspace iteration).
The block begins where the last one ended, so that along a converging sequence of matrices one round for each is enough.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy

Block = np.ndarray
_ROWS = 1 << 14  # of a block in single precision are converted at once, or copies would take more memory than the block
SPARE, SPARE_SHARE = 4, 0.15
"""Vectors kept beyond the rank: four, or this share of the rank."""


class Operator(NamedTuple):
    """A matrix by its products."""

    shape: tuple[int, int]
    matvec: Callable[[Block], Block]
    """A block of q rows to one of p."""
    rmatvec: Callable[[Block], Block]
    """The same with the transpose."""
    matrix: np.ndarray | None = None
    """The matrix itself, if it is at hand."""


def dense(matrix: np.ndarray) -> Operator:
    """A matrix at hand."""
    return Operator(matrix.shape, lambda block: matrix @ block, lambda block: matrix.T @ block, matrix)


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
    if basis.dtype == block.dtype == np.float64:
        return np.asarray(basis.T @ block)
    small = np.zeros((basis.shape[1], block.shape[1]))
    for begin in range(0, len(basis), _ROWS):
        part = slice(begin, begin + _ROWS)
        small += np.asarray(basis[part], np.float64).T @ np.asarray(block[part], np.float64)
    return small


def _times(block: Block, small: np.ndarray) -> Block:
    """The product with a small matrix, computed in double precision and kept in that of the block."""
    if block.dtype == np.float64:
        return np.asarray(block @ small)
    product = np.empty((len(block), small.shape[1]), block.dtype)
    for begin in range(0, len(block), _ROWS):
        product[begin : begin + _ROWS] = block[begin : begin + _ROWS] @ small
    return product


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
            block = _times(block, scipy.linalg.solve_triangular(factor, np.eye(len(gram))))
        return block
    except np.linalg.LinAlgError:
        return np.asarray(np.linalg.qr(block)[0])


def _largest_outside(operator: Operator, left: Block, dtype: Any) -> tuple[float, np.ndarray]:
    """The largest singular value of what the columns of `left` do not span, and its right vector."""
    outside = lambda v: v - left @ (left.T @ v)  # noqa: E731
    rest = Operator(operator.shape, lambda v: outside(operator.matvec(v)), lambda v: operator.rmatvec(outside(v)))
    value, _, right, _ = top_pair(rest, np.zeros(min(operator.shape), dtype), 1e-2, 200)
    return value, right


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
        if operator.matrix is not None and 2 * basis.shape[1] >= min(operator.shape):
            return _shrunk_at_once(operator.matrix, shrink, most)
        left = orthonormal(operator.matvec(basis))
        right = operator.rmatvec(left)
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
            largest, vector = _largest_outside(operator, left, dtype)
            exact = largest <= shrinkage.threshold
            if not exact and columns < most:
                more = random.standard_normal((len(basis), min(7, most - columns - 1)))
                basis = np.column_stack([basis, vector, more]).astype(dtype)
                continue
        break
    kept = _kept(rank, columns)
    return Shrunk(
        np.asarray(left @ turn[:rank].T, dtype),
        shrinkage.values[:rank].astype(dtype),
        np.ascontiguousarray(basis[:, :rank]),
        np.ascontiguousarray(basis[:, :kept]),
        shrinkage.threshold,
        exact,
    )


def _shrunk_at_once(matrix: np.ndarray, shrink: Callable[[np.ndarray], Shrinkage], most: int) -> Shrunk:
    """The same from a whole decomposition, which is faster than a block of half of all vectors."""
    left, values, right = np.linalg.svd(matrix, full_matrices=False)
    shrinkage = shrink(values[:most])
    rank = int(np.count_nonzero(shrinkage.values))
    left, right = np.ascontiguousarray(left[:, :rank]), np.ascontiguousarray(right[: _kept(rank, most)].T)
    shrunk = shrinkage.values[:rank].astype(matrix.dtype)
    exact = rank < most or most == len(values)
    return Shrunk(left, shrunk, np.ascontiguousarray(right[:, :rank]), right, shrinkage.threshold, exact)


def _kept(rank: int, columns: int) -> int:
    """How many vectors the next round begins with."""
    return min(columns, rank + max(SPARE, int(SPARE_SHARE * rank)))


def leading(
    operator: Operator, rank: int, *, rounds: int = 6, seed: int = 0, dtype: Any = float
) -> tuple[Block, np.ndarray, Block]:
    """The leading singular triplets, decreasing, from a random block: the first ones well, the last ones roughly."""
    rank = min(rank, *operator.shape)
    columns = min(rank + 10, *operator.shape)
    basis = np.random.default_rng(seed).standard_normal((operator.shape[1], columns)).astype(dtype)
    for _ in range(rounds - 1):  # only the span matters until the last round
        basis = orthonormal(operator.rmatvec(operator.matvec(basis)))
    left = orthonormal(operator.matvec(basis))
    right = operator.rmatvec(left)
    basis = orthonormal(right)
    inner, values, turn = np.linalg.svd(coordinates(basis, right))
    return left @ turn[:rank].T.astype(dtype), values[:rank], basis @ inner[:, :rank].astype(dtype)


def top_pair(
    operator: Operator, start: np.ndarray, tol: float, max_products: int
) -> tuple[float, np.ndarray, np.ndarray, float]:
    """The largest singular value with its vectors, and a bound on how far below the largest it may be.

    Lanczos on A^T A, or A A^T where that is smaller, from `start` (zeros if there is none).
    """
    tall = operator.shape[0] >= operator.shape[1]
    matvec, rmatvec = operator.matvec, operator.rmatvec
    if not tall:
        matvec, rmatvec = rmatvec, matvec
    v = top_vector(lambda v: rmatvec(matvec(v)), _noisy(start), tol, max_products)
    Av = matvec(v)
    value = float(np.linalg.norm(Av))
    u = Av / value if value > 0 else Av  # every matrix is as good as zero
    error = float(np.linalg.norm(rmatvec(u) - value * v))
    left, right = (u, v) if tall else (v, u)
    return value, left, right, error


def _noisy(start: np.ndarray) -> np.ndarray:
    """A start with a dose of noise: none may hide the leading direction."""
    noise = np.random.default_rng(20231).standard_normal(len(start)).astype(start.dtype)
    size = np.linalg.norm(start)
    return start / (size if size > 0 else 1) + noise / np.linalg.norm(noise)


def top_vector(product: Callable[[Any], Any], start: np.ndarray, tol: float, max_products: int) -> np.ndarray:
    """The leading eigenvector of a symmetric operator by thick-restart Lanczos, or the best one found by then.

    ARPACK returns nothing at all when it runs out of products, which it does where singular values coincide: at the
    solution of a completion problem all those of the direction that matter are equal.
    """
    n, kept, eps = len(start), 6, np.finfo(start.dtype).eps
    m = min(24, n)
    basis = np.zeros((m + 1, n), start.dtype)
    small = np.zeros((m, m))
    basis[0] = start / np.linalg.norm(start)
    begin, products = 0, 0
    while True:
        for j in range(begin, m):
            w = product(basis[j])
            products += 1
            column = np.zeros(m)
            for _ in range(2):  # once leaves components of the size of rounding
                part = basis[: j + 1] @ w
                w = w - part @ basis[: j + 1]
                column[: j + 1] += part
            small[:, j] = small[j, :] = column
            size = float(np.linalg.norm(w))
            if size == 0 and not np.any(column):
                return basis[j]  # the operator is zero
            invariant = size <= 8 * eps * float(np.linalg.norm(column))
            if invariant or j == m - 1 or (j % 4 == 3):
                values, vectors = np.linalg.eigh(small[: j + 1, : j + 1])
                residual = size * abs(vectors[-1, -1])
                done = invariant or residual <= max(tol, 8 * eps) * abs(values[-1]) or products >= max_products
                if done or j + 1 == n:
                    leading: np.ndarray = vectors[:, -1].astype(start.dtype) @ basis[: j + 1]
                    return leading / np.linalg.norm(leading)
            basis[j + 1] = w / size
        following = basis[m].copy()
        basis[:kept] = vectors[:, -kept:].T.astype(start.dtype) @ basis[:m]
        basis[kept], basis[kept + 1 :] = following, 0
        small[:] = 0
        small[range(kept), range(kept)] = values[-kept:]
        begin = kept
