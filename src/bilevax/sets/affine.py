"""Unbounded sets with linear borders: they have a projection and no lmo."""

from __future__ import annotations

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jaxtyping import Array, PyTree, Scalar

from bilevax import trees
from bilevax.sets.contract import Condition, ConvexSet, Diameter, Memory, direction_unit, exact, flat
from bilevax.trees import as_leaf, is_concrete


def _refuse_lmo(domain: ConvexSet) -> Any:
    raise NotImplementedError(f"{domain!r} is unbounded and has no lmo; use a projected or gradient method.")


def _beyond_rounding(distance: Array, x: PyTree) -> Array:
    """What is left of a distance after the rounding of an inner product with x, which may be as large as it likes."""
    return distance - 4 * jnp.finfo(distance.dtype).eps * trees.norm(x)


def _normal(value: Any) -> PyTree:
    """One leaf for a list of numbers, a leaf for each array of a tree."""
    if isinstance(value, (list, tuple)) and all(map(np.isscalar, jax.tree.leaves(value))):
        return as_leaf(value)
    return jax.tree.map(as_leaf, value)


class _OneRow(ConvexSet):
    """A set given by one linear function: `<a, x>` against `b`."""

    tells_faces: ClassVar[bool] = True

    a: PyTree = eqx.field(converter=_normal)
    b: Scalar | float = eqx.field(converter=as_leaf)

    def __check_init__(self) -> None:
        if not is_concrete((self.a, self.b)):
            return
        name, leaves = type(self).__name__, jax.tree.leaves(self.a)
        if not all(np.all(np.isfinite(v)) for v in leaves) or not any(np.any(np.asarray(v) != 0) for v in leaves):
            raise ValueError(f"{name}: a must hold finite numbers, not all of them 0; give one number per entry of x.")
        if np.ndim(self.b) != 0 or not np.isfinite(self.b):
            raise ValueError(f"{name}: b must be one finite number, got {np.asarray(self.b).tolist()}.")

    def __repr__(self) -> str:
        shown = f"b={float(self.b):g}" if is_concrete(self.b) else "b"
        return f"{type(self).__name__}(a, {shown})"

    def check_like(self, like: PyTree) -> None:
        wanted, given = trees.shapes(like), trees.shapes(self.a)
        if given.structure != wanted.structure or [g.shape for g in given.leaves] != [w.shape for w in wanted.leaves]:
            raise ValueError(
                f"{self!r}: a has shapes {[g.shape for g in given.leaves]}, x has "
                f"{[w.shape for w in wanted.leaves]}; give one number per entry, in the structure of x."
            )

    def _row(self, dtype: Any) -> tuple[Array, Array, Array]:
        """The normal vector with a largest entry of 1, its length, and b to match."""
        values = flat(jax.tree.map(lambda v: jnp.asarray(v, dtype), self.a))[0]
        unit = direction_unit(values)
        return values / unit, jnp.linalg.norm(values / unit), jnp.asarray(self.b, dtype) / unit

    def _distance(self, x: PyTree) -> Array:
        """How far a point lies beyond the border; negative on the other side."""
        values, _ = flat(x)
        normal, length, level = self._row(values.dtype)
        return (jnp.vdot(normal, values) - level) / length

    def scale(self) -> Scalar | float:
        _, length, level = self._row(jnp.result_type(self.b))
        return jnp.maximum(1.0, jnp.abs(level) / length)

    def _border(self, x: PyTree, *, always: bool) -> PyTree:
        """The nearest point of the border, always or only for points beyond it."""
        values, back = flat(x)
        normal, _, level = self._row(values.dtype)
        above = jnp.vdot(normal, values) - level
        above = above if always else jnp.maximum(above, 0)
        return back(values - (above / jnp.vdot(normal, normal)) * normal)

    def vertex(self, like: PyTree) -> PyTree:
        return self.project(trees.shapes(like).zeros())


class Halfspace(_OneRow):
    """The points with `<a, x> <= b`; `a` has the structure and shape of x.

    It is unbounded: projected methods can use it, methods with an lmo cannot.

    >>> import jax.numpy as jnp, bilevax as bx
    >>> bx.Halfspace([1.0, 1.0], 1.0).project(jnp.array([2.0, 1.0])).tolist()
    [1.0, 0.0]
    """

    def lmo(self, direction: PyTree, memory: Memory) -> tuple[PyTree, Memory]:
        return _refuse_lmo(self)

    def project(self, x: PyTree) -> PyTree:
        return self._border(x, always=False)

    def conditions(self, x: PyTree) -> list[Condition]:
        above = self._distance(x)
        return [Condition("it lies {:.6g} beyond the half-space", above, _beyond_rounding(above, x))]

    def diameter(self, like: PyTree) -> Diameter:
        return Diameter(np.inf, True)


