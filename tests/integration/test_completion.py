"""The paper's synthetic completion at its real size: as printed it fails by its own measure, repaired it works."""

import jax.numpy as jnp
import numpy as np
import pytest

import bilevax as bx
from bilevax.problems import matrix_completion, synthetic


def errors(seed, data_term, solver_of, steps):
    instance = synthetic(seed)
    problem, constants = matrix_completion(instance.M, instance.observed, instance.radius, data_term=data_term)
    result = bx.solve(
        problem, solver_of(constants), jnp.asarray(instance.x0), jnp.asarray(instance.y0), steps=steps, every=steps
    )
    return instance.normalized_error(result.x), instance.normalized_error(result.x, unobserved=True)


@pytest.mark.slow
def test_as_printed_the_normalized_error_goes_to_one():
    found = errors(0, "mean", lambda c: bx.IBCG.as_printed(1 / (4 * np.sqrt(1000)), c), 1000)
    np.testing.assert_allclose(found, 1.0, atol=2e-3)


@pytest.mark.parametrize("seeds", [1, pytest.param(5, marks=pytest.mark.slow)])
def test_repaired_it_recovers_the_matrix(seeds):
    found = np.array([errors(seed, "sum", lambda c: bx.IBCG(), 1000) for seed in range(seeds)])
    observed, unobserved = found.mean(axis=0)
    assert observed < 0.0105
    assert unobserved < 0.0140
