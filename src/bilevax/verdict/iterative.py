"""Both inner problems solved by conjugate gradients, for lower levels too large to factorize; mu_g is an estimate."""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PyTree

from bilevax import trees
from bilevax.hypergradient import lower_solution, product_limit
from bilevax.linalg.brief import brief_jit
from bilevax.linalg.conjugate_gradient import (
    Coefficients,
    LinearSolution,
    remembered,
    ritz_values,
    solve_linear,
)
from bilevax.problem import BilevelProblem
from bilevax.verdict.scaled import scaled
from bilevax.verdict.solution import Solution

_PATIENCE = 300
"""Products after which a diagonal is worth its own."""
_DIAGONAL_PROBES = 32
_PROBE_TOL = 1e-10
_RISK = 1e-3
"""The probability with which a random start may hide the smallest eigenvalue."""
_MARGIN = 2.0

_solve_lower = brief_jit(lower_solution)


@brief_jit
def _first_products(problem: BilevelProblem, x: PyTree, z: PyTree, w: PyTree) -> LinearSolution:
    return _adjoint(problem, x, z, w, _PATIENCE)


@brief_jit
def _all_products(problem: BilevelProblem, x: PyTree, z: PyTree, w: PyTree) -> LinearSolution:
    return _adjoint(problem, x, z, w, product_limit(z))


def _adjoint(problem: BilevelProblem, x: PyTree, z: PyTree, w: PyTree, max_steps: int) -> LinearSolution:
    f_y = problem.upper_grads(x, z)[1]
    return solve_linear(problem.linearize_lower(x, z).hvp, f_y, w, max_steps=max_steps)


@brief_jit
def _diagonal(problem: BilevelProblem, x: PyTree, z: PyTree, signs: Array) -> PyTree:
    """Hutchinson's estimate: the mean of v * H v over random signs."""
    hvp = problem.linearize_lower(x, z).hvp
    _, back = ravel_pytree(z)

    def add(i: Array, total: PyTree) -> PyTree:
        v = back(signs[i])
        return trees.add(total, jax.tree.map(jnp.multiply, v, hvp(v)))

    return trees.scale(1 / len(signs), jax.lax.fori_loop(0, len(signs), add, trees.zeros_like(z)))


@brief_jit
def _probe(problem: BilevelProblem, x: PyTree, z: PyTree, b: PyTree) -> tuple[LinearSolution, Coefficients]:
    limit = product_limit(z)
    hvp = problem.linearize_lower(x, z).hvp
    return remembered(hvp, b, trees.zeros_like(z), tol=_PROBE_TOL, max_steps=limit, remember=limit)


class LowestCurvature(NamedTuple):
    """An estimate of mu_g that is meant to lie below it, and what it rests on."""

    mu: float
    ritz: float
    high: float
    """The ends of the spectrum that was seen."""
    source: str
    products: int
    solved: np.ndarray | None = None
    """The random right-hand side times the inverse, as one row."""


def lowest_curvature(problem: BilevelProblem, x: PyTree, z: PyTree, seed: int) -> LowestCurvature:
    """From the Ritz values of conjugate gradients with a random right-hand side.

    The smallest Ritz value theta after k products from a random start exceeds the smallest of n eigenvalues by more
    than s (L - mu) with probability at most 1.648 sqrt(n) exp(-sqrt(s) (2k - 1)) (Kuczynski and Wozniakowski, 1992).
    Where that leaves at least half of theta it is taken, with its probability; otherwise half of theta, provided that
    the run has converged.
    """
    run, memory = _probe(problem, x, z, trees.drawn_like(z, np.random.default_rng(seed)))
    products = int(run.products)
    if not bool(run.positive):
        return LowestCurvature(0.0, 0.0, float(run.highest), "", products)
    theta, high = ritz_values(run, memory)
    n, k = trees.size(z), products - 1
    hidden = (math.log(1.648 * math.sqrt(n) / _RISK) / (2 * k - 1)) ** 2
    sure = theta - hidden * (high - theta)
    solved = trees.ravel_on_host(run.w)[0][None] if bool(run.reached) else None
    if sure >= theta / _MARGIN:
        return LowestCurvature(sure, theta, high, f"estimated, with probability {1 - _RISK:.1%}", products, solved)
    if bool(run.reached):
        return LowestCurvature(
            theta / _MARGIN, theta, high, "estimated: half of the smallest Ritz value", products, solved
        )
    return LowestCurvature(0.0, theta, high, "", products)


def solution(problem: BilevelProblem, x: PyTree, y: PyTree, w: PyTree, quadratic: bool, seed: int) -> Solution:
    """Newton's method with conjugate gradients for y, conjugate gradients for w, and a random probe for mu_g."""
    ones = scale = jax.tree.map(np.ones_like, y)
    z, spent = _solve_lower(problem, x, y)
    adjoint = _first_products(problem, x, z, w)
    products = int(spent) + int(adjoint.products)
    if not bool(adjoint.reached) and bool(adjoint.positive):
        signs = np.random.default_rng(seed + 2).choice([-1.0, 1.0], (_DIAGONAL_PROBES, trees.size(z)))
        diagonal = trees.on_host(_diagonal(problem, x, z, signs))
        values, _ = trees.ravel_on_host(diagonal)
        if values.min() > 0 and values.max() > 10 * values.min():
            scale = jax.tree.map(lambda d: 1 / np.sqrt(d), diagonal)
            problem = scaled(problem, scale)
            z, w = (jax.tree.map(np.divide, trees.on_host(v), scale) for v in (z, adjoint.w))
            z, spent = _solve_lower(problem, x, z)
            products += int(spent)
        adjoint = _all_products(problem, x, z, w if scale is not ones else adjoint.w)
        products += _DIAGONAL_PROBES + int(adjoint.products)
    lowest = lowest_curvature(problem, x, z, seed)
    products += lowest.products
    not_convex = refusal = ""
    if not bool(adjoint.positive) or (lowest.source == "" and lowest.ritz == 0):
        not_convex = "lower is not strongly convex in y: conjugate gradients met a direction without positive curvature"
    elif lowest.source == "":
        refusal = (
            f"no lower bound on the curvature of lower was found in {lowest.products} Hessian products (kappa is at "
            f"least {float(adjoint.highest) / lowest.ritz:.1e}); give bx.Constants(mu_g=..., L_g=...) or scale y"
        )
    smallest = min(float(np.min(s)) for s in jax.tree.leaves(scale))
    occurs = lowest.ritz / smallest**2
    z, w = trees.on_host((z, adjoint.w))
    return Solution(z, w, scale, lowest.mu, lowest.source, occurs, products, False, lowest.solved, not_convex, refusal)
