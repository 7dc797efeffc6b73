"""Linked regressions against rows and dense matrices written down in numpy."""

import jax.numpy as jnp
import numpy as np
import pytest

import bilevax as bx
from bilevax.problems import linked_classifiers, linked_tasks
from bilevax.problems.linked_tasks import coefficients, solve_lower

K, J, T, D, Q, N = 2, 2, 3, 4, 2, 9


def moments(A, b):
    return np.einsum("ktna,ktnb->ktab", A, A), np.einsum("ktna,ktn->kta", A, b)


def random_prior(rng):
    return rng.uniform(0.2, 2, (K, J, T, D)), rng.standard_normal((K, J, T, Q)), rng.uniform(0.2, 2, (K, J, Q, D))


def made(seed=0):
    rng = np.random.default_rng(seed)
    rows = {name: (rng.standard_normal((K, T, N, D)), rng.standard_normal((K, T, N))) for name in ("train", "valid")}
    valid = (*moments(*rows["valid"]), np.sum(rows["valid"][1] ** 2), K * T * N)
    parts = (moments(*rows["train"]), valid, *random_prior(rng))
    problem, x0, y0 = linked_tasks(*parts)
    x0 = x0 | {"own": jnp.asarray(rng.uniform(-1, 1, J)), "shared": jnp.asarray(rng.uniform(-1, 1, (J, Q)))}
    return rows, parts, (problem, x0, y0)


def prior(parts, x, k, j):
    """The covariance of the coefficients of all tasks, stacked task by task."""
    _, _, own, loadings, shared = parts
    covariance = np.diag(np.exp(x["own"][j]) * own[k, j].ravel())
    for q in range(Q):
        u = loadings[k, j, :, q]
        covariance += np.exp(x["shared"][j, q]) * np.kron(np.outer(u, u), np.diag(shared[k, j, q]))
    return covariance


def posterior_mean(rows, parts, x, k, j):
    """The coefficients as Gaussian regression has them, from rows and the covariance."""
    A, b = rows["train"]
    blocks = np.zeros((T * N, T * D))
    for t in range(T):
        blocks[t * N : (t + 1) * N, t * D : (t + 1) * D] = A[k, t]
    cov = prior(parts, x, k, j)
    gram = blocks @ cov @ blocks.T + np.eye(T * N)
    return (cov @ blocks.T @ np.linalg.solve(gram, b[k].ravel())).reshape(T, D)


def test_the_exact_solution_is_that_of_gaussian_regression():
    rows, parts, (problem, x0, y0) = made()
    y = solve_lower(x0, y0, problem.data)
    W = np.asarray(coefficients(x0, y, problem.data))
    for k in range(K):
        for j in range(J):
            np.testing.assert_allclose(W[k, j], posterior_mean(rows, parts, x0, k, j), rtol=1e-9, atol=1e-11)
    assert float(bx.trees.norm(problem.lower_grad(x0, y))) < 1e-10


def test_the_upper_level_is_the_error_of_the_average_on_held_out_rows():
    rows, parts, (problem, x0, y0) = made(1)
    x0 = x0 | {"mix": jnp.array([0.3, 0.7])}
    W = np.einsum("j,kjtd->ktd", x0["mix"], coefficients(x0, solve_lower(x0, y0, problem.data), problem.data))
    A, b = rows["valid"]
    errors = np.einsum("ktnd,ktd->ktn", A, W) - b
    y = solve_lower(x0, y0, problem.data)
    sizes = 0.5 * sum(float(jnp.sum(x0[name] ** 2)) for name in ("own", "shared")) / (3.0**2 * errors.size)
    np.testing.assert_allclose(problem.upper(x0, y, problem.data), 0.5 * np.mean(errors**2) + sizes, rtol=1e-12)


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


