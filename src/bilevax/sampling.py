"""Mini-batches as pure functions of a key: no epoch, no hidden state, nothing to checkpoint.

Losses should be means over rows; a mini-batch gradient is then an unbiased estimate of the full one.
"""

from __future__ import annotations

import abc
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PyTree


class Sampler(eqx.Module):
    """Chooses rows of the data: `take(data, draw(key))` is a mini-batch with the structure of `data`."""

    @property
    @abc.abstractmethod
    def batches(self) -> int:
        """How many batches make one pass over the data."""

    @abc.abstractmethod
    def draw(self, key: Array) -> Any:
        """The index of a random batch."""

    @abc.abstractmethod
    def take(self, data: PyTree, index: Any) -> PyTree:
        """The batch of that index."""


def _rows(data: PyTree, total: int, pick: Any) -> PyTree:
    """Pick rows of every leaf whose first axis has `total` entries; leave the rest alone."""
    return jax.tree.map(lambda v: pick(v) if np.ndim(v) and v.shape[0] == total else v, data)


def _check(name: str, size: int, total: int) -> None:
    if not 1 <= size <= total:
        raise ValueError(f"{name}: the batch size must be between 1 and the {total} rows of the data, got {size}.")


class Minibatch(Sampler):
    """`size` rows drawn independently and uniformly out of `total`."""

    size: int = eqx.field(static=True)
    total: int = eqx.field(static=True)

    def __check_init__(self) -> None:
        _check("Minibatch", self.size, self.total)

    @property
    def batches(self) -> int:
        return -(-self.total // self.size)

    def draw(self, key: Array) -> Int[Array, " size"]:
        return jax.random.randint(key, (self.size,), 0, self.total)

    def take(self, data: PyTree, index: Int[Array, " size"]) -> PyTree:
        return _rows(data, self.total, lambda v: jnp.asarray(v)[index])


class Blocks(Sampler):
    """The data cut into equal consecutive blocks of `size` rows; the index is the block's number."""

    size: int = eqx.field(static=True)
    total: int = eqx.field(static=True)

    def __check_init__(self) -> None:
        _check("Blocks", self.size, self.total)
        if self.total % self.size:
            # A shorter or overlapping last block would give its rows more weight than the others.
            divisors = [d for d in range(1, self.total + 1) if self.total % d == 0]
            nearest = min(divisors, key=lambda d: abs(d - self.size))
            raise ValueError(
                f"Blocks: {self.total} rows do not divide into blocks of {self.size}; "
                f"take size={nearest}, drop {self.total % self.size} rows, or use Minibatch."
            )

    @property
    def batches(self) -> int:
        return self.total // self.size

    def draw(self, key: Array) -> Int[Array, ""]:
        return jax.random.randint(key, (), 0, self.batches)

    def take(self, data: PyTree, index: Int[Array, ""]) -> PyTree:
        return _rows(data, self.total, lambda v: jax.lax.dynamic_slice_in_dim(v, index * self.size, self.size))


class PerPart(Sampler):
    """An independent sampler for each named part of a dictionary, such as training and validation data."""

    parts: dict[str, Sampler]

    @property
    def batches(self) -> int:
        return max(part.batches for part in self.parts.values())

    def draw(self, key: Array) -> dict[str, Any]:
        keys = jax.random.split(key, len(self.parts))
        return {name: part.draw(k) for (name, part), k in zip(sorted(self.parts.items()), keys, strict=True)}

    def take(self, data: PyTree, index: dict[str, Any]) -> PyTree:
        return {**data, **{name: part.take(data[name], index[name]) for name, part in self.parts.items()}}
