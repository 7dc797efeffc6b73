"""The lower level followed from point to point: y, the adjoint, the direction and the value of ell there.

Both inner problems begin where the last point left them and are solved to a share of what is new, so that their errors
shrink with the steps of x. Where the lower level allows, they are solved exactly.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Int, PyTree, Scalar

from bilevax import trees
from bilevax.hypergradient import newton_search, product_limit
from bilevax.linalg import host_loops
from bilevax.linalg.conjugate_gradient import Correction, Product, rough_solution
from bilevax.linalg.host_loops import Kernels, either
from bilevax.problem import BilevelProblem
from bilevax.sets import WholeSpace
from bilevax.solvers.protocol import Counts, add_counts, no_counts
from bilevax.verdict.dependence import lower_curvature
from bilevax.verdict.evaluation import lower_hessian

SHARE = 0.05
"""How much of what is new at a point is left unsolved."""
MOST_KEPT = 500
"""Up to so many lower variables the inverse of H is kept; twice as many where H is the same everywhere."""
_NEWTON_STEPS = 50
_STARTS = 10
_AFAR = 1.01
"""A start is far away if y and the adjoint change by more than so many times their size; zero is not."""


class Tracked(eqx.Module):
    """The lower level at one x."""

    y: PyTree
    w: PyTree
    F: PyTree
    value: Scalar
    """f - <w, g_y>, which differs from ell by the product of both errors."""
    correction: Scalar
    """<w, g_y>, which vanishes where y is exact."""
    doubt: Scalar
    """An estimate of that product."""
    inverse: Array | None
    """That of H, here or at a point before; None where it is not kept."""
    excess: Int[Array, ""]
    """Products that a fresh inverse would have saved."""


class _Ways(NamedTuple):
    """How both inner problems are solved."""

    keeps_inverse: bool
    constant: bool
    quadratic: bool


def _ways(problem: BilevelProblem, x: PyTree, y: PyTree) -> _Ways:
    constant, quadratic = lower_curvature(problem, x, y)
    small = trees.size(y) <= (2 if constant else 1) * MOST_KEPT
    return _Ways(small and problem.structure.solve_adjoint is None and not problem.structure.host, constant, quadratic)


def begin(problem: BilevelProblem, x: PyTree, y: PyTree, w: PyTree = None) -> tuple[Tracked, Counts]:
    """The lower level at the first x, from y and an adjoint w if there is one."""
    w = trees.zeros_like(y) if w is None else w
    zero, none = jnp.zeros((), trees.dtype(y)), jnp.zeros((), jnp.int32)
    ways, m, inverse, spent = _ways(problem, x, y), trees.size(y), None, no_counts()
    if ways.keeps_inverse and ways.constant:
        compute = _inverse_hessian if problem.streamed else _first_inverse
        inverse, spent = compute(without_set(problem), trees.coordinates(x), y), replace(spent, hvps=none + m)
    elif ways.keeps_inverse:
        inverse = jnp.zeros((m, m), zero.dtype)  # `follow` finds it worn
    start = Tracked(y, w, trees.zeros_like(x), zero, zero, zero, inverse, none + m)

    # From afar, a share of what is new is much: again, until y changes by no more than itself.
    def unfinished(carry: tuple[Any, ...]) -> Array:
        _, _, k, done = carry
        return ~done & (k < _STARTS)

    def again(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        before, counts, k, _ = carry
        lower, spent = follow(problem, x, before)
        changed = trees.norm(trees.sub(lower.y, before.y)) + trees.norm(trees.sub(lower.w, before.w))
        done = (changed <= _AFAR * (trees.norm(lower.y) + trees.norm(lower.w))) | exact(problem, x, y)
        return lower, add_counts(counts, spent), k + 1, done

    carry = (start, spent, none, jnp.asarray(False))
    lower, counts, *_ = host_loops.loop_while(unfinished, again, carry, host=problem.host)
    return lower, counts


def exact(problem: BilevelProblem, x: PyTree, y: PyTree) -> bool:
    """Whether nothing of both inner problems is left unsolved."""
    ways, given = _ways(problem, x, y), problem.structure
    by_inverse = ways.keeps_inverse and ways.constant
    return (given.solve_lower is not None or by_inverse) and (given.solve_adjoint is not None or by_inverse)


def follow(problem: BilevelProblem, x: PyTree, before: Tracked) -> tuple[Tracked, Counts]:
    """The lower level at x, from what is known nearby; compiled by itself where the loop is not."""
    if problem.level_kernels.on_host:
        return _follow(problem, trees.coordinates(x), before)
    return _compiled_follow(without_set(problem), trees.coordinates(x), before)


def without_set(problem: BilevelProblem) -> BilevelProblem:
    """Both levels alone, so that code without the set is compiled also where the set's oracle is on the host."""
    return replace(problem, domain=WholeSpace(), sampler=None, solver_kernels=Kernels.COMPILED)


