"""Everything that turns two levels into one gradient; shared by all methods, with one sign convention.

v(x) = H^-1 f_y  at y*(x)        the adjoint; w denotes an estimate of it                  eq. (7)
F(x, y, w) = f_x - J w           the direction; F(x, y*(x), v(x)) is the gradient of ell    eq. (5)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Int, PyTree, Scalar

from bilevax import trees
from bilevax.linalg import host_loops
from bilevax.problem import BilevelProblem, LowerProducts

HessianProduct = Callable[[PyTree], PyTree]

LONGEST_SERIES = 100_000
"""No estimate of an inverse takes more Hessian products than this."""


def adjoint_step(hvp: HessianProduct, f_y: PyTree, w: PyTree, eta: Scalar | float) -> tuple[PyTree, PyTree]:
    """One gradient step on the quadratic (7), and the residual `H w - f_y` it started from (Alg. 1 line 4)."""
    residual = trees.sub(hvp(w), f_y)
    return trees.axpy(-eta, residual, w), residual


class LinearSolution(NamedTuple):
    """What conjugate gradients ended with."""

    w: PyTree
    residual: Scalar
    products: Int[Array, ""]


def conjugate_gradient(
    hvp: HessianProduct, b: PyTree, w: PyTree, *, tol: Scalar | float = 0.0, max_steps: int = 1000, host: bool = False
) -> LinearSolution:
    """`H w = b` by conjugate gradients from `w`, until the residual is at most `tol |b|`.

    `tol=0` goes on for as long as rounding allows: it ends at eps |b|, below which the residual of the recursion goes
    on falling and the true one does not, or once it has found no better value in fifty products. The best iterate is
    returned.
    """
    target = jnp.maximum(tol, jnp.finfo(trees.dtype(b)).eps) * trees.norm(b)
    r = trees.sub(b, hvp(w))
    rr = trees.inner(r, r)

    def unfinished(carry: tuple[Any, ...]) -> Array:
        _, _, _, rr, best, _, since, k = carry
        return (jnp.sqrt(best) > target) & (rr > 0) & (since < 50) & (k < max_steps)

    def step(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        w, r, p, rr, best, best_w, since, k = carry
        Hp = hvp(p)
        curvature = trees.inner(p, Hp)
        length = jnp.where(curvature > 0, rr / jnp.where(curvature > 0, curvature, 1), 0)
        w = trees.axpy(length, p, w)
        r = trees.axpy(-length, Hp, r)
        new = trees.inner(r, r)
        p = trees.axpy(new / rr, p, r)
        better = new < best
        best_w = jax.tree.map(lambda u, v: jnp.where(better, u, v), w, best_w)
        since = jnp.where(new < 0.81 * best, 0, since + 1)
        return w, r, p, new, jnp.minimum(new, best), best_w, since, k + 1

    zero = jnp.zeros((), jnp.int32)
    start = (w, r, r, rr, rr, w, zero, zero)
    *_, best, w, _, k = host_loops.loop_while(unfinished, step, start, host=host)
    return LinearSolution(w, jnp.sqrt(best), k + 1)


def neumann(
    hvp: HessianProduct, b: PyTree, eta: Scalar | float, terms: Int[Array, ""] | int, *, host: bool = False
) -> PyTree:
    """`eta * sum over j < terms of (I - eta H)^j b`: that many gradient steps on (7) from zero."""
    return host_loops.repeat(terms, lambda w: adjoint_step(hvp, b, w, eta)[0], trees.zeros_like(b), host=host)


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


def dense_adjoint(hvp: HessianProduct, b: PyTree) -> PyTree:
    """`H^-1 b` by a Cholesky factorization of the whole Hessian; for small lower levels."""
    flat, back = ravel_pytree(b)
    columns = jax.lax.map(lambda e: ravel_pytree(hvp(back(e)))[0], jnp.eye(flat.size, dtype=flat.dtype))
    return back(jax.scipy.linalg.cho_solve(jax.scipy.linalg.cho_factor(0.5 * (columns + columns.T)), flat))


def direction(problem: BilevelProblem, x: PyTree, y: PyTree, w: PyTree) -> PyTree:
    """F(x, y, w) = f_x - J w."""
    f_x, _ = problem.upper_grads(x, y)
    return trees.sub(f_x, problem.lower_cross(x, y, w))


def adjoint_solution(problem: BilevelProblem, x: PyTree, y: PyTree, b: PyTree, w: PyTree) -> LinearSolution:
    """`H(x, y)^-1 b` as accurately as the precision allows: the user's formula, or conjugate gradients from `w`."""
    if problem.structure.solve_adjoint is not None:
        zero = jnp.zeros((), trees.dtype(b))
        v = problem.structure.solve_adjoint(trees.coordinates(x), y, b, problem.data)
        return LinearSolution(v, zero, jnp.zeros((), jnp.int32))
    hvp = problem.linearize_lower(x, y).hvp
    return conjugate_gradient(hvp, b, w, max_steps=5000, host=problem.structure.host)


