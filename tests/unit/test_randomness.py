"""The cheap generator: tests that a bad hash fails, with thresholds that a good one passes with probability 0.9999."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import bilevax as bx
from bilevax.randomness import COUNTER, at_step, below, counter_key, permuted, stream_and_step

RARE = 1e-5
KEY = counter_key(jax.random.key(0))


def bits_over_steps(key, steps, lanes=1):
    """The bits of `lanes` numbers at each step."""
    draw = jax.jit(jax.vmap(lambda k: jax.random.bits(at_step(key, k), (lanes,), jnp.uint32)))
    return np.asarray(draw(jnp.arange(steps)))


def uniform(bits):
    """The probability of values that spread as unevenly over 256 cells, by the upper and by the lower eight bits."""
    counts = (np.bincount(part.ravel(), minlength=256) for part in (bits >> 24, bits & 255))
    return min(scipy.stats.chisquare(count).pvalue for count in counts)


@pytest.mark.parametrize("seed", [0, 1, 2**31 - 1])
def test_bits_are_uniform_over_steps_lanes_and_streams(seed):
    key = counter_key(jax.random.key(seed))
    assert uniform(bits_over_steps(key, 100_000)) > RARE
    assert uniform(np.asarray(jax.random.bits(key, (100_000,), jnp.uint32))) > RARE
    streams = jax.vmap(lambda key: jax.random.bits(key, (), jnp.uint32))(jax.random.split(key, 100_000))
    assert uniform(np.asarray(streams)) > RARE
    folded = jax.vmap(lambda i: jax.random.bits(jax.random.fold_in(key, i), (), jnp.uint32))(jnp.arange(100_000))
    assert uniform(np.asarray(folded)) > RARE


def test_neighbours_are_independent():
    bits = bits_over_steps(KEY, 50_000, lanes=4)
    three = [bits_over_steps(key, 50_000)[:, 0] for key in jax.random.split(KEY, 3)]
    pairs = [(bits[:-1, 0], bits[1:, 0]), (bits[:, 0], bits[:, 1]), (three[0], three[1]), (three[1], three[2])]
    pairs += [(bits[:-64, 1], bits[64:, 1]), (bits[:, 0], three[0])]
    for a, b in pairs:
        for shift in (0, 28):
            table = np.zeros((16, 16))
            np.add.at(table, (a >> shift & 15, b >> shift & 15), 1)
            assert scipy.stats.chi2_contingency(table).pvalue > RARE
        flipped = np.unpackbits((a ^ b).view(np.uint8)).reshape(-1, 32).mean(axis=0)
        assert np.abs(flipped - 0.5).max() < 5 * 0.5 / np.sqrt(len(a))


def test_keys_do_not_meet():
    """Among 100,000 keys of 64 bits no two are equal, whichever way they were made."""
    number = jnp.arange(100_000)
    made = [
        jax.random.split(KEY, 100_000),
        jax.vmap(lambda i: jax.random.fold_in(KEY, i))(number),
        jax.vmap(lambda i: counter_key(jax.random.key(i)))(number),
        jax.vmap(lambda i: jax.random.key(i, impl=COUNTER))(number),
    ]
    words = np.concatenate([np.asarray(jax.random.key_data(keys))[:, :2] for keys in made])
    assert len(np.unique(words, axis=0)) == len(words)


def test_any_key_becomes_a_cheap_one_and_stays_it():
    assert counter_key(KEY) is KEY
    for impl in ("threefry2x32", "rbg"):
        a, b = (counter_key(jax.random.key(seed, impl=impl)) for seed in (0, 1))
        assert a.dtype == KEY.dtype and not np.array_equal(jax.random.key_data(a), jax.random.key_data(b))


def test_the_step_stays_with_the_keys_that_are_made_of_one():
    key = at_step(KEY, 7)
    for made in (key, jax.random.split(key)[1], jax.random.fold_in(key, 3)):
        stream, k = stream_and_step(made)
        assert int(k) == 7 and int(stream_and_step(stream)[1]) == 0
    # The stream is the same at every step, the numbers are not.
    streams = [stream_and_step(jax.random.split(at_step(KEY, k))[0])[0] for k in (1, 2)]
    assert np.array_equal(*map(jax.random.key_data, streams))
    draws = [jax.random.bits(at_step(KEY, k), (4,), jnp.uint32) for k in (1, 2)]
    assert not np.any(draws[0] == draws[1])


def test_normal_numbers_are_normal():
    numbers = jax.vmap(lambda k: jax.random.normal(at_step(KEY, k), (4,)))(jnp.arange(20_000))
    assert scipy.stats.kstest(np.asarray(numbers).ravel(), "norm").pvalue > RARE


@pytest.mark.parametrize("total", [1, 2, 3, 1000, 65_536, 70_001, 10**9, 2**31 - 1])
def test_numbers_below_a_total_are_the_product_over_two_to_the_64(total):
    rng = np.random.default_rng(total)
    high = np.append(rng.integers(0, 2**32, 200, dtype=np.uint32), np.uint32(2**32 - 1))
    low = np.append(rng.integers(0, 2**32, 200, dtype=np.uint32), np.uint32(2**32 - 1))
    expected = [(int(a) << 32 | int(b)) * total >> 64 for a, b in zip(high, low, strict=True)]
    np.testing.assert_array_equal(below(jnp.asarray(high), jnp.asarray(low), total), expected)


@pytest.mark.parametrize("total", [1, 2, 3, 17, 64, 1000, 4097])
def test_a_permutation_meets_every_number_once(total):
    for seed in range(5):
        found = permuted(jax.random.key(seed), jnp.arange(total, dtype=jnp.uint32), total)
        np.testing.assert_array_equal(np.sort(found), np.arange(total))


def test_permutations_are_spread_evenly():
    keys = jax.random.split(KEY, 20_000)
    found = np.asarray(jax.vmap(lambda key: permuted(key, jnp.arange(10, dtype=jnp.uint32), 10))(keys))
    for place in range(10):
        assert scipy.stats.chisquare(np.bincount(found[:, place], minlength=10)).pvalue > RARE
    pairs = np.bincount(found[:, 0] * 10 + found[:, 1], minlength=100)
    assert scipy.stats.chisquare(pairs[pairs > 0]).pvalue > RARE and np.sum(pairs > 0) == 90


@pytest.mark.parametrize(
    ("sampler", "steps"), [(bx.Minibatch(4, 14, replacement=False), 3), (bx.Minibatch(5, 5, replacement=False), 1)]
)
def test_without_replacement_no_row_comes_twice_in_a_pass(sampler, steps):
    passes = []
    for begin in (0, steps, 7 * steps):
        rows = np.concatenate([sampler.draw(KEY, jnp.asarray(k)) for k in range(begin, begin + steps)])
        assert len(set(rows.tolist())) == len(rows) == steps * sampler.size
        passes.append(tuple(rows))
    assert len(set(passes)) == 3


def test_blocks_without_replacement_are_all_met_in_a_pass():
    blocks = bx.Blocks(2, 14, replacement=False)
    for begin in (0, 7, 70):
        assert {int(blocks.draw(KEY, jnp.asarray(k))) for k in range(begin, begin + 7)} == set(range(7))


def test_a_step_far_along_has_batches_too():
    for sampler in (bx.Minibatch(3, 12), bx.Minibatch(3, 12, replacement=False)):
        index = sampler.draw(KEY, jnp.asarray(2**31 - 1, jnp.int32))
        assert np.all((index >= 0) & (index < 12))
