"""64-bit, strict promotion, warnings as errors (pyproject), and one seeded key."""

import os

# Most of a test is compilation; the code it makes runs for milliseconds and need not be optimised.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true")

import jax  # noqa: E402
import pytest  # noqa: E402

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")
# Tests call the command in this process; it must not fill the cache folder of whoever runs them.
jax.config.update("jax_enable_compilation_cache", False)


@pytest.fixture
def key():
    return jax.random.key(0)


@pytest.fixture(scope="module", autouse=True)
def _forget_compiled_code():
    """Thousands of executables would fill the memory of a test run."""
    yield
    jax.clear_caches()
