"""The nuclear-norm ball and the spectraplex: one extreme singular or eigen pair per oracle call."""

from __future__ import annotations

import functools
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree, Scalar

from bilevax import trees
from bilevax.linalg import lanczos, low_rank
from bilevax.sets.contract import Basis, Condition, ConvexSet, Diameter, LowRankStep, Memory, check_positive
from bilevax.sets.threshold import project_below
from bilevax.trees import as_leaf, is_concrete

# The Krylov methods start from noise; a fixed key keeps every run reproducible.
_NOISE = 20231


def one_matrix(owner: ConvexSet, x: PyTree, square: bool = False) -> tuple[Array, jax.tree_util.PyTreeDef]:
    """The only leaf of a point as a matrix, and the way back; other points are refused in the name of the set."""
    leaves, structure = jax.tree.flatten(x)
    shapes = [tuple(jnp.shape(v)) for v in leaves]
    fits = len(leaves) == 1 and len(shapes[0]) == 2 and min(shapes[0]) > 0
    if not fits or (square and shapes[0][0] != shapes[0][1]):
        kind = "square matrix" if square else "matrix"
        raise ValueError(
            f"{owner!r} needs a point that is one {kind}, got shapes {shapes}; use bx.Product for one set per leaf."
        )
    return leaves[0], structure


class _Spectral(ConvexSet):
    """What both sets share: the relative error wanted of the oracle, its products, and where it begins."""

    tol: eqx.AbstractVar[Scalar | float]
    max_products: eqx.AbstractVar[int]

    def at_full_precision(self) -> ConvexSet:
        # Far below rounding, so that only the floor of the residual ends the iteration.
        return eqx.tree_at(lambda s: (s.tol, s.max_products), self, (0.0 * self.tol, np.asarray(5000)))

    def second_start(self, like: PyTree, key: Array) -> Memory:
        memory = self.start(like)
        return memory._replace(warm=jax.random.normal(key, memory.warm.shape, memory.warm.dtype))


def first_basis(shape: tuple[int, ...], dtype: Any) -> Basis:
    """Noise, from which the leading directions emerge."""
    columns = min(8, *shape)
    return Basis(np.random.default_rng(_NOISE).standard_normal((shape[1], columns)).astype(dtype))


def _whole_step(x: Array, answer: np.ndarray, shrunk: low_rank.Shrunk, structure: Any) -> LowRankStep:
    """A step between matrices that are at hand."""
    squared = float(np.sum((answer - np.asarray(x)) ** 2))
    moved = jax.tree.unflatten(structure, [jnp.asarray(answer, x.dtype)])
    return LowRankStep(moved, squared, Basis(shrunk.basis, len(shrunk.values), shrunk.exact))


@jax.jit  # outside a trace, a bare `cond` would be compiled at every call
def _nuclear_norm(matrix: Array, radius: Scalar | float) -> Scalar:
    """The nuclear norm, or a bound on it that is enough to know that it is at most the radius."""
    # Cheap and often enough: the nuclear norm is at most sqrt(min(p, q)) times the Frobenius norm.
    bound = math.sqrt(min(matrix.shape)) * jnp.linalg.norm(matrix)
    singular_values = lambda: jnp.sum(jnp.linalg.svd(matrix, compute_uv=False))  # noqa: E731
    return jax.lax.cond(bound <= radius, lambda: bound, singular_values)


