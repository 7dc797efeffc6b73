"""Hypergradient tools against closed forms, finite differences and plain linear algebra."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
from zoo import SETS, every_second, known_problem

import bilevax as bx
from bilevax import hypergradient as hg
from bilevax import trees


def spd(n, kappa, seed=0):
    rng = np.random.default_rng(seed)
    basis, _ = np.linalg.qr(rng.standard_normal((n, n)))
    return (basis * np.geomspace(1, kappa, n)) @ basis.T, rng.standard_normal(n)


@pytest.mark.parametrize("name", every_second((n for n in SETS if n != "UserSet"), of=4))
def test_hypergradient_equals_the_closed_form_on_every_set(name):
    known = known_problem(name, kappa=100.0)
    x = trees.coordinates(known.problem.domain.vertex(known.problem.x_like))
    found = hg.exact_hypergradient(known.problem, x, known.problem.y_like.zeros())
    np.testing.assert_allclose(found.ell, known.ell(x), rtol=1e-12)
    np.testing.assert_allclose(found.y, known.lower_solution(x), rtol=1e-10)
    np.testing.assert_allclose(found.v, known.adjoint(x), rtol=1e-9, atol=1e-12)
    true = known.gradient(x)
    difference = float(trees.norm(trees.sub(found.gradient, true)))
    assert difference <= 1e-10 * float(trees.norm(true))


def logistic_problem():
    """A non-quadratic lower level: y is a logistic regression with per-feature weight decay exp(x)."""
    rng = np.random.default_rng(0)
    A, V = rng.standard_normal((30, 4)), rng.standard_normal((20, 4))
    truth = rng.standard_normal(4)
    data = {"A": A, "a": np.sign(A @ truth + rng.standard_normal(30)), "V": V, "v": np.sign(V @ truth)}
    upper = lambda x, y, d: jnp.mean(jax.nn.softplus(-d["v"] * (d["V"] @ y))) + 0.1 * jnp.sum(x * y)  # noqa: E731
    lower = lambda x, y, d: jnp.mean(jax.nn.softplus(-d["a"] * (d["A"] @ y))) + 0.5 * jnp.sum(jnp.exp(x) * y**2)  # noqa: E731
    return bx.BilevelProblem(upper, lower, bx.Box(-3.0, 1.0), jax.tree.map(jnp.asarray, data))


def test_hypergradient_agrees_with_finite_differences():
    problem = logistic_problem()
    x = jnp.array([-1.0, 0.2, -2.0, 0.5])

    lower_value = jax.jit(lambda x, y: problem.lower_value(x, y))
    lower_grad = jax.jit(lambda x, y: problem.lower_grad(x, y))

    def ell(x):
        value = lambda y: float(lower_value(x, y))  # noqa: E731
        slope = lambda y: np.asarray(lower_grad(x, y))  # noqa: E731
        y = scipy.optimize.minimize(value, np.zeros(4), jac=slope, tol=1e-14, options={"gtol": 1e-13}).x
        y = scipy.optimize.root(slope, y, tol=1e-14).x
        return float(problem.upper_value(jnp.asarray(x), jnp.asarray(y)))

    h = 1e-4
    centred = [
        (8 * (ell(x + h * e) - ell(x - h * e)) - (ell(x + 2 * h * e) - ell(x - 2 * h * e))) / (12 * h)
        for e in np.eye(4)
    ]
    found = hg.exact_hypergradient(problem, x, jnp.zeros(4))
    np.testing.assert_allclose(found.gradient, centred, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("start", [0.0, 50.0, -1e4])
def test_lower_solution_is_found_from_anywhere(start):
    problem = logistic_problem()
    y = hg.solve_lower(problem, jnp.array([-3.0, -3.0, 0.0, 1.0]), jnp.full(4, start))
    assert float(trees.norm(problem.lower_grad(jnp.array([-3.0, -3.0, 0.0, 1.0]), y))) < 1e-13


@pytest.mark.parametrize("kappa", [1.0, 1e2, 1e6])
def test_conjugate_gradient_solves_to_rounding(kappa):
    A, b = spd(40, kappa)
    found = hg.conjugate_gradient(lambda w: jnp.asarray(A) @ w, jnp.asarray(b), jnp.zeros(40))
    np.testing.assert_allclose(found.w, np.linalg.solve(A, b), rtol=1e-9 * np.sqrt(kappa), atol=1e-10)
    assert float(found.residual) < 1e-11 * np.linalg.norm(b)
    early = hg.conjugate_gradient(lambda w: jnp.asarray(A) @ w, jnp.asarray(b), jnp.zeros(40), tol=1e-2)
    assert np.linalg.norm(A @ early.w - b) <= 1.001e-2 * np.linalg.norm(b)
    assert int(early.products) <= int(found.products)


def test_conjugate_gradient_needs_no_more_products_than_dimensions_and_stops_at_the_answer():
    A, b = spd(12, 50.0)
    found = hg.conjugate_gradient(lambda w: jnp.asarray(A) @ w, jnp.asarray(b), jnp.zeros(12), tol=1e-8)
    assert int(found.products) <= 13
    again = hg.conjugate_gradient(lambda w: jnp.asarray(A) @ w, jnp.asarray(b), found.w, tol=1e-7)
    assert int(again.products) == 1


def test_neumann_sum_is_that_many_gradient_steps_and_the_printed_series():
    A, b = spd(6, 5.0)
    eta = 0.15
    found = hg.neumann(lambda w: jnp.asarray(A) @ w, jnp.asarray(b), eta, 7)
    series = eta * sum(np.linalg.matrix_power(np.eye(6) - eta * A, j) @ b for j in range(7))
    np.testing.assert_allclose(found, series, rtol=1e-12)


def test_random_neumann_has_the_mean_of_the_truncated_series():
    A, b = spd(4, 5.0)
    budget, L_g = 8, 5.0
    draw = lambda key: hg.random_neumann(lambda w, _: jnp.asarray(A) @ w, jnp.asarray(b), key, budget=budget, L_g=L_g)  # noqa: E731
    values, counts = jax.vmap(draw)(jax.random.split(jax.random.key(0), 40_000))
    assert set(np.unique(counts)) == set(range(budget))
    series = sum(np.linalg.matrix_power(np.eye(4) - A / L_g, j) @ b for j in range(budget)) / L_g
    spread = np.std(values, axis=0) / np.sqrt(len(values))
    np.testing.assert_array_less(np.abs(np.mean(values, axis=0) - series), 4.5 * spread)


def test_random_neumann_draws_a_fresh_sample_for_each_factor():
    seen = []

    def hvp(w, key):
        jax.debug.callback(lambda data: seen.append(tuple(np.asarray(data))), jax.random.key_data(key))
        return w

    for seed in range(10):
        seen.clear()
        _, p = hg.random_neumann(hvp, jnp.ones(2), jax.random.key(seed), budget=6, L_g=2.0)
        jax.effects_barrier()
        assert len(seen) == len(set(seen)) == int(p)


def test_a_formula_for_the_adjoint_is_used():
    known = known_problem("Simplex", kappa=1e4)
    x, y = jnp.full(5, 0.4), jnp.ones(6)
    b = jnp.arange(6.0)
    formula = bx.LowerStructure(solve_adjoint=lambda x, y, b, data: 2 * b)
    marked = replace(known.problem, structure=formula)
    np.testing.assert_allclose(hg.solve_adjoint(marked, x, y, b, b), 2 * b)


def test_host_loops_equal_compiled_ones():
    known = known_problem("Simplex")
    x, y = jnp.full(5, 0.4), jnp.ones(6)
    numpy_hvp = lambda x, y, w, data: jnp.asarray(np.asarray(data["A"]) @ np.asarray(w))  # noqa: E731
    host = replace(known.problem, structure=bx.LowerStructure(hvp=numpy_hvp, host=True))
    np.testing.assert_allclose(hg.solve_lower(host, x, y), known.lower_solution(x), rtol=1e-10)
    found = hg.exact_hypergradient(host, x, y)
    np.testing.assert_allclose(found.gradient, known.gradient(x), rtol=1e-10)
