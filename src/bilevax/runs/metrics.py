"""What is measured at a row: cheap values from the tracked (x, y), or the truth with both inner problems solved."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree, Scalar

from bilevax import trees
from bilevax.hypergradient import exact_hypergradient
from bilevax.problem import BilevelProblem


@jax.jit
def _tracked(problem: BilevelProblem, x: PyTree, y: PyTree) -> dict[str, Scalar]:
    return {"upper": problem.upper_value(x, y), "lower_grad_norm": trees.norm(problem.lower_grad(x, y))}


def basic_metrics(problem: BilevelProblem, state: Any) -> dict[str, Scalar]:
    """f(x_k, y_k), which can lie below the optimum while y lags, and the lower gradient that tells by how much."""
    return _tracked(problem, trees.coordinates(state.x), state.y)


class Audit(NamedTuple):
    """The true problem at x: y and the adjoint solved to the precision of the numbers."""

    ell: Scalar
    """f(x, y*(x))"""
    gap: Scalar
    """The Frank-Wolfe gap of ell, eq. (4); NaN on an unbounded set."""
    gap_error: Scalar
    """How far the gap may be off: the error of the oracle plus the diameter times that of the gradient."""
    grad_norm: Scalar
    grad_error: Scalar
    gradient_mapping: Scalar
    """|x - P(x - grad ell)|; NaN if the set has no projection."""
    y: PyTree
    v: PyTree


def audit(problem: BilevelProblem, x: PyTree, y: PyTree, w: PyTree | None = None) -> Audit:
    """Measure the true problem at x; `y` and `w` are starts for the inner solvers."""
    exact = _solved(problem, x, y, w)
    gap, gap_error = _gap(problem, x, exact.gradient, exact.error)
    mapping = _mapping(problem, x, exact.gradient)
    size = trees.norm(exact.gradient)
    return Audit(exact.ell, gap, gap_error, size, exact.error, mapping, exact.y, exact.v)


def _solved(problem: BilevelProblem, x: PyTree, y: PyTree, w: PyTree | None) -> Any:
    solve = exact_hypergradient if problem.structure.host else _hypergradient
    return solve(problem, trees.coordinates(x), y, w)


_hypergradient = jax.jit(exact_hypergradient)


def _gap(problem: BilevelProblem, x: PyTree, gradient: PyTree, error: Scalar) -> tuple[Scalar, Scalar]:
    diameter = np.asarray(problem.domain.diameter(x).value, trees.dtype(x))
    if np.isinf(diameter):
        nan = jnp.full((), jnp.nan, trees.dtype(x))
        return nan, nan
    return _best_vertex_gap(problem.domain.at_full_precision(), x, gradient, error, diameter)


def tracked_gap(problem: BilevelProblem, x: PyTree, direction: PyTree) -> tuple[Scalar, Scalar]:
    """The Frank-Wolfe gap by an estimate of the gradient, and the error of the oracle in it."""
    zero = np.zeros((), trees.dtype(x))
    return _best_vertex_gap(problem.domain.at_final_tolerance(), x, direction, zero, zero)


def _best_vertex_gap(domain: Any, x: PyTree, gradient: PyTree, error: Any, diameter: Any) -> tuple[Scalar, Scalar]:
    """The gap by a gradient with this error, and how far it may be off; one compiled function where the set allows."""
    return (_vertex_gap if domain.kernels.on_host else _compiled_vertex_gap)(domain, x, gradient, error, diameter)


def _vertex_gap(domain: Any, x: PyTree, gradient: PyTree, error: Any, diameter: Any) -> tuple[Scalar, Scalar]:
    # Without the run's warm start: a second, independent search for the extreme direction.
    s, memory = domain.lmo(gradient, domain.start(x))
    # A set of unknown diameter: twice the distance to the best vertex stands in for it.
    reach = jnp.where(jnp.isnan(diameter), 2 * trees.norm(trees.sub(x, s)), diameter)
    return trees.gap(gradient, x, s), memory.error + reach * error


_compiled_vertex_gap = jax.jit(_vertex_gap)


def _mapping(problem: BilevelProblem, x: PyTree, gradient: PyTree) -> Scalar:
    try:
        return (_step_length if problem.domain.kernels.on_host else _compiled_step_length)(problem.domain, x, gradient)
    except NotImplementedError:
        return jnp.asarray(jnp.nan, trees.dtype(x))


def _step_length(domain: Any, x: PyTree, gradient: PyTree) -> Scalar:
    return trees.norm(trees.sub(x, domain.project(trees.sub(x, gradient))))


_compiled_step_length = jax.jit(_step_length)


def exact_metrics(problem: BilevelProblem, state: Any) -> dict[str, Scalar]:
    """The truth at a row, at the price of solving both inner problems: `solve(..., metrics=bx.exact_metrics)`."""
    w = getattr(state, "w", None)
    true = audit(problem, state.x, state.y, w)
    nan = jnp.full_like(true.ell, jnp.nan)
    return {
        "ell": true.ell,
        "true_gap": true.gap,
        "true_gap_error": true.gap_error,
        "true_grad_norm": true.grad_norm,
        "gradient_mapping": true.gradient_mapping,
        "y_error": trees.norm(trees.sub(state.y, true.y)),
        "w_error": nan if w is None else trees.norm(trees.sub(w, true.v)),
    }
