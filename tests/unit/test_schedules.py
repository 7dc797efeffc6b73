import jax.numpy as jnp
import numpy as np
import pytest

import bilevax as bx
from bilevax.schedules import as_schedule


@pytest.mark.parametrize(
    ("schedule", "formula"),
    [
        (0.3, lambda k: 0.3),
        (bx.Power(0.5, 0.75), lambda k: 0.5 * (k + 1) ** -0.75),
        (bx.OpenLoop(), lambda k: 2 / (k + 2)),
        (bx.OpenLoop(4), lambda k: 4 / (k + 4)),
        (lambda k: 1 / (1 + k), lambda k: 1 / (1 + k)),
    ],
)
def test_values(schedule, formula):
    schedule = as_schedule(schedule)
    for k in (0, 1, 17):
        np.testing.assert_allclose(schedule(jnp.asarray(k, jnp.int32)), formula(k), rtol=1e-12)
    assert as_schedule(None) is None
