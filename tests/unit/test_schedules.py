import jax.numpy as jnp
import numpy as np
import pytest

import bilevax as bx
from bilevax.schedules import as_schedule, check_fraction


@pytest.mark.parametrize(
    ("schedule", "formula"),
    [
        (0.3, lambda k: 0.3),
        (bx.Power(0.5, 0.75), lambda k: 0.5 * (k + 1) ** -0.75),
        (bx.Power(2.0, 0.75, 2.0), lambda k: 2 / (k + 2) ** 0.75),
        (bx.Power(3.0, 1.0, shift=0.5), lambda k: 3 / (k + 0.5)),
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


def test_the_scale_of_a_power_decides_its_precision():
    """A measured scale comes in the precision of x, the exponent as it was written."""
    value = bx.Power(jnp.asarray(0.5, jnp.float32), 0.6)(jnp.asarray(3, jnp.int32))
    assert value.dtype == jnp.float32
    np.testing.assert_allclose(value, 0.5 / 4**0.6, rtol=1e-6)


@pytest.mark.parametrize("schedule", [bx.Power(2.0, 0.75, 2.0), bx.Power(0.5, 0.0), bx.OpenLoop(), as_schedule(1.0)])
def test_steps_that_stay_in_the_set_pass(schedule):
    check_fraction("Any", "eta", schedule)


def test_steps_that_leave_the_set_are_refused_or_told():
    for value in (1.01, -0.1, np.nan):
        with pytest.raises(ValueError, match="Any: eta must lie between 0 and 1"):
            check_fraction("Any", "eta", as_schedule(value))
    with pytest.warns(UserWarning, match="up to k = 98 the step eta_k exceeds 1"):
        check_fraction("Any", "eta", bx.Power(100.0, 1.0, 2.0))  # 100 / (98 + 1) > 1 = 100 / (99 + 1)
