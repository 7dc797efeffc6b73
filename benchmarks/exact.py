"""Exact hypergradients, written apart from the library: Newton's method below, a linear system for the adjoint.

Up to `DENSE` lower variables the Hessian is formed and factorized; beyond that, conjugate gradients use its diagonal as
a preconditioner where the family gives it. Both start from the last y and adjoint. The lower level of a problem with
exact formulas is solved by them. The baselines and the measurement of the true gap use this file; with `--audit`,
`benchmarks/auto.py` compares the latter with `bx.audit`.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jax.scipy.linalg import cho_factor, cho_solve

import bilevax as bx
from bilevax import trees

DENSE = 300
NEWTON_STEPS, MOST_PRODUCTS = 50, 20_000


class Exact(NamedTuple):
    """ell and its gradient at a point, with y*(x) and the adjoint."""

    ell: Any
    gradient: Any
    y: Any
    w: Any


def _conjugate_gradients(product, inverse_diagonal, b, w, tol):
    """Solve `product(w) = b` to a relative residual, measured with the preconditioner."""

    def unfinished(carry):
        _, _, _, rz, k = carry
        return (rz > limit) & (k < MOST_PRODUCTS)

    def step(carry):
        w, r, p, rz, k = carry
        Hp = product(p)
        alpha = rz / jnp.vdot(p, Hp)
        w, r = w + alpha * p, r - alpha * Hp
        z = inverse_diagonal * r
        new = jnp.vdot(r, z)
        return w, r, z + new / rz * p, new, k + 1

    limit = tol**2 * jnp.vdot(b, inverse_diagonal * b)
    r = b - product(w)
    z = inverse_diagonal * r
    return jax.lax.while_loop(unfinished, step, (w, r, z, jnp.vdot(r, z), 0))[0]


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _hypergradient(upper, lower, structure, diagonal, data, x, y, w, tol):
    flat_w = ravel_pytree(w)[0]
    y, linear = _lower_solution(lower, structure, diagonal, data, x, y, tol)
    _, back = ravel_pytree(y)
    ell, (f_x, f_y) = jax.value_and_grad(upper, argnums=(0, 1))(x, y, data)
    if structure.solve_adjoint is not None:
        w = structure.solve_adjoint(x, y, f_y, data)
    else:
        w = back(linear(ravel_pytree(f_y)[0], flat_w, tol))
    _, pullback = jax.vjp(lambda x: jax.grad(lower, argnums=1)(x, y, data), x)
    return Exact(ell, jax.tree.map(jnp.subtract, f_x, pullback(w)[0]), y, w)


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _value(upper, lower, structure, diagonal, data, x, y, tol):
    y, _ = _lower_solution(lower, structure, diagonal, data, x, y, tol)
    return upper(x, y, data), y


def _lower_solution(lower, structure, diagonal, data, x, y, tol):
    """y*(x), and a function that solves with the Hessian there."""
    if structure.solve_lower is not None:
        return structure.solve_lower(x, y, data), None
    start, back = ravel_pytree(y)
    value = lambda v: lower(x, back(v), data)  # noqa: E731
    gradient = jax.grad(value)

    def solver(v):
        if start.size <= DENSE:
            factors = cho_factor(jax.hessian(value)(v))
            return lambda b, w, tol: cho_solve(factors, b)
        product = lambda u: jax.vjp(gradient, v)[1](u)[0]  # noqa: E731
        inverse = 1.0 if diagonal is None else 1 / ravel_pytree(diagonal(x, back(v), data))[0]
        return lambda b, w, tol: _conjugate_gradients(product, inverse, b, w, tol)

    def newton(carry):
        v, g, size, _, k = carry
        p = solver(v)(g, jnp.zeros_like(g), jnp.clip(size / first, 1e-8, 1e-2))
        now, slope = value(v), jnp.vdot(g, p)
        enough = lambda t: value(v - t * p) <= now - 1e-4 * t * slope + 1e-14 * jnp.abs(now)  # noqa: E731
        t = jax.lax.while_loop(lambda t: ~enough(t) & (t > 1e-8), lambda t: t / 2, jnp.ones((), g.dtype))
        v = v - t * p
        g = gradient(v)
        new = jnp.linalg.norm(g)
        # Terms of the size of H v cancel in the gradient; below their rounding nothing can be gained.
        floor = jnp.linalg.norm(jax.jvp(gradient, (v,), (v,))[1])
        done = (new <= tol * floor) | ((new > 0.5 * size) & (new <= 1e-6 * floor))
        return v, g, new, done, k + 1

    g = gradient(start)
    first = jnp.linalg.norm(g)
    carry = (start, g, first, first == 0, 0)
    v, *_ = jax.lax.while_loop(lambda c: ~c[3] & (c[4] < NEWTON_STEPS), newton, carry)
    return back(v), solver(v)


class Hypergradients:
    """The true function ell of a problem, its gradient and its gap; starts of the inner solvers are remembered."""

    def __init__(self, instance, tol=1e-11):
        """Inner residuals are at most `tol` of their terms."""
        self.instance, self.tol = instance, tol
        problem = instance.problem
        self.static = (problem.upper, problem.lower, problem.structure, instance.diagonal)
        self.domain = problem.domain
        self.exact_domain = trees.cast(self.domain, trees.dtype(instance.y0)).at_full_precision()
        self.bounded = bool(jnp.isfinite(self.domain.diameter(instance.x0).value))
        self.evaluations = 0
        self.forget()

    def forget(self):
        """Begin at the start of the instance again."""
        self.y, self.w = self.instance.y0, jax.tree.map(jnp.zeros_like, self.instance.y0)

    def __call__(self, x):
        """ell and its gradient at x."""
        self.evaluations += 1
        found = _hypergradient(*self.static, self.instance.problem.data, trees.coordinates(x), self.y, self.w, self.tol)
        if all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves((found.y, found.w))):
            self.y, self.w = found.y, found.w
        return found

    def pure(self, data, x, y, w):
        """The same as a function without memory, for compiled loops."""
        return _hypergradient(*self.static, data, x, y, w, self.tol)

    def pure_value(self, data, x, y):
        """ell and y*(x), for compiled loops."""
        return _value(*self.static, data, x, y, self.tol)

    def measure(self, x):
        """The Frank-Wolfe gap of ell at x, or the gradient mapping where the set is unbounded; infinite outside."""
        gradient = self(x).gradient
        if self.domain.violations(x):
            return float("inf")
        if not self.bounded:
            return float(bx.sets.gradient_mapping(self.domain, x, gradient))
        memory = self.exact_domain.start(x)
        return float(bx.sets.vertex_gap(self.exact_domain, x, gradient, memory).gap)
