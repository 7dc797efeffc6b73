"""64-bit, strict promotion, warnings as errors (pyproject), one seeded key, and compiled code kept on disk."""

import ctypes
import gc
import os
import resource
import sys
from importlib.metadata import version
from pathlib import Path

# Most of a test is compilation; the code it makes runs for milliseconds and need not be optimised.
FLAGS = ["--xla_backend_optimization_level=0", "--xla_llvm_disable_expensive_passes=true"]
if version("jaxlib").startswith("0.10."):  # XLA refuses flags that it does not know
    # Measured: the new emitters of fused loops take three times as long to compile, and one thread is as fast as two.
    FLAGS += ["--xla_cpu_use_fusion_emitters=false", "--xla_cpu_parallel_codegen_split_count=1"]
os.environ.setdefault("XLA_FLAGS", " ".join(FLAGS))
# Threads of BLAS wait for each other by spinning. With as many workers as cores, the eigenvalues of a matrix of
# 288 rows took seconds instead of a hundredth.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import jax  # noqa: E402
import pytest  # noqa: E402

COMPILED = Path(__file__).parents[1] / ".cache" / "compiled"
# Bytes of one process, from which on compiled code is forgotten. To forget it after each module, as we once did, made
# the whole suite a third slower.
TOO_MUCH = min(4e9, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 6)

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")
# One folder for all workers. JAX's limit on its size would lock it, but then every write reads the whole folder.
for name, value in {
    "jax_compilation_cache_dir": str(COMPILED),
    "jax_persistent_cache_min_compile_time_secs": 0.0,
    "jax_persistent_cache_min_entry_size_bytes": -1,
    # Where in the source an operation comes from: an eighth of the time of a test, and nobody reads it.
    "jax_traceback_in_locations_limit": 0,
}.items():
    jax.config.update(name, value)


@pytest.fixture
def key():
    return jax.random.key(0)


def memory_in_use():
    """Bytes of this process that are in memory now."""
    if sys.platform != "linux":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def forget_compiled_code():
    jax.clear_caches()
    gc.collect()
    if sys.platform == "linux":
        ctypes.CDLL("libc.so.6").malloc_trim(0)  # or the memory stays with the process


@pytest.fixture(autouse=True)
def _keep_memory_low():
    yield
    if memory_in_use() > TOO_MUCH:
        forget_compiled_code()
