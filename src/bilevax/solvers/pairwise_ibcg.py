"""PairwiseIBCG, ours: x as weights on vertices, which move between all vertices met; for sets with an lmo only."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, PyTree

from bilevax.problem import BilevelProblem
from bilevax.sets import Memory, Simplex
from bilevax.solvers.pieces.curvature import Curvature, first_curvature
from bilevax.solvers.pieces.defaults import check_counts
from bilevax.solvers.pieces.line_search import search
from bilevax.solvers.pieces.model_minimum import minimize_model
from bilevax.solvers.pieces.quasi_newton import WholeMatrix
from bilevax.solvers.pieces.tracking import Tracked, begin, without_set
from bilevax.solvers.protocol import Counts, Info, Observation, add_counts
from bilevax.theory import Constants


class PairwiseIBCGState(eqx.Module):
    """x as a convex combination of atoms, the lower level at x, and the curvature of ell."""

    x: PyTree
    atoms: Float[Array, "c n"]
    weights: Float[Array, " c"]
    """They sum to one; an atom of weight zero is free."""
    lower: Tracked
    curvature: Curvature
    k: Int[Array, ""]
    memory: Memory

    y = property(lambda self: self.lower.y)
    w = property(lambda self: self.lower.w)


class PairwiseIBCG(eqx.Module):
    """Weights on vertices.

    x is a convex combination of the vertices that the lmo has given, at most `capacity` of them; when no place is free
    a new one waits until a weight has become zero. A model of ell, made as in `ProjectedIBCG`, is minimised over all
    combinations of these vertices, which moves weight between any two of them and drops the bad ones. A line search on
    ell follows.

    One step costs one hypergradient, rarely more, and one lmo.

    `constants` serve the certificate only; no step needs them.

    >>> import bilevax as bx
    >>> solver = bx.PairwiseIBCG()
    """

    oracle: ClassVar[str] = "lmo"
    loops: ClassVar[int] = 2
    all_rows: ClassVar[bool] = True
    few_steps: ClassVar[bool] = True
    capacity: int | None = eqx.field(static=True, default=None)
    memory: int | None = eqx.field(static=True, default=None, kw_only=True)
    inner: int = eqx.field(static=True, default=100, kw_only=True)
    constants: Constants | None = eqx.field(default=None, kw_only=True)

    def __check_init__(self) -> None:
        check_counts(self, capacity=self.capacity, memory=self.memory, inner=self.inner)

    def prepare(self, problem: BilevelProblem, x: PyTree, y: PyTree, key: Array) -> PairwiseIBCG:
        """There is nothing to estimate."""
        return self

    def init(self, problem: BilevelProblem, x: PyTree, y: PyTree, w: PyTree = None) -> tuple[PairwiseIBCGState, Counts]:
        """The start is the only atom; w is an adjoint to begin with, if there is one."""
        lower, counts = begin(problem, x, y, w)
        flat, _ = ravel_pytree(x)
        room = self.capacity or max(10, min(flat.size + 2, 200, int(2e7 / flat.size)))
        atoms = jnp.zeros((room, flat.size), flat.dtype).at[0].set(flat)
        weights = jnp.zeros(room, flat.dtype).at[0].set(1)
        curvature = first_curvature(problem, x, lower, self.memory)
        k, memory = jnp.zeros((), jnp.int32), problem.domain.start(x)
        return PairwiseIBCGState(x, atoms, weights, lower, curvature, k, memory), counts

    def observe(self, problem: BilevelProblem, state: PairwiseIBCGState) -> Observation:
        """What the state tells of its point."""
        return Observation(state.lower.F, state.y, state.w)

    def step(self, problem: BilevelProblem, state: PairwiseIBCGState, key: Array) -> tuple[PairwiseIBCGState, Info]:
        """A new vertex, the best weights by the model, and a line search towards them."""
        s, memory = problem.domain.lmo(state.lower.F, state.memory)
        move = _move if problem.level_kernels.on_host else _compiled_move
        following, counts = move(self, without_set(problem), replace(state, memory=memory), s)
        return following, Info(state.x, state.lower.F, replace(counts, lmos=1), s, memory.error)


def _move(
    solver: PairwiseIBCG, problem: BilevelProblem, state: PairwiseIBCGState, s: PyTree
) -> tuple[PairwiseIBCGState, Counts]:
    """Everything but the lmo, which may run on the host."""
    x, lower, weights = state.x, state.lower, state.weights
    vertex, F = ravel_pytree(s)[0], ravel_pytree(lower.F)[0]
    _, back = ravel_pytree(x)
    slot = jnp.argmin(weights)
    known = jnp.any(jnp.all(state.atoms == vertex, axis=1) & (weights > 0))
    enters = (weights[slot] <= 0) & ~known
    atoms = jnp.where(enters, state.atoms.at[slot].set(vertex), state.atoms)
    used = (weights > 0) | (enters & (jnp.arange(weights.size) == slot))

    curvature, B, of_hessian = state.curvature.model(problem, x, lower)
    slopes = atoms @ F - F @ ravel_pytree(x)[0]
    slopes = jnp.where(used, slopes, 1 + 2 * jnp.max(jnp.abs(slopes)))
    moves = jnp.where(used[:, None], atoms, 0)
    G = moves @ jax.vmap(B.times)(moves).T
    size = jnp.trace(G) / weights.size
    G = 0.5 * (G + G.T) + (1e-12 * size + jnp.finfo(G.dtype).tiny) * jnp.eye(weights.size, dtype=G.dtype)
    target, _ = minimize_model(Simplex(), weights, slopes, WholeMatrix(G).model(), solver.inner)
    target = jnp.where(used, jnp.maximum(target, 0), 0)
    target = target / jnp.sum(target)

    d = (target - weights) @ moves
    found = search(problem, x, lower, back(d))
    weights = weights + found.length * (target - weights)
    step = back(found.length * d)
    curvature = curvature.after(B, step, lower.F, found)
    following = PairwiseIBCGState(
        back(weights @ moves), atoms, weights, found.lower, curvature, state.k + 1, state.memory
    )
    return following, add_counts(found.counts, of_hessian)


_compiled_move = jax.jit(_move)
