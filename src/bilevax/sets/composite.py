"""Sets made of other things: given points, a tree of sets, everything, or a user's own oracle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jaxtyping import Array, PyTree, Scalar

from bilevax import trees
from bilevax.linalg.host_loops import Kernels
from bilevax.sets.contract import Condition, ConvexSet, Diameter, Memory, exact, flat
from bilevax.trees import as_leaf, is_concrete


class VertexHull(ConvexSet):
    """The convex hull of given points, stacked along the first axis of every leaf."""

    points: PyTree = eqx.field(converter=lambda points: jax.tree.map(as_leaf, points))

    def __check_init__(self) -> None:
        leaves = jax.tree.leaves(self.points)
        counts = {v.shape[0] if np.ndim(v) else None for v in leaves}
        if not leaves or len(counts) != 1 or None in counts:
            raise ValueError(
                "VertexHull: stack the points along the first axis of every leaf, the same number in each."
            )
        if counts == {0}:
            raise ValueError("VertexHull is empty: it was given no points; give at least one.")
        if is_concrete(self.points) and not all(np.all(np.isfinite(v)) for v in leaves):
            raise ValueError("VertexHull: a point has a NaN or infinite coordinate; remove it.")

    def __repr__(self) -> str:
        return f"VertexHull({jax.tree.leaves(self.points)[0].shape[0]} points)"

    def check_like(self, like: PyTree) -> None:
        wanted = trees.shapes(like)
        given = jax.tree.map(lambda v: v[0], self.points)
        if jax.tree.structure(given) != wanted.structure or any(
            np.shape(g) != w.shape for g, w in zip(jax.tree.leaves(given), wanted.leaves, strict=True)
        ):
            raise ValueError(
                f"{self!r}: one point has shapes {[np.shape(v) for v in jax.tree.leaves(given)]}, "
                f"x has {[w.shape for w in wanted.leaves]}; stack points of the shape of x along a new first axis."
            )

    def scale(self) -> Scalar | float:
        return jnp.maximum(1.0, jnp.max(jnp.stack([jnp.max(jnp.abs(v)) for v in jax.tree.leaves(self.points)])))

    def lmo(self, direction: PyTree, memory: Memory) -> tuple[PyTree, Memory]:
        self.check_like(direction)
        scores = sum(
            jnp.asarray(p).reshape(p.shape[0], -1) @ d.reshape(-1)
            for p, d in zip(jax.tree.leaves(self.points), jax.tree.leaves(direction), strict=True)
        )
        best = jnp.argmin(scores)
        s = jax.tree.map(lambda p, d: jnp.asarray(p, d.dtype)[best], self.points, direction)
        return s, exact(memory)

    def vertex(self, like: PyTree) -> PyTree:
        return jax.tree.map(lambda p: jnp.mean(jnp.asarray(p, trees.dtype(like)), axis=0), self.points)

    def conditions(self, x: PyTree) -> list[Condition]:
        """On the host: the largest coordinate error of the best convex combination, by a linear program."""
        points = np.stack([np.asarray(flat(p)[0]) for p in self._each()]).astype(float)
        target = np.asarray(flat(x)[0], float)
        if not np.all(np.isfinite(target)):
            nowhere = jnp.asarray(np.inf)
            return [Condition("it has a NaN or infinite coordinate", nowhere, nowhere)]
        n, d = points.shape
        column = np.ones((d, 1))
        program = scipy.optimize.linprog(
            np.r_[np.zeros(n), 1.0],
            A_ub=np.block([[points.T, -column], [-points.T, -column]]),
            b_ub=np.r_[target, -target],
            A_eq=np.r_[np.ones(n), 0.0][None],
            b_eq=[1.0],
        )
        distance = jnp.asarray(program.fun if program.success else np.inf)
        return [Condition("it is {:.6g} away from every convex combination of the points", distance, distance)]

    def _each(self) -> list[PyTree]:
        count = jax.tree.leaves(self.points)[0].shape[0]
        return [jax.tree.map(lambda v, i=i: jnp.asarray(v[i]), self.points) for i in range(count)]

    def diameter(self, like: PyTree) -> Diameter:
        rows = [v.reshape(v.shape[0], -1) for v in jax.tree.leaves(self.points)]
        if is_concrete(self.points) and rows[0].shape[0] <= 1000:
            widest = scipy.spatial.distance.pdist(np.hstack(rows)).max(initial=0.0)
            return Diameter(jnp.asarray(widest, trees.dtype(like)), True)
        stacked = jnp.concatenate([jnp.asarray(v, trees.dtype(like)) for v in rows], axis=1)
        return Diameter(2.0 * jnp.max(jnp.linalg.norm(stacked - jnp.mean(stacked, axis=0), axis=1)), False)


def _is_set(node: Any) -> bool:
    return isinstance(node, ConvexSet)


class Product(ConvexSet):
    """One set for each part of a point: a pytree of sets that is a prefix of the point's structure.

    >>> import jax.numpy as jnp, bilevax as bx
    >>> both = bx.Product({"a": bx.Simplex(), "b": bx.Box(-1.0, 1.0)})
    >>> both.vertex({"a": jnp.zeros(2), "b": jnp.zeros(3)})["a"].tolist()
    [1.0, 0.0]
    """

    sets: PyTree

    def __init__(self, sets: PyTree):
        self.sets = jax.tree.map(as_set, sets, is_leaf=lambda node: _is_set(node) or callable(node))
        if not self._leaves():
            raise ValueError("Product: give at least one set.")

    def _leaves(self) -> list[ConvexSet]:
        return jax.tree.leaves(self.sets, is_leaf=_is_set)

    def _split(self, tree: PyTree) -> list[PyTree]:
        structure: Any = jax.tree.structure(self.sets, is_leaf=_is_set)
        return structure.flatten_up_to(tree)

    def _join(self, parts: list[PyTree]) -> PyTree:
        return jax.tree.unflatten(jax.tree.structure(self.sets, is_leaf=_is_set), parts)

    @property
    def tells_faces(self) -> bool:  # type: ignore[override]
        return all(part.tells_faces for part in self._leaves())

    @property
    def kernels(self) -> Kernels:
        return max(part.kernels for part in self._leaves())

    def __repr__(self) -> str:
        return f"Product({', '.join(map(repr, self._leaves()))})"

    def check_like(self, like: PyTree) -> None:
        try:
            parts = self._split(trees.shapes(like).zeros())
        except ValueError as error:
            raise ValueError(f"{self!r}: its tree of sets does not match the structure of x: {error}") from error
        for part, x in zip(self._leaves(), parts, strict=True):
            part.check_like(x)

    def start(self, like: PyTree) -> Memory:
        memories = [part.start(x) for part, x in zip(self._leaves(), self._split(like), strict=True)]
        return Memory(tuple(memories), jnp.zeros((), trees.dtype(like)))

    def second_start(self, like: PyTree, key: Array) -> Memory:
        parts = zip(self._leaves(), self._split(like), jax.random.split(key, len(self._leaves())), strict=True)
        memories = [part.second_start(x, own_key) for part, x, own_key in parts]
        return Memory(tuple(memories), jnp.zeros((), trees.dtype(like)))

    def lmo(self, direction: PyTree, memory: Memory) -> tuple[PyTree, Memory]:
        answers = [
            part.lmo(d, m)
            for part, d, m in zip(self._leaves(), self._split(direction), memory.warm, strict=True)
        ]  # fmt: skip
        memories = tuple(m for _, m in answers)
        error = sum((m.error for m in memories), start=jnp.zeros_like(memory.error))
        return self._join([s for s, _ in answers]), Memory(memories, error)

    def project(self, x: PyTree) -> PyTree:
        return self._join([part.project(v) for part, v in zip(self._leaves(), self._split(x), strict=True)])

    def vertex(self, like: PyTree) -> PyTree:
        zeros = trees.shapes(like).zeros()
        return self._join([part.vertex(v) for part, v in zip(self._leaves(), self._split(zeros), strict=True)])

    def conditions(self, x: PyTree) -> list[Condition]:
        # Each part is judged on its own scale, so that one tolerance serves all of them.
        return [
            Condition(f"{part!r}: {c.words}", c.measured, c.excess / part.scale())
            for part, v in zip(self._leaves(), self._split(x), strict=True)
            for c in part.conditions(v)
        ]

    def at_full_precision(self) -> ConvexSet:
        return Product(self._join([part.at_full_precision() for part in self._leaves()]))

    def at_final_tolerance(self) -> ConvexSet:
        return Product(self._join([part.at_final_tolerance() for part in self._leaves()]))

    def diameter(self, like: PyTree) -> Diameter:
        zeros = trees.shapes(like).zeros()
        parts = [part.diameter(v) for part, v in zip(self._leaves(), self._split(zeros), strict=True)]
        return Diameter(jnp.sqrt(sum(p.value**2 for p in parts)), all(p.exact for p in parts))


class WholeSpace(ConvexSet):
    """No constraint at all; for solvers stated without one."""

    tells_faces: ClassVar[bool] = True

    def lmo(self, direction: PyTree, memory: Memory) -> tuple[PyTree, Memory]:
        raise NotImplementedError("WholeSpace() is unbounded and has no lmo; use a projected or gradient method.")

    def project(self, x: PyTree) -> PyTree:
        return x

    def vertex(self, like: PyTree) -> PyTree:
        return trees.shapes(like).zeros()

    def conditions(self, x: PyTree) -> list[Condition]:
        zero = jnp.zeros((), trees.dtype(x))
        return [Condition("", zero, zero)]

    def diameter(self, like: PyTree) -> Diameter:
        return Diameter(np.inf, True)


class UserSet(ConvexSet):
    """A set known through a user's oracle `lmo(direction) -> s`, and what else the user can say of it.

    `host=True` runs the oracle outside compiled code, on numpy arrays if it likes.

    >>> import jax.numpy as jnp, bilevax as bx
    >>> cube = bx.UserSet(lambda direction: -jnp.sign(direction))
    """

    oracle: Callable[[PyTree], PyTree] = eqx.field(static=True)
    projection: Callable[[PyTree], PyTree] | None = eqx.field(static=True)
    membership: Callable[[PyTree], Any] | None = eqx.field(static=True)
    width: Scalar | float
    on_host: bool = eqx.field(static=True)

    def __init__(
        self,
        lmo: Callable[[PyTree], PyTree],
        *,
        project: Callable[[PyTree], PyTree] | None = None,
        contains: Callable[[PyTree], Any] | None = None,
        diameter: Scalar | float = np.nan,
        host: bool = False,
    ):
        self.oracle, self.projection, self.membership = lmo, project, contains
        self.width, self.on_host = as_leaf(diameter), host

    @property
    def kernels(self) -> Kernels:
        return Kernels.HOST if self.on_host else Kernels.COMPILED

    def __repr__(self) -> str:
        return f"UserSet({getattr(self.oracle, '__name__', type(self.oracle).__name__)})"

    def lmo(self, direction: PyTree, memory: Memory) -> tuple[PyTree, Memory]:
        s = self.oracle(direction)
        return jax.tree.map(lambda v, d: jnp.asarray(v, d.dtype), s, direction), exact(memory)

    def project(self, x: PyTree) -> PyTree:
        return super().project(x) if self.projection is None else self.projection(x)

    def conditions(self, x: PyTree) -> list[Condition]:
        zero = jnp.zeros((), trees.dtype(x))
        if self.membership is None:
            return [Condition("", zero, zero)]
        inside = jnp.asarray(self.membership(x))
        return [Condition("its own membership test says no", zero, jnp.where(inside, 0.0, jnp.inf))]

    def diameter(self, like: PyTree) -> Diameter:
        return Diameter(self.width, False)


def as_set(given: Any) -> ConvexSet:
    """A `ConvexSet` from a set, from any object with an `lmo(direction) -> s`, or from such a function."""
    if isinstance(given, ConvexSet):
        return given
    if hasattr(given, "lmo") and not isinstance(given, type):
        width = getattr(given, "diameter", np.nan)
        return UserSet(
            given.lmo,
            project=getattr(given, "project", None),
            contains=getattr(given, "contains", None),
            diameter=np.nan if callable(width) else width,
            host=bool(getattr(given, "host", False)),
        )
    if callable(given) and not isinstance(given, type):
        return UserSet(given)
    hint = f"; write {given.__name__}(...) to build one" if isinstance(given, type) else ""
    raise TypeError(
        f"domain must be a bilevax set, an object with an lmo, or a function lmo(direction) -> s; got {given!r}{hint}."
    )