def _follow(problem: BilevelProblem, x: PyTree, before: Tracked) -> tuple[Tracked, Counts]:
    ways, y, w, structure = _ways(problem, x, before.y), before.y, before.w, problem.structure
    zero, none = jnp.zeros((), trees.dtype(y)), jnp.zeros((), jnp.int32)
    inverse, excess, factorizing = before.inverse, before.excess, none
    if ways.keeps_inverse and not ways.constant:
        m = trees.size(y)
        # A Hessian is one pass over a stream, and so is each product.
        worn = excess >= max(1, m // (16 if problem.streamed else 4))
        host = problem.level_kernels.on_host
        inverse = either(worn, lambda: _inverse_hessian(problem, x, y), lambda: before.inverse, host=host)
        excess, factorizing = jnp.where(worn, 0, excess), jnp.where(worn, m, 0)

    if structure.solve_lower is not None:
        y, g_y, energy_y, of_y = structure.solve_lower(x, y, problem.data), trees.zeros_like(y), zero, Counts()
        solved: Any = True
    else:
        y, g_y, energy_y, of_y, solved = _lower(problem, ways, x, y, inverse)
    f, (f_x, f_y) = problem.upper_value_and_grads(x, y)
    lower = problem.linearize_lower(x, y)
    if structure.solve_adjoint is not None:
        w, energy_w, of_w = structure.solve_adjoint(x, y, f_y, problem.data), zero, none
    elif ways.keeps_inverse and ways.constant:
        assert inverse is not None
        w, energy_w, of_w = _apply(inverse, f_y), zero, none
    else:
        change = _solve(problem, ways, x, y, inverse, lower.hvp, trees.sub(f_y, lower.hvp(w)))
        w, energy_w, of_w = trees.add(w, change.w), change.energy, change.products + 1
    F = trees.sub(f_x, lower.cross(w))
    # A fresh inverse takes about two products for each of both systems.
    excess = excess + jnp.maximum(of_y.hvps + of_w - 5, 0)
    eps = jnp.finfo(zero.dtype).eps
    doubt = SHARE**2 * jnp.sqrt(jnp.abs(energy_y * energy_w)) + 10 * eps * jnp.abs(f)
    # What an exact solve leaves is rounding; where Newton's method broke off, the rest of y is unknown.
    solved = jnp.asarray(solved) & (not (ways.keeps_inverse and ways.constant))
    doubt = doubt + jnp.where(solved, 0, trees.norm(w) * trees.norm(g_y))
    counts = replace(of_y, upper_grads=2, hvps=of_y.hvps + of_w + factorizing, crosses=1)
    counts = jax.tree.map(lambda calls: jnp.asarray(calls, jnp.int32), counts)
    correction = trees.inner(w, g_y)
    return Tracked(y, w, F, f - correction, correction, doubt, inverse, jnp.asarray(excess, jnp.int32)), counts


_compiled_follow = jax.jit(_follow)


def _lower(problem: BilevelProblem, ways: _Ways, x: PyTree, y: PyTree, inverse: Any) -> tuple[Any, ...]:
    """y by Newton's method, the gradient left, the energy of the last step, the calls, and whether y is solved."""
    g_y = problem.lower_grad(x, y)
    if ways.quadratic:
        change = _solve(problem, ways, x, y, inverse, problem.linearize_lower(x, y).hvp, g_y)
        y = trees.sub(y, change.w)
        if not ways.keeps_inverse:
            return y, change.residual, change.energy, Counts(lower_grads=1, hvps=change.products), True
        # The gradient that rounding has left; without it the value would have an error of first order.
        return y, problem.lower_grad(x, y), change.energy, Counts(lower_grads=2, hvps=change.products), True
    first, host = trees.norm(g_y), problem.level_kernels.on_host

    def unfinished(carry: tuple[Any, ...]) -> Array:
        *_, k, done, _ = carry
        return ~done & (k < _NEWTON_STEPS)

    def newton(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        y, g_y, _, lower_grads, hvps, k, *_ = carry
        hvp = problem.linearize_lower(x, y).hvp
        change = _solve(problem, ways, x, y, inverse, hvp, g_y)
        found = newton_search(problem, x, y, g_y, change.w, host=host)
        # What the linear solve left is known; the rest of the new gradient is the curvature of the lower level.
        bend = trees.norm(trees.sub(found.g_y, change.residual))
        # A step this short goes where rounding leads; the next one would, too.
        at_the_end = ~found.accepted | (found.length < 1e-6)
        solved = (found.length == 1) & (bend <= SHARE * first)
        calls = lower_grads + found.tries, hvps + change.products
        return found.y, found.g_y, change.energy, *calls, k + 1, at_the_end | solved, solved

    none = jnp.zeros((), jnp.int32)
    start = (y, g_y, jnp.zeros_like(first), none + 1, none, none, ~(first > 0), first == 0)
    y, g_y, energy, lower_grads, hvps, *_, solved = host_loops.loop_while(unfinished, newton, start, host=host)
    return y, g_y, energy, Counts(lower_grads=lower_grads, hvps=hvps), solved


def _solve(
    problem: BilevelProblem, ways: _Ways, x: PyTree, y: PyTree, inverse: Any, hvp: Product, b: PyTree
) -> Correction:
    """`H^-1 b`, exactly where the inverse is known."""
    structure, none, zero = problem.structure, jnp.zeros((), jnp.int32), jnp.zeros((), trees.dtype(b))
    if structure.solve_adjoint is not None:
        return Correction(structure.solve_adjoint(x, y, b, problem.data), trees.zeros_like(b), zero, none)
    if ways.keeps_inverse and ways.constant:
        return Correction(_apply(inverse, b), trees.zeros_like(b), zero, none)
    precondition = None
    if ways.keeps_inverse:
        precondition = lambda r: _apply(inverse, r)  # noqa: E731
    return rough_solution(
        hvp, b, share=SHARE, precondition=precondition, max_steps=product_limit(y), host=problem.level_kernels.on_host
    )


def has_inverse(problem: BilevelProblem, x: PyTree, y: PyTree) -> bool:
    """Whether `apply_inverse` can be used."""
    given = problem.structure
    return not given.host and (given.solve_adjoint is not None or _ways(problem, x, y).keeps_inverse)


def apply_inverse(problem: BilevelProblem, x: PyTree, lower: Tracked, b: PyTree) -> PyTree:
    """`H^-1 b` by the user's formula or the inverse that is kept, which may be that of a point before."""
    if problem.structure.solve_adjoint is not None:
        return problem.structure.solve_adjoint(x, lower.y, b, problem.data)
    assert lower.inverse is not None
    return _apply(lower.inverse, b)


def _apply(inverse: Array, b: PyTree) -> PyTree:
    flat, back = ravel_pytree(b)
    return back(inverse @ flat)


def _inverse_hessian(problem: BilevelProblem, x: PyTree, y: PyTree) -> Array:
    """The inverse of H, from as many products as y has entries."""
    H = lower_hessian(problem, x, y)
    inverse = jax.scipy.linalg.cho_solve((jnp.linalg.cholesky(H), True), jnp.eye(len(H), dtype=H.dtype))
    # The factorization breaks down where the lower level is not convex; its diagonal is then a rough scale.
    diagonal = jnp.diag(1 / jnp.maximum(jnp.abs(jnp.diag(H)), jnp.finfo(H.dtype).tiny))
    return jnp.where(jnp.all(jnp.isfinite(inverse)), inverse, diagonal)


_first_inverse = jax.jit(_inverse_hessian)
