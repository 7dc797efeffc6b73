"""Weights of rows against scikit-learn's weighted fits and differences."""

import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

import bilevax as bx
from bilevax.problems import row_weights

N, D, C, RIDGE = 40, 3, 3, 0.05


def rows(seed, n):
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((n, D))
    classes = np.argmax(A[:, :C] + rng.gumbel(size=(n, C)), axis=1)
    return A, np.eye(C)[classes], classes


def made():
    A, soft, _ = rows(0, N)
    B, judged, _ = rows(1, 25)
    return row_weights((A, soft), (B, judged), bx.Box(0.0, 1.0), ridge=RIDGE)


def test_the_lower_level_is_weighted_logistic_regression():
    A, _, classes = rows(0, N)
    problem, y0 = made()
    x = np.random.default_rng(2).uniform(0.1, 1, N)
    found = bx.audit(problem, jnp.asarray(x), y0)
    plain = LogisticRegression(C=1 / (N * RIDGE), tol=1e-12, max_iter=10_000).fit(A, classes, sample_weight=x)
    B, _, judged = rows(1, 25)
    chances = plain.predict_proba(B)[np.arange(25), judged]
    assert found.ell == pytest.approx(-np.log(chances).mean(), abs=2e-4)  # the intercepts have a tiny ridge here


def test_the_gradient_is_that_of_differences():
    problem, y0 = made()
    x = np.random.default_rng(3).uniform(0.2, 0.8, N)
    found = np.asarray(bx.audit(problem, jnp.asarray(x), y0).gradient)
    for i in (0, 7, 33):
        ends = [bx.audit(problem, jnp.asarray(x + step * (np.arange(N) == i)), y0).ell for step in (1e-4, -1e-4)]
        assert found[i] == pytest.approx((ends[0] - ends[1]) / 2e-4, rel=1e-5, abs=1e-9)


def test_rows_that_judge_may_have_weights():
    A, soft, _ = rows(0, N)
    B, judged, _ = rows(1, 25)
    weight = np.arange(25) % 3 * 1.0
    twice = np.repeat(np.arange(25), weight.astype(int))
    y = {"slopes": jnp.asarray(np.ones((D, C)) * np.arange(C)), "intercepts": jnp.asarray(np.arange(C) * 0.3)}
    one, other = (
        row_weights((A, soft), judges, bx.Box(0.0, 1.0), ridge=RIDGE).problem
        for judges in ((B, judged, weight), (B[twice], judged[twice]))
    )
    x = jnp.ones(N)
    np.testing.assert_allclose(one.upper(x, y, one.data), other.upper(x, y, other.data), rtol=1e-12)


@pytest.mark.parametrize(
    ("learns", "judges", "ridge", "words"),
    [
        ((np.ones((4, 2)), np.ones((3, 2))), (np.ones((2, 2)), np.ones((2, 2))), 1.0, "learns has features of shape"),
        ((np.ones((4, 2)), np.ones((4, 2))), (np.ones((2, 3)), np.ones((2, 2))), 1.0, "rows that judge 3 and 2"),
        ((np.ones((4, 2)), np.ones((4, 2))), (np.ones((2, 2)), np.ones((2, 2))), 0.0, "ridge must be positive, got 0"),
    ],
)
def test_what_does_not_fit_is_named(learns, judges, ridge, words):
    with pytest.raises(ValueError, match=words):
        row_weights(learns, judges, bx.Box(0.0, 1.0), ridge=ridge)
