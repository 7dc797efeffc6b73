"""Oracles in numpy and scipy: called directly on values, through a callback inside compiled code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from bilevax.linalg.host_loops import Kernels
from bilevax.sets.contract import ConvexSet
from bilevax.trees import is_concrete

Kernel = Callable[[np.ndarray], tuple[np.ndarray, float]]
_PART = 8192


class HostSet(ConvexSet):
    """A set with an oracle in numpy and scipy."""

    @property
    def kernels(self) -> Kernels:
        return Kernels.CALLBACK


def call(kernel: Kernel, values: Array) -> tuple[Array, Array]:
    """The answer of a kernel to a vector, and its error, in the precision of the vector."""

    def answer(*parts: Any) -> tuple[np.ndarray, np.ndarray]:
        given = np.concatenate([np.asarray(part) for part in parts])
        if not np.all(np.isfinite(given)):  # no exception: the loop then says at which step the numbers were lost
            return np.full_like(given, np.nan), np.full((), np.nan, given.dtype)
        s, error = kernel(given.astype(np.float64))
        return s.astype(given.dtype), np.asarray(error, given.dtype)

    if is_concrete(values):
        s, error = answer(values)
        return jnp.asarray(s), jnp.asarray(error)
    # JAX hands arguments above 100 kB over in a second thread and, on one core, waits for it forever.
    parts = [values[i : i + _PART] for i in range(0, values.size, _PART)]
    like = jax.ShapeDtypeStruct(values.shape, values.dtype), jax.ShapeDtypeStruct((), values.dtype)
    return jax.pure_callback(answer, like, *parts, vmap_method="sequential")


def minimized(kernel: Kernel, direction: Array) -> tuple[Array, Array]:
    """The answer of a linear program to a direction, and its error."""

    def scaled(given: np.ndarray) -> tuple[np.ndarray, float]:
        # Dividing by the largest magnitude keeps tiny and huge directions away from the program's tolerances.
        unit = float(np.max(np.abs(given))) or 1.0
        s, error = kernel(given / unit)
        return s, error * unit

    return call(scaled, direction)
