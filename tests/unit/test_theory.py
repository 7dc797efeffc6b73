"""Constants: given, estimated, and the step sizes they give."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from zoo import known_problem

import bilevax as bx
from bilevax.estimation import estimate_constants
from bilevax.problems import random_quadratic


def test_step_sizes_of_the_paper():
    constants = bx.Constants(0.5, 4.5)
    assert constants.kappa == 9 and constants.alpha == 2 / 5 and constants.beta == 0.8
    np.testing.assert_allclose(constants.eta_limit, constants.alpha)


def test_alpha_contracts_by_beta():
    constants = bx.Constants(1.0, 10.0)
    known = known_problem("Simplex", kappa=10.0)
    x, y = jnp.full(5, 0.4), jnp.ones(6)
    star = known.lower_solution(x)
    after = y - constants.alpha * known.problem.lower_grad(x, y)
    assert np.linalg.norm(after - star) <= constants.beta * np.linalg.norm(y - star) * (1 + 1e-12)


@pytest.mark.parametrize("kappa", [1.0, 10.0, 100.0])
def test_estimates_bracket_the_spectrum_of_a_quadratic(kappa):
    known = random_quadratic(bx.Simplex(), jnp.zeros(5), 60, jax.random.key(0), kappa=kappa)
    found = estimate_constants(known.problem, jnp.full(5, 0.2), jnp.zeros(60), jax.random.key(1))
    assert found.estimated
    assert kappa * 0.99 <= float(found.L_g) <= kappa * (1 + 1e-9)
    assert 0.75 <= float(found.mu_g) <= 1.02
    assert int(found.products) <= 50


@pytest.mark.parametrize(("mu_g", "L_g"), [(0.0, 1.0), (2.0, 1.0), (-1.0, 1.0), (1.0, np.inf), (np.nan, 1.0)])
def test_impossible_constants_are_refused(mu_g, L_g):
    with pytest.raises(ValueError, match="need 0 < mu_g <= L_g"):
        bx.Constants(mu_g, L_g)
