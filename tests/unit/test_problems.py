"""The ready-made problems against independent answers."""

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
from zoo import SETS, every_second, known_problem

import bilevax as bx
from bilevax.problems import completion as completion_problem
from bilevax.problems import coreset, matrix_completion, synthetic, toy_coreset


@pytest.mark.parametrize("name", every_second(n for n in SETS if n != "UserSet"))
def test_the_known_solution_of_a_random_quadratic_is_optimal(name):
    known = known_problem(name, seed=4)
    gradient = known.gradient(known.x_star)
    domain = known.problem.domain.at_full_precision()
    s, _ = domain.lmo(gradient, domain.start(gradient))
    assert bool(domain.contains(known.x_star))
    assert abs(float(bx.trees.gap(gradient, known.x_star, s))) < 1e-12


def test_the_known_quadratic_is_what_its_functions_say():
    known = known_problem("Simplex")
    x = jnp.asarray(np.random.default_rng(0).dirichlet(np.ones(5)) * 2)
    y = jnp.asarray(known.lower_solution(x))
    np.testing.assert_allclose(known.problem.lower_grad(x, y), 0, atol=1e-12)
    np.testing.assert_allclose(known.problem.upper_value(x, y), known.ell(x), rtol=1e-12)
    eigenvalues = np.linalg.eigvalsh(known.problem.data["A"])
    np.testing.assert_allclose(eigenvalues[[0, -1]], [1.0, 10.0], rtol=1e-10)


@pytest.mark.parametrize("mu_g", [1.0, 0.1])
def test_toy_constants_and_optimum(mu_g):
    toy = toy_coreset(mu_g)
    A = np.asarray(toy.problem.data["A"])
    np.testing.assert_allclose(np.linalg.eigvalsh(A.T @ A), [mu_g, 2.0], rtol=1e-12)
    weights, theta = cp.Variable(4), cp.Variable(2)
    program = cp.Problem(
        cp.Minimize(0.5 * cp.sum_squares(theta - coreset.TARGET)),
        [A @ theta == coreset.POINTS @ weights, weights >= 0, cp.sum(weights) == 1],
    )
    program.solve(solver=cp.CLARABEL)
    np.testing.assert_allclose(toy.ell_star, program.value, rtol=1e-7)
    np.testing.assert_allclose(toy.theta_star, theta.value, atol=1e-5)
    assert (toy.weights_star > 1e-3).sum() == 2, "the optimum should lie inside an edge"
    np.testing.assert_array_equal(toy.x0, 0.25)
    np.testing.assert_array_equal(toy.y0, 0.0)


def small_completion(**options):
    rng = np.random.default_rng(0)
    M, mask1, mask2 = rng.standard_normal((6, 5)) * 3, rng.random((6, 5)) < 0.6, rng.random((6, 5)) < 0.7
    problem, constants = matrix_completion(M, mask1, 4.0, omega2=mask2, **options)
    return problem, constants, M, mask1, mask2, rng


@pytest.mark.parametrize("data_term", ["sum", "mean"])
@pytest.mark.parametrize("regularizer", ["pseudo-huber", None])
def test_completion_objectives_are_the_printed_ones(data_term, regularizer):
    problem, _, M, mask1, mask2, rng = small_completion(data_term=data_term, regularizer=regularizer)
    x, y = rng.standard_normal((6, 5)), rng.standard_normal((6, 5))
    f = np.mean((x - y)[mask1] ** 2)
    c = 1.0 if data_term == "sum" else 1.0 / mask2.sum()
    huber = 0.05 * np.sum(0.81 * (np.sqrt(1 + (y / 0.9) ** 2) - 1)) if regularizer else 0.0
    g = c * np.sum((y - M)[mask2] ** 2) + huber + 0.05 * np.sum((x - y) ** 2)
    np.testing.assert_allclose(problem.upper_value(jnp.asarray(x), jnp.asarray(y)), f, rtol=1e-12)
    np.testing.assert_allclose(problem.lower_value(jnp.asarray(x), jnp.asarray(y)), g, rtol=1e-12)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e4])
def test_completion_formulas_agree_with_autodiff_and_a_scalar_minimiser(scale):
    problem, constants, M, _, mask2, rng = small_completion(lambda1=0.3)
    x, y = jnp.asarray(scale * rng.standard_normal((6, 5))), jnp.asarray(rng.standard_normal((6, 5)))
    errors = bx.check_derivatives(problem, x, y, jax.random.key(0))
    assert len(errors) == 5 and max(errors.values()) < 1e-9
    solved = np.asarray(completion_problem.solve_lower(x, y, problem.data))
    for i, j in [(0, 0), (2, 3), (5, 4), (1, 2)]:

        def slope(v, seen=mask2[i, j], m=M[i, j], target=float(x[i, j])):
            return 2 * seen * (v - m) + 0.3 * v / np.sqrt(1 + (v / 0.9) ** 2) + 0.1 * (v - target)

        bound = 10 + 2 * abs(float(x[i, j]))
        root = scipy.optimize.brentq(slope, -bound, bound, xtol=1e-14)
        np.testing.assert_allclose(solved[i, j], root, rtol=1e-9, atol=1e-12)
    diagonal = np.asarray(completion_problem.hessian_diagonal(x, y, problem.data))
    assert diagonal.min() >= float(constants.mu_g) and diagonal.max() <= float(constants.L_g)


def test_synthetic_instance_is_the_papers():
    instance = synthetic(3)
    assert instance.truth.shape == (250, 250) and np.linalg.matrix_rank(instance.truth) == 10
    np.testing.assert_allclose(instance.radius, np.linalg.svd(instance.truth, compute_uv=False).sum(), rtol=1e-12)
    np.testing.assert_allclose(np.linalg.norm(instance.x0, "nuc"), instance.radius, rtol=1e-10)
    assert abs(instance.observed.mean() - 0.8) < 0.01
    np.testing.assert_allclose((instance.M - instance.truth).std(), 0.5 * np.sqrt(2), rtol=0.05)
    assert instance.normalized_error(instance.truth) == 0 and instance.normalized_error(0 * instance.truth) == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"data_term": "average"}, "data_term must be 'sum' or 'mean'"),
        ({"regularizer": "l1"}, "l1 norm is not differentiable"),
        ({"lambda2": 0.0}, "lambda2 > 0"),
        ({"omega2": np.zeros((2, 2), bool)}, "omega2 must be a boolean mask"),
        ({"omega2": np.zeros((3, 3), bool)}, "omega2 has no observed entry"),
    ],
)
def test_completion_refuses_bad_options(options, words):
    with pytest.raises(ValueError, match=words):
        matrix_completion(np.ones((3, 3)), np.ones((3, 3), bool), 1.0, **options)


def test_completion_refuses_observed_nan_and_ignores_unobserved_nan():
    M, mask = np.ones((3, 3)), np.ones((3, 3), bool)
    M[0, 0] = np.nan
    with pytest.raises(ValueError, match="NaN or infinite entry among the observed"):
        matrix_completion(M, mask, 1.0)
    mask[0, 0] = False
    problem, _ = matrix_completion(M, mask, 1.0)
    assert np.isfinite(problem.lower_value(jnp.ones((3, 3)), jnp.ones((3, 3))))
