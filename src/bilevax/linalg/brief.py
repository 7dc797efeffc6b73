"""Compilation for functions that run a few times: most of what a user waits for on a small problem is the compiler."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

_SMALL = 200_000
"""Numbers in the arguments up to which the speed of the code does not matter."""
_LITTLE_EFFORT = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_use_fusion_emitters": False,
    "xla_cpu_parallel_codegen_split_count": 1,
}
"""Measured on kernels of an audit: compiled in a third of the time."""


@functools.cache
def _options() -> dict[str, Any] | None:
    """The options above where this version of XLA on this device knows them."""
    if jax.default_backend() != "cpu":
        return None
    try:
        jax.jit(lambda v: v, compiler_options=_LITTLE_EFFORT).lower(np.float32(0)).compile()
    except Exception:  # XLA names an option that it does not know in its own way
        return None
    return _LITTLE_EFFORT


def brief_jit(
    function: Callable[..., Any], small: int = _SMALL, passes: Callable[..., int] = lambda *args: 1
) -> Callable[..., Any]:
    """`jax.jit` that compiles with little effort where little is computed.

    That is where the numbers in the arguments, times the `passes` of the function over them, are at most `small`.
    """
    thorough = jax.jit(function)
    quick: list[Any] = []

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        leaves = jax.tree.leaves(args)
        if (
            any(isinstance(leaf, jax.core.Tracer) for leaf in leaves)
            or sum(getattr(leaf, "size", 1) for leaf in leaves) * passes(*args) > small
        ):
            return thorough(*args)
        if not quick:
            quick.append(jax.jit(function, compiler_options=_options()))
        return quick[0](*args)

    return call
