"""Methods outside the library: scipy's L-BFGS-B and SLSQP, FISTA, and implicit differentiation by jaxopt.

Each is a function of an instance, a number of seconds and `visit(seconds, x, calls)`. It calls `visit` at its iterates,
with the seconds that it has run so far without compilation, and ends when `visit` returns true or the time is over. The
clock stands still during a visit. `calls` are evaluations of ell or of its gradient, for jaxopt its iterations.
"""

import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from exact import Hypergradients
from jax.flatten_util import ravel_pytree

import bilevax as bx

GROWTH = 1.15
"""The steps between two visits of a compiled loop grow by this factor of those taken."""


class Stopwatch:
    """Seconds that run only between `go` and `rest`."""

    seconds = 0.0

    def go(self):
        """Run on."""
        self.began = time.perf_counter()

    def rest(self):
        """Stop, and tell the seconds so far."""
        self.seconds += time.perf_counter() - self.began
        return self.seconds


def tolerance(family):
    """How exactly inner problems are solved, relative to their terms: enough for the target of the family."""
    return 1e-12 if family.kind == "convex" else 1e-8


def _scipy(family, instance, budget, visit, **options):
    """A method of `scipy.optimize.minimize` on exact hypergradients."""
    ell = Hypergradients(instance, tolerance(family))
    start, back = ravel_pytree(instance.x0)
    watch, inner = Stopwatch(), [instance.y0, jax.tree.map(jnp.zeros_like, instance.y0)]
    calls = [0]

    @jax.jit
    def flat(data, v, y, w):
        found = ell.pure(data, back(v), y, w)
        return found.ell, ravel_pytree(found.gradient)[0], found.y, found.w

    def value_and_gradient(v):
        value, gradient, y, w = jax.block_until_ready(flat(instance.problem.data, v, *inner))
        value, gradient = float(value), np.asarray(gradient)
        if np.isfinite(value) and np.all(np.isfinite(gradient)):
            inner[:] = y, w
        calls[0] += 1
        return value, gradient

    def callback(intermediate_result):
        seconds = watch.rest()
        stop = visit(seconds, back(jnp.asarray(intermediate_result.x)), calls[0]) or seconds > budget
        watch.go()
        if stop:
            raise StopIteration

    value_and_gradient(np.asarray(start))  # compiles
    inner[:], calls[0] = [instance.y0, jax.tree.map(jnp.zeros_like, instance.y0)], 0
    watch.go()
    scipy.optimize.minimize(value_and_gradient, np.asarray(start), jac=True, callback=callback, **options)


def lbfgsb(family, instance, budget, visit):
    """scipy's L-BFGS-B with a memory of 20, on boxes and on the whole space."""
    start, _ = ravel_pytree(instance.x0)
    bounds = None
    if isinstance(instance.problem.domain, bx.Box):
        bounds = np.stack([ravel_pytree(end)[0] for end in instance.problem.domain.bounds(instance.x0)], axis=1)
    many = {"maxcor": 20, "ftol": 0.0, "gtol": 0.0, "maxiter": 10**6, "maxfun": 10**7}
    _scipy(family, instance, budget, visit, method="L-BFGS-B", bounds=bounds, options=many)


def slsqp(family, instance, budget, visit):
    """scipy's SLSQP, on polytopes."""
    program = instance.problem.domain.program
    rows, bounds = program.rows, np.stack([program.lower, program.upper], axis=1)
    below = {"type": "ineq", "fun": lambda x: rows.right - rows.matrix @ x, "jac": lambda x: -rows.matrix}
    many = {"ftol": 1e-18, "maxiter": 10**5}
    _scipy(family, instance, budget, visit, method="SLSQP", bounds=bounds, constraints=[below], options=many)


class _Fista(NamedTuple):
    x: Any
    z: Any
    t: Any
    L: Any
    y: Any
    w: Any
    calls: Any


def _dot(u, v):
    return sum(jnp.vdot(a, b) for a, b in zip(jax.tree.leaves(u), jax.tree.leaves(v), strict=True))


def _combine(a, u, b, v):
    return jax.tree.map(lambda p, q: a * p + b * q, u, v)


