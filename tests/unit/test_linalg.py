"""Extreme eigenpairs and singular pairs against dense decompositions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bilevax as bx
from bilevax.linalg.conjugate_gradient import solve_linear
from bilevax.linalg.lanczos import extreme_eigenvalues, top_eigenpair, top_singular_pair
from bilevax.verdict.iterative import lowest_curvature
from bilevax.verdict.scaled import unscaled

KEY = jax.random.key(3)
SIZES = [1, 2, 3, 10, 11, 12, 60]


def _eigen(matrix, start, tol, max_products):
    return top_eigenpair(lambda v: matrix @ v, start, KEY, tol=tol, max_products=max_products)


def _singular(matrix, start, tol, max_products):
    return top_singular_pair(matrix, start, KEY, tol=tol, max_products=max_products)


eigen, singular = jax.jit(_eigen), jax.jit(_singular)


def eigenpair(matrix, start=None, tol=0.0, max_products=5000):
    matrix = jnp.asarray(matrix)
    start = jnp.zeros(len(matrix), matrix.dtype) if start is None else jnp.asarray(start)
    return eigen(matrix, start, tol, max_products)


def singular_pair(matrix, tol=0.0, max_products=5000):
    matrix = jnp.asarray(matrix)
    return singular(matrix, jnp.zeros(min(matrix.shape), matrix.dtype), tol, max_products)


def rotated(values, seed=0):
    q, _ = np.linalg.qr(np.random.default_rng(seed).standard_normal((len(values), len(values))))
    return q * values @ q.T


def spectra(n):
    rng = np.random.default_rng(n)
    gauss = rng.standard_normal((n, n))
    factor = rng.standard_normal((n, 2))
    noise = rng.standard_normal((n, n))
    return {
        "random": gauss + gauss.T,
        "positive": gauss @ gauss.T,
        "negative": -gauss @ gauss.T,
        "indefinite, larger below": rotated(np.linspace(-5.0, 1.0, n)),
        "clustered": rotated(1.0 - 1e-3 * np.arange(n) / n),
        "two clusters": rotated(np.where(np.arange(n) % 2, 1.0, -1.0) + 1e-6 * np.arange(n)),
        "low rank and noise": factor @ factor.T + 1e-3 * (noise + noise.T),
        "low rank": factor @ factor.T,
        "identity": np.eye(n),
        "zero": np.zeros((n, n)),
        "tied top": rotated(np.r_[np.linspace(0.0, 0.9, n)[:-2], 1.0, 1.0][-n:]),
        "diagonal": np.diag(np.linspace(0.0, 1.0, n)),
    }


@pytest.mark.parametrize("n", SIZES)
def test_top_eigenpair_agrees_with_a_dense_decomposition(n):
    for name, matrix in spectra(n).items():
        values = np.linalg.eigvalsh(matrix)
        size = np.abs(values).max()
        found = eigenpair(matrix)
        v = np.asarray(found.vector)
        np.testing.assert_allclose(found.value, values[-1], atol=1e-12 * size, err_msg=name)
        np.testing.assert_allclose(np.linalg.norm(v), 1.0, rtol=1e-12, err_msg=name)
        np.testing.assert_allclose(v @ matrix @ v, values[-1], atol=1e-12 * size, err_msg=name)
        true = np.linalg.norm(matrix @ v - float(found.value) * v)
        np.testing.assert_allclose(found.residual, true, atol=1e-12 * size, err_msg=name)
        assert n > 10 or found.products == n, name


@pytest.mark.parametrize("max_products", [1, 16, 22])
def test_unfinished_residual_is_the_true_one(max_products):
    gauss = np.random.default_rng(0).standard_normal((100, 100))
    for matrix in (gauss + gauss.T, gauss @ gauss.T, rotated(np.linspace(0.9, 1.0, 100))):
        found = eigenpair(matrix, max_products=max_products)
        v = np.asarray(found.vector)
        residual = np.linalg.norm(matrix @ v - float(found.value) * v)
        assert residual > 1e-6
        np.testing.assert_allclose(found.residual, residual, rtol=1e-8)
        values = np.linalg.eigvalsh(matrix)
        assert np.min(np.abs(values - float(found.value))) <= residual * (1 + 1e-8)
        assert found.value <= values[-1] * (1 + 1e-12)


@pytest.mark.parametrize("n", [2, 3, 12, 60])
def test_start_at_another_eigenvector_still_finds_the_leading_one(n):
    q, _ = np.linalg.qr(np.random.default_rng(n).standard_normal((n, n)))
    values = np.linspace(-2.0, 1.0, n)
    for index in range(n):
        found = eigenpair(q * values @ q.T, start=q[:, index], tol=1e-6)
        np.testing.assert_allclose(found.value, 1.0, atol=3e-6)
        assert abs(q[:, -1] @ np.asarray(found.vector)) > 0.99


def test_start_at_the_answer_saves_products():
    matrix = rotated(np.linspace(0.0, 1.0, 60))
    cold = eigenpair(matrix, tol=1e-8)
    warm = eigenpair(matrix, start=np.linalg.eigh(matrix)[1][:, -1], tol=1e-8)
    assert warm.products <= cold.products


def test_products_are_the_calls_that_were_made():
    matrix = jnp.asarray(rotated(np.linspace(0.0, 1.0, 30)))
    calls = []

    def matvec(v):
        jax.debug.callback(lambda: calls.append(1))
        return matrix @ v

    counted = jax.jit(lambda cap: top_eigenpair(matvec, jnp.zeros(30), KEY, tol=1e-10, max_products=cap))
    for max_products in (1, 25, 5000):
        calls.clear()
        found = counted(max_products)
        jax.effects_barrier()
        assert found.products == len(calls) > 0


HARD = rotated(np.linspace(0.99, 1.0, 200))  # needs more products than the caps below


@pytest.mark.parametrize("max_products", [20, 50, 100])
def test_eigenpair_products_stop_within_one_restart_of_the_cap(max_products):
    assert max_products <= eigenpair(HARD, max_products=max_products).products < max_products + 10


@pytest.mark.parametrize("max_products", [20, 50, 100])
def test_singular_pair_products_stop_within_one_restart_of_the_cap(max_products):
    # Products with the matrix and with its transpose both count, in the cap as in the answer.
    assert max_products <= singular_pair(HARD, max_products=max_products).products < max_products + 20


def test_looser_tolerance_costs_less_and_is_kept():
    gauss = np.random.default_rng(2).standard_normal((60, 60))
    matrix, costs = gauss @ gauss.T, []
    top = np.linalg.eigvalsh(matrix)[-1]
    for tol in (1e-2, 1e-6, 1e-12):
        found = eigenpair(matrix, tol=tol)
        assert 0 <= top - float(found.value) + 1e-13 * top <= tol * top + 2e-13 * top
        costs.append(int(found.products))
    assert costs[0] < costs[1] < costs[2]


SHAPES = [(1, 7), (7, 1), (2, 3), (10, 10), (11, 12), (300, 200)]


@pytest.mark.parametrize("shape", SHAPES)
def test_top_singular_pair_agrees_with_a_dense_decomposition(shape):
    rng = np.random.default_rng(5)
    gauss, short = rng.standard_normal(shape), min(shape)
    left, _, right = np.linalg.svd(gauss, full_matrices=False)
    spread = left * np.linspace(1.0, 0.0, short) @ right
    cases = {"gauss": gauss, "tiny": 1e-200 * gauss, "huge": 1e200 * gauss, "rank one": np.outer(gauss[:, 0], gauss[0])}
    cases |= {"zero": 0 * gauss, "orthogonal": left @ right, "ones": np.ones(shape), "negative": -np.ones(shape)}
    cases |= {"spread": spread, "spread and noise": spread + 1e-6 * gauss}
    if short > 100:
        cases = {name: cases[name] for name in ("gauss", "spread and noise")}
    for name, matrix in cases.items():
        unit = np.max(np.abs(matrix)) or 1.0
        top = np.linalg.svd(matrix / unit, compute_uv=False)[0]
        for tol, slack in ((1e-6, 1e-6), (0.0, 1e-12)):
            found = singular_pair(matrix, tol)
            error = top - float(found.value) / unit
            assert abs(error) <= slack * top, name
            assert error <= float(found.error) / unit + 1e-14 * top, name
            u, v = np.asarray(found.left), np.asarray(found.right)
            assert u.shape == shape[:1] and v.shape == shape[1:]
            np.testing.assert_allclose(u @ (matrix / unit) @ v, float(found.value) / unit, rtol=1e-12, err_msg=name)
            if name != "zero":
                np.testing.assert_allclose([np.linalg.norm(u), np.linalg.norm(v)], 1.0, rtol=1e-12, err_msg=name)


extremes = jax.jit(lambda a: extreme_eigenvalues(lambda v: a @ v, len(a), KEY, max_products=100, dtype=a.dtype))


@pytest.mark.parametrize("n", SIZES)
def test_extreme_eigenvalues_come_near_the_ends_of_the_spectrum(n):
    for name, matrix in spectra(n).items():
        values = np.linalg.eigvalsh(matrix)
        size = np.abs(values).max()
        low, high, products, _ = extremes(jnp.asarray(matrix))
        assert low <= high <= values[-1] + 1e-10 * size and int(products) <= 100, name
        assert low >= min(values[0], 0.95 * values[0]) - 1e-10 * size, name
        np.testing.assert_allclose([low, high], values[[0, -1]], atol=0.02 * size, err_msg=name)


def test_few_products_see_only_part_of_the_spectrum():
    matrix = jnp.asarray(rotated(np.linspace(-1.0, 1.0, 60)))
    low, high, *_ = extreme_eigenvalues(lambda v: matrix @ v, 60, KEY, max_products=3, dtype=matrix.dtype)
    assert -1.0 < low < 0.0 < high < 1.0


@pytest.mark.parametrize("n", [3, 60])
def test_single_precision(n):
    for name, matrix in spectra(n).items():
        matrix = matrix.astype(np.float32)
        values = np.linalg.eigvalsh(matrix.astype(float))
        size = np.abs(values).max()
        found = eigenpair(matrix)
        assert found.value.dtype == found.vector.dtype == found.residual.dtype == jnp.float32
        np.testing.assert_allclose(found.value, values[-1], atol=1e-5 * size, err_msg=name)
        pair = singular_pair(matrix)
        assert pair.value.dtype == pair.left.dtype == pair.error.dtype == jnp.float32
        np.testing.assert_allclose(pair.value, size, rtol=1e-5, err_msg=name)


SPECTRA = {
    "log-spaced": lambda n, kappa: np.geomspace(1 / kappa, 1, n),
    "evenly spaced": lambda n, kappa: np.linspace(1 / kappa, 1, n),
    "one far below": lambda n, kappa: np.r_[1 / kappa, np.linspace(0.5, 1, n - 1)],
    "a cluster below": lambda n, kappa: np.r_[
        np.linspace(1 / kappa, 1.01 / kappa, n // 2), np.linspace(0.1, 1, n // 2)
    ],
    "in tens": lambda n, kappa: np.repeat(np.geomspace(1 / kappa, 1, n // 10), 10),
}


@pytest.mark.parametrize("name", SPECTRA)
def test_the_estimate_of_the_smallest_curvature_lies_below_it_and_near_it(name):
    """With probability 99.9 %: all of these sixty do."""
    for n, kappa in ((40, 10.0), (40, 1e3), (40, 1e8), (300, 10.0), (300, 1e3), (300, 1e5)):
        spectrum = SPECTRA[name](n, kappa)
        problem = bx.BilevelProblem(half_norm, weighted_norm, bx.Box(-1.0, 1.0), jnp.asarray(spectrum))
        for seed in range(2):
            found = lowest_curvature(unscaled(problem, np.zeros(n)), np.zeros(1), np.zeros(n), seed)
            assert 0.4 / kappa < found.mu < spectrum.min() and "probability 99.9%" in found.source


def half_norm(x, y, data):
    return 0.5 * jnp.sum(y**2)


def weighted_norm(x, y, spectrum):
    return 0.5 * jnp.sum(spectrum * y**2) - x[0] * jnp.sum(y)


def test_a_linear_solve_that_stopped_goes_on_as_if_it_had_not():
    H = jnp.diag(jnp.geomspace(1e-3, 1.0, 60))
    b = jax.random.normal(jax.random.key(0), (60,))
    whole = solve_linear(lambda v: H @ v, b, jnp.zeros(60))
    part = solve_linear(lambda v: H @ v, b, jnp.zeros(60), max_steps=50)
    rest = solve_linear(lambda v: H @ v, b, part.w, direction=part.direction)
    again = solve_linear(lambda v: H @ v, b, part.w)
    assert not part.reached and rest.reached
    assert int(part.products + rest.products) <= int(whole.products) + 6 < int(part.products + again.products)
