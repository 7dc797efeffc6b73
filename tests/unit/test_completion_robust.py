"""The robust data loss of completion: exact solutions entry by entry, and outliers that are forgotten."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import brentq

import bilevax as bx
from bilevax.problem import check_derivatives
from bilevax.problems import completion, matrix_completion, sparse_completion

ROBUST = {"data_loss": "pseudo-huber", "lambda1": 0.3, "lambda2": 0.2, "outlier": 0.6}
rng = np.random.default_rng(0)
M = 3 * rng.standard_normal((8, 7))
OMEGA1, OMEGA2 = (rng.random(M.shape) < 0.7 for _ in range(2))


def slope(v, x, m, observed, data):
    """The derivative of the lower level in one entry, written out again."""
    d, delta = float(data["outlier"]), float(data["delta"])
    loss = 2 * float(data["weight"]) * observed * (v - m) / np.hypot(1, (v - m) / d)
    huber = float(data["lambda1"]) * v / np.hypot(1, v / delta)
    return loss + huber + 2 * float(data["lambda2"]) * (v - x)


@pytest.mark.parametrize(
    "options",
    [{}, {"lambda1": 0.0, "lambda2": 1.0}, {"lambda1": 5.0, "delta": 1e-2, "outlier": 1e-2}, {"data_term": "mean"}],
)
@pytest.mark.parametrize("scale", [0.01, 1.0, 1e3])
def test_each_entry_is_the_root_that_bisection_finds(options, scale):
    problem, _ = matrix_completion(scale * M, OMEGA1, 4.0, omega2=OMEGA2, **{**ROBUST, **options})
    x, start = scale * rng.standard_normal(M.shape), scale * rng.standard_normal(M.shape)
    found = jax.jit(completion.solve_lower)(jnp.asarray(x), jnp.asarray(start), problem.data)
    ends = np.abs(x) + np.abs(scale * M) + 1e-6
    for i, j in np.ndindex(M.shape):
        entry = (x[i, j], scale * M[i, j], OMEGA2[i, j], problem.data)
        truth = brentq(slope, -ends[i, j], ends[i, j], args=entry, xtol=1e-16 * scale, rtol=1e-15)
        assert float(found[i, j]) == pytest.approx(truth, rel=1e-10, abs=1e-12 * scale)


def test_formulas_and_constants_agree_with_autodiff():
    problem, constants = matrix_completion(M, OMEGA1, 4.0, omega2=OMEGA2, **ROBUST)
    x, y = (jnp.asarray(rng.standard_normal(M.shape)) for _ in range(2))
    errors = check_derivatives(problem, x, y, jax.random.key(0))
    assert len(errors) == 5 and max(errors.values()) < 1e-10
    at = jax.vmap(lambda shift: completion.hessian_diagonal(x, M + shift, problem.data))
    diagonals = np.asarray(at(jnp.linspace(-3, 3, 2001)))
    assert float(constants.mu_g) <= diagonals.min() and diagonals.max() <= float(constants.L_g)
    steepest = np.abs(np.diff(diagonals, axis=0)).max() / (6 / 2000)
    assert 0.5 * float(constants.L_yy_g) < steepest <= float(constants.L_yy_g)


def test_the_squared_loss_is_the_limit_of_a_large_scale():
    x, start = jnp.asarray(rng.standard_normal(M.shape)), jnp.zeros(M.shape)
    wide, _ = matrix_completion(M, OMEGA1, 4.0, **{**ROBUST, "outlier": 1e5})
    squared, _ = matrix_completion(M, OMEGA1, 4.0, lambda1=0.3, lambda2=0.2)
    solutions = [completion.solve_lower(x, start, problem.data) for problem in (wide, squared)]
    np.testing.assert_allclose(*solutions, atol=1e-7)


def test_outliers_are_forgotten():
    source = np.random.default_rng(1)
    truth = source.standard_normal((40, 3)) @ source.standard_normal((3, 30))
    noisy = truth + 0.1 * source.standard_normal(truth.shape)
    noisy += np.where(source.random(truth.shape) < 0.1, 15 * source.choice([-1, 1], truth.shape), 0)
    rows, cols = np.nonzero(source.random(truth.shape) < 0.7)
    radius, errors = float(np.linalg.norm(truth, "nuc")), {}
    for loss in ("squared", "pseudo-huber"):
        options = {"lambda1": 0.0, "lambda2": 1.0, "data_loss": loss}
        problem, _ = sparse_completion(rows, cols, noisy[rows, cols], radius, shape=truth.shape, **options)
        solver, zero = bx.BlockIBCG(), jnp.zeros(len(rows))
        state, _ = solver.init(problem, problem.domain.vertex(zero), zero)
        for _ in range(25):
            state, _ = solver.step(problem, state, jax.random.key(0))
        left, right = state.x.factors()
        errors[loss] = np.sum((left @ right.T - truth) ** 2) / np.sum(truth**2)
    assert errors["pseudo-huber"] < 0.05 < 0.1 < errors["squared"]


@pytest.mark.parametrize(
    ("options", "words"),
    [({"data_loss": "l1"}, "data_loss must be 'squared' or 'pseudo-huber'"), ({"outlier": 0.0}, "must be above 0")],
)
def test_bad_options_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        matrix_completion(M, OMEGA1, 1.0, **options)
