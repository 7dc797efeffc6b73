"""Projections by a threshold: many entries, hard numbers, derivatives, and batches."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bilevax as bx
from bilevax import trees
from bilevax.sets.threshold import project_capped, project_simplex

capped, simplex = jax.jit(project_capped), jax.jit(project_simplex)


def check_optimal(p, values, total, cap, slack):
    """The conditions that only the nearest point meets: bounds, the sum, and one threshold for all entries."""
    p, values = (np.asarray(v).astype(np.longdouble) for v in (p, values))
    assert p.min() >= 0 and p.max() <= cap and abs(p.sum() - total) <= len(p) ** 0.5 * slack
    if np.any(p > 0):
        values = values - values[np.argmin(np.where(p > 0, p, np.inf))]  # a common offset would cost digits
    taken = values - p
    assert np.max(taken, where=p < cap, initial=-np.inf) <= np.min(taken, where=p > 0, initial=np.inf) + slack


def hard_numbers(n, rng):
    near = rng.standard_normal(n)
    return {
        "normal": near, "ties": np.round(near), "equal": np.full(n, 0.3), "offset": 1e8 + near,
        "scales": 10.0 ** (8 * near), "one huge": np.r_[1e30, near[1:]], "one tiny": np.r_[-1e30, near[1:]],
        "two levels": np.where(near > 1, 1e6, 0.0),
    }  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("n", [1, 2, 3000])
def test_hard_numbers_meet_the_conditions_of_the_nearest_point(n, dtype):
    eps = float(np.finfo(dtype).eps)
    for values in hard_numbers(n, np.random.default_rng(n)).values():
        values = values.astype(dtype)
        for total, cap in [
            (1.0, 1.0),
            (0.1 * n, 1.0),
            (n, 1.0),
            (0.3 * n, 0.5),
            (0.1 * n, 0.1),
            (0.0, 1.0),
            (0.2, 9.0),
        ]:
            total, cap = dtype(total), dtype(cap)
            p = capped(jnp.asarray(values), jnp.asarray(total), jnp.asarray(cap))
            check_optimal(p, values, total, cap, 8 * eps * max(total, cap))
            check_optimal(simplex(jnp.asarray(values), jnp.asarray(total)), values, total, total, 8 * eps * total)


def test_numbers_of_all_sizes_end_the_search():
    for size in (1e200, 1e300):
        values = jnp.array([size, 1.5, 1.25, -1.0, 1e-200])
        np.testing.assert_allclose(capped(values, jnp.array(2.5), jnp.array(1.0)), [1, 0.875, 0.625, 0, 0], atol=1e-15)
        np.testing.assert_allclose(simplex(-values, jnp.array(1.0)), [0, 0, 0, 1, 0], atol=1e-15)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.floats(-1e12, 1e12), min_size=6, max_size=6), st.floats(0.0, 1.0), st.floats(1e-6, 1e6))
def test_the_sum_is_reached_and_entries_keep_their_order(values, part, cap):
    total = 6 * part * cap
    p = np.asarray(capped(jnp.array(values), jnp.array(total), jnp.array(cap)))
    assert abs(p.sum() - total) <= 1e-14 * max(total, cap) and p.min() >= 0 and p.max() <= cap
    assert np.all(np.diff(p[np.argsort(values, kind="stable")]) >= 0)


@pytest.mark.parametrize("mode", [{}, {"at_most": True}, {"at_least": True}])
def test_modes_of_the_capped_simplex_on_many_entries(mode):
    values = np.random.default_rng(3).standard_normal(2000)
    for total in (50.0, 600.0, 1500.0):
        clipped = np.clip(values, 0, 1)
        inside = (mode == {"at_most": True} and clipped.sum() <= total) or (
            mode == {"at_least": True} and clipped.sum() >= total
        )
        p = bx.CappedSimplex(total, **mode).project(jnp.asarray(values))
        if inside:
            np.testing.assert_array_equal(p, clipped)
        else:
            check_optimal(p, values, total, 1.0, 1e-13)


def test_derivatives_are_those_of_the_projection_in_both_modes():
    values = jnp.array([2.0, 0.9, 0.7, 0.1, -3.0])  # one meets the cap, three lie between the bounds, one is 0
    place, step = (values, jnp.array(2.0), jnp.array(0.8)), 1e-6
    slopes = [jax.jit(jac(project_capped, argnums=(0, 1, 2)))(*place) for jac in (jax.jacfwd, jax.jacrev)]
    moves = [(0, np.eye(5)), (1, np.ones(1)), (2, np.ones(1))]
    for forward, backward, (which, directions) in zip(*slopes, moves, strict=True):
        np.testing.assert_allclose(forward, backward, atol=1e-14)
        for column, direction in zip(np.reshape(forward, (5, -1)).T, directions, strict=True):
            ahead, behind = (
                capped(*(p + s * direction if k == which else p for k, p in enumerate(place))) for s in (step, -step)
            )
            np.testing.assert_allclose(column, np.ravel(ahead - behind) / (2 * step), atol=1e-8)
    np.testing.assert_allclose(jax.jacfwd(lambda r: project_simplex(values, r))(1.2), [0.5, 0.5, 0, 0, 0])


def test_rows_of_a_batch_equal_single_answers():
    rows = jnp.asarray(np.random.default_rng(5).standard_normal((4, 30)) * np.array([[1.0], [1e6], [1e-6], [0.0]]))
    totals, caps = jnp.array([3.0, 1.0, 30.0, 0.5]), jnp.array([0.5, 1.0, 1.0, 0.25])
    for row, total, cap, p in zip(rows, totals, caps, jax.vmap(project_capped)(rows, totals, caps), strict=True):
        np.testing.assert_allclose(p, capped(row, total, cap), atol=1e-15)


@pytest.mark.parametrize(
    "domain", [bx.Simplex(), bx.UnitSimplex(), bx.L1Ball(), bx.CappedSimplex(1.5), bx.KSparse(2)], ids=repr
)
def test_a_number_that_is_lost_is_not_hidden(domain):
    for dtype in (jnp.float64, jnp.float32):
        own = trees.cast(domain, dtype)
        assert np.any(np.isnan(own.project(jnp.array([1.0, np.nan, 3.0, 0.5], dtype))))
