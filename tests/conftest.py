"""64-bit, strict promotion, warnings as errors (pyproject), and one seeded key."""

import jax
import pytest

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")


@pytest.fixture
def key():
    return jax.random.key(0)
