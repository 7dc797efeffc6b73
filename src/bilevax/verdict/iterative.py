"""Both inner problems solved by conjugate gradients, for lower levels too large to factorize; mu_g is an estimate."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PyTree

from bilevax import trees
from bilevax.hypergradient import lower_solution, product_limit
from bilevax.linalg import host_loops
from bilevax.linalg.conjugate_gradient import (
    Coefficients,
    LinearSolution,
    remembered,
    residual_polynomial,
    ritz_values,
    solve_linear,
)
from bilevax.problem import BilevelProblem, compiled_on_arrays
from bilevax.verdict.scaled import scaled
from bilevax.verdict.solution import Solution

_PATIENCE = 300
"""Products after which a diagonal is worth its own."""
_DIAGONAL_PROBES = 32
_PROBE_TOL = 3e-7
_RISK = 1e-3
"""The probability with which a random right-hand side may hide the smallest eigenvalue."""

_solve_lower = compiled_on_arrays(lower_solution)


@compiled_on_arrays
def _adjoint(problem: BilevelProblem, x: PyTree, z: PyTree, w: PyTree, limit: Array) -> LinearSolution:
    f_y = problem.upper_grads(x, z)[1]
    return solve_linear(problem.linearize_lower(x, z).hvp, f_y, w, max_steps=limit, host=problem.streamed)


@compiled_on_arrays
def _newton_step(
    problem: BilevelProblem, x: PyTree, z: PyTree, step: PyTree, direction: PyTree, limit: Array
) -> tuple[PyTree, LinearSolution]:
    """z less the step of Newton's method, which minimises a quadratic function; `step` and `direction` begin it."""
    hvp = problem.linearize_lower(x, z).hvp
    solution = solve_linear(
        hvp, problem.lower_grad(x, z), step, direction=direction, max_steps=limit, host=problem.streamed
    )
    return trees.sub(z, solution.w), solution


@compiled_on_arrays
def _diagonal(problem: BilevelProblem, x: PyTree, z: PyTree, signs: Array) -> PyTree:
    """Hutchinson's estimate: the mean of v * H v over random signs."""
    hvp = problem.linearize_lower(x, z).hvp
    _, back = ravel_pytree(z)

    def add(carry: tuple[Array, PyTree]) -> tuple[Array, PyTree]:
        i, total = carry
        v = back(signs[i])
        return i + 1, trees.add(total, jax.tree.map(jnp.multiply, v, hvp(v)))

    start = (jnp.zeros((), jnp.int32), trees.zeros_like(z))
    _, total = host_loops.repeat(len(signs), add, start, host=problem.streamed)
    return trees.scale(1 / len(signs), total)


@compiled_on_arrays
def _probe(problem: BilevelProblem, x: PyTree, z: PyTree, b: PyTree) -> tuple[LinearSolution, Coefficients]:
    limit = product_limit(z)
    hvp = problem.linearize_lower(x, z).hvp
    none, host = trees.zeros_like(z), problem.streamed
    return remembered(hvp, b, none, tol=_PROBE_TOL, max_steps=limit, remember=limit, host=host)


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
    """From conjugate gradients with a random right-hand side b, Gaussian and of unit variance.

    After k steps the residual is p(H) b, where the polynomial p is known: it falls from p(0) = 1 to its first zero, the
    smallest Ritz value. If the smallest eigenvalue is mu and b has the component c in its direction, |c| p(mu) <= |r|.
    As |c| < t has probability below t, every mu with p(mu) > |r| / t is excluded, up to that probability.
    """
    run, memory = _probe(problem, x, z, trees.drawn_like(z, np.random.default_rng(seed)))
    products = int(run.products)
    if not bool(run.positive):
        return LowestCurvature(0.0, 0.0, float(run.highest), "", products)
    theta, high = ritz_values(run, memory)
    shares = np.geomspace(1e-4, 1, 200)
    residuals = residual_polynomial(run, memory, shares * theta)
    possible = np.nonzero(~(residuals > float(run.residual) / _RISK))[0]
    excluded = shares[possible[0] - 1] if possible.size and possible[0] > 0 else 0.0
    solved = _flat(run.w)[None] if bool(run.reached) else None
    source = f"estimated, with probability {1 - _RISK:.1%}" if excluded else ""
    return LowestCurvature(excluded * theta, theta, high, source, products, solved)


def _flat(tree: PyTree) -> np.ndarray:
    return trees.ravel_on_host(tree)[0]


class _Scaled(NamedTuple):
    problem: BilevelProblem
    scale: PyTree
    products: int


def _scaled_by_diagonal(problem: BilevelProblem, x: PyTree, z: PyTree, seed: int) -> _Scaled:
    """The problem scaled by an estimate of the diagonal of H, where its entries differ enough for that to help.

    Two halves of the probes have to agree on how they differ: else they differ by the noise of the estimate.
    """
    signs = np.random.default_rng(seed + 2).choice([-1.0, 1.0], (2, _DIAGONAL_PROBES // 2, trees.size(z)))
    halves = [trees.on_host(_diagonal(problem, x, z, half)) for half in signs]
    logs = np.log(np.maximum([_flat(half) for half in halves], 1e-300))
    diagonal = trees.scale(0.5, trees.add(*halves))
    agree = np.ptp(logs) > np.log(10) and np.corrcoef(logs)[0, 1] > 0.8 and np.all(_flat(diagonal) > 0)
    scale = jax.tree.map(lambda d: 1 / np.sqrt(d) if agree else np.ones_like(d), diagonal)
    return _Scaled(scaled(problem, scale), scale, _DIAGONAL_PROBES)


def solution(problem: BilevelProblem, x: PyTree, y: PyTree, w: PyTree, quadratic: bool, seed: int) -> Solution:
    """Newton's method with conjugate gradients for y, conjugate gradients for w, and a random probe for mu_g."""
    scale, most = jax.tree.map(np.ones_like, y), np.int32(product_limit(y))
    if quadratic:
        none = trees.zeros_like(y)
        z, step = _newton_step(problem, x, y, none, none, np.int32(_PATIENCE))
        products, slow = int(step.products), not bool(step.reached) and bool(step.positive)
    else:
        z, spent = _solve_lower(problem, x, y)
        first = _adjoint(problem, x, z, w, np.int32(_PATIENCE))
        w, products = first.w, int(spent) + int(first.products)
        slow = not bool(first.reached) and bool(first.positive)
    if slow:
        problem, scale, spent = _scaled_by_diagonal(problem, x, z, seed)
        products += spent
        in_z = lambda v: jax.tree.map(np.divide, trees.on_host(v), scale)  # noqa: E731
        z, w = in_z(z), in_z(w)
        if quadratic:
            # In other variables the direction is no longer conjugate to those before it.
            onward = trees.on_host(step.direction) if np.all(_flat(scale) == 1) else none
            z, step = _newton_step(problem, x, in_z(y), in_z(step.w), onward, most)
            products += int(step.products)
        else:
            z, spent = _solve_lower(problem, x, z)
            products += int(spent)
    adjoint = _adjoint(problem, x, z, w, most)
    lowest = lowest_curvature(problem, x, z, seed)
    products += int(adjoint.products) + lowest.products
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