def solve_adjoint(problem: BilevelProblem, x: PyTree, y: PyTree, b: PyTree, w: PyTree) -> PyTree:
    """The solution of `adjoint_solution`."""
    return adjoint_solution(problem, x, y, b, w).w


def solve_lower(problem: BilevelProblem, x: PyTree, y: PyTree, *, max_steps: int = 100) -> PyTree:
    """y*(x) as accurately as the precision allows: the user's formula, or Newton's method with CG from `y`."""
    if problem.structure.solve_lower is not None:
        return problem.structure.solve_lower(trees.coordinates(x), y, problem.data)
    eps = jnp.finfo(trees.dtype(y)).eps
    host = problem.structure.host

    def unfinished(carry: tuple[PyTree, PyTree, Scalar, Bool[Array, ""], Array]) -> Array:
        _, _, _, moved, k = carry
        return moved & (k < max_steps)

    def newton(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        y, g_y, size, _, k = carry
        hvp = problem.linearize_lower(x, y).hvp
        p = conjugate_gradient(hvp, g_y, trees.zeros_like(y), tol=1e-3, max_steps=1000, host=host).w

        # The norm of the gradient is the merit function: it falls along p and, unlike g, is accurate to the end.
        def trial(t: Scalar) -> tuple[PyTree, PyTree, Scalar]:
            y_t = trees.axpy(-t, p, y)
            g_t = problem.lower_grad(x, y_t)
            return y_t, g_t, trees.norm(g_t)

        def too_long(search: tuple[Any, ...]) -> Array:
            t, _, _, new = search
            return ~(new <= (1 - 1e-4 * t) * size) & (t > eps)

        one = jnp.ones((), size.dtype)
        _, y_t, g_t, new = host_loops.loop_while(
            too_long, lambda search: (search[0] / 2, *trial(search[0] / 2)), (one, *trial(one)), host=host
        )
        improved = new < size
        # Terms of the size of H y cancel in the gradient; below their rounding nothing can be gained.
        floor = 4 * eps * trees.norm(hvp(y))
        keep = lambda u, v: jnp.where(improved, u, v)  # noqa: E731
        y, g_y = jax.tree.map(keep, y_t, y), jax.tree.map(keep, g_t, g_y)
        return y, g_y, jnp.minimum(new, size), improved & (new > floor), k + 1

    g_y = problem.lower_grad(x, y)
    size = trees.norm(g_y)
    start = (y, g_y, size, jnp.isfinite(size) & (size > 0), jnp.asarray(0))
    return host_loops.loop_while(unfinished, newton, start, host=host)[0]


class Hypergradient(NamedTuple):
    """The true objective and its gradient at x, with the lower solution and adjoint behind them."""

    ell: Scalar
    gradient: PyTree
    y: PyTree
    v: PyTree
    error: Scalar
    """Estimate of the gradient's own error: how much one more round of refinement changes it, plus rounding."""


def exact_hypergradient(problem: BilevelProblem, x: PyTree, y: PyTree, w: PyTree | None = None) -> Hypergradient:
    """ell(x) = f(x, y*(x)) and its gradient, with both inner problems solved to the precision of the numbers.

    `y` and `w` are starts only.

    >>> import jax.numpy as jnp, bilevax as bx
    >>> problem = bx.BilevelProblem(
    ...     lambda x, y, _: jnp.sum(y**2), lambda x, y, _: jnp.sum((y - 2 * x) ** 2), bx.Box(-1.0, 1.0)
    ... )
    >>> bx.exact_hypergradient(problem, jnp.array([0.5]), jnp.zeros(1)).gradient.tolist()
    [4.0]
    """

    def refine(y: PyTree, w: PyTree) -> tuple[PyTree, PyTree, PyTree, PyTree]:
        y = solve_lower(problem, x, y)
        f_x, f_y = problem.upper_grads(x, y)
        w = solve_adjoint(problem, x, y, f_y, w)
        Jw = problem.lower_cross(x, y, w)
        return y, w, f_x, Jw

    y, w, f_x, Jw = refine(y, trees.zeros_like(y) if w is None else w)
    first = trees.sub(f_x, Jw)
    y, w = _correct(problem, x, y, w)
    f_x, _ = problem.upper_grads(x, y)
    Jw = problem.lower_cross(x, y, w)
    gradient = trees.sub(f_x, Jw)
    rounding = 16 * jnp.finfo(trees.dtype(y)).eps * (trees.norm(f_x) + trees.norm(Jw))
    error = 2 * trees.norm(trees.sub(gradient, first)) + rounding
    return Hypergradient(problem.upper_value(x, y), gradient, y, w, error)


def _correct(problem: BilevelProblem, x: PyTree, y: PyTree, w: PyTree) -> tuple[PyTree, PyTree]:
    """One Newton correction of y and of w; what it changes measures what was still wrong."""
    zero = trees.zeros_like(y)
    y = trees.sub(y, solve_adjoint(problem, x, y, problem.lower_grad(x, y), zero))
    _, f_y = problem.upper_grads(x, y)
    residual = trees.sub(f_y, problem.lower_hvp(x, y, w))
    return y, trees.add(w, solve_adjoint(problem, x, y, residual, zero))
