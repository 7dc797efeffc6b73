"""How far a point of a set is from optimal for a direction: the Frank-Wolfe gap and the gradient mapping."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import PyTree, Scalar

from bilevax import trees
from bilevax.linalg.brief import brief_jit
from bilevax.sets.contract import ConvexSet, Memory


class VertexGap(NamedTuple):
    """`<direction, x - s>` for the best point `s` of the set."""

    gap: Scalar
    error: Scalar
    """How far from the best `s` may be."""
    distance: Scalar
    """|x - s|"""
    s: PyTree


def vertex_gap(domain: ConvexSet, x: PyTree, direction: PyTree, memory: Memory) -> VertexGap:
    """The gap by a call of the lmo; compiled where the set allows."""
    return (_vertex_gap if domain.kernels.on_host else _compiled_vertex_gap)(domain, x, direction, memory)


def _vertex_gap(domain: ConvexSet, x: PyTree, direction: PyTree, memory: Memory) -> VertexGap:
    s, memory = domain.lmo(direction, memory)
    return VertexGap(trees.gap(direction, x, s), memory.error, trees.norm(trees.sub(x, s)), s)


_compiled_vertex_gap = brief_jit(_vertex_gap)


def gradient_mapping(domain: ConvexSet, x: PyTree, direction: PyTree) -> float:
    """|x - P(x - direction)|; NaN if the set has no projection."""
    measure = _step_length if domain.kernels.on_host else _compiled_step_length
    try:
        return float(measure(domain, trees.coordinates(x), direction))
    except NotImplementedError:
        return np.nan


def _step_length(domain: ConvexSet, x: PyTree, direction: PyTree) -> Scalar:
    return trees.norm(trees.sub(x, domain.project(trees.sub(x, direction))))


_compiled_step_length = brief_jit(_step_length)