def fista(family, instance, budget, visit):
    """Accelerated projected gradient with backtracking in both directions and restarts by the gradient."""
    problem = instance.problem
    ell = Hypergradients(instance, tolerance(family))
    # Beyond a box or a spectraplex the lower level may lose its convexity; a nuclear ball has no such end.
    inside = (lambda z: z) if isinstance(problem.domain, bx.NuclearBall) else problem.domain.project

    def step(data, s):
        at = ell.pure(data, s.z, s.y, s.w)

        def move(L):
            x = problem.domain.project(_combine(1.0, s.z, -1 / L, at.gradient))
            d = _combine(1.0, x, -1.0, s.z)
            square = _dot(d, d)

            def by_value():
                value, y = ell.pure_value(data, x, at.y)
                return y, value - at.ell - _dot(at.gradient, d) <= 0.5 * L * square

            def by_gradient():
                there = ell.pure(data, x, at.y, at.w)
                return there.y, _dot(_combine(1.0, there.gradient, -1.0, at.gradient), d) <= L * square

            # Short steps change ell by less than it is known; the change of the gradient along the step decides then.
            y, enough = jax.lax.cond(L * square > 1e-5 * jnp.abs(at.ell), by_value, by_gradient)
            return x, y, enough

        def longer(carry):
            L, _, calls = carry
            return 2 * L, move(2 * L), calls + 1

        unfinished = lambda carry: ~carry[1][2] & (carry[0] < 1e12 * s.L)  # noqa: E731
        L, (x, y, _), calls = jax.lax.while_loop(unfinished, longer, (0.9 * s.L, move(0.9 * s.L), s.calls + 2))
        restart = _dot(at.gradient, _combine(1.0, x, -1.0, s.x)) > 0
        t = jnp.where(restart, 1.0, 0.5 * (1 + jnp.sqrt(1 + 4 * s.t**2)))
        pace = jnp.where(restart, 0.0, (s.t - 1) / t)
        z = inside(_combine(1 + pace, x, -pace, s.x))
        return _Fista(x, z, t, L, y, at.w, calls)

    @jax.jit
    def advance(data, state, count):
        return jax.lax.fori_loop(0, count, lambda _, s: step(data, s), state)

    @jax.jit
    def begin(data, x, y):
        """The first L from two gradients a short way apart."""
        w = jax.tree.map(jnp.zeros_like, y)
        at = ell.pure(data, x, y, w)
        length = 1e-4 * (1 + jnp.sqrt(_dot(x, x))) / jnp.sqrt(_dot(at.gradient, at.gradient))
        d = _combine(1.0, problem.domain.project(_combine(1.0, x, -length, at.gradient)), -1.0, x)
        near = ell.pure(data, _combine(1.0, x, 1.0, d), at.y, at.w)
        change = _combine(1.0, near.gradient, -1.0, at.gradient)
        L = jnp.sqrt(_dot(change, change) / _dot(d, d))
        return _Fista(x, x, jnp.ones(()), L, at.y, at.w, jnp.full((), 2, jnp.int64))

    _in_chunks(
        lambda: begin(problem.data, instance.x0, instance.y0),
        lambda s, count: advance(problem.data, s, count),
        budget, visit, lambda s: int(s.calls),
    )  # fmt: skip


def _in_chunks(begin, advance, budget, visit, calls, get=lambda s: s.x):
    """Visit after 1, 2, 3, ... steps, then after numbers that grow by 15 %."""
    strong = lambda state: jax.tree.map(lambda v: jnp.asarray(np.asarray(v)), state)  # noqa: E731
    jax.block_until_ready(advance(advance(strong(begin()), 1), 1))  # compiles; weak types would compile again
    watch, k, stop = Stopwatch(), 0, False
    watch.go()
    state = strong(begin())
    watch.rest()
    while not stop:
        count = max(1, int(k * (GROWTH - 1)))
        if k:  # at most a quarter of what is left of the budget
            count = max(1, min(count, int(0.25 * (budget - watch.seconds) / (watch.seconds / k))))
        watch.go()
        state = jax.block_until_ready(advance(state, count))
        seconds, k = watch.rest(), k + count
        stop = visit(seconds, get(state), calls(state)) or seconds > budget


def implicit(family, instance, budget, visit):
    """jaxopt: accelerated projected gradient with its own line search, over L-BFGS differentiated implicitly."""
    import jaxopt

    problem, tol = instance.problem, tolerance(family)
    below = jaxopt.LBFGS(
        fun=lambda y, x, data: problem.lower(x, y, data), tol=tol, maxiter=2000, history_size=20,
        implicit_diff_solve=lambda product, b, **_: jaxopt.linear_solve.solve_cg(product, b, tol=tol, maxiter=2000),
    )  # fmt: skip

    def ell(x, y, data):
        y = below.run(jax.lax.stop_gradient(y), x, data).params
        return problem.upper(x, y, data), y

    above = jaxopt.ProjectedGradient(
        fun=ell, projection=lambda x, _: problem.domain.project(x), has_aux=True, maxiter=10**9, tol=0.0
    )

    @jax.jit
    def advance(carry, count):
        def step(_, carry):
            x, state = carry
            return tuple(above.update(x, state, None, state.aux, problem.data))

        return jax.lax.fori_loop(0, count, step, carry)

    def begin():
        state = above.init_state(instance.x0, None, instance.y0, problem.data)
        return instance.x0, state._replace(aux=instance.y0)

    calls = lambda carry: int(carry[1].iter_num)  # noqa: E731
    _in_chunks(begin, advance, budget, visit, calls, lambda carry: carry[0])


BASELINES = {
    "lbfgsb": ("scipy L-BFGS-B", lbfgsb),
    "slsqp": ("scipy SLSQP", slsqp),
    "fista": ("FISTA", fista),
    "implicit": ("jaxopt implicit", implicit),
}
"""Names on the command line and in tables."""
