"""The group-lasso ball: few groups of entries at a time."""

from __future__ import annotations

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree, Scalar

from bilevax import trees
from bilevax.sets.contract import Condition, ConvexSet, Diameter, Memory, check_positive, direction_unit, exact, flat
from bilevax.sets.threshold import project_below
from bilevax.trees import as_leaf, is_concrete


def _labels(leaf: Any) -> np.ndarray:
    labels = np.asarray(leaf)
    if labels.size and not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(f"GroupL2Ball: groups must hold whole-number labels, got an array of {labels.dtype}.")
    return labels.astype(np.int32)


class GroupL2Ball(ConvexSet):
    """Points whose groups have Euclidean norms that sum to at most the radius: `sum_G |x_G|_2 <= radius`.

    `groups` has the structure and shape of x and gives each entry its group, `0` to `G - 1`; a list of numbers, or
    of such lists, is one array. `lmo` is `-radius F_G / |F_G|` on the group of largest norm.

    >>> import jax.numpy as jnp, bilevax as bx
    >>> ball = bx.GroupL2Ball([0, 0, 1])
    >>> direction = jnp.array([3.0, -4.0, 2.0])
    >>> [round(v, 3) for v in ball.lmo(direction, ball.start(direction))[0].tolist()]
    [-0.6, 0.8, 0.0]
    """

    tells_faces: ClassVar[bool] = True

    groups: PyTree
    radius: Scalar | float
    count: int = eqx.field(static=True)

    def __init__(self, groups: PyTree, radius: Scalar | float = 1.0):
        if isinstance(groups, (list, tuple)) and all(map(np.isscalar, jax.tree.leaves(groups))):
            groups = np.asarray(groups)
        self.groups, self.radius = jax.tree.map(_labels, groups), as_leaf(radius)
        leaves = jax.tree.leaves(self.groups)
        used = np.unique(np.concatenate([np.ravel(leaf) for leaf in leaves])) if leaves else np.zeros(0, np.int32)
        if used.size == 0:
            raise ValueError("GroupL2Ball: groups is empty; give one label per entry of x.")
        if used[0] < 0:
            raise ValueError(f"GroupL2Ball: a label is {used[0]}; number the groups 0, 1, 2, ...")
        self.count = int(used[-1]) + 1
        if used.size < self.count:
            gap = next(i for i, label in enumerate(used) if i != label)
            raise ValueError(f"GroupL2Ball: no entry has label {gap}, but labels go up to {used[-1]}; leave no gaps.")
        check_positive(self, "radius")

    def __repr__(self) -> str:
        size = f", radius={float(self.radius):g}" if is_concrete(self.radius) else ""
        return f"GroupL2Ball({self.count} groups{size})"

    def check_like(self, like: PyTree) -> None:
        wanted, given = trees.shapes(like), trees.shapes(self.groups)
        if given.structure != wanted.structure or [g.shape for g in given.leaves] != [w.shape for w in wanted.leaves]:
            raise ValueError(
                f"{self!r}: groups has shapes {[g.shape for g in given.leaves]}, x has "
                f"{[w.shape for w in wanted.leaves]}; give one label per entry, in the structure of x."
            )

    def scale(self) -> Scalar | float:
        return self.radius

    def _norms(self, values: Array) -> tuple[Array, Array]:
        labels = jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(self.groups)])
        return jnp.sqrt(jax.ops.segment_sum(values**2, labels, self.count)), labels

    def lmo(self, direction: PyTree, memory: Memory) -> tuple[PyTree, Memory]:
        values, back = flat(direction)
        values = values / direction_unit(values)
        norms, labels = self._norms(values)
        best = jnp.argmax(norms).astype(labels.dtype)
        size = jnp.where(norms[best] == 0, 1, norms[best])
        return back(jnp.where(labels == best, -self.radius * (values / size), 0)), exact(memory)

    def project(self, x: PyTree) -> PyTree:
        values, back = flat(x)
        unit = direction_unit(values)
        scaled = values / unit
        norms, labels = self._norms(scaled)
        shrunk = project_below(unit * norms, self.radius) / jnp.where(norms == 0, 1, norms)
        inside = jnp.sum(norms) <= self.radius / unit
        return back(jnp.where(inside, values, scaled * shrunk[labels]))

    def conditions(self, x: PyTree) -> list[Condition]:
        total = jnp.sum(self._norms(flat(x)[0])[0])
        return [Condition("its group norms sum to {:.6g}", total, total - self.radius)]

    def diameter(self, like: PyTree) -> Diameter:
        return Diameter(2.0 * self.radius, True)
