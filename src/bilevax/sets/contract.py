"""What every convex set offers: a linear minimization oracle, and where it is cheap a projection."""

from __future__ import annotations

import abc
import contextlib
import math
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PyTree, Scalar

from bilevax import trees
from bilevax.linalg.brief import brief_jit
from bilevax.linalg.host_loops import Kernels
from bilevax.trees import is_concrete


class Diameter(NamedTuple):
    """The largest distance between two points of a set, or an upper bound on it."""

    value: Scalar | float
    exact: bool


class Condition(NamedTuple):
    """One constraint at one point: what was measured, in words, and by how much it is violated."""

    words: str
    measured: Scalar
    excess: Scalar


class Memory(NamedTuple):
    """What a set carries from one `lmo` call to the next: a warm start and a bound on the last error."""

    warm: PyTree
    error: Scalar
    """Bound on `<F, s> - min <F, .>` at the last call; 0 where the oracle is exact."""


class Basis(NamedTuple):
    """What a set carries from one `low_rank_step` to the next."""

    vectors: np.ndarray
    """Leading singular vectors, a few more than the rank."""
    rank: int = 0
    exact: bool = False
    """Whether a check showed that the last truncation left nothing out."""


class LowRankStep(NamedTuple):
    """Where a low-rank step led, and how far as a square; over the whole matrix, also where it is not observed."""

    x: Any
    squared: float
    basis: Basis


def check_positive(owner: Any, name: str) -> None:
    """Refuse a parameter that is not a positive finite number."""
    value = getattr(owner, name)
    if not is_concrete(value):
        return
    value = np.asarray(value)  # inside a trace, JAX would trace the comparison of a known number too
    if not (value.ndim == 0 and np.isfinite(value) and value > 0):
        raise ValueError(f"{type(owner).__name__}: {name} must be one positive finite number, got {value.tolist()}.")


def flat(tree: PyTree) -> tuple[Array, Any]:
    """All leaves of a point as one vector, and the way back; free for a single vector."""
    leaves, structure = jax.tree.flatten(tree)
    if len(leaves) == 1:
        return leaves[0].reshape(-1), lambda v: jax.tree.unflatten(structure, [v.reshape(leaves[0].shape)])
    return ravel_pytree(tree)


class ConvexSet(eqx.Module):
    """A convex set over all leaves of a point jointly; `Product` has one set per leaf.

    Methods come in two kinds: `lmo` for projection-free solvers, `project` for projected ones. What a set
    cannot do it refuses by name, at trace time, hence before the first step.
    """

    tells_faces: ClassVar[bool] = False
    """Whether the derivative of `project` is cheap and right; it shows along which face a point can move."""
    minimizes_models: ClassVar[bool] = False
    """Whether the set has `lowest`."""

    @property
    def kernels(self) -> Kernels:
        """Where the oracles run."""
        return Kernels.COMPILED

    @abc.abstractmethod
    def lmo(self, direction: PyTree, memory: Memory) -> tuple[PyTree, Memory]:
        """A point `s` of the set with the least `<direction, s>`."""

    @abc.abstractmethod
    def conditions(self, x: PyTree) -> list[Condition]:
        """The constraints at `x`; all of them hold exactly when `x` is in the set."""

    @abc.abstractmethod
    def diameter(self, like: PyTree) -> Diameter:
        """The paper's D_X, in the Euclidean norm over all leaves."""

    def project(self, x: PyTree) -> PyTree:
        """The nearest point of the set."""
        raise NotImplementedError(
            f"{self!r} has no projection; use a solver that asks only the lmo, such as PairwiseIBCG."
        )

    def lowest(self, x: PyTree, F: PyTree, B: Array) -> PyTree:
        """The point z of the set where `<F, z - x> + 1/2 <z - x, B (z - x)>` is least, for few variables."""
        raise NotImplementedError(f"{self!r} cannot minimise a quadratic model.")

    def low_rank_start(self, x: PyTree) -> Basis:
        """The basis before the first `low_rank_step`."""
        raise NotImplementedError(f"{self!r} has no low-rank steps; NuclearBall, Spectraplex and their kin have.")

    def low_rank_step(
        self, x: PyTree, shift: PyTree, basis: Basis, *, max_rank: int | None, verify: bool
    ) -> LowRankStep:
        """The projection of `x + shift` from its leading singular vectors alone, on the host."""
        raise NotImplementedError(f"{self!r} has no low-rank steps; NuclearBall, Spectraplex and their kin have.")

    def start(self, like: PyTree) -> Memory:
        """The memory before the first `lmo` call."""
        return Memory((), jnp.zeros((), trees.dtype(like)))

    def second_start(self, like: PyTree, key: Array) -> Memory:
        """A memory from which an oracle that searches at random searches elsewhere: for a second opinion."""
        return self.start(like)

    def vertex(self, like: PyTree) -> PyTree:
        """Some point of the set, where solvers begin when no start is given."""
        zeros = trees.shapes(like).zeros()
        return self.lmo(zeros, self.start(zeros))[0]

    def check_like(self, like: PyTree) -> None:  # noqa: B027 - most sets take points of any structure
        """Refuse points whose structure or shape does not fit this set."""

    def scale(self) -> Scalar | float:
        """The size against which violations are judged."""
        return 1.0

    def at_full_precision(self) -> ConvexSet:
        """The same set with its oracle as exact as the precision allows."""
        return self

    def at_final_tolerance(self) -> ConvexSet:
        """The same set with its oracle as exact as late in a run, where it begins loosely."""
        return self

    def tolerance(self, like: PyTree) -> Scalar | float:
        """How far outside rounding may leave a point: the square root of the precision, times the scale."""
        return math.sqrt(float(jnp.finfo(trees.dtype(like)).eps)) * self.scale()

    def contains(self, x: PyTree, tol: float | None = None) -> Array:
        """Whether x is finite and every constraint holds up to `tol`, by default up to rounding."""
        own = trees.cast(self, trees.dtype(x))
        limit = own.tolerance(x) if tol is None else tol
        # A comparison with a NaN is false, but a constraint need not look at every entry: a halfspace, say.
        return jnp.all(jnp.stack([trees.all_finite(x), *(jnp.asarray(c.excess <= limit) for c in own.conditions(x))]))

    def violations(self, x: PyTree) -> str:
        """The violated constraints in words, for messages; empty inside the set."""
        own = trees.cast(self, trees.dtype(x))
        with contextlib.suppress(TypeError):  # conditions may look at numbers, and cannot be compiled then
            if not self.kernels.on_host and bool(_compiled_contains(own, x)):
                return ""
        limit = float(own.tolerance(x))
        broken = [c for c in own.conditions(x) if not float(c.excess) <= limit]
        if not broken and not bool(trees.all_finite(x)):
            return "it holds a NaN or an infinite entry"
        return ", ".join(c.words.format(float(c.measured)) for c in broken)


@brief_jit
def _compiled_contains(domain: ConvexSet, x: PyTree) -> Array:
    return domain.contains(x)


def exact(memory: Memory) -> Memory:
    """The memory after an exact answer."""
    return Memory(memory.warm, jnp.zeros_like(memory.error))


def direction_unit(direction: Array) -> Array:
    """The largest magnitude in a direction, or 1: dividing by it first keeps squares in range."""
    largest = jnp.max(jnp.abs(direction))
    return jnp.where(largest == 0, 1, largest)
