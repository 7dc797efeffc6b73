"""A ridge weight per feature: the derivatives by hand, what sampling means, refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import expit

import bilevax as bx
from bilevax.problems import feature_weights

rng = np.random.default_rng(0)
A, V = rng.standard_normal((2, 24, 3))
a, v = (np.sign(part @ [1.0, -0.5, 0.0] + 0.3 * rng.standard_normal(24)) for part in (A, V))


def test_the_exact_hypergradient_is_that_of_scipy():
    """y(x) by scipy's BFGS, and the derivative of the validation loss by differences of it."""

    def fitted(x):
        def loss(y):
            return np.mean(np.logaddexp(0, -a * (A @ y))) + 0.5 * np.exp(x) @ y**2

        def slope(y):
            return -A.T @ (a * expit(-a * (A @ y))) / 24 + np.exp(x) * y

        return minimize(loss, np.zeros(3), jac=slope, tol=1e-12).x

    def ell(x):
        return np.mean(np.logaddexp(0, -v * (V @ fitted(x))))

    x = np.array([-2.0, -1.0, -3.0])
    found = bx.exact_hypergradient(feature_weights((A, a), (V, v)), jnp.asarray(x), jnp.zeros(3))
    np.testing.assert_allclose(found.y, fitted(x), atol=1e-6)
    np.testing.assert_allclose(found.ell, ell(x), rtol=1e-7)
    differences = [(ell(x + 1e-4 * e) - ell(x - 1e-4 * e)) / 2e-4 for e in np.eye(3)]
    np.testing.assert_allclose(found.gradient, differences, rtol=1e-4, atol=1e-7)


def test_blocks_average_to_the_whole():
    problem = feature_weights((A, a), (V, v), blocks=4)
    x, y = jnp.full(3, -1.0), jnp.array([0.5, -1.0, 0.3])
    parts = {name: problem.sampler.parts[name] for name in ("train", "valid")}
    means = []
    for i in range(4):
        data = problem.sampler.take(problem.data, dict.fromkeys(parts, jnp.asarray(i)))
        means.append((problem.upper(x, y, data), problem.lower(x, y, data)))
    np.testing.assert_allclose(np.mean(means, axis=0), (problem.upper_value(x, y), problem.lower_value(x, y)))
    assert jax.tree.map(jnp.shape, problem.sample(jax.random.key(0)).data["train"]) == {"A": (6, 3), "b": (6,)}


def test_a_given_domain_is_the_set():
    assert feature_weights((A, a), (V, v), bx.L2Ball(2.0)).domain == bx.L2Ball(2.0)


@pytest.mark.parametrize(
    ("train", "valid", "options", "words"),
    [
        ((A, a[:5]), (V, v), {}, r"train needs A of shape \(n, d\) and b of shape \(n,\), got \(24, 3\), \(5,\)"),
        ((A, (a + 1) / 2), (V, v), {}, r"labels of train must be -1 and 1, got \[0.0, 1.0\]"),
        ((A, a), (V[:, :2], v), {}, "train has 3 features, valid 2"),
        ((A, a), (V, v), {"blocks": 5}, r"\{'train': 24, 'valid': 24\} rows do not divide into 5 blocks"),
        ((A, a), (V, v), {"blocks": 48}, "do not divide into 48 blocks"),
        ((A, a), (V, v), {"blocks": 0}, "do not divide into 0 blocks"),
    ],
)
def test_bad_data_are_refused(train, valid, options, words):
    with pytest.raises(ValueError, match=words):
        feature_weights(train, valid, **options)
