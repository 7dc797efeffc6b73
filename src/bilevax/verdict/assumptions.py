"""What an audit at one point cannot see, looked at elsewhere: convexity of the lower level, and autodiff itself."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree, Scalar

from bilevax import trees
from bilevax.estimation import extreme_point
from bilevax.linalg.conjugate_gradient import LinearSolution, conjugate_gradient
from bilevax.linalg.host_loops import Kernels
from bilevax.problem import BilevelProblem
from bilevax.sets import ConvexSet
from bilevax.verdict.precision import double, in_double, plain

_PRODUCTS = 24
_NEGATIVE = -1e-9
"""A curvature below this share of the largest is not rounding."""
_BETWEEN = (0.1, 0.3, 0.5, 0.7, 0.9)
"""Shares of the way from y0 to y*, where curvature is probed."""
_AROUND = (0.1, 0.5, 1.0, 3.0, 10.0)
"""Distances from y* in units of its own size, where it is probed too."""


class Assumptions(NamedTuple):
    """What was found wrong; empty words mean nothing was."""

    not_convex: str = ""
    refusal: str = ""


def examine(problem: BilevelProblem, x: PyTree, y: PyTree, x0: PyTree, y0: PyTree, seed: int = 2) -> Assumptions:
    """Probe the curvature of lower at ten points and compare autodiff with finite differences at one."""
    with double():
        base = plain(problem)
        domain = trees.cast(problem.domain, jnp.float64)
        x, y, x0, y0 = (in_double(v) for v in (x, y, x0, y0))
        keys = jax.random.split(jax.random.key(seed), 4)
        chord = _chord(domain, x, keys[0])
        middle = trees.axpy(0.5, chord, x)
        not_convex = _not_convex(base, (x, middle, x0), y, y0, keys[1])
        if not_convex:
            return Assumptions(not_convex=not_convex)
        size = 1 + trees.norm(y) / trees.size(y) ** 0.5
        elsewhere = trees.axpy(0.1 * size, trees.random_like(y, keys[2]), y)
        return Assumptions(refusal=_wrong_derivative(base, middle, elsewhere, chord, size, keys[3]))


def _chord(domain: ConvexSet, x: PyTree, key: Array) -> PyTree:
    """A direction along which x may move inside the set."""
    aim = trees.random_like(x, key)
    if domain.kernels is Kernels.HOST:
        return trees.scale(-0.5, x)  # balls, whose points may shrink
    return trees.sub(extreme_point(domain, x, aim), x)


@jax.jit
def _curvature(problem: BilevelProblem, x: PyTree, y: PyTree, key: Array) -> LinearSolution:
    b = trees.random_like(y, key)
    return conjugate_gradient(problem.linearize_lower(x, y).hvp, b, trees.zeros_like(b), max_steps=_PRODUCTS)


def _not_convex(base: BilevelProblem, xs: tuple[PyTree, ...], y: PyTree, y0: PyTree, key: Array) -> str:
    size = 1 + trees.norm(y) / trees.size(y) ** 0.5
    keys = jax.random.split(key, len(_BETWEEN) + len(_AROUND))
    points = [trees.axpy(share, trees.sub(y, y0), y0) for share in _BETWEEN]
    points += [trees.axpy(r * size, trees.random_like(y, k), y) for r, k in zip(_AROUND, keys, strict=False)]
    for i, (point, own_key) in enumerate(zip(points, keys, strict=True)):
        seen = _curvature(base, xs[i % len(xs)], point, own_key)
        lowest, highest = float(seen.lowest), float(seen.highest)
        if lowest < _NEGATIVE * max(highest, abs(lowest)):
            where = "on the way from y0" if i < len(_BETWEEN) else "near y*"
            return f"lower is not convex in y: its curvature is {lowest:.3g} at a point {where}"
    return ""


@jax.jit
def _values(problem: BilevelProblem, x: PyTree, y: PyTree, w: PyTree) -> tuple[Scalar, Scalar, Scalar]:
    slope = trees.inner(problem.lower_grad(x, y), w)
    return problem.upper_value(x, y), problem.lower_value(x, y), slope


@jax.jit
def _predicted(
    problem: BilevelProblem, x: PyTree, y: PyTree, w: PyTree, dx: PyTree, dy: PyTree
) -> list[tuple[Scalar, Scalar]]:
    """What autodiff says of the changes, and how large such changes usually are."""
    f_x, f_y = problem.upper_grads(x, y)
    g_y, lower = problem.lower_grad(x, y), problem.linearize_lower(x, y)
    Hw, Jw = lower.hvp(w), lower.cross(w)
    sizes = {"x": trees.norm(dx), "y": trees.norm(dy) / trees.size(y) ** 0.5}
    return [
        (trees.inner(f_x, dx), trees.norm(f_x) * sizes["x"]),
        (trees.inner(f_y, dy), trees.norm(f_y) * sizes["y"]),
        (trees.inner(g_y, dy), trees.norm(g_y) * sizes["y"]),
        (trees.inner(Hw, dy), trees.norm(Hw) * sizes["y"]),
        (trees.inner(Jw, dx), trees.norm(Jw) * sizes["x"]),
    ]


_DERIVATIVES = [
    # what, which of the values, and what moves
    ("the gradient of upper in x", 0, "x"),
    ("the gradient of upper in y", 0, "y"),
    ("the gradient of lower in y", 1, "y"),
    ("the Hessian of lower in y", 2, "y"),
    ("the mixed derivative of lower", 2, "x"),
]


def _wrong_derivative(base: BilevelProblem, x: PyTree, y: PyTree, dx: PyTree, size: Scalar, key: Array) -> str:
    keys = jax.random.split(key, 2)
    w = trees.random_like(y, keys[0])
    dy = trees.scale(size, trees.random_like(y, keys[1]))
    predicted = [(float(a), float(b)) for a, b in _predicted(base, x, y, w, dx, dy)]
    best = [np.inf] * len(_DERIVATIVES)
    nearest = [np.nan] * len(_DERIVATIVES)
    eps = float(np.finfo(float).eps)
    # One step length suits no function: the best of three decides.
    for h in (1e-3, 1e-5, 1e-7):
        moved = {
            "x": [_values(base, trees.axpy(t * h, dx, x), y, w) for t in (-1, 1)],
            "y": [_values(base, x, trees.axpy(t * h, dy, y), w) for t in (-1, 1)],
        }
        for i, (_, which, along) in enumerate(_DERIVATIVES):
            below, above = (float(v[which]) for v in moved[along])
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
