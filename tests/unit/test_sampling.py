"""Samplers: unbiased, pure, and picky about sizes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bilevax as bx


def least_squares(sampler):
    rng = np.random.default_rng(0)
    data = {"A": jnp.asarray(rng.standard_normal((12, 3))), "a": jnp.asarray(rng.standard_normal(12)), "c": jnp.ones(3)}
    upper = lambda x, y, d: 0.5 * jnp.mean((d["A"] @ y - d["a"]) ** 2) + jnp.sum(d["c"] * x)  # noqa: E731
    lower = lambda x, y, d: 0.5 * jnp.mean((d["A"] @ y - d["a"]) ** 2) + 0.5 * jnp.sum((y - x) ** 2)  # noqa: E731
    return bx.BilevelProblem(upper, lower, bx.Box(-1.0, 1.0), data, sampler=sampler)


@pytest.mark.parametrize("sampler", [bx.Minibatch(3, 12), bx.Minibatch(5, 12), bx.Blocks(4, 12)], ids=repr)
def test_sampled_gradients_are_unbiased(sampler):
    problem = least_squares(sampler)
    x, y, w = jnp.full(3, 0.1), jnp.array([1.0, -2.0, 0.5]), jnp.ones(3)

    def quantities(p):
        return jnp.concatenate([*p.upper_grads(x, y), p.lower_grad(x, y), p.lower_hvp(x, y, w), p.lower_cross(x, y, w)])

    draws = jax.vmap(lambda key: quantities(problem.sample(key)))(jax.random.split(jax.random.key(0), 20_000))
    spread = jnp.std(draws, axis=0) / jnp.sqrt(20_000.0)
    assert np.all(np.abs(jnp.mean(draws, axis=0) - quantities(problem)) <= 4.5 * spread + 1e-12)


def test_only_leaves_with_that_many_rows_are_sampled_and_rows_stay_together():
    data = {"A": jnp.arange(24.0).reshape(12, 2), "a": 2 * jnp.arange(12.0), "other": jnp.ones(5)}
    batch = bx.Minibatch(4, 12).take(data, jnp.array([3, 3, 0, 11]))
    np.testing.assert_array_equal(batch["a"], [6, 6, 0, 22])
    np.testing.assert_array_equal(batch["A"][:, 0], batch["a"])
    assert batch["other"].shape == (5,)


def test_blocks_visit_every_row_once_in_a_pass():
    blocks = bx.Blocks(4, 12)
    rows = [blocks.take(jnp.arange(12), jnp.asarray(i)) for i in range(blocks.batches)]
    np.testing.assert_array_equal(np.sort(np.concatenate(rows)), np.arange(12))


@pytest.mark.slow
def test_parts_are_drawn_independently():
    sampler = bx.PerPart({"train": bx.Minibatch(1, 4), "val": bx.Minibatch(1, 4)})
    data = {"train": jnp.arange(4), "val": jnp.arange(4), "extra": 7}
    batches = [sampler.take(data, sampler.draw(jax.random.key(i), 0)) for i in range(400)]
    pairs = {(int(b["train"][0]), int(b["val"][0])) for b in batches}
    assert len(pairs) == 16 and all(b["extra"] == 7 for b in batches)


def test_same_key_same_batch_and_no_sampler_is_the_problem_itself():
    problem = least_squares(bx.Minibatch(3, 12))
    a, b = problem.sample(jax.random.key(5)), problem.sample(jax.random.key(5))
    np.testing.assert_array_equal(a.data["A"], b.data["A"])
    whole = least_squares(None)
    assert whole.sample(jax.random.key(0)) is whole


@pytest.mark.parametrize("kind", [bx.Minibatch, bx.Blocks])
@pytest.mark.parametrize("size", [0, 13, -1])
def test_impossible_batch_sizes_are_refused(kind, size):
    with pytest.raises(ValueError, match=f"between 1 and the 12 rows of the data, got {size}"):
        kind(size, 12)


def test_blocks_that_do_not_divide_are_refused_with_a_way_out():
    with pytest.raises(
        ValueError, match="12 rows do not divide into blocks of 5; take size=4, drop 2 rows, or use Minibatch"
    ):
        bx.Blocks(5, 12)


@pytest.mark.slow
def test_ibcg_with_batches_comes_near_the_optimum_of_the_full_problem():
    problem = least_squares(bx.Minibatch(6, 12))
    x, y = jnp.zeros(3), jnp.zeros(3)
    state, _ = bx.run(problem, bx.IBCG(bx.Power(0.3, 0.75)), x, y, steps=2000)
    full = least_squares(None)
    best, _ = bx.run(full, bx.IBCG(), x, y, steps=2000)
    ell = lambda state: float(bx.exact_hypergradient(full, state.x, state.y).ell)  # noqa: E731
    start = float(bx.exact_hypergradient(full, x, y).ell)
    assert ell(state) - ell(best) < 0.1 * (start - ell(best))


def test_a_sampler_that_does_not_take_the_step_is_told_so():
    class Old(bx.Blocks):
        def draw(self, key):
            return jnp.asarray(0)

    with pytest.raises(TypeError, match=r"Old.draw takes a key only; define draw\(self, key, k\)"):
        bx.solve(least_squares(Old(4, 12)), bx.SOBA(), jnp.zeros(3), jnp.zeros(3), steps=2)


@pytest.mark.parametrize("kind", [bx.Minibatch, bx.Blocks])
def test_more_rows_than_can_be_numbered_are_refused(kind):
    with pytest.raises(ValueError, match="at most 2.31 - 1 rows can be numbered, got 2147483648"):
        kind(2, 2**31)
