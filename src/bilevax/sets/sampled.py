"""The nuclear-norm ball as it shows on the observed entries: nothing of the size of the matrix is ever formed."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree, Scalar

from bilevax import lowrank, trees
from bilevax.sets.contract import (
    Basis,
    Condition,
    ConvexSet,
    Diameter,
    LowRankStep,
    Memory,
    check_positive,
    known,
    number,
)
from bilevax.sets.spectral import first_basis
from bilevax.sparse import Pattern, top_pair


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
        values = trees.move(self.values, target.values, gamma)
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

    def singular_values(self, rows: Any = 1.0, cols: Any = 1.0) -> np.ndarray:
        """Those of the matrix with its rows and columns multiplied by weights."""
        left, right = self.factors()
        if left.shape[1] == 0:
            return np.zeros(0)
        a, b = (np.linalg.qr(w * factor)[1] for w, factor in ((_column(rows), left), (_column(cols), right)))
        found: np.ndarray = np.linalg.svd(a @ b.T, compute_uv=False)
        return found

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


def _column(weights: Any) -> np.ndarray:
    return np.asarray(weights).reshape(-1, 1)


class SampledNuclearBall(ConvexSet):
    """Matrices whose singular values sum to at most the radius, known on the entries of a pattern.

    With `row_weights` r and `col_weights` c (positive) it is the weighted trace norm, the nuclear norm of
    `diag(r) X diag(c)`. `lmo` comes from the leading singular pair of the sparse direction, to a relative error that
    falls with the calls from `loose` like 1/k, but not below `tol`; Frank-Wolfe needs no more. Runs on the host.
    """

    pattern: Pattern
    radius: Scalar | float = eqx.field(converter=number, default=1.0)
    row_weights: Float[np.ndarray, " p"] | None = None
    col_weights: Float[np.ndarray, " q"] | None = None
    tol: Scalar | float = eqx.field(converter=number, default=1e-6, kw_only=True)
    loose: Scalar | float = eqx.field(converter=number, default=1e-2, kw_only=True)
    max_products: int = eqx.field(static=True, default=500, kw_only=True)

    def __check_init__(self) -> None:
        check_positive(self, "radius")
        for name, weights, count in zip(("row", "col"), self._weights, self.pattern.shape, strict=True):
            if known(weights) and weights is not None:
                found = np.asarray(weights)
                if found.shape != (count,) or not (np.all(np.isfinite(found)) and np.all(found > 0)):
                    raise ValueError(f"SampledNuclearBall: {name}_weights must be {count} positive finite numbers.")

    def __repr__(self) -> str:
        if not known(self.radius):
            return type(self).__name__
        size = f"{self.pattern.size} entries of {self.pattern.shape[0]} x {self.pattern.shape[1]}"
        weighted = "" if self._weights == (None, None) else ", weighted"
        return f"SampledNuclearBall({size}, radius={float(self.radius):g}{weighted})"

    @property
    def _weights(self) -> tuple[Any, Any]:
        return self.row_weights, self.col_weights

    def _inverse_weights(self, dtype: Any) -> tuple[np.ndarray, np.ndarray]:
        ones = (
            np.ones(n, dtype) if w is None else 1 / np.asarray(w, dtype)
            for n, w in zip(self.pattern.shape, self._weights, strict=True)
        )
        rows, cols = ones
        return rows, cols

    def _weighted(self, values: np.ndarray, rows: np.ndarray, cols: np.ndarray) -> np.ndarray:
        """Values on the entries, each divided by the weights of its row and column."""
        if self._weights == (None, None):
            return values
        return self.pattern.scaled(values, rows, cols)

    @property
    def host(self) -> bool:
        return True

    @property
    def traceable(self) -> bool:
        return False

    def scale(self) -> Scalar | float:
        return self.radius

    def accurate(self) -> ConvexSet:
        return eqx.tree_at(lambda s: (s.tol, s.loose), self, (0.0 * self.tol, 0.0 * self.loose))

    def settled(self) -> ConvexSet:
        return eqx.tree_at(lambda s: s.loose, self, 0.0 * self.loose)

    def check_like(self, like: PyTree) -> None:
        found = [s.shape for s in trees.shapes(trees.coordinates(like)).leaves]
        if found != [(self.pattern.size,)]:
            raise ValueError(f"{self!r} needs one value for each entry, got shapes {found}.")

    def start(self, like: PyTree) -> Memory:
        dtype = trees.dtype(trees.coordinates(like))
        return Memory((jnp.zeros(min(self.pattern.shape), dtype), jnp.zeros((), jnp.int32)), jnp.zeros((), dtype))

    def lmo(self, direction: PyTree, memory: Memory) -> tuple[Sampled, Memory]:
        guess, k = memory.warm
        values = np.asarray(trees.coordinates(direction))
        rows, cols = self._inverse_weights(values.dtype)
        tol = max(float(self.tol), float(self.loose) / (int(k) + 2))
        matrix = self.pattern.matrix(self._weighted(values, rows, cols))
        _, u, v, error = top_pair(matrix, np.asarray(guess), tol, self.max_products)
        left = (-float(self.radius) * u * rows)[:, None].astype(values.dtype)
        right = (v * cols)[:, None].astype(values.dtype)
        s = Sampled(jnp.asarray(self.pattern.sample(left, right)), (Term(1.0, left, right),))
        short = v if self.pattern.shape[1] <= self.pattern.shape[0] else u
        warm = (jnp.asarray(short, values.dtype), k + 1)
        return s, Memory(warm, jnp.asarray(float(self.radius) * error, values.dtype))

    def low_rank_start(self, x: PyTree) -> Basis:
        return first_basis(self.pattern.shape, trees.dtype(x))

    def low_rank_step(self, x: PyTree, shift: PyTree, basis: Basis, *, max_rank: int, verify: bool) -> LowRankStep:
        values = np.asarray(trees.coordinates(shift))
        rows, cols = self._inverse_weights(values.dtype)
        sparse = self.pattern.matrix(self._weighted(values, rows, cols))
        left, right = x.factors()
        left, right = left / rows[:, None], right / cols[:, None]
        operator = lowrank.Operator(
            self.pattern.shape,
            lambda block: sparse @ block + left @ (right.T @ block),
            lambda block: sparse.T @ block + right @ (left.T @ block),
        )
        ball = functools.partial(lowrank.to_l1_ball, radius=float(self.radius))
        found = lowrank.shrunk(operator, basis.vectors, ball, max_rank=max_rank, verify=verify)
        scaled = found.left * found.values
        # |A B^T - C D^T|^2 from products of the factors.
        a, b = np.column_stack([scaled, -left]), np.column_stack([found.right, right])
        squared = float(np.sum(lowrank.coordinates(a, a) * lowrank.coordinates(b, b)))
        term = Term(1.0, scaled * rows[:, None], found.right * cols[:, None])
        sampled = jnp.asarray(self.pattern.sample(term.left, term.right))
        moved = Sampled(sampled, (term,), 0.0, x.limit, x.rank)
        return LowRankStep(moved, max(squared, 0.0), Basis(found.basis, len(found.values), found.exact))

    def vertex(self, like: PyTree) -> Sampled:
        """The zero matrix."""
        (shape,) = trees.shapes(trees.coordinates(like)).leaves
        left, right = (np.zeros((n, 0), shape.dtype) for n in self.pattern.shape)
        return Sampled(jnp.zeros(shape.shape, shape.dtype), (Term(1.0, left, right),))

    def conditions(self, x: Any) -> list[Condition]:
        rows, cols = self._inverse_weights(np.float64)
        lost = float(x.lost) / float(rows.min() * cols.min())
        size = jnp.asarray(float(np.sum(x.singular_values(1 / rows, 1 / cols))) + lost)
        return [Condition("its nuclear norm is {:.6g}", size, size - float(self.radius))]

    def diameter(self, like: PyTree) -> Diameter:
        # Of the matrices; that of the sampled values may be smaller.
        rows, cols = self._inverse_weights(np.float64)
        return Diameter(2.0 * self.radius * float(rows.max() * cols.max()), False)