class NuclearBall(_Spectral):
    """Matrices whose singular values sum to at most the radius.

    `lmo` is `-radius u v^T` for the leading singular pair, by a warm-started Lanczos method to a relative error
    `tol`; the achieved error comes back in the memory. `project` needs a full SVD.
    """

    radius: Scalar | float = eqx.field(converter=as_leaf, default=1.0)
    tol: Scalar | float = eqx.field(converter=as_leaf, default=1e-6, kw_only=True)
    max_products: int = eqx.field(converter=np.asarray, default=500, kw_only=True)

    def __check_init__(self) -> None:
        check_positive(self, "radius")

    def __repr__(self) -> str:
        return f"NuclearBall(radius={float(self.radius):g})" if is_concrete(self.radius) else "NuclearBall"

    def check_like(self, like: PyTree) -> None:
        one_matrix(self, trees.shapes(like).zeros())

    def scale(self) -> Scalar | float:
        return self.radius

    def start(self, like: PyTree) -> Memory:
        matrix, _ = one_matrix(self, like)
        return Memory(jnp.zeros(min(matrix.shape), matrix.dtype), jnp.zeros((), matrix.dtype))

    def lmo(self, direction: PyTree, memory: Memory) -> tuple[PyTree, Memory]:
        matrix, structure = one_matrix(self, direction)
        pair = lanczos.top_singular_pair(
            matrix, memory.warm, jax.random.key(_NOISE), tol=self.tol, max_products=self.max_products
        )
        s = -self.radius * jnp.outer(pair.left, pair.right)
        short = pair.right if matrix.shape[1] <= matrix.shape[0] else pair.left
        return jax.tree.unflatten(structure, [s]), Memory(short, self.radius * pair.error)

    def project(self, x: PyTree) -> PyTree:
        matrix, structure = one_matrix(self, x)
        left, values, right = jnp.linalg.svd(matrix, full_matrices=False)
        values = project_below(values, self.radius)
        return jax.tree.unflatten(structure, [(left * values) @ right])

    def low_rank_start(self, x: PyTree) -> Basis:
        matrix, _ = one_matrix(self, x)
        return first_basis(matrix.shape, matrix.dtype)

    def low_rank_step(
        self, x: PyTree, shift: PyTree, basis: Basis, *, max_rank: int | None, verify: bool
    ) -> LowRankStep:
        matrix, structure = one_matrix(self, x)
        operator = low_rank.dense(np.asarray(matrix) + np.asarray(one_matrix(self, shift)[0]))
        ball = functools.partial(low_rank.to_l1_ball, radius=float(self.radius))
        shrunk = low_rank.shrunk(operator, basis.vectors, ball, max_rank=max_rank, verify=verify)
        return _whole_step(matrix, (shrunk.left * shrunk.values) @ shrunk.right.T, shrunk, structure)

    def vertex(self, like: PyTree) -> PyTree:
        return trees.shapes(like).zeros()

    def conditions(self, x: PyTree) -> list[Condition]:
        matrix, _ = one_matrix(self, x)
        size = _nuclear_norm(matrix, self.radius)
        return [Condition("its nuclear norm is {:.6g}", size, size - self.radius)]

    def diameter(self, like: PyTree) -> Diameter:
        return Diameter(2.0 * self.radius, True)


