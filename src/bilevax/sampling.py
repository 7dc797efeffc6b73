"""Mini-batches as pure functions of a key and the step: no hidden state, nothing to checkpoint.

Losses should be means over rows; a mini-batch gradient is then an unbiased estimate of the full one.
"""

from __future__ import annotations

import abc
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PyTree

from bilevax.randomness import below, permuted


class Sampler(eqx.Module):
    """Chooses rows of the data: `take(data, draw(key, k))` is a mini-batch with the structure of `data`."""

    @property
    @abc.abstractmethod
    def batches(self) -> int:
        """How many batches make one pass over the data."""

    @abc.abstractmethod
    def draw(self, key: Array, k: Int[Array, ""]) -> Any:
        """The index of the batch of step k.

        The key is the same at every step of a run. A step that needs several independent batches has a key for each.
        """

    @abc.abstractmethod
    def take(self, data: PyTree, index: Any) -> PyTree:
        """The batch of that index."""

    def in_passes(self) -> Sampler:
        """The same sampler without replacement, where that is possible."""
        return self


def _rows(data: PyTree, total: int, names: tuple[str, ...] | None, pick: Any) -> PyTree:
    """Pick rows of the named leaves, or of every leaf whose first axis has `total` entries; leave the rest alone."""
    if names is None:
        return jax.tree.map(lambda v: pick(v) if np.ndim(v) and v.shape[0] == total else v, data)
    named = lambda path: _name(path) in names  # noqa: E731
    return jax.tree_util.tree_map_with_path(lambda path, v: pick(v) if named(path) else v, data)


def _name(path: Any) -> str:
    """A leaf by its keys and positions: "train.inputs", "0"."""
    return jax.tree_util.keystr(path, simple=True, separator=".")


def check_rows(sampler: Sampler, data: PyTree) -> None:
    """Refuse data in which the rows to sample are ambiguous, or named but absent."""
    if isinstance(sampler, PerPart):
        for name, part in sampler.parts.items():
            check_rows(part, data[name])
    if not isinstance(sampler, (Minibatch, Blocks)):
        return
    if isinstance(sampler, Blocks) and sampler.batches == 1:
        return  # one block is the data as they are
    kind = type(sampler).__name__
    leaves = {_name(path): np.shape(v) for path, v in jax.tree_util.tree_leaves_with_path(data)}
    if sampler.leaves is not None:
        for name in sampler.leaves:
            if name not in leaves or leaves[name][:1] != (sampler.total,):
                got = f"it has shape {leaves[name]}" if name in leaves else f"data has {', '.join(leaves) or 'no leaf'}"
                raise ValueError(f"{kind}: leaves= names {name!r} with {sampler.total} rows, but {got}.")
        return
    sampled = [name for name, shape in leaves.items() if shape[:1] == (sampler.total,)]
    for name, shape in leaves.items():
        if sampler.total in shape[1:] and sampler.total > 1:
            raise ValueError(
                f"{kind}: it is not clear what the {sampler.total} rows are: {name or 'data'} has shape {shape}, and "
                f"other axes have {sampler.total} entries too. Name the arrays to sample, out of "
                f"{', '.join(map(repr, sampled)) or 'none'}, with leaves=(...)."
            )


def _choose(key: Array, k: Int[Array, ""], size: int, total: int, replacement: bool) -> Int[Array, " size"]:
    """`size` numbers below `total` for step k."""
    if replacement:
        bits = jax.random.bits(jax.random.fold_in(key, k), (2, size), jnp.uint32)
        return below(bits[0], bits[1], total)
    steps = total // size
    epoch = jax.random.fold_in(key, k // steps)
    place = (k % steps * size).astype(jnp.uint32) + jnp.arange(size, dtype=jnp.uint32)
    return permuted(epoch, place, total)


def _names(given: Any) -> tuple[str, ...] | None:
    return given if given is None else (given,) if isinstance(given, str) else tuple(given)


def _check(name: str, size: int, total: int) -> None:
    if total >= 2**31:
        raise ValueError(
            f"{name}: at most 2^31 - 1 rows can be numbered, got {total}; cut the data into several parts."
        )
    if not 1 <= size <= total:
        raise ValueError(f"{name}: the batch size must be between 1 and the {total} rows of the data, got {size}.")


class Minibatch(Sampler):
    """`size` rows out of `total`, each drawn independently and uniformly.

    It samples every array of the data whose first axis has `total` entries, or those named by `leaves`, such as
    `("inputs", "labels")`. Data in which another axis has `total` entries too must be named.

    With `replacement=False` the rows are those of a random permutation, one batch after the other, and of another
    permutation when fewer than `size` rows are left. Each batch then is an unbiased sample, but not given the batches
    before it: the theory of methods with momentum or recursive gradients (SUSTAIN, SRBA, MASOBA, StochasticIBCG) asks
    for independent batches.
    """

    size: int = eqx.field(static=True)
    total: int = eqx.field(static=True)
    leaves: tuple[str, ...] | None = eqx.field(static=True, default=None, converter=_names, kw_only=True)
    replacement: bool = eqx.field(static=True, default=True, kw_only=True)

    def __check_init__(self) -> None:
        _check("Minibatch", self.size, self.total)

    @property
    def batches(self) -> int:
        return -(-self.total // self.size)

    def in_passes(self) -> Minibatch:
        return replace(self, replacement=False)

    def draw(self, key: Array, k: Int[Array, ""]) -> Int[Array, " size"]:
        return _choose(key, k, self.size, self.total, self.replacement)

    def take(self, data: PyTree, index: Int[Array, " size"]) -> PyTree:
        return _rows(data, self.total, self.leaves, lambda v: jnp.asarray(v)[index])


class Blocks(Sampler):
    """The data cut into equal consecutive blocks of `size` rows; the index is the block's number.

    A block is one piece of memory, so that it costs less than as many rows from everywhere. Shuffle the rows once if
    their order means something. With `replacement=False` every block comes once before one comes again.
    """

    size: int = eqx.field(static=True)
    total: int = eqx.field(static=True)
    leaves: tuple[str, ...] | None = eqx.field(static=True, default=None, converter=_names, kw_only=True)
    replacement: bool = eqx.field(static=True, default=True, kw_only=True)

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

    def in_passes(self) -> Blocks:
        return replace(self, replacement=False)

    def draw(self, key: Array, k: Int[Array, ""]) -> Int[Array, ""]:
        return _choose(key, k, 1, self.batches, self.replacement)[0]

    def take(self, data: PyTree, index: Int[Array, ""]) -> PyTree:
        cut = lambda v: jax.lax.dynamic_slice_in_dim(v, index * self.size, self.size)  # noqa: E731
        return _rows(data, self.total, self.leaves, cut)


class PerPart(Sampler):
    """An independent sampler for each named part of a dictionary, such as training and validation data."""

    parts: dict[str, Sampler]

    @property
    def batches(self) -> int:
        return max(part.batches for part in self.parts.values())

    def in_passes(self) -> PerPart:
        return PerPart({name: part.in_passes() for name, part in self.parts.items()})

    def draw(self, key: Array, k: Int[Array, ""]) -> dict[str, Any]:
        keys = jax.random.split(key, len(self.parts))
        return {name: part.draw(own, k) for (name, part), own in zip(sorted(self.parts.items()), keys, strict=True)}

    def take(self, data: PyTree, index: dict[str, Any]) -> PyTree:
        return {**data, **{name: part.take(data[name], index[name]) for name, part in self.parts.items()}}
