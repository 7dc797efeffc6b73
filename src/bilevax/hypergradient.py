"""Everything that turns two levels into one gradient; shared by all methods, with one sign convention.

v(x) = H^-1 f_y  at y*(x)        the adjoint; w denotes an estimate of it                  eq. (7)
F(x, y, w) = f_x - J w           the direction; F(x, y*(x), v(x)) is the gradient of ell    eq. (5)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, PyTree, Scalar

from bilevax import trees
from bilevax.linalg import host_loops
from bilevax.linalg.conjugate_gradient import LinearSolution, conjugate_gradient, solve_linear
from bilevax.problem import BilevelProblem, LowerProducts

HessianProduct = Callable[[PyTree], PyTree]

LONGEST_SERIES = 2_000
"""No Neumann series takes more Hessian products than this: a step is not interrupted, and must end in time."""


def adjoint_step(hvp: HessianProduct, f_y: PyTree, w: PyTree, eta: Scalar | float) -> PyTree:
    """One gradient step on the quadratic (7), from `w` (Alg. 1 line 4)."""
    return trees.axpy(-eta, trees.sub(hvp(w), f_y), w)


def neumann(
    hvp: HessianProduct, b: PyTree, eta: Scalar | float, terms: Int[Array, ""] | int, *, host: bool = False
) -> PyTree:
    """`eta * sum over j < terms of (I - eta H)^j b`: that many gradient steps on (7) from zero."""
    return host_loops.repeat(terms, lambda w: adjoint_step(hvp, b, w, eta), trees.zeros_like(b), host=host)


def neumann_budget(kappa: Scalar | float, k: Int[Array, ""]) -> Int[Array, ""]:
    """`kappa log(k + 2)` rounded up, the length of a truncated Neumann series at step k (counted from 0).

    At most `LONGEST_SERIES`, also where an estimate of mu_g that is not positive makes kappa meaningless.
    """
    kappa = jnp.asarray(kappa)
    terms = jnp.ceil(kappa * jnp.log(k.astype(kappa.dtype) + 2))
    return jnp.where(terms > 0, jnp.clip(terms, 1, LONGEST_SERIES), LONGEST_SERIES).astype(jnp.int32)


def random_neumann(
    hvp: Callable[[PyTree, Array], PyTree],
    b: PyTree,
    key: Array,
    *,
    budget: Int[Array, ""] | int,
    L_g: Scalar | float,
    c: Scalar | float = 1.0,
    first: int = 0,
    host: bool = False,
) -> tuple[PyTree, Int[Array, ""]]:
    """Randomly truncated Neumann product (Ghadimi and Wang), an estimate of `H^-1 b`, and the products it took.

    `(budget c / L_g) prod over i <= p of (I - (c / L_g) H_i) b` with `p` uniform on `0, ..., budget - 1`; its mean is
    the Neumann sum of `budget` terms. `hvp(w, key_i)` may use a fresh sample for each factor. The paper prints
    SBFW's with `p` from 1 to `budget` (`first=1`): the mean then lacks the identity term.
    """
    draw, factors = jax.random.split(key)
    p = jax.random.randint(draw, (), first, first + budget, dtype=jnp.int32)

    def factor(carry: tuple[Array, PyTree]) -> tuple[Array, PyTree]:
        i, w = carry
        return i + 1, trees.axpy(-c / L_g, hvp(w, jax.random.fold_in(factors, i)), w)

    _, product = host_loops.repeat(p, factor, (jnp.zeros_like(p), b), host=host)
    return trees.scale(jnp.asarray(budget, trees.dtype(b)) * c / L_g, product), p


def sampled_hvp(problem: BilevelProblem, lower: LowerProducts, x: PyTree, y: PyTree) -> Callable[..., PyTree]:
    """`(w, key) -> H w`: a fresh mini-batch for each key, or the full Hessian `lower` if there is no sampler."""
    if problem.sampler is None:
        return lambda w, _: lower.hvp(w)
    return lambda w, key: problem.sample(key).lower_hvp(x, y, w)


def direction(problem: BilevelProblem, x: PyTree, y: PyTree, w: PyTree) -> PyTree:
    """F(x, y, w) = f_x - J w."""
    f_x, _ = problem.upper_grads(x, y)
    return trees.sub(f_x, problem.lower_cross(x, y, w))


def product_limit(y: PyTree) -> int:
    """The most Hessian products for one linear system: in exact arithmetic as many as variables are enough."""
    return min(20_000, 10 * trees.size(y) + 500)


def adjoint_solution(problem: BilevelProblem, x: PyTree, y: PyTree, b: PyTree, w: PyTree) -> LinearSolution:
    """`H(x, y)^-1 b` as accurately as the precision allows: the user's formula, or conjugate gradients from `w`."""
    if problem.structure.solve_adjoint is not None:
        zero, yes = jnp.zeros((), trees.dtype(b)), jnp.asarray(True)
        v = problem.structure.solve_adjoint(trees.coordinates(x), y, b, problem.data)
        return LinearSolution(v, zero, jnp.zeros((), jnp.int32), yes, yes, zero, zero)
    hvp = problem.linearize_lower(x, y).hvp
    return solve_linear(hvp, b, w, max_steps=product_limit(y), host=problem.level_kernels.on_host)


def solve_adjoint(problem: BilevelProblem, x: PyTree, y: PyTree, b: PyTree, w: PyTree) -> PyTree:
    """The solution of `adjoint_solution`."""
    return adjoint_solution(problem, x, y, b, w).w


