"""What is measured at a row, from the tracked x, y and w."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import PyTree, Scalar

from bilevax import trees
from bilevax.linalg.brief import brief_jit
from bilevax.problem import BilevelProblem
from bilevax.sets import vertex_gap
from bilevax.verdict.row_bound import RowResiduals


class RowMeasures(NamedTuple):
    """What a row measures of a state, and of the estimates y and w that its direction is made of."""

    upper: float
    lower_grad_norm: float
    residuals: RowResiduals


def measure_row(problem: BilevelProblem, state: Any, y: PyTree, w: PyTree) -> RowMeasures:
    """f(x_k, y_k), which can lie below the optimum while y lags, the lower gradient that tells by how much, and the
    residuals of the estimates; NaN where there are none."""
    measure = _measured if problem.level_kernels.on_host else _compiled_measured
    if y is None or w is None:
        y = w = None
    elif y is state.y:
        y = None  # the products at one point are computed once
    upper, lower_grad_norm, residuals = measure(problem, trees.coordinates(state.x), state.y, y, w)
    row = RowResiduals(*([np.nan] * 4 if residuals is None else map(float, residuals)))
    return RowMeasures(float(upper), float(lower_grad_norm), row)


def _measured(problem: BilevelProblem, x: PyTree, tracked: PyTree, y: PyTree, w: PyTree) -> tuple[Any, ...]:
    upper, lower_grad_norm = problem.upper_value(x, tracked), trees.norm(problem.lower_grad(x, tracked))
    if w is None:
        return upper, lower_grad_norm, None
    own_norm = lower_grad_norm if y is None else trees.norm(problem.lower_grad(x, y))
    y = tracked if y is None else y
    phi = trees.sub(problem.lower_hvp(x, y, w), problem.upper_grads(x, y)[1])
    return upper, lower_grad_norm, (own_norm, trees.norm(phi), trees.norm(y), trees.norm(w))


_compiled_measured = brief_jit(_measured)


def basic_metrics(problem: BilevelProblem, state: Any) -> dict[str, float]:
    """The columns `upper` and `lower_grad_norm` of a row, for loops of your own."""
    row = measure_row(problem, state, None, None)
    return {"upper": row.upper, "lower_grad_norm": row.lower_grad_norm}


def tracked_gap(problem: BilevelProblem, x: PyTree, direction: PyTree) -> tuple[Scalar, Scalar]:
    """The Frank-Wolfe gap by an estimate of the gradient, and the error of the oracle in it."""
    domain = problem.domain.at_final_tolerance()
    seen = vertex_gap(domain, x, direction, domain.start(x))
    return seen.gap, seen.error
