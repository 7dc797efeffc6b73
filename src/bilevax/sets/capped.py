"""Entries with a cap and a total: fractional choices of k out of n, with equal weights or signed."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree, Scalar

from bilevax import trees
from bilevax.sets.contract import Condition, ConvexSet, Diameter, Memory, check_positive, exact, flat
from bilevax.sets.threshold import project_capped
from bilevax.trees import as_leaf, is_concrete


def _fill(total: Scalar, cap: Scalar, n: int) -> Array:
    """The amounts cap, ..., cap, remainder, 0, ..., 0 that make up the total."""
    return jnp.clip(total - cap * jnp.arange(n, dtype=total.dtype), 0, cap)


class CappedSimplex(ConvexSet):
    """Entries `0 <= x <= cap` that sum to the total; `at_most`: to no more, `at_least`: to no less.

    `lmo` fills the smallest entries of the direction up to the cap until the total is reached. `project` is
    `clip(x - tau, 0, cap)` with an exact `tau`.

    >>> import jax.numpy as jnp, bilevax as bx
    >>> some = bx.CappedSimplex(1.5)
    >>> direction = jnp.array([3.0, -1.0, 2.0])
    >>> some.lmo(direction, some.start(direction))[0].tolist()
    [0.0, 1.0, 0.5]
    """

    tells_faces: ClassVar[bool] = True

    total: Scalar | float = eqx.field(converter=as_leaf)
    cap: Scalar | float = eqx.field(converter=as_leaf, default=1.0)
    at_most: bool = eqx.field(static=True, default=False, kw_only=True)
    at_least: bool = eqx.field(static=True, default=False, kw_only=True)

    def __check_init__(self) -> None:
        check_positive(self, "cap")
        if is_concrete(self.total):
            total = np.asarray(self.total)  # inside a trace, JAX would trace the comparison of a known number too
            if not (total.ndim == 0 and np.isfinite(total) and total >= 0):
                raise ValueError(f"CappedSimplex: total must be one finite number >= 0, got {total.tolist()}.")
        if self.at_most and self.at_least:
            raise ValueError("CappedSimplex: at_most and at_least exclude each other; leave both out for a fixed sum.")

    def __repr__(self) -> str:
        flag = ", at_most=True" if self.at_most else ", at_least=True" if self.at_least else ""
        if not is_concrete((self.total, self.cap)):
            return "CappedSimplex"
        return f"CappedSimplex(total={float(self.total):g}, cap={float(self.cap):g}{flag})"

    def check_like(self, like: PyTree) -> None:
        if self.at_most or not is_concrete((self.total, self.cap)):
            return
        n, total = trees.size(like), float(self.total)
        largest = n * float(self.cap)
        # Two rounded numbers may miss n * cap = total by their last digits.
        if total > largest * (1 + 4 * float(jnp.finfo(jnp.result_type(self.total)).eps)):
            raise ValueError(
                f"{self!r} is empty for {n} entries: the largest possible total is {n} * cap = {largest:g}; "
                f"take a smaller total or a larger cap."
            )

    def scale(self) -> Scalar | float:
        # The sum of k entries is known to about sqrt(k) roundings of one of them. No entry exceeds a total below
        # the cap, unless the total is only a lower limit.
        small = self.cap if self.at_least else jnp.where(jnp.asarray(self.total) > 0, self.total, self.cap)
        return jnp.where(jnp.asarray(self.total) > self.cap, jnp.sqrt(self.total * self.cap), small)

    def _numbers(self, dtype: Any) -> tuple[Array, Array]:
        return jnp.asarray(self.total, dtype), jnp.asarray(self.cap, dtype)

    def lmo(self, direction: PyTree, memory: Memory) -> tuple[PyTree, Memory]:
        values, back = flat(direction)
        total, cap = self._numbers(values.dtype)
        order = jnp.argsort(values)
        ascending, amounts = values[order], _fill(total, cap, values.size)
        if self.at_most:
            amounts = jnp.where(ascending < 0, amounts, 0)
        if self.at_least:
            amounts = jnp.where(ascending < 0, cap, amounts)
        return back(jnp.zeros_like(values).at[order].set(amounts)), exact(memory)

    def project(self, x: PyTree) -> PyTree:
        values, back = flat(x)
        total, cap = self._numbers(values.dtype)
        projected = project_capped(values, total, cap)
        if self.at_most or self.at_least:
            clipped = jnp.clip(values, 0, cap)
            reached = jnp.sum(clipped)
            projected = jnp.where(reached <= total if self.at_most else reached >= total, clipped, projected)
        return back(projected)

    def conditions(self, x: PyTree) -> list[Condition]:
        values, _ = flat(x)
        total, cap = self._numbers(values.dtype)
        reached, least, largest = jnp.sum(values), jnp.min(values), jnp.max(values)
        over = reached - total
        excess = over if self.at_most else -over if self.at_least else jnp.abs(over)
        return [
            Condition("its entries sum to {:.6g}", reached, excess),
            Condition("its smallest entry is {:.6g}", least, -least),
            Condition("its largest entry is {:.6g}", largest, largest - cap),
        ]

    def diameter(self, like: PyTree) -> Diameter:
        n = trees.size(like)
        total, cap = self._numbers(trees.dtype(like))
        if not (self.at_most or self.at_least):
            # All vertices are permutations of one vector, hence of one norm; the smallest inner product of two of
            # them is the one in opposite order.
            amounts = _fill(total, cap, n)
            return Diameter(jnp.linalg.norm(amounts - amounts[::-1]), True)
        # x -> cap - x turns "at least" into "at most". There, lowering the smaller of two entries that share a place
        # moves the points apart, so the supports are disjoint; the k-th entry of a support adds less and less, so
        # they are of equal size, up to one.
        amounts = _fill(total if self.at_most else n * cap - total, cap, n)
        return Diameter(jnp.sqrt(jnp.sum(amounts[: n // 2] ** 2) + jnp.sum(amounts[: n - n // 2] ** 2)), True)


def _count(k: Any) -> Any:
    return int(k) if isinstance(k, np.integer) else k


def _check_count(owner: Any) -> None:
    if isinstance(owner.k, bool) or not isinstance(owner.k, int) or owner.k < 1:
        raise ValueError(f"{type(owner).__name__}: k must be a positive whole number, got {owner.k!r}.")


class SparseSimplex(ConvexSet):
    """The convex hull of vectors with k entries `radius / k` and zeros: `0 <= x <= radius / k`, sum `radius`.

    At least k entries share the weight. It is the part of the simplex on which no entry exceeds `radius / k`, hence
    `CappedSimplex(radius, radius / k)`; `k = 1` is the whole simplex. The hull of all vectors of the simplex with at
    most k non-zero entries would be the simplex for every k, since a vertex of the simplex has one.

    >>> import jax.numpy as jnp, bilevax as bx
    >>> pair = bx.SparseSimplex(2)
    >>> direction = jnp.array([3.0, -1.0, 2.0])
    >>> pair.lmo(direction, pair.start(direction))[0].tolist()
    [0.0, 0.5, 0.5]
    """

    tells_faces: ClassVar[bool] = True

    k: int = eqx.field(static=True, converter=_count)
    radius: Scalar | float = eqx.field(converter=as_leaf, default=1.0)

    def __check_init__(self) -> None:
        _check_count(self)
        check_positive(self, "radius")

    def __repr__(self) -> str:
        size = f", radius={float(self.radius):g}" if is_concrete(self.radius) else ""
        return f"SparseSimplex(k={self.k}{size})"

    def _capped(self) -> CappedSimplex:
        return CappedSimplex(self.radius, self.radius / self.k)

    def check_like(self, like: PyTree) -> None:
        if trees.size(like) < self.k:
            raise ValueError(
                f"{self!r} is empty for {trees.size(like)} entries: at least {self.k} share the weight; "
                f"take k at most {trees.size(like)}."
            )

    def scale(self) -> Scalar | float:
        return self._capped().scale()

    def lmo(self, direction: PyTree, memory: Memory) -> tuple[PyTree, Memory]:
        values, back = flat(direction)
        _, smallest = jax.lax.top_k(-values, self.k)
        return back(jnp.zeros_like(values).at[smallest].set(self.radius / self.k)), exact(memory)

    def project(self, x: PyTree) -> PyTree:
        return self._capped().project(x)

    def conditions(self, x: PyTree) -> list[Condition]:
        return self._capped().conditions(x)

    def diameter(self, like: PyTree) -> Diameter:
        # Two choices of k out of n differ in at most n - k entries on each side.
        apart = max(min(self.k, trees.size(like) - self.k), 0)
        return Diameter(self.radius * (math.sqrt(2 * apart) / self.k), True)


class KSparse(ConvexSet):
    """The convex hull of vectors with k entries `+-radius`: `|x|_inf <= radius`, `|x|_1 <= k radius`.

    >>> import jax.numpy as jnp, bilevax as bx
    >>> pair = bx.KSparse(2)
    >>> direction = jnp.array([3.0, -1.0, -2.0])
    >>> pair.lmo(direction, pair.start(direction))[0].tolist()
    [-1.0, 0.0, 1.0]
    """

    tells_faces: ClassVar[bool] = True

    k: int = eqx.field(static=True, converter=_count)
    radius: Scalar | float = eqx.field(converter=as_leaf, default=1.0)

    def __check_init__(self) -> None:
        _check_count(self)
        check_positive(self, "radius")

    def __repr__(self) -> str:
        size = f", radius={float(self.radius):g}" if is_concrete(self.radius) else ""
        return f"KSparse(k={self.k}{size})"

    def scale(self) -> Scalar | float:
        return math.sqrt(self.k) * self.radius

    def lmo(self, direction: PyTree, memory: Memory) -> tuple[PyTree, Memory]:
        values, back = flat(direction)
        _, largest = jax.lax.top_k(jnp.abs(values), min(self.k, values.size))
        s = jnp.zeros_like(values).at[largest].set(-self.radius * jnp.sign(values[largest]))
        return back(s), exact(memory)

    def project(self, x: PyTree) -> PyTree:
        values, back = flat(x)
        sizes = CappedSimplex(self.k * self.radius, self.radius, at_most=True).project(jnp.abs(values))
        return back(jnp.sign(values) * sizes)

    def conditions(self, x: PyTree) -> list[Condition]:
        sizes = jnp.abs(flat(x)[0])
        largest, total = jnp.max(sizes), jnp.sum(sizes)
        return [
            Condition("its largest magnitude is {:.6g}", largest, largest - self.radius),
            Condition("its l1 norm is {:.6g}", total, total - self.k * self.radius),
        ]

    def diameter(self, like: PyTree) -> Diameter:
        return Diameter(2.0 * self.radius * math.sqrt(min(self.k, trees.size(like))), True)
