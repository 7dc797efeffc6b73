"""IBCG against its pseudo-code, textbook Frank-Wolfe and its own cost claim."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from zoo import known_problem

import bilevax as bx
from bilevax import hypergradient as hg


def printed_algorithm(known, x, y, gamma, eta, alpha, steps):
    """Algorithm 1 in numpy, for the quadratic problem on the simplex, written from the paper."""
    d = {name: np.asarray(value) for name, value in known.problem.data.items()}
    H, J = d["A"], -d["B"].T
    w = y.copy()
    for _ in range(steps):
        w = w - eta * (H @ w - (y - d["c"]))
        F = d["rho"] * x + d["q"] - J @ w
        s = np.zeros_like(x)
        s[np.argmin(F)] = float(known.problem.domain.radius)
        x = (1 - gamma) * x + gamma * s
        y = y - alpha * (d["A"] @ y - d["B"] @ x - d["b"])
    return x, y, w


def test_as_printed_follows_algorithm_1_line_by_line():
    known = known_problem("Simplex")
    x, y = np.full(5, 0.4), np.linspace(-1, 1, 6)
    solver = bx.IBCG.as_printed(0.05, known.constants)
    alpha, eta = 2 / (1 + 10), 0.9 * 2 / (1 + 10)
    state, _ = bx.run(known.problem, solver, jnp.asarray(x), jnp.asarray(y), steps=40)
    for found, expected in zip(
        (state.x, state.y, state.w), printed_algorithm(known, x, y, 0.05, eta, alpha, 40), strict=True
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)


def test_with_exact_inner_solutions_it_is_textbook_frank_wolfe():
    known = known_problem("Simplex")
    solver = bx.IBCG(warmup=0, alpha=0.1, eta=0.1).prepare(known.problem, None, None, None)
    x = np.full(5, 0.4)
    state, _ = solver.init(known.problem, jnp.asarray(x), jnp.zeros(6))
    for k in range(30):
        # y*(x_k) and a w whose next gradient step leaves it where it is: the adjoint v(x_k).
        exact = replace(state, y=jnp.asarray(known.lower_solution(state.x)), w=jnp.asarray(known.adjoint(state.x)))
        state, info = solver.step(known.problem, exact, jax.random.key(0))
        gradient = np.asarray(known.gradient(jnp.asarray(x)))
        np.testing.assert_allclose(info.direction, gradient, rtol=1e-10, atol=1e-12)
        vertex = np.zeros(5)
        vertex[np.argmin(gradient)] = 2.0
        np.testing.assert_allclose(info.gap, gradient @ (x - vertex), rtol=1e-9, atol=1e-12)
        x = x + 2 / (k + 2) * (vertex - x)
        np.testing.assert_allclose(state.x, x, rtol=1e-12, atol=1e-14)


def test_printed_start_and_zero_start_of_w():
    known = known_problem("Simplex")
    y = jnp.arange(6.0)
    for w0, expected in (("zero", np.zeros(6)), ("y0", np.arange(6.0))):
        solver = bx.IBCG(w0=w0, warmup=0, alpha=0.1, eta=0.1).prepare(known.problem, None, None, None)
        state, _ = solver.init(known.problem, jnp.full(5, 0.4), y)
        np.testing.assert_array_equal(state.w, expected)


def test_warm_up_brings_y_and_w_to_their_targets_and_is_counted():
    known = known_problem("Simplex", kappa=3.0)
    x = jnp.full(5, 0.4)
    solver = bx.IBCG(warmup=60, constants=known.constants).prepare(known.problem, x, jnp.zeros(6), jax.random.key(0))
    state, counts = solver.init(known.problem, x, jnp.zeros(6))
    np.testing.assert_allclose(state.y, known.lower_solution(x), atol=1e-12)
    np.testing.assert_allclose(state.w, known.adjoint(x), atol=1e-10)
    assert (int(counts.hvps), int(counts.lower_grads), int(counts.upper_grads)) == (60, 60, 120)


def test_default_warm_up_follows_the_condition_number_up_to_fifty():
    for kappa, expected in ((3.5, 4), (1e3, 50)):
        solver = bx.IBCG(constants=bx.Constants(1.0, kappa)).prepare(None, None, None, None)
        assert int(solver.warmup) == expected


def test_given_steps_are_kept_and_missing_ones_follow_from_the_constants():
    constants = bx.Constants(0.5, 1.5)
    solver = bx.IBCG(0.3, alpha=0.7, constants=constants).prepare(None, None, None, None)
    k = jnp.asarray(0)
    np.testing.assert_allclose((solver.gamma(k), solver.alpha(k), solver.eta(k)), (0.3, 0.7, 0.9 * 2 / 2.0))


@pytest.mark.parametrize(
    "gamma", [0.02, bx.OpenLoop(), bx.Power(0.5, 0.75), optax.polynomial_schedule(0.5, 0.0, 1, 400)]
)
def test_constant_and_scheduled_steps_reach_the_solution(gamma):
    known = known_problem("Simplex")
    x, y = jnp.full(5, 0.4), jnp.zeros(6)
    state, _ = bx.run(known.problem, bx.IBCG(gamma), x, y, steps=400)
    start = known.ell(x) - known.ell_star
    assert 0 <= known.ell(state.x) - known.ell_star + 1e-12 < 0.05 * start


def test_estimated_constants_serve_as_well_as_given_ones():
    known = known_problem("NuclearBall")
    x, y = known.problem.domain.vertex(known.problem.x_like), jnp.zeros(6)
    for solver in (bx.IBCG(), bx.IBCG(constants=known.constants)):
        state, _ = bx.run(known.problem, solver, x, y, steps=2000)
        assert known.ell(state.x) - known.ell_star < 1e-4


def test_adjoint_step_is_line_4():
    np.testing.assert_allclose(hg.adjoint_step(lambda w: 3 * w, jnp.ones(2), jnp.full(2, 2.0), 0.1), 1.5)


def test_steps_that_would_leave_the_set_are_refused_or_clipped():
    for gamma in (1.5, -0.1, np.nan):
        with pytest.raises(ValueError, match="gamma must lie between 0 and 1"):
            bx.IBCG(gamma)
    known = known_problem("Simplex")
    state, _ = bx.run(known.problem, bx.IBCG(lambda k: 3.0), jnp.full(5, 0.4), jnp.zeros(6), steps=5)
    assert bool(known.problem.domain.contains(state.x))
