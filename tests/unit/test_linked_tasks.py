"""Linked regressions against rows and dense matrices written down in numpy."""

import jax.numpy as jnp
import numpy as np
import pytest

import bilevax as bx
from bilevax.problems import Moments, linked_tasks
from bilevax.problems.linked_tasks import coefficients, solve_lower

K, J, T, D, Q, N = 2, 2, 3, 4, 2, 9


def moments(A, b):
    return Moments(np.einsum("ktna,ktnb->ktab", A, A), np.einsum("ktna,ktn->kta", A, b), (b**2).sum(2), N)


def made(seed=0):
    rng = np.random.default_rng(seed)
    rows = {name: (rng.standard_normal((K, T, N, D)), rng.standard_normal((K, T, N))) for name in ("train", "valid")}
    scales, loadings = rng.uniform(0.5, 2, (J, D)), rng.standard_normal((K, J, T, Q))
    own, shared = rng.uniform(-2, 1, J), rng.uniform(-2, 1, (J, Q))
    parts = (moments(*rows["train"]), moments(*rows["valid"]), scales, loadings, own, shared)
    return rows, parts, linked_tasks(*parts)


def prior(parts, k, j):
    """The covariance of the coefficients of all tasks, stacked task by task."""
    _, _, scales, loadings, own, shared = parts
    U = loadings[k, j]
    omega = np.exp(own[j]) * np.eye(T) + (U * np.exp(shared[j])) @ U.T
    return np.kron(omega, np.diag(scales[j] ** 2))


def posterior_mean(rows, parts, k, j):
    """The coefficients as Gaussian regression has them, from rows and the covariance."""
    A, b = rows["train"]
    blocks = np.zeros((T * N, T * D))
    for t in range(T):
        blocks[t * N : (t + 1) * N, t * D : (t + 1) * D] = A[k, t]
    cov = prior(parts, k, j)
    gram = blocks @ cov @ blocks.T + np.eye(T * N)
    return (cov @ blocks.T @ np.linalg.solve(gram, b[k].ravel())).reshape(T, D)


def test_the_exact_solution_is_that_of_gaussian_regression():
    rows, parts, (problem, x0, y0) = made()
    y = solve_lower(x0, y0, problem.data)
    W = np.asarray(coefficients(x0, y, problem.data))
    for k in range(K):
        for j in range(J):
            np.testing.assert_allclose(W[k, j], posterior_mean(rows, parts, k, j), rtol=1e-9, atol=1e-11)
    assert float(bx.trees.norm(problem.lower_grad(x0, y))) < 1e-10


def test_the_upper_level_is_the_error_of_the_average_on_held_out_rows():
    rows, parts, (problem, x0, y0) = made(1)
    x0 = x0 | {"mix": jnp.array([0.3, 0.7])}
    W = np.einsum("j,kjtd->ktd", x0["mix"], coefficients(x0, solve_lower(x0, y0, problem.data), problem.data))
    A, b = rows["valid"]
    errors = np.einsum("ktnd,ktd->ktn", A, W) - b
    y = solve_lower(x0, y0, problem.data)
    np.testing.assert_allclose(problem.upper(x0, y, problem.data), 0.5 * np.mean(errors**2), rtol=1e-12)


def test_formulas_agree_with_autodiff_and_the_gradient_with_differences(key):
    _, _, (problem, x0, y0) = made(2)
    bx.check_derivatives(problem, x0, y0, key)
    found = bx.exact_hypergradient(problem, x0, y0)

    def ell(name, i, step):
        x = x0 | {name: x0[name].at[i].add(step)}
        return float(problem.upper(x, solve_lower(x, y0, problem.data), problem.data))

    for name, i in (("own", (1,)), ("shared", (0, 1)), ("mix", (0,))):
        slope = (ell(name, i, 1e-5) - ell(name, i, -1e-5)) / 2e-5
        np.testing.assert_allclose(found.gradient[name][i], slope, rtol=1e-6, atol=1e-9)


def test_it_is_solved_to_a_verified_gap_and_lowers_the_held_out_error():
    _, _, (problem, x0, y0) = made(3)
    result = bx.solve(problem, x0=x0, y0=y0, tol=1e-5)
    assert result.success, result.message
    before = float(problem.upper(x0, solve_lower(x0, y0, problem.data), problem.data))
    assert result.audit().ell < before


def test_extreme_sizes_do_no_harm():
    """A part of size e^-30 or e^20 is no division by zero: Omega may be singular or huge."""
    _, parts, _ = made(4)
    for own, shared in ((-30.0, 20.0), (20.0, -30.0), (-30.0, -30.0)):
        problem, x0, y0 = linked_tasks(*parts[:4], np.full(J, own), np.full((J, Q), shared))
        W = coefficients(x0, solve_lower(x0, y0, problem.data), problem.data)
        assert np.isfinite(W).all()


def test_shapes_that_do_not_fit_are_named():
    _, parts, _ = made()
    with pytest.raises(ValueError, match=r"loadings has shape \(2, 2, 4, 2\); expected \(2, 2, 3, 2\)"):
        linked_tasks(*parts[:3], np.ones((K, J, T + 1, Q)), *parts[4:])
    with pytest.raises(ValueError, match=r"shared has shape \(2,\); expected \(2, 2\)"):
        linked_tasks(*parts[:5], np.zeros(J))
