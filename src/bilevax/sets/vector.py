"""Simplices, norm balls and boxes: sets whose oracles cost one pass over the entries."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree, Scalar

from bilevax import trees
from bilevax.sets.contract import Condition, ConvexSet, Diameter, Memory, check_positive, direction_unit, exact, flat
from bilevax.sets.threshold import project_below, project_simplex
from bilevax.trees import as_leaf, is_concrete


def _one_hot(values: Array, index: Array, entry: Scalar | float) -> Array:
    return jnp.zeros_like(values).at[index].set(entry)


class _Radius(ConvexSet):
    """A set given by one positive number."""

    tells_faces: ClassVar[bool] = True

    radius: Scalar | float = eqx.field(converter=as_leaf, default=1.0)

    def __check_init__(self) -> None:
        check_positive(self, "radius")

    def __repr__(self) -> str:
        size = f"(radius={float(self.radius):g})" if is_concrete(self.radius) else ""
        return f"{type(self).__name__}{size}"

    def scale(self) -> Scalar | float:
        return self.radius


class Simplex(_Radius):
    """Non-negative entries that sum to the radius.

    >>> import jax.numpy as jnp, bilevax as bx
    >>> simplex = bx.Simplex()
    >>> direction = jnp.array([3.0, -1.0, 2.0])
    >>> simplex.lmo(direction, simplex.start(direction))[0].tolist()
    [0.0, 1.0, 0.0]
    """

    def lmo(self, direction: PyTree, memory: Memory) -> tuple[PyTree, Memory]:
        values, back = flat(direction)
        return back(_one_hot(values, jnp.argmin(values), self.radius)), exact(memory)

    def project(self, x: PyTree) -> PyTree:
        values, back = flat(x)
        return back(project_simplex(values, self.radius))

    def conditions(self, x: PyTree) -> list[Condition]:
        values, _ = flat(x)
        total, least = jnp.sum(values), jnp.min(values)
        return [
            Condition("its entries sum to {:.6g}", total, jnp.abs(total - self.radius)),
            Condition("its smallest entry is {:.6g}", least, -least),
        ]

    def diameter(self, like: PyTree) -> Diameter:
        return Diameter(math.sqrt(2.0) * self.radius if trees.size(like) > 1 else 0.0, True)


class UnitSimplex(_Radius):
    """Non-negative entries that sum to at most the radius."""

    def lmo(self, direction: PyTree, memory: Memory) -> tuple[PyTree, Memory]:
        values, back = flat(direction)
        index = jnp.argmin(values)
        entry = jnp.where(values[index] < 0, self.radius, 0)
        return back(_one_hot(values, index, entry)), exact(memory)

    def project(self, x: PyTree) -> PyTree:
        values, back = flat(x)
        return back(project_below(values, self.radius))

    def conditions(self, x: PyTree) -> list[Condition]:
        values, _ = flat(x)
        total, least = jnp.sum(values), jnp.min(values)
        return [
            Condition("its entries sum to {:.6g}", total, total - self.radius),
            Condition("its smallest entry is {:.6g}", least, -least),
        ]

    def diameter(self, like: PyTree) -> Diameter:
        return Diameter(self.radius * (math.sqrt(2.0) if trees.size(like) > 1 else 1.0), True)


class L1Ball(_Radius):
    """Entries whose magnitudes sum to at most the radius."""

    def lmo(self, direction: PyTree, memory: Memory) -> tuple[PyTree, Memory]:
        values, back = flat(direction)
        index = jnp.argmax(jnp.abs(values))
        return back(_one_hot(values, index, -self.radius * jnp.sign(values[index]))), exact(memory)

    def project(self, x: PyTree) -> PyTree:
        values, back = flat(x)
        return back(jnp.sign(values) * project_below(jnp.abs(values), self.radius))

    def conditions(self, x: PyTree) -> list[Condition]:
        size = jnp.sum(jnp.abs(flat(x)[0]))
        return [Condition("its l1 norm is {:.6g}", size, size - self.radius)]

    def diameter(self, like: PyTree) -> Diameter:
        return Diameter(2.0 * self.radius, True)


class L2Ball(_Radius):
    """Points whose Euclidean norm is at most the radius."""

    def lmo(self, direction: PyTree, memory: Memory) -> tuple[PyTree, Memory]:
        values, back = flat(direction)
        values = values / direction_unit(values)
        size = jnp.linalg.norm(values)
        return back(-self.radius * (values / jnp.where(size == 0, 1, size))), exact(memory)

    def project(self, x: PyTree) -> PyTree:
        values, back = flat(x)
        unit = direction_unit(values)
        scaled = values / unit
        size = jnp.linalg.norm(scaled)
        outside = size > self.radius / unit
        return back(jnp.where(outside, self.radius * (scaled / jnp.where(outside, size, 1)), values))

    def conditions(self, x: PyTree) -> list[Condition]:
        size = trees.norm(x)
        return [Condition("its l2 norm is {:.6g}", size, size - self.radius)]

    def diameter(self, like: PyTree) -> Diameter:
        return Diameter(2.0 * self.radius, True)


class LInfBall(_Radius):
    """Entries of magnitude at most the radius."""

    def lmo(self, direction: PyTree, memory: Memory) -> tuple[PyTree, Memory]:
        return jax.tree.map(lambda v: -self.radius * jnp.sign(v), direction), exact(memory)

    def project(self, x: PyTree) -> PyTree:
        return jax.tree.map(lambda v: jnp.clip(v, -self.radius, self.radius), x)

    def conditions(self, x: PyTree) -> list[Condition]:
        largest = jnp.max(jnp.abs(flat(x)[0]))
        return [Condition("its largest magnitude is {:.6g}", largest, largest - self.radius)]

    def diameter(self, like: PyTree) -> Diameter:
        return Diameter(2.0 * self.radius * math.sqrt(trees.size(like)), True)


def _bound(value: Any) -> Any:
    return jax.tree.map(as_leaf, value)


def _flatten(tree: PyTree) -> tuple[list[Any], Any]:
    return jax.tree.flatten(tree)


class Box(ConvexSet):
    """Entries between two bounds, each one number for all or a pytree like the point.

    Infinite bounds are allowed; solvers that need the `lmo` then refuse the box.
    """

    tells_faces: ClassVar[bool] = True

    lower: PyTree = eqx.field(converter=_bound)
    upper: PyTree = eqx.field(converter=_bound)

    def __check_init__(self) -> None:
        if not is_concrete((self.lower, self.upper)):
            return
        for low, high in self._pairs():
            if np.any(np.isnan(low)) or np.any(np.isnan(high)) or np.any(np.isposinf(low)) or np.any(np.isneginf(high)):
                raise ValueError(
                    "Box: a bound is NaN, or infinite on the wrong side; give lower < inf and upper > -inf."
                )
            if np.any(low > high):
                raise ValueError(
                    f"Box is empty: lower exceeds upper by up to {float(np.max(low - high)):g}; "
                    f"swap or widen the bounds."
                )

    def __repr__(self) -> str:
        def brief(bound: PyTree) -> str:
            leaves = jax.tree.leaves(bound)
            scalar = len(leaves) == 1 and np.ndim(leaves[0]) == 0 and is_concrete(bound)
            return f"{float(leaves[0]):g}" if scalar else "<array>"

        return f"Box({brief(self.lower)}, {brief(self.upper)})"

    def _pairs(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Lower and upper bound of each part; a single number stands for all parts."""
        (lows, low_shape), (highs, high_shape) = _flatten(self.lower), _flatten(self.upper)
        if len(lows) == 1 and np.ndim(lows[0]) == 0:
            lows = lows * len(highs)
        elif len(highs) == 1 and np.ndim(highs[0]) == 0:
            highs = highs * len(lows)
        elif low_shape != high_shape:
            raise ValueError("Box: lower and upper have different structures; give two trees alike, or single numbers.")
        try:
            spread = [np.broadcast_arrays(low, high) for low, high in zip(lows, highs, strict=True)]
        except ValueError:
            shapes = [(np.shape(low), np.shape(high)) for low, high in zip(lows, highs, strict=True)]
            raise ValueError(f"Box: lower and upper have shapes {shapes} that do not fit each other.") from None
        return [(low, high) for low, high in spread]

    def _spread(self, bound: PyTree, like: PyTree) -> PyTree:
        leaves = jax.tree.leaves(bound)
        if len(leaves) == 1 and jnp.ndim(leaves[0]) == 0:
            return jax.tree.map(lambda v: jnp.full(jnp.shape(v), leaves[0], v.dtype), like)
        return jax.tree.map(lambda v, b: jnp.broadcast_to(jnp.asarray(b, v.dtype), jnp.shape(v)), like, bound)

    def bounds(self, like: PyTree) -> tuple[PyTree, PyTree]:
        """Both bounds with the structure and shapes of a point."""
        return self._spread(self.lower, like), self._spread(self.upper, like)

    def check_like(self, like: PyTree) -> None:
        try:
            jax.eval_shape(self.bounds, trees.shapes(like).zeros())
        except ValueError as error:
            raise ValueError(
                f"Box: its bounds do not fit the point ({trees.describe(like)}); "
                f"give scalars or arrays of the same structure."
            ) from error

    def lmo(self, direction: PyTree, memory: Memory) -> tuple[PyTree, Memory]:
        low, high = self.bounds(direction)
        return jax.tree.map(lambda v, a, b: jnp.where(v >= 0, a, b), direction, low, high), exact(memory)

    def project(self, x: PyTree) -> PyTree:
        low, high = self.bounds(x)
        return jax.tree.map(jnp.clip, x, low, high)

    def vertex(self, like: PyTree) -> PyTree:
        return self.project(trees.shapes(like).zeros())

    def conditions(self, x: PyTree) -> list[Condition]:
        low, high = self.bounds(x)
        below = jnp.max(flat(trees.sub(low, x))[0])
        above = jnp.max(flat(trees.sub(x, high))[0])
        return [
            Condition("an entry is {:.6g} below its lower bound", below, below),
            Condition("an entry is {:.6g} above its upper bound", above, above),
        ]

    def scale(self) -> Scalar | float:
        ends = [jnp.max(jnp.where(jnp.isfinite(b), jnp.abs(b), 0)) for b in jax.tree.leaves((self.lower, self.upper))]
        return jnp.maximum(1.0, jnp.max(jnp.stack(ends)))

    def diameter(self, like: PyTree) -> Diameter:
        low, high = self.bounds(trees.shapes(like).zeros())
        return Diameter(trees.norm(trees.sub(high, low)), True)
