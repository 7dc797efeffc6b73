"""y or the adjoint growing without end, noticed at the rows while it happens."""

from __future__ import annotations

from typing import Any

from jaxtyping import PyTree, Scalar

from bilevax import trees
from bilevax.problem import BilevelProblem, compiled_on_arrays
from bilevax.runs.trace import Trace

_SUSPICIOUS, _TOO_LARGE = 1e3, 1e4
"""Growth against the first row from which on it is looked at, and against a fixed point from which on it is named."""
_NOTHING = 1e-6  # below this nothing has grown


@compiled_on_arrays
def _at_start(problem: BilevelProblem, x: PyTree, y: PyTree, y0: PyTree) -> tuple[Scalar, Scalar]:
    return trees.norm(problem.lower_grad(x, y0)), trees.norm(problem.upper_grads(x, y)[1])


def growing(trace: Trace, problem: BilevelProblem, state: Any, y0: PyTree, solves: bool = False) -> str:
    """What diverges, with its likely cause and cure; empty if nothing does.

    y diverges if it is much worse for the lower level than y0 is, and getting worse; w if it is much worse than zero.
    A method that `solves` the lower level takes no steps of y that could be too long.
    """
    suspects = [name for name in ("lower_grad_norm", "adjoint_residual") if _grew(trace, name)]
    if not suspects:
        return ""
    lower, adjoint = _at_start(problem, trees.coordinates(state.x), state.y, y0)
    fixed = {"lower_grad_norm": float(lower), "adjoint_residual": float(adjoint)}
    for name in suspects:
        if trace.last[name] > _TOO_LARGE * max(fixed[name], _NOTHING):
            return _words(name, trace, problem, trees.dtype(state.x) if solves else None)
    return ""


def _grew(trace: Trace, name: str) -> bool:
    if len(trace) < 2:
        return False
    first, before, last = (row[name] for row in (trace.first, trace.row(-2), trace.last))
    return bool(last > _NOTHING and last > before and last > _SUSPICIOUS * first)


def _words(name: str, trace: Trace, problem: BilevelProblem, solved_in: Any) -> str:
    what = {"lower_grad_norm": "y", "adjoint_residual": "the adjoint w"}[name]
    grown = f"{what} diverges: {name} grew from {trace.first[name]:.1e} to {trace.last[name]:.1e}"
    if solved_in is not None:
        return (
            f"{grown}. At this x the lower level is too ill-conditioned to be solved in {solved_in}: keep x in a "
            f"bounded set, such as bx.Box, or use a higher precision"
        )
    if problem.sampler is not None:
        return (
            f"{grown}. A batch with rows far larger than the rest is the usual cause: its curvature exceeds the L_g "
            f"that the steps are made for. Take larger batches, scale or clip rows, or give constants with a larger L_g"
        )
    return (
        f"{grown}. The steps of {what} are too long for the curvature of lower: give smaller ones, or constants with a "
        f"larger L_g"
    )
