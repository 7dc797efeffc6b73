"""Skeleton of a set: copy it to src/bilevax/sets/, rename it, and keep what applies.

The example is the segment between two points. CONTRIBUTING.md lists what else a new set needs.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree, Scalar

from bilevax import trees
from bilevax.sets.contract import Condition, ConvexSet, Diameter, Memory, exact
from bilevax.trees import as_leaf, is_concrete


class Segment(ConvexSet):
    """The points `first + t (last - first)` with t between 0 and 1.

    >>> import jax.numpy as jnp
    >>> segment = Segment(jnp.zeros(2), jnp.ones(2))
    >>> direction = jnp.array([1.0, -3.0])
    >>> segment.lmo(direction, segment.start(direction))[0].tolist()
    [1.0, 1.0]
    """

    # Numbers are array leaves: another value then compiles nothing again.
    first: PyTree = eqx.field(converter=lambda point: jax.tree.map(as_leaf, point))
    last: PyTree = eqx.field(converter=lambda point: jax.tree.map(as_leaf, point))

    def __check_init__(self) -> None:
        # Inside compiled code numbers cannot be looked at; check only those that can.
        if is_concrete((self.first, self.last)):
            for name, point in (("first", self.first), ("last", self.last)):
                if not all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(point)):
                    raise ValueError(f"Segment: {name} must be finite, got {point!r}.")

    def __repr__(self) -> str:
        return "Segment()"

    def check_like(self, like: PyTree) -> None:
        wanted, given = trees.shapes(like), trees.shapes(self.first)
        if [s.shape for s in wanted.leaves] != [s.shape for s in given.leaves]:
            raise ValueError(f"{self!r} has points like {trees.describe(self.first)}, got {trees.describe(like)}.")

    def lmo(self, direction: PyTree, memory: Memory) -> tuple[PyTree, Memory]:
        rising = trees.inner(direction, trees.sub(self.last, self.first)) >= 0
        return jax.tree.map(lambda a, b: jnp.where(rising, a, b), self.first, self.last), exact(memory)

    def _share(self, x: PyTree) -> Scalar:
        """t of the nearest point."""
        along = trees.sub(self.last, self.first)
        length = trees.inner(along, along)
        return jnp.clip(trees.inner(along, trees.sub(x, self.first)) / jnp.where(length == 0, 1, length), 0, 1)

    def project(self, x: PyTree) -> PyTree:
        # Leave this method out where a projection is not cheap: the set then works with Frank-Wolfe methods only.
        return trees.move(self.first, self.last, self._share(x))

    def conditions(self, x: PyTree) -> list[Condition]:
        distance: Array = trees.norm(trees.sub(x, self.project(x)))
        return [Condition("its distance to the segment is {:.6g}", distance, distance)]

    def diameter(self, like: PyTree) -> Diameter:
        return Diameter(trees.norm(trees.sub(self.last, self.first)), True)