class Spectraplex(_Spectral):
    """Symmetric matrices `Omega >= eps I` with trace at most `trace`.

    `eps > 0` keeps every point invertible, which the multi-task problem of the paper needs. `lmo` is `eps I` when
    the direction is positive semidefinite, otherwise `eps I` plus the remaining trace on its lowest eigenvector.
    """

    trace: Scalar | float = eqx.field(converter=as_leaf, default=1.0)
    eps: Scalar | float = eqx.field(converter=as_leaf, default=0.0)
    tol: Scalar | float = eqx.field(converter=as_leaf, default=1e-6, kw_only=True)
    max_products: int = eqx.field(converter=np.asarray, default=500, kw_only=True)

    def __check_init__(self) -> None:
        check_positive(self, "trace")
        if is_concrete(self.eps) and not (np.ndim(self.eps) == 0 and np.isfinite(self.eps) and self.eps >= 0):
            raise ValueError(f"Spectraplex: eps must be one number >= 0, got {np.asarray(self.eps).tolist()}.")

    def __repr__(self) -> str:
        if not is_concrete((self.trace, self.eps)):
            return "Spectraplex"
        return f"Spectraplex(trace={float(self.trace):g}, eps={float(self.eps):g})"

    def check_like(self, like: PyTree) -> None:
        n = one_matrix(self, trees.shapes(like).zeros(), square=True)[0].shape[0]
        if is_concrete((self.trace, self.eps)) and n * float(self.eps) > float(self.trace) * (1 + 1e-12):
            raise ValueError(
                f"{self!r} is empty for {n} x {n} matrices: {n} * eps = {n * float(self.eps):g} exceeds the trace; "
                f"take eps at most {float(self.trace) / n:g}."
            )

    def scale(self) -> Scalar | float:
        return self.trace

    def _room(self, n: int) -> Scalar | float:
        """The trace left after `eps I`."""
        return jnp.maximum(self.trace - n * self.eps, 0)

    def start(self, like: PyTree) -> Memory:
        matrix, _ = one_matrix(self, like, square=True)
        return Memory(jnp.zeros(matrix.shape[0], matrix.dtype), jnp.zeros((), matrix.dtype))

    def lmo(self, direction: PyTree, memory: Memory) -> tuple[PyTree, Memory]:
        matrix, structure = one_matrix(self, direction, square=True)
        n = matrix.shape[0]
        largest = jnp.max(jnp.abs(matrix))
        unit = jnp.where(largest == 0, 1, largest)
        symmetric = (0.5 * matrix + 0.5 * matrix.T) / unit
        lowest = lanczos.lowest_eigenpair(
            symmetric, memory.warm, jax.random.key(_NOISE), tol=self.tol, max_products=self.max_products
        )
        room = self._room(n)
        atom = jnp.where(lowest.value > 0, room, 0) * jnp.outer(lowest.vector, lowest.vector)
        s = atom + self.eps * jnp.eye(n, dtype=matrix.dtype)
        return jax.tree.unflatten(structure, [s]), Memory(lowest.vector, room * lowest.residual * unit)

    def project(self, x: PyTree) -> PyTree:
        matrix, structure = one_matrix(self, x, square=True)
        values, vectors = jnp.linalg.eigh(0.5 * matrix + 0.5 * matrix.T)
        values = self.eps + project_below(values - self.eps, self._room(matrix.shape[0]))
        return jax.tree.unflatten(structure, [(vectors * values) @ vectors.T])

    def low_rank_start(self, x: PyTree) -> Basis:
        matrix, _ = one_matrix(self, x, square=True)
        return first_basis(matrix.shape, matrix.dtype)

    def low_rank_step(
        self, x: PyTree, shift: PyTree, basis: Basis, *, max_rank: int | None, verify: bool
    ) -> LowRankStep:
        matrix, structure = one_matrix(self, x, square=True)
        n, eps, room = matrix.shape[0], float(self.eps), float(self._room(matrix.shape[0]))
        target = np.asarray(matrix) + np.asarray(one_matrix(self, shift, square=True)[0])
        target = 0.5 * (target + target.T) - eps * np.eye(n, dtype=target.dtype)
        # Raised until no eigenvalue is negative, so that singular values and eigenvalues are the same.
        raised = max(0.0, -float(np.linalg.eigvalsh(target)[0]))

        def clip(values: np.ndarray) -> low_rank.Shrinkage:
            kept, threshold = low_rank.to_l1_ball(np.maximum(values - raised, 0), room)
            return low_rank.Shrinkage(kept, raised + threshold)

        operator = low_rank.dense(target + raised * np.eye(n, dtype=target.dtype))
        shrunk = low_rank.shrunk(operator, basis.vectors, clip, max_rank=max_rank, verify=verify)
        answer = (shrunk.right * shrunk.values) @ shrunk.right.T + eps * np.eye(n, dtype=target.dtype)
        return _whole_step(matrix, answer, shrunk, structure)

    def vertex(self, like: PyTree) -> PyTree:
        # The centre: at a vertex, with eps = 0, the inverse of the paper's lower level does not exist.
        matrix, structure = one_matrix(self, trees.shapes(like).zeros(), square=True)
        n = matrix.shape[0]
        return jax.tree.unflatten(structure, [self.trace / n * jnp.eye(n, dtype=matrix.dtype)])

    def conditions(self, x: PyTree) -> list[Condition]:
        matrix, _ = one_matrix(self, x, square=True)
        values = jnp.linalg.eigvalsh(0.5 * matrix + 0.5 * matrix.T)
        total, skew = jnp.sum(values), jnp.max(jnp.abs(matrix - matrix.T))
        return [
            Condition("its trace is {:.6g}", total, total - self.trace),
            Condition("its smallest eigenvalue is {:.6g}", values[0], self.eps - values[0]),
            Condition("it differs from its transpose by {:.6g}", skew, skew),
        ]

    def diameter(self, like: PyTree) -> Diameter:
        n = one_matrix(self, trees.shapes(like).zeros(), square=True)[0].shape[0]
        return Diameter(self._room(n) * (math.sqrt(2.0) if n > 1 else 1.0), True)