def solve_lower(problem: BilevelProblem, x: PyTree, y: PyTree) -> PyTree:
    """y*(x) as accurately as the precision allows: the user's formula, or Newton's method with CG from `y`."""
    return lower_solution(problem, x, y)[0]


def lower_solution(
    problem: BilevelProblem, x: PyTree, y: PyTree, *, max_steps: int = 100
) -> tuple[PyTree, Int[Array, ""]]:
    """The same, and the Hessian products that it took."""
    if problem.structure.solve_lower is not None:
        return problem.structure.solve_lower(trees.coordinates(x), y, problem.data), jnp.zeros((), jnp.int32)
    eps = jnp.finfo(trees.dtype(y)).eps
    host = problem.level_kernels.on_host

    def unfinished(carry: tuple[PyTree, PyTree, Scalar, Bool[Array, ""], Array, Array]) -> Array:
        _, _, _, moved, k, _ = carry
        return moved & (k < max_steps)

    def newton(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        y, g_y, size, _, k, products = carry
        hvp = problem.linearize_lower(x, y).hvp
        # As many digits as the steps before have gained: Newton doubles them, and no product is spent on more.
        tol = jnp.clip(size / first, 1e-8, 1e-2).astype(size.dtype)
        solution = conjugate_gradient(hvp, g_y, trees.zeros_like(y), tol=tol, max_steps=product_limit(y), host=host)
        # Where curvature is not positive at once, the gradient is all that is known.
        known = trees.inner(solution.w, solution.w) > 0
        p = trees.choose(known, solution.w, g_y)
        found = newton_search(problem, x, y, g_y, p, host=host)
        # Terms of the size of H y cancel in the gradient; below their rounding nothing can be gained.
        floor = 4 * eps * trees.norm(hvp(y))
        products, new = products + solution.products + 1, trees.norm(found.g_y)
        return found.y, found.g_y, new, found.accepted & (new > floor), k + 1, products

    g_y = problem.lower_grad(x, y)
    first = size = trees.norm(g_y)
    start = (y, g_y, size, jnp.isfinite(size) & (size > 0), jnp.asarray(0), jnp.zeros((), jnp.int32))
    y, *_, products = host_loops.loop_while(unfinished, newton, start, host=host)
    return y, products


class Searched(NamedTuple):
    """Where a search along a Newton direction ended: at its start if nothing was accepted."""

    y: PyTree
    g_y: PyTree
    length: Scalar
    accepted: Bool[Array, ""]
    tries: Int[Array, ""]


def newton_search(problem: BilevelProblem, x: PyTree, y: PyTree, g_y: PyTree, p: PyTree, *, host: bool) -> Searched:
    """`y - t p` for the first of t = 1, 1/2, ... that makes progress on the lower level."""
    eps, size = jnp.finfo(trees.dtype(y)).eps, trees.norm(g_y)
    value, slope = problem.lower_value(x, y), trees.inner(p, g_y)
    # Far away g itself decides: the norm of its gradient may rise along p, above all where conjugate gradients
    # could not finish. Near the end only the gradient is accurate.
    far, seen = (slope > limit * jnp.abs(value) for limit in (1e3 * jnp.sqrt(eps), 1e3 * eps))

    def trial(t: Scalar, tries: Int[Array, ""]) -> tuple[Any, ...]:
        y_t = trees.axpy(-t, p, y)
        value_t, g_t = problem.lower_value_and_grad(x, y_t)
        norm = trees.norm(g_t)
        lower = value - value_t >= 0.1 * t * slope
        accepted = jnp.where(far, lower, (norm <= (1 - 1e-4 * t) * size) | (seen & lower))
        return y_t, g_t, t, accepted & jnp.isfinite(norm), tries

    def too_long(search: tuple[Any, ...]) -> Array:
        *_, t, accepted, _ = search
        return ~accepted & (t > jnp.where(seen, eps, 0.1))  # where g shows no change, it shows none of a shorter step

    one, first = jnp.ones((), size.dtype), jnp.ones((), jnp.int32)
    shorten = lambda search: trial(search[2] / 2, search[4] + 1)  # noqa: E731
    y_t, g_t, t, accepted, tries = host_loops.loop_while(too_long, shorten, trial(one, first), host=host)
    y, g_y = trees.choose(accepted, (y_t, g_t), (y, g_y))
    return Searched(y, g_y, t, accepted, tries)


class Hypergradient(NamedTuple):
    """The true objective and its gradient at x, with the lower solution and adjoint behind them."""

    ell: Scalar
    gradient: PyTree
    y: PyTree
    v: PyTree


def exact_hypergradient(problem: BilevelProblem, x: PyTree, y: PyTree, w: PyTree | None = None) -> Hypergradient:
    """ell(x) = f(x, y*(x)) and its gradient, with both inner problems solved to the precision of the numbers.

    `y` and `w` are starts only. `bx.audit` also bounds the error.

    >>> import jax.numpy as jnp, bilevax as bx
    >>> problem = bx.BilevelProblem(
    ...     lambda x, y, _: jnp.sum(y**2), lambda x, y, _: jnp.sum((y - 2 * x) ** 2), bx.Box(-1.0, 1.0)
    ... )
    >>> bx.exact_hypergradient(problem, jnp.array([0.5]), jnp.zeros(1)).gradient.tolist()
    [4.0]
    """
    y = solve_lower(problem, x, y)
    f_x, f_y = problem.upper_grads(x, y)
    w = solve_adjoint(problem, x, y, f_y, trees.zeros_like(y) if w is None else w)
    gradient = trees.sub(f_x, problem.lower_cross(x, y, w))
    return Hypergradient(problem.upper_value(x, y), gradient, y, w)
