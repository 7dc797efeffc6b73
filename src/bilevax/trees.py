"""Vector-space operations on pytrees: the only place where points move and are multiplied.

Everything above works with points through these functions, so that a point may be an array, any nesting of
arrays, or a `Point` that keeps its own representation (factors, samples) and is never unpacked by a solver.

Trees of numpy arrays are computed with numpy: code that runs once on the host then compiles nothing.
"""

from __future__ import annotations

import abc
import functools
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree, Scalar

from bilevax.linalg.brief import brief_jit

_EXACT = jax.lax.Precision.HIGHEST


class Point(eqx.Module):
    """A leaf with its own arithmetic, for example a low-rank matrix known on some entries only.

    Functions, gradients and directions see its `coordinates`, an array; every operation here but `move` does too, so
    that differences of points and multiples of gradients are plain arrays. `move` receives whatever the set's `lmo`
    returns, which need not be of the same type.
    """

    @property
    @abc.abstractmethod
    def coordinates(self) -> Array:
        """What functions of the point see."""

    @abc.abstractmethod
    def move(self, target: Any, gamma: Scalar) -> Point:
        """The point `self + gamma * (target - self)`."""


class Shapes(NamedTuple):
    """Structure, shapes and dtypes of a pytree; hashable, so that it can be static."""

    structure: Any
    leaves: tuple[jax.ShapeDtypeStruct, ...]

    def zeros(self) -> PyTree:
        """Zeros of these shapes."""
        return jax.tree.unflatten(self.structure, [jnp.zeros(s.shape, s.dtype) for s in self.leaves])


def _is_point(node: Any) -> bool:
    return isinstance(node, Point)


def coordinates(tree: PyTree) -> PyTree:
    """The tree with every `Point` replaced by the array that functions see."""
    if isinstance(tree, Shapes):
        return tree
    return jax.tree.map(lambda v: v.coordinates if _is_point(v) else v, tree, is_leaf=_is_point)


def shapes(tree: PyTree) -> Shapes:
    """Structure, shapes and dtypes of a pytree of arrays or of `jax.ShapeDtypeStruct`."""
    if isinstance(tree, Shapes):
        return tree
    leaves, structure = jax.tree.flatten(tree)
    return Shapes(structure, tuple(jax.ShapeDtypeStruct(np.shape(v), jnp.result_type(v)) for v in leaves))


def size(tree: PyTree) -> int:
    """How many numbers a pytree holds."""
    return sum(int(np.prod(s.shape)) for s in shapes(tree).leaves)


def dtype(tree: PyTree) -> np.dtype[Any]:
    """The common dtype of a pytree's leaves."""
    return np.dtype(jnp.result_type(*(s.dtype for s in shapes(coordinates(tree)).leaves)))


def _numpy(*trees: PyTree) -> bool:
    """Whether all leaves are numpy's."""
    return all(isinstance(leaf, (np.ndarray, np.generic)) for leaf in jax.tree.leaves(trees))


def on_host(tree: PyTree) -> PyTree:
    """The coordinates as numpy arrays."""
    return jax.tree.map(np.asarray, coordinates(tree))


def ravel_on_host(tree: PyTree) -> tuple[np.ndarray, Callable[[np.ndarray], PyTree]]:
    """All numbers as one numpy vector, and the way back."""
    leaves, structure = jax.tree.flatten(on_host(tree))
    ends = np.cumsum([leaf.size for leaf in leaves])

    def back(vector: np.ndarray) -> PyTree:
        parts = np.split(np.asarray(vector), ends[:-1])
        return jax.tree.unflatten(structure, [p.reshape(v.shape) for p, v in zip(parts, leaves, strict=True)])

    return np.concatenate([leaf.reshape(-1) for leaf in leaves]), back


def cast(tree: PyTree, to: Any) -> PyTree:
    """The same pytree with every floating-point leaf in another precision."""

    def one(leaf: Any) -> Any:
        kind = jnp.result_type(leaf)
        if not jnp.issubdtype(kind, jnp.floating) or (kind == to and isinstance(leaf, jax.Array)):
            return leaf
        # numpy converts without compiling anything
        return jnp.asarray(leaf, to) if isinstance(leaf, jax.core.Tracer) else jnp.asarray(np.asarray(leaf, to))

    return jax.tree.map(one, tree)


def as_leaf(value: Any) -> Any:
    """A parameter as an array leaf: changing its value then compiles nothing again."""
    return value if isinstance(value, jax.Array) else np.asarray(value, np.float64)


def is_concrete(value: Any) -> bool:
    """Whether numbers can be looked at now (not inside a trace)."""
    return not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(value))


