"""Both inner problems solved with the whole lower Hessian: Newton's method and a proof of strong convexity."""

from __future__ import annotations

from typing import NamedTuple

import jax
import numpy as np
import scipy.linalg
from jaxtyping import PyTree

from bilevax import trees
from bilevax.linalg.positive import Definiteness, definiteness
from bilevax.problem import BilevelProblem
from bilevax.verdict.evaluation import hessian, residuals, values
from bilevax.verdict.solution import PROBES, Solution

_NEWTON_STEPS = 100
_SHORTEST = 2.0**-40


class _Factorized(NamedTuple):
    """The Hessian at one y, scaled to a unit diagonal, and factorized."""

    scale: np.ndarray
    proof: Definiteness
    not_convex: str
    lowest: float

    def solve(self, b: np.ndarray) -> np.ndarray:
        """`H^-1 b` in the variables of y."""
        return self.scale * scipy.linalg.cho_solve(self.proof.factor, self.scale * b)


def _factorize(problem: BilevelProblem, x: PyTree, y: PyTree) -> _Factorized:
    H = hessian(problem, x, y)
    ones = np.ones(len(H))
    if not np.all(np.isfinite(H)):
        return _Factorized(ones, Definiteness(0.0, None, np.nan, np.nan), "", np.nan)
    diagonal = np.diag(H)
    if not np.all(diagonal > 0):
        worst = float(diagonal.min())
        return _Factorized(ones, Definiteness(0.0, None, worst, 0.0), _words(H, 0.0), worst)
    scale = 1 / np.sqrt(diagonal)
    unit = H * np.outer(scale, scale)
    # The Hessian is symmetric; by how much the computed one is not tells its rounding.
    noise = float(np.linalg.norm(unit - unit.T) + 4 * np.finfo(float).eps * np.linalg.norm(unit))
    proof = definiteness(0.5 * (unit + unit.T), noise)
    words, lowest = "", np.inf
    if proof.low <= 0:
        lowest = float(np.linalg.eigvalsh(0.5 * (H + H.T))[0])
        words = _words(H, proof.margin * float(diagonal.max()))
    return _Factorized(scale, proof, words, lowest)


def _words(H: np.ndarray, margin: float) -> str:
    values = np.linalg.eigvalsh(0.5 * (H + H.T))
    kind = "convex" if values[0] < -margin else "strongly convex (to the precision of float64)"
    return f"lower is not {kind} in y: its curvature goes from {values[0]:.3g} to {values[-1]:.3g} at this point"


def solution(problem: BilevelProblem, x: PyTree, y: PyTree, w: PyTree, quadratic: bool, seed: int) -> Solution:
    """Newton's method from `y` with factorizations kept as long as they serve, then the adjoint with the last one."""
    at, back = trees.ravel_on_host(y)
    ones, m = jax.tree.map(np.ones_like, y), at.size
    evaluate = lambda v: values(problem, x, back(v))[1:]  # noqa: E731

    H, products, (value, g), fresh = _factorize(problem, x, y), m, evaluate(at), True
    first = np.linalg.norm(H.scale * g)
    for _ in range(_NEWTON_STEPS):
        if H.proof.factor is None or not np.all(np.isfinite(g)):
            break
        size, step = np.linalg.norm(H.scale * g), H.solve(g)
        t, slope = 1.0, float(g @ step)
        while t > _SHORTEST:
            trial = at - t * step
            new_value, g_t = evaluate(trial)
            left, fall = np.linalg.norm(H.scale * g_t), value - new_value
            # Far away g itself decides, on which Newton's steps gain; near the end only its gradient is accurate.
            far = slope > 1e-6 * abs(value)
            if fall >= 0.1 * t * slope if far else left <= (1 - 1e-4 * t) * size:
                break
            t = t / 2 if fresh else 0.0  # an old factorization is not worth a search
        found = t > _SHORTEST
        if found:
            at, value, g = trial, new_value, g_t
        # Rounding has been reached where an exact step gains nothing: at once on a quadratic, elsewhere near the end.
        small = quadratic or size <= 1e-10 * max(np.linalg.norm(at / H.scale), first)
        if (fresh or quadratic) and (not found or left == 0 or (small and left > 0.5 * size)):
            break
        if not quadratic and (not found or t < 1 or left > 0.01 * size):
            H, products, fresh = _factorize(problem, x, back(at)), products + m, True
        else:
            fresh = False
    if not quadratic and not fresh:
        H, products = _factorize(problem, x, back(at)), products + m
    if H.proof.factor is None:
        words = H.not_convex
        refusal = "" if words else "the second derivatives of lower are not finite"
        return Solution(back(at), w, ones, 0.0, "", H.lowest, products, False, None, words, refusal)
    residual = lambda v: residuals(problem, x, back(at), back(v)).phi  # noqa: E731
    w_flat = H.solve(residual(np.zeros(m)))
    for _ in range(3):  # refinement: each round gains what the factorization is worth
        r = residual(w_flat)
        better = w_flat + H.solve(r)
        if not np.linalg.norm(H.scale * residual(better)) < 0.5 * np.linalg.norm(H.scale * r):
            break
        w_flat = better
    scale = back(H.scale)
    z, w = back(at / H.scale), back(w_flat / H.scale)
    lowest = min(_curvature(H), H.lowest)
    # Rounding moves the inverse little where it moves the smallest eigenvalue little.
    sound = H.proof.low > 0 and H.proof.margin <= 0.1 * H.proof.low
    probes = np.random.default_rng(seed).standard_normal((m, PROBES))
    solved = scipy.linalg.cho_solve(H.proof.factor, probes).T if sound else None
    return Solution(z, w, scale, H.proof.low, "factorization", lowest, products, sound, solved, H.not_convex)


def _curvature(H: _Factorized) -> float:
    """A curvature in y that occurs, near the smallest: along the direction that inverse iteration finds."""
    v = np.random.default_rng(len(H.scale)).standard_normal(len(H.scale))
    for _ in range(6):
        v = H.solve(v / np.linalg.norm(v))
    # v = H^-1 u with |u| = 1, so the Rayleigh quotient of v is <u, v> / |v|^2 <= 1 / |v|; one more product of H
    # is not needed, since the smallest eigenvalue is at most 1 / |v|.
    return float(1 / np.linalg.norm(v))
