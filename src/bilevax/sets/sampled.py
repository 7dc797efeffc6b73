"""The nuclear-norm ball as it shows on the observed entries: nothing of the size of the matrix is ever formed."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree, Scalar

from bilevax import trees
from bilevax.sets.contract import Condition, ConvexSet, Diameter, Memory, check_positive, known, number
from bilevax.sparse import Pattern, top_pair

Factor = Float[Array, "n r"] | Float[np.ndarray, "n r"]


class Sampled(trees.Point):
    """A low-rank matrix: its values on a pattern, and factors with `left @ right.T` equal to it.

    Steps append atoms to `recent`; once there are `limit` of them, all are merged into factors of rank at most `rank`.
    What that drops, if anything, is in `lost`, a bound on its nuclear norm; the values never lose anything.
    """

    values: Float[Array, " nnz"]
    left: Factor
    right: Factor
    weight: float = 1.0
    """Of the factors; a step changes this number instead of all of `left`."""
    recent: tuple[tuple[float, np.ndarray, np.ndarray], ...] = ()
    lost: float = 0.0
    limit: int = eqx.field(static=True, default=32)
    rank: int = eqx.field(static=True, default=256)

    @property
    def coordinates(self) -> Array:
        return self.values

    def move(self, target: Sampled, gamma: Scalar) -> Sampled:
        """Towards an atom, or any other point of few."""
        step, keep = float(gamma), 1.0 - float(gamma)
        values = self.values + gamma * (target.values - self.values)
        scaled = [(keep, self.recent), (step, target.atoms())]
        recent = tuple((share * c, u, v) for share, atoms in scaled for c, u, v in atoms)
        made = (values, self.left, self.right, keep * self.weight, recent, keep * self.lost + step * target.lost)
        moved = Sampled(*made, self.limit, self.rank)
        return moved.merged() if len(recent) > self.limit else moved

    def atoms(self) -> tuple[tuple[float, np.ndarray, np.ndarray], ...]:
        """The matrix as a sum of rank-one terms."""
        left, right = np.asarray(self.left), np.asarray(self.right)
        return (*((self.weight, left[:, j], right[:, j]) for j in range(left.shape[1])), *self.recent)

    def factors(self) -> tuple[np.ndarray, np.ndarray]:
        """`left` and `right` with the weight and everything recent in them."""
        left, right = self.weight * np.asarray(self.left), np.asarray(self.right)
        if not self.recent:
            return left, right
        left = np.column_stack([left, *(c * u for c, u, _ in self.recent)])
        return left, np.column_stack([right, *(v for _, _, v in self.recent)])

    def singular_values(self) -> np.ndarray:
        """Those of the factors."""
        left, right = self.factors()
        if left.shape[1] == 0:
            return np.zeros(0)
        a, b = (np.linalg.qr(factor)[1] for factor in (left, right))
        found: np.ndarray = np.linalg.svd(a @ b.T, compute_uv=False)
        return found

    def merged(self) -> Sampled:
        """The same matrix with balanced factors of full column rank, at most `rank`."""
        left, right = self.factors()
        (ql, rl), (qr, rr) = np.linalg.qr(left), np.linalg.qr(right)
        u, sizes, v = np.linalg.svd(rl @ rr.T)
        negligible = np.finfo(sizes.dtype).eps * sizes[0] * max(left.shape[0], right.shape[0]) if sizes.size else 0.0
        kept = min(int(np.sum(sizes > negligible)), self.rank)
        root = np.sqrt(sizes[:kept])
        lost = self.lost + float(np.sum(sizes[kept:]))
        made = (self.values, ql @ (u[:, :kept] * root), qr @ (v[:kept].T * root))
        return Sampled(*made, 1.0, (), lost, self.limit, self.rank)


class SampledNuclearBall(ConvexSet):
    """Matrices whose singular values sum to at most the radius, known on the entries of a pattern.

    `lmo` is `-radius u v^T` for the leading singular pair of the sparse direction, to a relative error that falls
    with the calls from `loose` like 1/k, but not below `tol`; Frank-Wolfe needs no more. Runs on the host.
    """

    pattern: Pattern
    radius: Scalar | float = eqx.field(converter=number, default=1.0)
    tol: Scalar | float = eqx.field(converter=number, default=1e-6, kw_only=True)
    loose: Scalar | float = eqx.field(converter=number, default=1e-2, kw_only=True)
    max_products: int = eqx.field(static=True, default=500, kw_only=True)

    def __check_init__(self) -> None:
        check_positive(self, "radius")

    def __repr__(self) -> str:
        size = f"{self.pattern.size} entries of {self.pattern.shape[0]} x {self.pattern.shape[1]}"
        return (
            f"SampledNuclearBall({size}, radius={float(self.radius):g})" if known(self.radius) else type(self).__name__
        )

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
        tol = max(float(self.tol), float(self.loose) / (int(k) + 2))
        _, u, v, error = top_pair(self.pattern.matrix(values), np.asarray(guess), tol, self.max_products)
        left, right = (-float(self.radius) * u)[:, None].astype(values.dtype), v[:, None].astype(values.dtype)
        s = Sampled(jnp.asarray(self.pattern.sample(left, right)), left, right)
        short = v if self.pattern.shape[1] <= self.pattern.shape[0] else u
        warm = (jnp.asarray(short, values.dtype), k + 1)
        return s, Memory(warm, jnp.asarray(float(self.radius) * error, values.dtype))

    def vertex(self, like: PyTree) -> Sampled:
        """The zero matrix."""
        (shape,) = trees.shapes(trees.coordinates(like)).leaves
        p, q = self.pattern.shape
        return Sampled(
            jnp.zeros(shape.shape, shape.dtype), np.zeros((p, 0), shape.dtype), np.zeros((q, 0), shape.dtype)
        )

    def conditions(self, x: Any) -> list[Condition]:
        size = jnp.asarray(float(np.sum(x.singular_values())) + float(x.lost))
        return [Condition("its nuclear norm is {:.6g}", size, size - float(self.radius))]

    def diameter(self, like: PyTree) -> Diameter:
        return Diameter(2.0 * self.radius, False)  # of the matrices; that of the sampled values may be smaller
