"""y or the adjoint growing without end, noticed at the rows while it happens."""

from __future__ import annotations

import math
from typing import Any

import jax
from jaxtyping import PyTree, Scalar

from bilevax import trees
from bilevax.estimation import lower_spectrum
from bilevax.linalg.brief import brief_jit
from bilevax.problem import BilevelProblem, compiled_on_arrays
from bilevax.runs.chunks import Chunk
from bilevax.runs.trace import Trace

_SUSPICIOUS, _TOO_LARGE = 1e3, 1e4
"""Growth against the first row from which on it is looked at, and against a fixed point from which on it is named."""
_NOTHING = 1e-6  # below this nothing has grown
_MORE_CURVED, _PRODUCTS = 3.0, 12
"""From the first on x is the cause; the curvature is measured by the second."""


@compiled_on_arrays
def _at_start(problem: BilevelProblem, x: PyTree, y: PyTree, y0: PyTree) -> tuple[Scalar, Scalar]:
    return trees.norm(problem.lower_grad(x, y0)), trees.norm(problem.upper_grads(x, y)[1])


def growing(
    trace: Trace, problem: BilevelProblem, state: Any, begun: tuple[PyTree, PyTree], solves: bool = False
) -> str:
    """What diverges, with its likely cause and cure; empty if nothing does. The run has `begun` at x0 and y0.

    y diverges if it is much worse for the lower level than y0 is, and getting worse; w if it is much worse than zero.
    A method that `solves` the lower level takes no steps of y that could be too long.
    """
    suspects = [name for name in ("lower_grad_norm", "adjoint_residual") if _grew(trace, name)]
    if not suspects:
        return ""
    x = trees.coordinates(state.x)
    lower, adjoint = _at_start(problem, x, state.y, begun[1])
    fixed = {"lower_grad_norm": float(lower), "adjoint_residual": float(adjoint)}
    for name in suspects:
        if trace.last[name] > _TOO_LARGE * max(fixed[name], _NOTHING):
            solved_in = trees.dtype(state.x) if solves else None
            return _words(name, trace, problem, solved_in, "" if solves else _moved_too_far(problem, x, begun))
    return ""


def _grew(trace: Trace, name: str) -> bool:
    if len(trace) < 2:
        return False
    first, before, last = (row[name] for row in (trace.first, trace.row(-2), trace.last))
    return bool(last > _NOTHING and last > before and last > _SUSPICIOUS * first)


@brief_jit
def _curved(problem: BilevelProblem, x: PyTree, x0: PyTree, y0: PyTree) -> Scalar:
    """How much more lower is curved at x than where the run began."""
    high = lambda x: lower_spectrum(problem, x, y0, jax.random.key(0), _PRODUCTS).high  # noqa: E731
    return high(x) / high(trees.coordinates(x0))


def _moved_too_far(problem: BilevelProblem, x: PyTree, begun: tuple[PyTree, PyTree]) -> str:
    """That x is where the lower level is far more curved than where the run began; empty if it is not."""
    curved = 1.0 if problem.level_kernels.on_host else float(_curved(problem, x, *begun))
    if curved <= _MORE_CURVED:
        return ""
    how = f"is {curved:.3g} times as curved as at x0" if math.isfinite(curved) else "has a curvature that overflows"
    return (
        f"x has moved to where lower {how}, and the steps of y and w are too long there: keep x in a bounded set, such "
        f"as bx.Box, or give constants with a larger L_g"
    )


def _words(name: str, trace: Trace, problem: BilevelProblem, solved_in: Any, moved: str) -> str:
    what = {"lower_grad_norm": "y", "adjoint_residual": "the adjoint w"}[name]
    grown = f"{what} diverges: {name} grew from {trace.first[name]:.1e} to {trace.last[name]:.1e}"
    if solved_in is not None:
        return (
            f"{grown}. At this x the lower level is too ill-conditioned to be solved in {solved_in}: keep x in a "
            f"bounded set, such as bx.Box, or use a higher precision"
        )
    if moved:
        return f"{grown}. {moved}"
    if problem.sampler is not None:
        return (
            f"{grown}. A batch with rows far larger than the rest is the usual cause: its curvature exceeds the L_g "
            f"that the steps are made for. Take larger batches, scale or clip rows, or give constants with a larger L_g"
        )
    return (
        f"{grown}. The steps of {what} are too long for the curvature of lower: give smaller ones, or constants with a "
        f"larger L_g"
    )


def nonfinite(
    chunk: Chunk, problem: BilevelProblem, state: Any, begun: tuple[PyTree, PyTree], solves: bool = False
) -> str:
    """Which part of a chunk is not finite, and why if that is known; `state` is the one before it."""
    parts = {
        "w": getattr(chunk.state, "w", None),
        "the direction": chunk.summary.grad_norm,
        "x": chunk.state.x,
        "y": chunk.state.y,
    }
    bad = [name for name, part in parts.items() if part is not None and not bool(trees.all_finite(trees.on_host(part)))]
    words = f"{bad[0] if bad else 'a quantity'} non-finite; the state before it is kept"
    moved = "" if solves else _moved_too_far(problem, trees.coordinates(state.x), begun)
    return f"{words}. {moved}" if moved else words
