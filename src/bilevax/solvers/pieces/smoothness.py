"""How fast the gradient of ell changes near the start, for published methods that were given no step of x."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree, Scalar

from bilevax import trees
from bilevax.estimation import extreme_point
from bilevax.problem import BilevelProblem, LowerStructure
from bilevax.solvers.pieces.tracking import begin, follow

_TURNS, _SETTLE = 7, 2


def estimate_smoothness(problem: BilevelProblem, x: PyTree, y: PyTree, key: Array) -> Scalar:
    """The Lipschitz constant of the gradient of ell near x, for projected steps; a local lower bound.

    Power steps on differences of hypergradients, the first along a chord of the set. Where ell is almost linear the
    answer is the curvature with which a gradient step of length 1/L crosses the set a thousand times.
    """
    if problem.structure.host:  # a formula on the host cannot be traced; autodiff of the lower level always can
        problem = replace(problem, structure=LowerStructure())
    d = trees.random_like(x, key)
    one, other = (trees.sub(extreme_point(problem.domain, x, v), x) for v in (d, trees.scale(-1, d)))
    chord = trees.choose(trees.norm(one) >= trees.norm(other), one, other)  # x itself may be extreme, and the answer
    reach, size = trees.norm(chord), 1 + trees.norm(x)
    reach = jnp.where(reach > 0, reach, size)
    # Long enough for what is left unsolved not to matter.
    length = 1e-2 * jnp.minimum(reach, size)
    unit = lambda v: trees.scale(1 / jnp.where(trees.norm(v) > 0, trees.norm(v), 1), v)  # noqa: E731
    base, _ = begin(problem, x, y)

    # One loop, the first turns of which are at x itself, so that one evaluation is compiled for all.
    def turn(i: Array, carry: tuple[Any, ...]) -> tuple[Any, ...]:
        base, v, along, last = carry
        settling = i < _SETTLE
        there, _ = follow(problem, trees.axpy(jnp.where(settling, 0, length), v, x), base)
        base = trees.choose(settling, there, base)
        change = trees.scale(1 / length, trees.sub(there.F, base.F))
        curvature = trees.norm(change)
        return base, trees.choose(settling, v, unit(change)), jnp.where(i == _SETTLE, curvature, along), curvature

    none = jnp.zeros((), trees.dtype(x))
    base, _, along, last = jax.lax.fori_loop(0, _SETTLE + _TURNS, turn, (base, unit(chord), none, none))
    # The last chord may leave the set, where the problem need not be defined.
    smoothness = jnp.where(jnp.isfinite(last), jnp.maximum(along, last), along)
    smoothness = jnp.maximum(smoothness, 1e-3 * trees.norm(base.F) / reach)
    return jnp.where(smoothness > 0, smoothness, 1)
