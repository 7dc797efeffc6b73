"""A bound on the true gap at every row, from what the row measured and the constants of the problem.

    delta = |g_y| / mu,   e_w = (|H w - f_y| + (L_yy_f + L_yy_g |w|) delta) / mu
    e     = (L_xy_f + L_yx_g |w|) delta + C_yx e_w
    gap_bound = gap + error of the lmo + D_X e + rounding

It is proved where all these constants are given. Otherwise they are estimated when the bound is asked for.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import PyTree

from bilevax import trees
from bilevax.linalg.positive import definiteness
from bilevax.problem import BilevelProblem
from bilevax.theory import Constants
from bilevax.verdict import iterative, precision
from bilevax.verdict.bounded_gradient import ALWAYS_DENSE, slope_norms
from bilevax.verdict.dependence import quadratic_in_y
from bilevax.verdict.evaluation import bends, hessian
from bilevax.verdict.scaled import unscaled
from bilevax.verdict.solution import PROBES

NEEDED = ("mu_g", "C_yx_g", "L_xy_f", "L_yy_f", "L_yx_g", "L_yy_g")
_MARGIN = 10.0  # eight Gaussian probes underestimate a Frobenius norm ten times with probability below 1e-6


class RowResiduals(NamedTuple):
    """What a row measured of the y and w that its direction is made of."""

    lower_grad: float
    adjoint: float
    y: float
    w: float


def all_given(constants: Constants | None) -> bool:
    """Whether the user gave every constant that the bound needs."""
    if constants is None or constants.estimated:
        return False
    return not any(np.isnan(float(getattr(constants, name))) for name in NEEDED)


def gap_bound(
    gap: float, lmo_error: float, grad_norm: float, row: RowResiduals, constants: Constants, diameter: float, eps: float
) -> float:
    """The bound for one row."""
    mu, L, C, L_xy_f, L_yy_f, L_yx_g, L_yy_g = (float(getattr(constants, n)) for n in ("mu_g", "L_g", *NEEDED[1:]))
    delta = (row.lower_grad + 16 * eps * L * row.y) / mu
    e_w = (row.adjoint + 16 * eps * L * row.w + (L_yy_f + L_yy_g * row.w) * delta) / mu
    error = (L_xy_f + L_yx_g * row.w) * delta + C * e_w + 16 * eps * (grad_norm + C * row.w)
    return gap + lmo_error + diameter * error


def estimated_constants(problem: BilevelProblem, points: list[tuple[PyTree, PyTree]], seed: int = 3) -> Constants:
    """Every constant of the bound, measured in float64 at some points (x, y), each with a margin."""
    with precision.double(), np.errstate(all="ignore"):
        base = precision.plain(problem)
        values = [_constants_at(base, precision.in_double(x), precision.in_double(y), seed) for x, y in points]
    low = min(float(c.mu_g) for c in values)
    highest: Any = {name: max(float(getattr(c, name)) for c in values) for name in (*NEEDED[1:], "L_g")}
    return Constants(low, estimated=True, **highest)


def _constants_at(base: BilevelProblem, x: PyTree, y: PyTree, seed: int) -> Constants:
    rng, m = np.random.default_rng(seed), trees.size(y)
    quadratic = quadratic_in_y(base, x, y)
    work = unscaled(base, y)
    if m <= ALWAYS_DENSE:
        H = hessian(work, x, y)
        H = 0.5 * (H + H.T)
        low, high = definiteness(H).low, float(np.linalg.norm(H, 2))
    else:
        seen = iterative.lowest_curvature(work, x, y, seed)
        low, high = seen.mu, seen.high
    # Where the Hessian varies, it may be smaller between the points.
    low = low if quadratic else low / 2
    along = rng.standard_normal((PROBES, m))
    L_xy_f, L_yy_f, C = slope_norms(work, x, y, trees.zeros_like(y), along)
    L_yx_g = L_yy_g = 0.0
    if not quadratic:
        w = trees.scale(1 / np.sqrt(m), trees.drawn_like(y, rng))
        L_yx_g, L_yy_g = (_MARGIN * float(np.sqrt(np.mean(v))) for v in bends(work, x, y, w, along))
    return Constants(
        low if low > 0 else np.nan, high, True, C_yx_g=C, L_xy_f=L_xy_f, L_yy_f=L_yy_f, L_yx_g=L_yx_g, L_yy_g=L_yy_g
    )