@pytest.mark.slow
def test_it_is_solved_to_a_verified_gap_and_lowers_the_held_out_error():
    _, _, (problem, x0, y0) = made(3)
    result = bx.solve(problem, x0=x0, y0=y0, tol=1e-5)
    assert result.success, result.message
    before = float(problem.upper(x0, solve_lower(x0, y0, problem.data), problem.data))
    assert result.audit().ell < before


def test_extreme_sizes_do_no_harm():
    """A part of size e^-30 or e^20 is no division by zero: the covariance may be singular or huge."""
    _, parts, (_, x0, y0) = made(4)
    problem = linked_tasks(*parts, span=40.0).problem
    for own, shared in ((-30.0, 20.0), (20.0, -30.0), (-30.0, -30.0)):
        x = x0 | {"own": jnp.full(J, own), "shared": jnp.full((J, Q), shared)}
        assert np.isfinite(coefficients(x, solve_lower(x, y0, problem.data), problem.data)).all()


def test_shapes_that_do_not_fit_are_named():
    _, parts, _ = made()
    with pytest.raises(ValueError, match=r"loadings has shape \(2, 2, 4, 2\); expected \(2, 2, 3, 2\)"):
        linked_tasks(*parts[:3], np.ones((K, J, T + 1, Q)), parts[4])
    with pytest.raises(ValueError, match=r"shared has shape \(2, 2, 2, 3\); expected \(2, 2, 2, 4\)"):
        linked_tasks(*parts[:4], np.ones((K, J, Q, D - 1)))
    with pytest.raises(ValueError, match="variances of own parts must be positive"):
        linked_tasks(*parts[:2], np.zeros((K, J, T, D)), *parts[3:])


def classifiers(seed=0):
    rng = np.random.default_rng(seed)
    n = T * N
    rows = rng.standard_normal((n, D)), np.sign(rng.standard_normal(n)), np.arange(n) % T
    held_out = (np.arange(n) // T % K) == np.arange(K)[:, None]
    return rows, held_out, linked_classifiers(rows, ~held_out, held_out, *random_prior(rng))


def test_classifiers_have_the_mean_logistic_loss_of_the_average():
    (A, b, task), held_out, (problem, x0, y0) = classifiers()
    rng = np.random.default_rng(1)
    y = {name: jnp.asarray(rng.standard_normal(part.shape)) for name, part in y0.items()}
    W = np.asarray(coefficients(x0, y, problem.data))
    average = np.einsum("j,kjtd->ktd", x0["mix"], W)
    loss = lambda W: np.log1p(np.exp(-b * np.sum(A * W[task], axis=1)))  # noqa: E731
    expected = sum(loss(average[k])[held_out[k]].sum() for k in range(K)) / held_out.sum()
    np.testing.assert_allclose(problem.upper(x0, y, problem.data), expected, rtol=1e-12)
    losses = sum(loss(W[k, j])[~held_out[k]].sum() for k in range(K) for j in range(J))
    size = 0.5 * float(bx.trees.norm(y)) ** 2
    np.testing.assert_allclose(problem.lower(x0, y, problem.data), losses + size, rtol=1e-12)


@pytest.mark.slow
def test_classifiers_are_solved_to_a_verified_gap():
    _, _, (problem, x0, y0) = classifiers(2)
    result = bx.solve(problem, x0=x0, y0=y0, tol=1e-4)
    assert result.success, result.message


def test_wrong_rows_of_classifiers_are_named():
    (A, b, task), held_out, _ = classifiers()
    parts = random_prior(np.random.default_rng(0))
    with pytest.raises(ValueError, match="labels must be -1 and 1"):
        linked_classifiers((A, b + 1, task), ~held_out, held_out, *parts)
    with pytest.raises(ValueError, match="task must number the task of each row, from 0 to 2"):
        linked_classifiers((A, b, task + 1), ~held_out, held_out, *parts)
    with pytest.raises(ValueError, match=r"expected 27 labels and weights of shape \(folds, 27\), got shapes"):
        linked_classifiers((A, b, task), ~held_out[:, 1:], held_out, *parts)
