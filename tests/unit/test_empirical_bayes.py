"""How tasks are linked, estimated from moments: against the dense marginal likelihood and planted links."""

import numpy as np
import pytest
from scipy.optimize import minimize
from sklearn.linear_model import RidgeCV

from bilevax.estimators.multitask.empirical_bayes import estimate_links
from bilevax.estimators.multitask.prior import Moments, Posterior, Prior


def moments(A, b):
    counts = np.full(len(b), float(b.shape[1]))
    return Moments(np.einsum("tna,tnb->tab", A, A), np.einsum("tna,tn->ta", A, b), (b**2).sum(1), counts)


def one_group(d):
    return np.zeros(d, int)


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
    found = estimate_links(moments(A, b), 0, one_group(d), iterations=3000, tol=1e-10)
    estimates = [found.prior.own[0, 0], found.prior.shared[0, 0], found.noise[0]]
    np.testing.assert_allclose(estimates, best, rtol=1e-3)


@pytest.mark.parametrize("n", [5, 2])  # also fewer rows than features
def test_coefficients_and_their_covariance_are_those_of_the_dense_posterior(n):
    """The joint Gaussian density of all coefficients, written down as one matrix."""
    rng = np.random.default_rng(3)
    T, d, Q = 4, 3, 2
    A, b = rng.standard_normal((T, n, d)), rng.standard_normal((T, n))
    prior = Prior(rng.uniform(0.2, 2, (T, d)), rng.standard_normal((T, Q)), rng.uniform(0.2, 2, (Q, d)))
    prior.own[0, 1] = 0.0  # a part without variance divides nothing by zero
    covariance = np.diag(prior.own.ravel())
    for q in range(Q):
        u = prior.loadings[:, q]
        covariance += np.kron(np.outer(u, u), np.diag(prior.shared[q]))
    rows = np.zeros((T * n, T * d))
    for t in range(T):
        rows[t * n : (t + 1) * n, t * d : (t + 1) * d] = A[t]
    gain = covariance @ rows.T @ np.linalg.inv(rows @ covariance @ rows.T + np.eye(T * n))
    found = Posterior(moments(A, b), prior)
    np.testing.assert_allclose(found.coefficients.ravel(), gain @ b.ravel(), atol=1e-10)
    left = covariance - gain @ rows @ covariance
    for t in range(T):
        own = slice(t * d, (t + 1) * d)
        np.testing.assert_allclose(found.spread()[t], left[own, own], atol=1e-10)
        for r in range(T):
            other = left[own, r * d : (r + 1) * d]
            np.testing.assert_allclose(found.slope_covariances()[t, r], np.trace(other[:-1, :-1]), atol=1e-10)
        np.testing.assert_allclose(found.uncertain_errors()[t], np.trace(A[t].T @ A[t] @ left[own, own]), rtol=1e-9)
    own_part = np.diag(prior.own.ravel())  # its covariance with the rows is that with its own coefficients
    explained = own_part @ rows.T @ np.linalg.inv(rows @ covariance @ rows.T + np.eye(T * n)) @ rows @ own_part
    np.testing.assert_allclose(found.own_variances().ravel(), np.diag(own_part - explained), atol=1e-10)


def test_the_estimate_so_far_is_the_answer_when_time_is_up():
    A, b, _ = planted(0, 0.3)
    calls = []

    def stop():
        calls.append(1)
        return "time is up" if len(calls) > 3 else None

    found = estimate_links(moments(A, b), 1, one_group(30), stop=stop)
    expected = estimate_links(moments(A, b), 1, one_group(30), iterations=3)
    assert len(calls) == 4
    np.testing.assert_array_equal(found.coefficients, expected.coefficients)


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
    found = estimate_links(moments(A, b), n_shared, one_group(30))
    error = lambda guess: np.mean((guess - W) ** 2)  # noqa: E731
    assert error(found.coefficients) < share * error(alone)


def test_tasks_with_nothing_in_common_share_nothing():
    rng = np.random.default_rng(1)
    A, W = rng.standard_normal((10, 60, 5)), rng.standard_normal((10, 5))
    b = np.einsum("tnd,td->tn", A, W) + 0.3 * rng.standard_normal((10, 60))
    found = estimate_links(moments(A, b), 0, one_group(5))
    np.testing.assert_allclose(found.coefficients, W, atol=0.25)
    assert found.prior.shared[0, 0] < found.prior.own[0, 0]


def test_noise_differs_between_tasks_only_as_far_as_rows_show_it():
    rng = np.random.default_rng(2)
    T, n, d = 40, 30, 3
    A, W = rng.standard_normal((T, n, d)), rng.standard_normal(d)
    for sizes, error in ((np.full(T, 0.5), 0.1), (np.geomspace(0.1, 3.0, T), 0.35)):
        b = np.einsum("tnd,d->tn", A, W) + sizes[:, None] * rng.standard_normal((T, n))
        noise = estimate_links(moments(A, b), 0, one_group(d), noise_by_task=True).noise
        assert np.median(np.abs(np.log(np.sqrt(noise) / sizes))) < error
    # Equal noise: estimates of single tasks scatter by a fifth, these hardly.
    b = np.einsum("tnd,d->tn", A, W) + 0.5 * rng.standard_normal((T, n))
    assert np.std(np.log(estimate_links(moments(A, b), 0, one_group(d), noise_by_task=True).noise)) < 0.1
