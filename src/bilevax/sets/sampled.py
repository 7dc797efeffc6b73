"""The nuclear-norm ball as it shows on the observed entries: nothing of the size of the matrix is ever formed."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree, Scalar

from bilevax import trees
from bilevax.linalg import low_rank
from bilevax.linalg.blas import one_blas_thread
from bilevax.linalg.host_loops import Kernels
from bilevax.linalg.sparse import Pattern
from bilevax.sets.contract import Basis, Condition, ConvexSet, Diameter, LowRankStep, Memory, check_positive
from bilevax.sets.spectral import first_basis
from bilevax.trees import as_leaf, is_concrete

_move_values = jax.jit(trees.move)  # one pass over the entries instead of three


class Term(NamedTuple):
    """The low-rank matrix `share * left @ right.T`."""

    share: float
    left: np.ndarray
    right: np.ndarray


class Sampled(trees.Point):
    """A low-rank matrix: its values on a pattern, and terms that add up to it.

    Steps append terms; once there are more than `limit` of them, all are merged into one of rank at most `rank`. What
    that drops, if anything, is in `lost`, a bound on its nuclear norm; the values never lose anything.
    """

    values: Float[Array, " nnz"]
    terms: tuple[Term, ...]
    lost: float = 0.0
    limit: int = eqx.field(static=True, default=32)
    rank: int = eqx.field(static=True, default=256)

    @property
    def coordinates(self) -> Array:
        return self.values

    def move(self, target: Sampled, gamma: Scalar) -> Sampled:
        """Towards another point, or away from it."""
        step, keep = float(gamma), 1.0 - float(gamma)
        values = _move_values(self.values, target.values, gamma)
        scaled = [(keep, self.terms), (step, target.terms)]
        terms = tuple(Term(share * c, u, v) for share, parts in scaled for c, u, v in parts)
        lost = abs(keep) * self.lost + abs(step) * target.lost
        moved = Sampled(values, terms, lost, self.limit, self.rank)
        return moved.merged() if len(terms) > self.limit else moved

    def factors(self) -> tuple[np.ndarray, np.ndarray]:
        """Two factors, the first times the transpose of the second being the matrix."""
        if len(self.terms) == 1 and self.terms[0].share == 1.0:
            return self.terms[0].left, self.terms[0].right
        dtype = self.values.dtype
        left = np.column_stack([np.asarray(t.share * t.left, dtype) for t in self.terms])
        return left, np.column_stack([t.right for t in self.terms])

    def singular_values(self) -> np.ndarray:
        """Those of the matrix."""
        return _singular_values(*self.factors())

    def merged(self) -> Sampled:
        """The same matrix as one term with balanced factors of full column rank, at most `rank`."""
        left, right = self.factors()
        (ql, rl), (qr, rr) = np.linalg.qr(left), np.linalg.qr(right)
        u, sizes, v = np.linalg.svd(rl @ rr.T)
        negligible = np.finfo(sizes.dtype).eps * sizes[0] * max(left.shape[0], right.shape[0]) if sizes.size else 0.0
        kept = min(int(np.sum(sizes > negligible)), self.rank)
        root = np.sqrt(sizes[:kept])
        lost = self.lost + float(np.sum(sizes[kept:]))
        term = Term(1.0, ql @ (u[:, :kept] * root), qr @ (v[:kept].T * root))
        return Sampled(self.values, (term,), lost, self.limit, self.rank)


def _singular_values(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    if left.shape[1] == 0:
        return np.zeros(0)
    a, b = (np.linalg.qr(factor)[1] for factor in (left, right))
    if not np.all(np.isfinite(a @ b.T)):  # for which no decomposition exists
        return np.full(1, np.nan)
    values: np.ndarray = np.linalg.svd(a @ b.T, compute_uv=False)
    return values


class AxisWeights(NamedTuple):
    """What is known of the rows, or of the columns: the matrix `W = diag(scale) (I + U diag(strengths) U^T)`.

    `scale` alone is the inverse of the weights of a weighted nuclear norm. The orthonormal columns of `vectors` are
    directions in which rows are similar: what is learned of one row is shared with similar ones.
    """

    scale: Float[np.ndarray, " n"]
    vectors: Float[np.ndarray, "n k"] | None = None
    strengths: Float[np.ndarray, " k"] | None = None

    def matvec(self, block: np.ndarray) -> np.ndarray:
        """W times a block, or a vector."""
        return (self._with_similarity(block, 0).T * self.scale).T

    def rmatvec(self, block: np.ndarray) -> np.ndarray:
        """The transpose of W times a block."""
        return self._with_similarity((block.T * self.scale).T, 0)

    def solve(self, block: np.ndarray) -> np.ndarray:
        """The inverse of W times a block."""
        return self._with_similarity((block.T / self.scale).T, 1)

    def _with_similarity(self, block: np.ndarray, inverse: int) -> np.ndarray:
        if self.vectors is None or self.strengths is None:
            return block
        strengths = -self.strengths / (1 + self.strengths) if inverse else self.strengths
        return block + self.vectors @ (strengths * (self.vectors.T @ block).T).T

    def cast(self, dtype: Any) -> AxisWeights:
        """The same in another precision."""
        if self.vectors is None or self.strengths is None:
            return AxisWeights(np.asarray(self.scale, dtype))
        return AxisWeights(*(np.asarray(part, dtype) for part in (self.scale, self.vectors, self.strengths)))


def _check_weights(name: str, side: AxisWeights | None, count: int) -> None:
    if side is None or not is_concrete(side):
        return
    if np.shape(side.scale) != (count,) or not (np.all(np.isfinite(side.scale)) and np.all(np.asarray(side.scale) > 0)):
        raise ValueError(f"SampledNuclearBall: the scale of {name} must be {count} positive finite numbers.")
    if side.vectors is not None:
        vectors = np.asarray(side.vectors)
        rank = vectors.shape[1] if vectors.ndim == 2 else 0
        if vectors.shape != (count, rank) or not np.allclose(vectors.T @ vectors, np.eye(rank), atol=1e-5):
            raise ValueError(
                f"SampledNuclearBall: the vectors of {name} must be orthonormal columns of length {count}."
            )
        if side.strengths is None or np.shape(side.strengths) != (rank,) or not np.all(np.asarray(side.strengths) >= 0):
            raise ValueError(f"SampledNuclearBall: {name} needs a strength of at least 0 for each of its vectors.")


class SampledNuclearBall(ConvexSet):
    """Matrices whose singular values sum to at most the radius, known on the entries of a pattern.

    With `rows` and `cols` (see `AxisWeights`) it is `{A Z B^T : |Z|_* <= radius}`, with their matrices A and B: the
    ball of a weighted nuclear norm, which may treat some rows as similar. `lmo` needs the leading singular pair of the
    sparse direction, to a relative error that falls with the calls from `loose` like 1/k, but not below `tol`;
    Frank-Wolfe needs no more. Runs on the host.
    """

    pattern: Pattern
    radius: Scalar | float = eqx.field(converter=as_leaf, default=1.0)
    rows: AxisWeights | None = None
    cols: AxisWeights | None = None
    tol: Scalar | float = eqx.field(converter=as_leaf, default=1e-6, kw_only=True)
    loose: Scalar | float = eqx.field(converter=as_leaf, default=1e-2, kw_only=True)
    max_products: int = eqx.field(static=True, default=500, kw_only=True)

    def __check_init__(self) -> None:
        check_positive(self, "radius")
        if not isinstance(self.pattern, Pattern):
            raise TypeError(f"SampledNuclearBall: pattern must be a Pattern, got {type(self.pattern).__name__}.")
        for name, side, count in zip(("rows", "cols"), (self.rows, self.cols), self.pattern.shape, strict=True):
            _check_weights(name, side, count)

    def __repr__(self) -> str:
        if not is_concrete(self.radius):
            return type(self).__name__
        size = f"{self.pattern.size} entries of {self.pattern.shape[0]} x {self.pattern.shape[1]}"
        weighted = "" if self.rows is None and self.cols is None else ", weighted"
        return f"SampledNuclearBall({size}, radius={float(self.radius):g}{weighted})"

    def _sides(self, dtype: Any) -> tuple[AxisWeights, AxisWeights]:
        """Both sides, plain ones for those not given."""
        plain = (AxisWeights(np.ones(n)) for n in self.pattern.shape)
        rows, cols = (
            (one if side is None else side).cast(dtype) for one, side in zip(plain, (self.rows, self.cols), strict=True)
        )
        return rows, cols

    def _inside(self, values: np.ndarray, rows: AxisWeights, cols: AxisWeights) -> low_rank.Operator:
        """`A^T V B` for the sparse matrix V with these values: a direction as the ball of Z sees it."""
        scaled = values
        if self.rows is not None or self.cols is not None:
            scaled = self.pattern.scaled(values, rows.scale, cols.scale)
        sparse = self.pattern.operator(scaled)
        # The scales are in the sparse matrix, where they cost nothing more.
        unscaled_rows, unscaled_cols = (
            rows._replace(scale=np.ones(1, values.dtype)),
            cols._replace(scale=np.ones(1, values.dtype)),
        )
        return low_rank.Operator(
            self.pattern.shape,
            lambda block: unscaled_rows.rmatvec(sparse.matvec(unscaled_cols.matvec(block))),
            lambda block: unscaled_cols.rmatvec(sparse.rmatvec(unscaled_rows.matvec(block))),
        )

    @property
    def kernels(self) -> Kernels:
        return Kernels.HOST

    def scale(self) -> Scalar | float:
        return self.radius

    def at_full_precision(self) -> ConvexSet:
        return eqx.tree_at(lambda s: (s.tol, s.loose), self, (0.0 * self.tol, 0.0 * self.loose))

    def at_final_tolerance(self) -> ConvexSet:
        return eqx.tree_at(lambda s: s.loose, self, 0.0 * self.loose)

    def check_like(self, like: PyTree) -> None:
        shapes = [s.shape for s in trees.shapes(trees.coordinates(like)).leaves]
        if shapes != [(self.pattern.size,)]:
            raise ValueError(f"{self!r} needs one value for each entry, got shapes {shapes}.")

    def start(self, like: PyTree) -> Memory:
        dtype = trees.dtype(trees.coordinates(like))
        return Memory((jnp.zeros(min(self.pattern.shape), dtype), jnp.zeros((), jnp.int32)), jnp.zeros((), dtype))

    def second_start(self, like: PyTree, key: Array) -> Memory:
        memory = self.start(like)
        guess, k = memory.warm
        return memory._replace(warm=(jax.random.normal(key, guess.shape, guess.dtype), k))

    def lmo(self, direction: PyTree, memory: Memory) -> tuple[Sampled, Memory]:
        guess, k = memory.warm
        values = np.asarray(trees.coordinates(direction))
        rows, cols = self._sides(values.dtype)
        tol = max(float(self.tol), float(self.loose) / (int(k) + 2))
        # Squares of tiny or huge values would leave the range; dividing by a power of two loses nothing else.
        unit = 2.0 ** np.round(np.log2(np.abs(values).max(initial=0.0) or 1.0))
        with one_blas_thread():
            direction_in_ball = self._inside(values / values.dtype.type(unit), rows, cols)
            _, u, v, error = low_rank.top_pair(direction_in_ball, np.asarray(guess), tol, self.max_products)
        left = np.asarray(rows.matvec(-float(self.radius) * u), values.dtype)[:, None]
        right = np.asarray(cols.matvec(v), values.dtype)[:, None]
        s = Sampled(jnp.asarray(self.pattern.sample(left, right)), (Term(1.0, left, right),))
        short = v if self.pattern.shape[1] <= self.pattern.shape[0] else u
        warm = (jnp.asarray(short, values.dtype), k + 1)
        return s, Memory(warm, jnp.asarray(float(self.radius) * float(unit) * error, values.dtype))

    def low_rank_start(self, x: PyTree) -> Basis:
        return first_basis(self.pattern.shape, trees.dtype(x))

    def low_rank_step(
        self, x: PyTree, shift: PyTree, basis: Basis, *, max_rank: int | None, verify: bool
    ) -> LowRankStep:
        values = np.asarray(trees.coordinates(shift))
        rows, cols = self._sides(values.dtype)
        step = self._inside(values, rows, cols)
        left, right = x.factors()
        left, right = rows.solve(left), cols.solve(right)
        operator = low_rank.Operator(
            self.pattern.shape,
            lambda block: step.matvec(block) + left @ (right.T @ block),
            lambda block: step.rmatvec(block) + right @ (left.T @ block),
        )
        ball = functools.partial(low_rank.to_l1_ball, radius=float(self.radius))
        shrunk = low_rank.shrunk(operator, basis.vectors, ball, max_rank=max_rank, verify=verify)
        scaled = shrunk.left * shrunk.values
        # |A B^T - C D^T|^2 from products of the factors.
        a, b = np.column_stack([scaled, -left]), np.column_stack([shrunk.right, right])
        squared = float(np.sum((a.T @ a) * (b.T @ b), dtype=float))
        term = Term(1.0, rows.matvec(scaled), cols.matvec(shrunk.right))
        sampled = jnp.asarray(self.pattern.sample(term.left, term.right))
        moved = Sampled(sampled, (term,), 0.0, x.limit, x.rank)
        return LowRankStep(moved, max(squared, 0.0), Basis(shrunk.basis, len(shrunk.values), shrunk.exact))

    def vertex(self, like: PyTree) -> Sampled:
        """The zero matrix."""
        (shape,) = trees.shapes(trees.coordinates(like)).leaves
        left, right = (np.zeros((n, 0), shape.dtype) for n in self.pattern.shape)
        return Sampled(jnp.zeros(shape.shape, shape.dtype), (Term(1.0, left, right),))

    def conditions(self, x: Any) -> list[Condition]:
        if not isinstance(x, Sampled):
            raise TypeError(
                f"{self!r}: a point has factors besides its sampled values, and a {type(x).__name__} has none; begin "
                f"at domain.vertex(x0)."
            )
        rows, cols = self._sides(np.float64)
        left, right = x.factors()
        lost = float(x.lost) / float(rows.scale.min() * cols.scale.min())
        size = jnp.asarray(float(np.sum(_singular_values(rows.solve(left), cols.solve(right)))) + lost)
        return [Condition("its nuclear norm is {:.6g}", size, size - float(self.radius))]

    def diameter(self, like: PyTree) -> Diameter:
        # Of the matrices; that of the sampled values may be smaller.
        largest = 1.0
        for side in self._sides(np.float64):
            strongest = 0.0 if side.strengths is None else float(np.max(side.strengths, initial=0.0))
            largest *= float(side.scale.max()) * (1 + strongest)
        return Diameter(2.0 * self.radius * largest, False)
