"""What an audit at one point cannot see, looked at elsewhere: convexity of the lower level, and autodiff itself."""

from __future__ import annotations

from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree, Scalar

from bilevax import trees
from bilevax.linalg.conjugate_gradient import conjugate_gradient
from bilevax.linalg.host_loops import Kernels
from bilevax.problem import BilevelProblem, compiled_on_arrays
from bilevax.sets import ConvexSet, vertex_gap
from bilevax.verdict.evaluation import hessian, residuals, values
from bilevax.verdict.precision import double, in_double, plain
from bilevax.verdict.scaled import unscaled

_PRODUCTS = 24
_NEGATIVE = -1e-9
"""A curvature below this share of the largest is not rounding."""
_BETWEEN = (0.1, 0.3, 0.5, 0.7, 0.9)
"""Shares of the way from y0 to y*, where curvature is probed."""
_WHOLE = 50
"""Lower variables up to which the whole Hessian is decomposed at a probe."""
_WHOLE_ON_STREAMS = 200
"""The same on streams, where the whole Hessian takes one pass over the rows and every product another."""
_AROUND = (0.1, 0.5, 1.0, 3.0, 10.0)
"""Distances from y* in units of its own size, where it is probed too."""


class Assumptions(NamedTuple):
    """What was found wrong; empty words mean nothing was."""

    not_convex: str = ""
    refusal: str = ""


def examine(problem: BilevelProblem, x: PyTree, y: PyTree, x0: PyTree, y0: PyTree, seed: int = 2) -> Assumptions:
    """Probe the curvature of lower at ten points and compare autodiff with finite differences at one."""
    with double(), np.errstate(all="ignore"):
        rng = np.random.default_rng(seed)
        domain = trees.cast(problem.domain, np.float64)
        x, y, x0, y0 = (in_double(v) for v in (x, y, x0, y0))
        work = unscaled(plain(problem), y)  # as the audit does, so that its compiled code serves here too
        chord = _chord(domain, x, rng)
        middle = trees.axpy(0.5, chord, x)
        size = _typical(y, y0)
        not_convex = _not_convex(work, (x, middle, x0), y, y0, size, rng)
        if not_convex:
            return Assumptions(not_convex=not_convex)
        elsewhere = trees.axpy(0.1 * size, trees.drawn_like(y, rng), y)
        return Assumptions(refusal=_wrong_derivative(work, middle, elsewhere, chord, size, rng))


def _chord(domain: ConvexSet, x: PyTree, rng: np.random.Generator) -> PyTree:
    """A direction along which x may move inside the set; a random one where it is unbounded."""
    if domain.kernels is Kernels.HOST:
        return trees.scale(-0.5, x)  # balls, whose points may shrink
    aim = trees.drawn_like(x, rng)
    try:
        s = vertex_gap(domain, x, aim, domain.start(x)).s
    except NotImplementedError:
        s = domain.project(trees.sub(x, aim))
    chord = trees.sub(trees.on_host(s), x)
    # A box may be unbounded in some of its coordinates only.
    return jax.tree.map(lambda v, a: np.where(np.isfinite(v), v, -a), chord, aim)


@compiled_on_arrays
def _curvature(problem: BilevelProblem, x: PyTree, y: PyTree, b: PyTree) -> tuple[Scalar, Scalar]:
    hvp, host = problem.linearize_lower(x, y).hvp, problem.streamed
    seen = conjugate_gradient(hvp, b, trees.zeros_like(b), max_steps=_PRODUCTS, host=host)
    return seen.lowest, seen.highest


def _extremes(work: BilevelProblem, x: PyTree, y: PyTree, rng: np.random.Generator) -> tuple[float, float]:
    """A low and a high curvature of lower in y: the ends of the spectrum where it is small."""
    if trees.size(y) <= (_WHOLE_ON_STREAMS if work.streamed else _WHOLE):
        H = hessian(work, x, y)
        ends = np.linalg.eigvalsh(0.5 * (H + H.T))[[0, -1]] if np.all(np.isfinite(H)) else (np.nan, np.nan)
    else:
        ends = _curvature(work, x, y, trees.drawn_like(y, rng))
    return float(ends[0]), float(ends[1])