class Hyperplane(_OneRow):
    """The points with `<a, x> = b`; `a` has the structure and shape of x.

    It is unbounded: projected methods can use it, methods with an lmo cannot.

    >>> import jax.numpy as jnp, bilevax as bx
    >>> bx.Hyperplane([1.0, 1.0], 1.0).project(jnp.array([0.0, 0.0])).tolist()
    [0.5, 0.5]
    """

    def lmo(self, direction: PyTree, memory: Memory) -> tuple[PyTree, Memory]:
        if trees.size(direction) > 1:
            _refuse_lmo(self)
        return self.vertex(direction), exact(memory)

    def project(self, x: PyTree) -> PyTree:
        return self._border(x, always=True)

    def conditions(self, x: PyTree) -> list[Condition]:
        off = jnp.abs(self._distance(x))
        return [Condition("it lies {:.6g} off the hyperplane", off, _beyond_rounding(off, x))]

    def diameter(self, like: PyTree) -> Diameter:
        return Diameter(np.inf if trees.size(like) > 1 else 0.0, True)  # on a line, a hyperplane is one point


class AffineSet(ConvexSet):
    """The points with `A x = b`, over all leaves of x as one vector; rows of A may depend on each other.

    A singular value decomposition at construction finds the independent rows and refuses equations that contradict
    each other. A may be dense or sparse and is kept dense. The set is unbounded unless it is a single point:
    projected methods can use it, methods with an lmo cannot.

    >>> import jax.numpy as jnp, bilevax as bx
    >>> line = bx.AffineSet([[1.0, 1.0, 0.0], [0.0, 0.0, 2.0]], [1.0, 6.0])
    >>> [round(v, 6) for v in line.project(jnp.zeros(3)).tolist()]
    [0.5, 0.5, 3.0]
    """

    tells_faces: ClassVar[bool] = True

    basis: Array | np.ndarray
    """Orthonormal rows that span those of A."""
    level: Array | np.ndarray
    """What `basis @ x` equals on the set."""

    def __init__(self, A: Any, b: Any):
        if not is_concrete((A, b)):
            raise TypeError("AffineSet: A and b must be known numbers; build the set outside compiled functions.")
        matrix = np.array(A.toarray() if scipy.sparse.issparse(A) else A, np.float64)
        right = np.array(b, np.float64)
        if matrix.ndim != 2 or matrix.shape[1] == 0 or right.shape != matrix.shape[:1]:
            raise ValueError(
                f"AffineSet: A must be a matrix and b a vector with one number per row of A, "
                f"got shapes {matrix.shape} and {right.shape}."
            )
        if not (np.all(np.isfinite(matrix)) and np.all(np.isfinite(right))):
            raise ValueError("AffineSet: A or b has a NaN or infinite entry; leave that row out.")
        lengths = np.linalg.norm(matrix, axis=1)
        lengths[lengths == 0] = 1.0
        matrix, right = matrix / lengths[:, None], right / lengths
        left, values, basis = np.linalg.svd(matrix, full_matrices=False)
        rank = int(np.sum(values > max(matrix.shape) * np.finfo(float).eps * np.max(values, initial=0.0)))
        self.basis, self.level = basis[:rank], (left.T @ right)[:rank] / values[:rank]
        missed = float(np.max(np.abs(matrix @ (self.level @ self.basis) - right), initial=0.0))
        if missed > 1e-9 * max(1.0, float(np.max(np.abs(right), initial=0.0))):
            raise ValueError(
                f"AffineSet is empty: the equations contradict each other, and the best x misses one of them by "
                f"{missed:.3g} (rows scaled to length 1); remove or correct a row."
            )

    def __repr__(self) -> str:
        rank, n = self.basis.shape[-2:]
        return f"AffineSet({n} coordinates, {rank} independent equations)"

    def check_like(self, like: PyTree) -> None:
        if trees.size(like) != self.basis.shape[1]:
            raise ValueError(f"{self!r}: x has {trees.size(like)} entries; give equations with as many columns in A.")

    def scale(self) -> Scalar | float:
        return jnp.maximum(1.0, jnp.linalg.norm(jnp.asarray(self.level)))

    def _is_point(self) -> bool:
        return self.basis.shape[0] == self.basis.shape[1]

    def _off(self, values: Array) -> tuple[Array, Array]:
        basis, level = (jnp.asarray(v, values.dtype) for v in (self.basis, self.level))
        return basis @ values - level, basis

    def lmo(self, direction: PyTree, memory: Memory) -> tuple[PyTree, Memory]:
        if not self._is_point():
            _refuse_lmo(self)
        return self.vertex(direction), exact(memory)

    def project(self, x: PyTree) -> PyTree:
        values, back = flat(x)
        off, basis = self._off(values)
        return back(values - off @ basis)

    def vertex(self, like: PyTree) -> PyTree:
        return self.project(trees.shapes(like).zeros())

    def conditions(self, x: PyTree) -> list[Condition]:
        distance = jnp.linalg.norm(self._off(flat(x)[0])[0])
        return [Condition("it lies {:.6g} off the equations", distance, _beyond_rounding(distance, x))]

    def diameter(self, like: PyTree) -> Diameter:
        return Diameter(0.0 if self._is_point() else np.inf, True)
