"""What is measured at a row, from the tracked x, y and w."""

from __future__ import annotations

from typing import Any

import jax
from jaxtyping import PyTree, Scalar

from bilevax import trees
from bilevax.problem import BilevelProblem
from bilevax.sets import Memory


@jax.jit
def _tracked(problem: BilevelProblem, x: PyTree, y: PyTree) -> dict[str, Scalar]:
    return {"upper": problem.upper_value(x, y), "lower_grad_norm": trees.norm(problem.lower_grad(x, y))}


def basic_metrics(problem: BilevelProblem, state: Any) -> dict[str, Scalar]:
    """f(x_k, y_k), which can lie below the optimum while y lags, and the lower gradient that tells by how much."""
    return _tracked(problem, trees.coordinates(state.x), state.y)


def _residuals(problem: BilevelProblem, x: PyTree, y: PyTree, w: PyTree) -> tuple[Scalar, Scalar, Scalar, Scalar]:
    phi = trees.sub(problem.lower_hvp(x, y, w), problem.upper_grads(x, y)[1])
    return trees.norm(problem.lower_grad(x, y)), trees.norm(phi), trees.norm(y), trees.norm(w)


_compiled_residuals = jax.jit(_residuals)


def adjoint_residuals(problem: BilevelProblem, x: PyTree, y: PyTree, w: PyTree) -> tuple[float, float, float, float]:
    """|g_y|, |H w - f_y|, |y| and |w| for a pair of estimates at x."""
    measure = _residuals if problem.structure.kernels.on_host else _compiled_residuals
    norms = measure(problem, trees.coordinates(x), y, w)
    return tuple(float(v) for v in norms)  # type: ignore[return-value]


def tracked_gap(problem: BilevelProblem, x: PyTree, direction: PyTree) -> tuple[Scalar, Scalar]:
    """The Frank-Wolfe gap by an estimate of the gradient, and the error of the oracle in it."""
    domain = problem.domain.at_final_tolerance()
    gap, error, _ = vertex_gap(domain, x, direction, domain.start(x))
    return gap, error


def vertex_gap(domain: Any, x: PyTree, gradient: PyTree, memory: Memory) -> tuple[Scalar, Scalar, Scalar]:
    """`<gradient, x - s>` for the best s, the error of the oracle, and how far s is; compiled where the set allows."""
    return (_vertex_gap if domain.kernels.on_host else _compiled_vertex_gap)(domain, x, gradient, memory)


def _vertex_gap(domain: Any, x: PyTree, gradient: PyTree, memory: Memory) -> tuple[Scalar, Scalar, Scalar]:
    s, memory = domain.lmo(gradient, memory)
    return trees.gap(gradient, x, s), memory.error, trees.norm(trees.sub(x, s))


_compiled_vertex_gap = jax.jit(_vertex_gap)