def _typical(y: PyTree, y0: PyTree) -> float:
    """How large an entry of y usually is, in the units of y; 1 where nothing tells."""
    largest = max(float(trees.norm(v)) for v in (y, y0, trees.sub(y, y0)))
    return largest / trees.size(y) ** 0.5 or 1.0


def _not_convex(
    work: BilevelProblem, xs: tuple[PyTree, ...], y: PyTree, y0: PyTree, size: float, rng: np.random.Generator
) -> str:
    points = [trees.axpy(share, trees.sub(y, y0), y0) for share in _BETWEEN]
    points += [trees.axpy(r * size, trees.drawn_like(y, rng), y) for r in _AROUND]
    for i, point in enumerate(points):
        lowest, highest = _extremes(work, xs[i % len(xs)], point, rng)
        if lowest < _NEGATIVE * max(highest, abs(lowest)):
            where = "on the way from y0" if i < len(_BETWEEN) else "near y*"
            return f"lower is not convex in y: its curvature is {lowest:.3g} at a point {where}"
    return ""


def _values(work: BilevelProblem, x: PyTree, y: PyTree, w: np.ndarray) -> tuple[float, float, float]:
    upper, lower, g_y = values(work, x, y)
    return upper, lower, float(g_y @ w)


def _predicted(
    work: BilevelProblem, x: PyTree, y: PyTree, w: PyTree, dx: PyTree, dy: PyTree
) -> list[tuple[float, float]]:
    """What autodiff says of the changes, and how large such changes usually are."""
    at = residuals(work, x, y, w)
    along = {"x": trees.ravel_on_host(dx)[0], "y": trees.ravel_on_host(dy)[0]}
    sizes = {"x": np.linalg.norm(along["x"]), "y": np.linalg.norm(along["y"]) / trees.size(y) ** 0.5}
    parts = [(at.f_x, "x"), (at.f_y, "y"), (at.g_y, "y"), (at.Hw, "y"), (at.Jw, "x")]
    return [(float(v @ along[by]), float(np.linalg.norm(v) * sizes[by])) for v, by in parts]


_DERIVATIVES = [
    # what, which of the values, and what moves
    ("the gradient of upper in x", 0, "x"),
    ("the gradient of upper in y", 0, "y"),
    ("the gradient of lower in y", 1, "y"),
    ("the Hessian of lower in y", 2, "y"),
    ("the mixed derivative of lower", 2, "x"),
]


def _wrong_derivative(
    work: BilevelProblem, x: PyTree, y: PyTree, dx: PyTree, size: float, rng: np.random.Generator
) -> str:
    w, dy = trees.drawn_like(y, rng), trees.scale(size, trees.drawn_like(y, rng))
    predicted, flat_w = _predicted(work, x, y, w, dx, dy), trees.ravel_on_host(w)[0]
    best = [np.inf] * len(_DERIVATIVES)
    nearest = [np.nan] * len(_DERIVATIVES)
    eps = float(np.finfo(float).eps)
    # One step length suits no function: the best of three decides.
    for h in (1e-3, 1e-5, 1e-7):
        moved = {
            "x": [_values(work, trees.axpy(t * h, dx, x), y, flat_w) for t in (-1, 1)],
            "y": [_values(work, x, trees.axpy(t * h, dy, y), flat_w) for t in (-1, 1)],
        }
        for i, (_, which, along) in enumerate(_DERIVATIVES):
            below, above = (v[which] for v in moved[along])
            change, (said, usual) = (above - below) / (2 * h), predicted[i]
            off = abs(change - said) - 100 * eps * max(abs(below), abs(above)) / h
            relative = off / max(abs(change), abs(said), usual, 1e-300)
            if relative < best[i]:
                best[i], nearest[i] = relative, change
    for (name, _, _), off, change, (said, _) in zip(_DERIVATIVES, best, nearest, predicted, strict=True):
        if not off <= 1e-3:
            return (
                f"{name} by autodiff disagrees with finite differences ({said:.4g} against {change:.4g}); a "
                f"stop_gradient, a custom derivative, a kink or a random function is the usual cause"
            )
    return ""
