"""A linear function of every unit vector: how a matrix is written down that is known by its products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

_AT_ONCE = 32


def at_unit_vectors(product: Callable[[Array], Array], size: int, dtype: Any, *, at_once: int = _AT_ONCE) -> Array:
    """The products with all unit vectors, one in each row.

    Groups of the same size, so that the product is compiled once; each of at most `at_once` vectors, so that memory
    does not grow with the square of what a product needs.
    """
    groups = -(-size // at_once)
    each = -(-size // groups)
    units = jnp.eye(groups * each, size, dtype=dtype).reshape(groups, each, size)
    rows = jax.vmap(product)(units[0])[None] if groups == 1 else jax.lax.map(jax.vmap(product), units)
    return rows.reshape(groups * each, -1)[:size]
