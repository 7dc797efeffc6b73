"""AdaptiveIBCG, ours: Frank-Wolfe steps that find their own length; for every set with an lmo, nothing to tune."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree, Scalar

from bilevax import trees
from bilevax.linalg.host_loops import either
from bilevax.problem import BilevelProblem
from bilevax.sets import Memory
from bilevax.solvers.pieces.line_search import search
from bilevax.solvers.pieces.tracking import Tracked, begin, follow
from bilevax.solvers.protocol import Counts, Info, Observation, add_counts, no_counts
from bilevax.theory import Constants


class AdaptiveIBCGState(eqx.Module):
    """x, the lower level there, the curvature met last, and the set's memory."""

    x: PyTree
    lower: Tracked
    curvature: Scalar
    """Of ell along the last step, per squared length."""
    k: Int[Array, ""]
    memory: Memory

    y = property(lambda self: self.lower.y)
    w = property(lambda self: self.lower.w)


class AdaptiveIBCG(eqx.Module):
    """Frank-Wolfe with a line search.

    y and the adjoint are solved at every x to a share of what is new there, as in `ProjectedIBCG`. x moves towards the
    answer of the lmo, at first as far as the curvature met last makes best. The value and the slope of ell there
    decide; otherwise the step is shortened. Where no step passes, x moves by 2/(k+2), which needs no test.

    One step costs one hypergradient, sometimes two, and one lmo.

    `constants` serve the certificate only; no step needs them.

    >>> import bilevax as bx
    >>> solver = bx.AdaptiveIBCG()
    """

    oracle: ClassVar[str] = "lmo"
    loops: ClassVar[int] = 2
    all_rows: ClassVar[bool] = True
    constants: Constants | None = eqx.field(default=None, kw_only=True)

    def prepare(self, problem: BilevelProblem, x: PyTree, y: PyTree, key: Array) -> AdaptiveIBCG:
        """There is nothing to estimate."""
        return self

    def init(self, problem: BilevelProblem, x: PyTree, y: PyTree, w: PyTree = None) -> tuple[AdaptiveIBCGState, Counts]:
        """The lower level at the start, from an adjoint w if there is one."""
        lower, counts = begin(problem, x, y, w)
        nothing = jnp.zeros((), trees.dtype(x))
        return AdaptiveIBCGState(x, lower, nothing, jnp.zeros((), jnp.int32), problem.domain.start(x)), counts

    def observe(self, problem: BilevelProblem, state: AdaptiveIBCGState) -> Observation:
        """What the state tells of its point."""
        return Observation(state.lower.F, state.y, state.w)

    def step(self, problem: BilevelProblem, state: AdaptiveIBCGState, key: Array) -> tuple[AdaptiveIBCGState, Info]:
        """The lmo, a line search towards its answer, and 2/(k+2) where that finds nothing."""
        x, lower, k = state.x, state.lower, state.k
        s, memory = problem.domain.lmo(lower.F, state.memory)
        d = trees.sub(s, x)
        gap, squared = -trees.inner(lower.F, d), trees.inner(d, d)
        bend = state.curvature * squared
        first = jnp.where(bend > gap, gap / jnp.where(bend > 0, bend, 1), 1)
        found = search(problem, x, lower, d, first)

        open_loop = 2 / (k.astype(gap.dtype) + 2)
        length = jnp.where(found.accepted, found.length, open_loop)
        at, spent = either(
            found.accepted,
            lambda: (found.lower, no_counts()),
            lambda: follow(problem, trees.axpy(open_loop, d, x), lower),
            host=problem.host,
        )
        curvature = jnp.where(squared > 0, found.curvature / jnp.where(squared > 0, squared, 1), 0)
        curvature = jnp.where(jnp.isfinite(curvature), jnp.maximum(curvature, 0), state.curvature)
        counts = replace(add_counts(found.counts, spent), lmos=1)
        following = AdaptiveIBCGState(trees.move(x, s, length), at, curvature, k + 1, memory)
        return following, Info(x, lower.F, counts, s, memory.error)
