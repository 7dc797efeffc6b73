"""What is measured at a row, from the tracked x, y and w."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import PyTree, Scalar

from bilevax import trees
from bilevax.linalg.brief import brief_jit
from bilevax.problem import BilevelProblem
from bilevax.runs.trace import Row
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
    if w is None:
        return problem.upper_value(x, tracked), trees.norm(problem.lower_grad(x, tracked)), None
    upper, (_, f_y) = problem.upper_value_and_grads(x, tracked)
    f_y = f_y if y is None else problem.upper_grads(x, y)[1]
    own = tracked if y is None else y
    if problem.streamed:  # both in one pass
        g_y, Hw = problem.over_rows(_compiled_grad_and_product, "lower", x, own, w)
    else:
        g_y, Hw = _grad_and_product(problem, x, own, w)
    own_norm, phi = trees.norm(g_y), trees.sub(Hw, f_y)
    lower_grad_norm = own_norm if y is None else trees.norm(problem.lower_grad(x, tracked))
    return upper, lower_grad_norm, (own_norm, trees.norm(phi), trees.norm(own), trees.norm(w))


def _grad_and_product(problem: BilevelProblem, x: PyTree, y: PyTree, w: PyTree) -> tuple[PyTree, PyTree]:
    return problem.lower_grad(x, y), problem.lower_hvp(x, y, w)


_compiled_measured, _compiled_grad_and_product = brief_jit(_measured), brief_jit(_grad_and_product)


def basic_metrics(problem: BilevelProblem, state: Any) -> dict[str, float]:
    """The columns `upper` and `lower_grad_norm` of a row, for loops of your own."""
    row = measure_row(problem, state, None, None)
    return {"upper": row.upper, "lower_grad_norm": row.lower_grad_norm}


def tracked_gap(problem: BilevelProblem, x: PyTree, direction: PyTree) -> tuple[Scalar, Scalar]:
    """The Frank-Wolfe gap by an estimate of the gradient, and the error of the oracle in it."""
    domain = problem.domain.at_final_tolerance()
    seen = vertex_gap(domain, x, direction, domain.start(x))
    return seen.gap, seen.error


def add_metrics(row: Row, values: Mapping[str, Any]) -> None:
    """More columns of a row, by the names that the user gave."""
    taken = sorted(set(row) & set(values))
    if taken:
        raise ValueError(f"solve: a metric is named {taken[0]!r}, which the trace already has; rename it.")
    for name, value in values.items():
        if np.ndim(value) or not np.isreal(value):
            raise ValueError(f"solve: the metric {name!r} must be one real number, got shape {np.shape(value)}.")
        row[name] = float(value)
