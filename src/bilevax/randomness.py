"""Random numbers that cost next to nothing: a hash of a key and a counter, as a generator of JAX's own kind.

JAX's default generator needs 25 us for the batches of one step, more than the step itself. This one needs less than
one. It is no generator for cryptography. `tests/unit/test_randomness.py` has the tests that it passes.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.random import define_prng_impl
from jaxtyping import Array, Integer, UInt32

Words = UInt32[Array, " 3"]
"""Two words for the stream, and the step."""

_GOLDEN = 0x9E3779B9  # the golden ratio in 32 bits: multiples of it are spread evenly


def _mix(word: Array) -> Array:
    """The finalizer of MurmurHash3: each bit of the result depends on every bit of the word."""
    word = (word ^ (word >> 16)) * jnp.uint32(0x85EBCA6B)
    word = (word ^ (word >> 13)) * jnp.uint32(0xC2B2AE35)
    return word ^ (word >> 16)


def _hash(a: Array, b: Array, counter: Array) -> tuple[Array, Array]:
    """Two words for each counter."""
    inner = _mix((counter + 1) * jnp.uint32(_GOLDEN) ^ b)  # plus one, or zeros would be mixed to zeros
    return _mix(inner + a), _mix((inner ^ a) * jnp.uint32(_GOLDEN) + b)


def _counters(shape: tuple[int, ...]) -> Array:
    return jax.lax.iota(jnp.uint32, math.prod(shape)).reshape(shape)


def _seed(seed: Integer[Array, ""]) -> Words:
    words = jnp.asarray(seed)
    high = (words >> 32).astype(jnp.uint32) if words.dtype.itemsize == 8 else jnp.zeros((), jnp.uint32)
    return jnp.stack([*_hash(high, ~high, words.astype(jnp.uint32)), jnp.zeros_like(high)])


def _fold_in(key: Words, number: Any) -> Words:
    return jnp.stack([*_hash(key[0], key[1], jnp.asarray(number).astype(jnp.uint32)), key[2]])


def _split(key: Words, shape: tuple[int, ...]) -> Array:
    # Other words than those of `fold_in`: split(key)[0] and fold_in(key, 0) must differ.
    words = _hash(~key[0], key[1], _counters(shape))
    return jnp.stack([*words, jnp.broadcast_to(key[2], shape)], axis=-1)


def _random_bits(key: Words, width: int, shape: tuple[int, ...]) -> Array:
    first, second = _hash(*_hash(key[0], ~key[1], key[2]), _counters(shape))
    if width == 64:
        return first.astype(jnp.uint64) << jnp.uint64(32) | second.astype(jnp.uint64)
    return first.astype(jnp.dtype(f"uint{width}"))


COUNTER = define_prng_impl(
    key_shape=(3,),
    seed=_seed,
    split=_split,
    random_bits=_random_bits,
    fold_in=_fold_in,
    name="bilevax_counter",
    tag="bxc",
)
_DTYPE = jax.random.key(0, impl=COUNTER).dtype


def counter_key(key: Array) -> Array:
    """A key of the cheap generator, made from any key of JAX; one that is cheap already stays as it is."""
    if key.dtype == _DTYPE:
        return key
    a = b = jnp.zeros(key.shape, jnp.uint32)
    words = jax.random.key_data(key).astype(jnp.uint32)
    for i in range(words.shape[-1]):
        a, b = _hash(a, b, words[..., i])
    return jax.random.wrap_key_data(jnp.stack([a, b, jnp.zeros_like(a)], axis=-1), impl=COUNTER)


def at_step(key: Array, k: Integer[Array, ""]) -> Array:
    """The key of step k of a run.

    Keys that a step makes of it, by `split` and `fold_in`, remember the step: samplers need it.
    """
    words = jax.random.key_data(counter_key(key))
    return jax.random.wrap_key_data(words.at[2].set(jnp.asarray(k).astype(jnp.uint32)), impl=COUNTER)


def stream_and_step(key: Array) -> tuple[Array, Integer[Array, ""]]:
    """A key that is the same at every step, and the step; the opposite of `at_step`."""
    words = jax.random.key_data(counter_key(key))
    stream = jax.random.wrap_key_data(words.at[..., 2].set(0), impl=COUNTER)
    return stream, words[..., 2].astype(jnp.int32)


def below(bits: Array, more: Array, total: int) -> Array:
    """Whole numbers from 0 to total - 1 from 64 random bits: their product with the total, over 2^64.

    The probabilities of any two numbers differ by at most 2^-64.
    """
    high, low = _product(bits, total)
    carry, _ = _product(more, total)
    return (high + (low + carry < low).astype(jnp.uint32)).astype(jnp.int32)


def _product(word: Array, total: int) -> tuple[Array, Array]:
    """The upper and lower 32 bits of a product with a number below 2^31, without 64-bit integers."""
    a, b = word >> 16, word & 0xFFFF
    c, d = jnp.uint32(total >> 16), jnp.uint32(total & 0xFFFF)
    middle = a * d + (b * d >> 16)  # below 2^32: a, b, d are below 2^16
    rest = b * c + (middle & 0xFFFF)
    return a * c + (middle >> 16) + (rest >> 16), word * jnp.uint32(total)


def permuted(key: Array, place: Array, total: int) -> Array:
    """Where a random permutation of 0 to total - 1, which depends on the key only, puts these places.

    A Feistel network of eight rounds permutes the numbers below the next power of four. What lands beyond the total is
    permuted again.
    """
    half = max(1, math.ceil(math.log2(max(total, 2)) / 2))
    mask, words = jnp.uint32((1 << half) - 1), jax.random.key_data(jax.random.split(counter_key(key), 4))[:, :2].ravel()

    def once(place: Array) -> Array:
        left, right = place >> half, place & mask
        for word in words:
            left, right = right, left ^ (_mix(right * jnp.uint32(_GOLDEN) + word) & mask)
        return left << half | right

    found = jax.lax.while_loop(
        lambda found: jnp.any(found >= total), lambda found: jnp.where(found >= total, once(found), found), once(place)
    )
    return found.astype(jnp.int32)