def scalar(value: float, like: PyTree) -> Scalar:
    """A number in the precision of a pytree."""
    return jnp.asarray(value, dtype(like))


def move(x: PyTree, target: PyTree, gamma: Scalar) -> PyTree:
    """`x + gamma (target - x)`: how every Frank-Wolfe method moves x (Alg. 1 line 7)."""

    def one(a: Any, b: Any) -> Any:
        return a.move(b, gamma) if _is_point(a) else a + gamma * (b - a)

    return jax.tree.map(one, x, target, is_leaf=_is_point)


def axpy(a: Scalar | float, x: PyTree, y: PyTree) -> PyTree:
    """`a x + y`."""
    return jax.tree.map(lambda u, v: a * u + v, coordinates(x), coordinates(y))


def add(x: PyTree, y: PyTree) -> PyTree:
    """`x + y`."""
    return jax.tree.map(operator.add, coordinates(x), coordinates(y))


def sub(x: PyTree, y: PyTree) -> PyTree:
    """`x - y`."""
    return jax.tree.map(operator.sub, coordinates(x), coordinates(y))


def scale(a: Scalar | float, x: PyTree) -> PyTree:
    """`a x`."""
    return jax.tree.map(lambda u: a * u, coordinates(x))


def inner(x: PyTree, y: PyTree) -> Scalar:
    """The Euclidean inner product over all leaves."""
    x, y = coordinates(x), coordinates(y)
    one = np.vdot if _numpy(x, y) else lambda a, b: jnp.vdot(a, b, precision=_EXACT)
    return functools.reduce(operator.add, jax.tree.leaves(jax.tree.map(one, x, y)))


def gap(direction: PyTree, x: PyTree, s: PyTree) -> Scalar:
    """`<direction, x - s>`; subtracting first keeps the small gaps near a solution accurate."""
    return inner(direction, sub(x, s))


def norm(x: PyTree) -> Scalar:
    """The Euclidean norm over all leaves."""
    squared = inner(x, x)
    return np.sqrt(squared) if _numpy(squared) else jnp.sqrt(squared)  # type: ignore[return-value]


def choose(first: Array, a: PyTree, b: PyTree) -> PyTree:
    """`a` if `first`, otherwise `b`."""
    return jax.tree.map(lambda u, v: jnp.where(first, u, v), a, b)


def sum_all(x: PyTree) -> Scalar:
    """The sum of all entries."""
    return functools.reduce(jnp.add, [jnp.sum(leaf) for leaf in jax.tree.leaves(x)])


def zeros_like(x: PyTree) -> PyTree:
    """Zeros of the same structure."""
    return jax.tree.map(np.zeros_like if _numpy(x) else jnp.zeros_like, coordinates(x))


def all_finite(tree: PyTree) -> Array:
    """Whether no floating-point leaf holds a NaN or an infinity."""
    floating = [v for v in jax.tree.leaves(coordinates(tree)) if jnp.issubdtype(jnp.result_type(v), jnp.inexact)]
    if _numpy(floating):
        return np.asarray(all(np.all(np.isfinite(v)) for v in floating))  # type: ignore[return-value]
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(v)) for v in floating] or [jnp.array(True)]))


@brief_jit  # each shape is compiled: 1.3 s with the usual effort, 0.1 s with little
def _normal_like(leaves: list[Array], key: Array) -> list[Array]:
    keys = jax.random.split(key, max(1, len(leaves)))
    return [jax.random.normal(k, v.shape, v.dtype) for k, v in zip(keys, leaves, strict=False)]


def random_like(tree: PyTree, key: Array) -> PyTree:
    """Independent standard normal entries with the structure of `tree`."""
    leaves, structure = jax.tree.flatten(coordinates(tree))
    return jax.tree.unflatten(structure, _normal_like(leaves, key))


def drawn_like(tree: PyTree, rng: np.random.Generator) -> PyTree:
    """The same as numpy arrays, drawn on the host."""
    return jax.tree.map(lambda v: rng.standard_normal(np.shape(v)).astype(jnp.result_type(v)), coordinates(tree))


def describe(tree: PyTree) -> str:
    """Dtypes and shapes in words, for messages: `float64[3], float64[2, 2]`."""
    return ", ".join(f"{s.dtype}{list(s.shape)}" for s in shapes(tree).leaves)


def named_leaves(tree: PyTree, root: str) -> list[tuple[str, Any]]:
    """Each leaf with the expression that reaches it, for messages: `x0['weights'][0]`."""
    return [(root + jax.tree_util.keystr(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)]
