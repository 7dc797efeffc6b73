"""How tasks are linked, estimated from moments: against the dense marginal likelihood and planted links."""

import numpy as np
import pytest
from scipy.optimize import minimize
from sklearn.linear_model import RidgeCV

from bilevax.estimators.multitask.empirical_bayes import estimate_links


def moments(A, b):
    return np.einsum("tna,tnb->tab", A, A), np.einsum("tna,tn->ta", A, b), (b**2).sum(1), np.full(len(b), b.shape[1])


def test_variances_are_those_of_the_largest_marginal_likelihood():
    """With the mean as the only shared part, the rows of all tasks have one Gaussian density, written down densely."""
    rng = np.random.default_rng(0)
    T, n, d = 12, 8, 3
    A = rng.standard_normal((T, n, d))
    W = rng.standard_normal(d) + 0.7 * rng.standard_normal((T, d))
    b = np.einsum("tnd,td->tn", A, W) + 0.5 * rng.standard_normal((T, n))
    rows = A.reshape(T * n, d)
    same = np.kron(np.eye(T), np.ones((n, n)))

    def negative_log_likelihood(logs):
        own, shared, noise = np.exp(logs)
        cov = (own * same + shared) * (rows @ rows.T) + noise * np.eye(T * n)
        return np.linalg.slogdet(cov)[1] + b.ravel() @ np.linalg.solve(cov, b.ravel())

    best = np.exp(minimize(negative_log_likelihood, np.zeros(3), method="Nelder-Mead", options={"xatol": 1e-6}).x)
    found = estimate_links(*moments(A, b), 0, iterations=3000, tol=1e-10)
    np.testing.assert_allclose([found.own[0], found.shared[0], found.noise], best, rtol=1e-3)


def planted(seed, noise, T=20, n=15, d=30, rank=2):
    """Fewer rows than features in each task; coefficients of all tasks in a plane."""
    rng = np.random.default_rng(seed)
    W = rng.standard_normal((T, rank)) @ rng.standard_normal((rank, d))
    A = rng.standard_normal((T, n, d))
    clean = np.einsum("tnd,td->tn", A, W)
    return A, clean + noise * clean.std() * rng.standard_normal(clean.shape), W


@pytest.mark.parametrize(("seed", "n_shared", "share"), [(0, 2, 0.02), (1, 2, 0.02), (0, 4, 0.06)])
def test_a_plane_of_coefficients_is_found_where_single_tasks_have_too_few_rows(seed, n_shared, share):
    """If parts may shrink from the first iteration on, seed 0 loses one of two and has twenty times the error."""
    A, b, W = planted(seed, 0.1)
    alone = np.stack([RidgeCV(np.geomspace(1e-3, 1e4, 30)).fit(x, y).coef_ for x, y in zip(A, b, strict=True)])
    found = estimate_links(*moments(A, b), n_shared)
    error = lambda guess: np.mean((guess - W) ** 2)  # noqa: E731
    assert error(found.coefficients) < share * error(alone)


def test_tasks_with_nothing_in_common_share_nothing():
    rng = np.random.default_rng(1)
    A, W = rng.standard_normal((10, 60, 5)), rng.standard_normal((10, 5))
    b = np.einsum("tnd,td->tn", A, W) + 0.3 * rng.standard_normal((10, 60))
    found = estimate_links(*moments(A, b), 0)
    np.testing.assert_allclose(found.coefficients, W, atol=0.25)
    assert found.shared[0] < found.own[0]
