"""Completion on the observed entries: the dense iterates, factors that stay true, the oracle against a dense SVD."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from small_completion import COLS, OBSERVED, ROWS, M, P, Q, sides

import bilevax as bx
from bilevax.linalg import low_rank, row_blocks
from bilevax.linalg.sparse import sorted_pattern
from bilevax.problems import matrix_completion, sparse_completion
from bilevax.sets.sampled import AxisWeights, Sampled, SampledNuclearBall, Term

RADIUS = 20.0
rng = np.random.default_rng(7)
FIRST = rng.random(len(ROWS)) < 0.7  # the entries of the upper level
LAST = FIRST & (rng.random(len(ROWS)) < 0.4)  # those of them that the lower level does not have
METHODS = {
    "IBCG": lambda c: bx.IBCG(constants=c),
    "SBFW tracked": lambda c: bx.SBFW("tracked", constants=c),
    "SBFW exact": lambda c: bx.SBFW("exact", constants=c),
    "FSLA": lambda c: bx.FSLA(x_step="fw", constants=c),
    "AIDBiO": lambda c: bx.AIDBiO(x_step="fw", constants=c),
    "F2SA": lambda c: bx.F2SA(x_step="fw", lam=50.0, constants=c),
}


def both(split=False, **options):
    """The same problem dense and on its entries, with oracles as exact as can be."""
    masks = {"omega1": FIRST, "omega2": ~LAST} if split else {}
    dense_masks = [np.zeros((P, Q), bool) for _ in range(2)]
    for mask, part in zip(dense_masks, (FIRST, ~LAST) if split else (slice(None),) * 2, strict=True):
        mask[ROWS[part], COLS[part]] = True
    shuffled = np.random.default_rng(1).permutation(len(ROWS))
    masks = {name: mask[shuffled] for name, mask in masks.items()}
    dense, constants = matrix_completion(M, dense_masks[0], RADIUS, omega2=dense_masks[1], **options)
    parts = (ROWS[shuffled], COLS[shuffled], M[OBSERVED][shuffled])
    observed, same = sparse_completion(*parts, RADIUS, shape=(P, Q), **masks, **options)
    assert float(constants.L_g) == float(same.L_g) and float(constants.C_y_f) == pytest.approx(float(same.C_y_f))
    dense = replace(dense, domain=bx.NuclearBall(RADIUS, tol=1e-13))
    return dense, replace(observed, domain=replace(observed.domain, tol=1e-13, loose=0.0)), constants


@pytest.mark.parametrize(
    ("name", "split", "options"),
    [
        *(pytest.param(n, False, {}, marks=pytest.mark.slow) for n in METHODS),
        pytest.param("IBCG", True, {"data_term": "mean"}, marks=pytest.mark.slow),
        pytest.param("IBCG", True, {}, marks=pytest.mark.slow),
        pytest.param("IBCG", False, {"regularizer": None}, marks=pytest.mark.slow),
    ],
)
def test_every_lmo_method_has_the_iterates_of_the_dense_problem(name, split, options):
    dense, observed, constants = both(split, **options)
    a = bx.solve(dense, METHODS[name](constants), jnp.zeros((P, Q)), jnp.zeros((P, Q)), steps=45)
    b = bx.solve(observed, METHODS[name](constants), steps=45)
    np.testing.assert_allclose(b.x.values, np.asarray(a.x)[OBSERVED], atol=1e-8)
    left, right = b.x.factors()
    np.testing.assert_allclose(left @ right.T, a.x, atol=1e-8)
    for column in ("gap", "upper"):
        np.testing.assert_allclose(b.trace[column], a.trace[column], rtol=1e-6, atol=1e-9)
    one, other = a.audit(), b.audit()
    np.testing.assert_allclose([other.ell, other.gap], [one.ell, one.gap], rtol=1e-8)
    assert bool(observed.domain.contains(b.x))
    assert b.x.factors()[0].shape[1] <= 20 + 32  # merged once: memory is bounded by the rank


def test_a_merge_drops_only_what_it_says():
    known, _ = sorted_pattern(ROWS, COLS, (P, Q))
    left, right = rng.standard_normal((P, 8)), rng.standard_normal((Q, 8))
    x = Sampled(jnp.asarray(known.sample(left, right)), (Term(1.0, left, right),), limit=4, rank=5)
    merged = x.merged()
    sizes = np.linalg.svd(left @ right.T, compute_uv=False)
    assert merged.factors()[0].shape == (P, 5) and merged.lost == pytest.approx(sizes[5:].sum())
    np.testing.assert_allclose(merged.singular_values(), sizes[:5], rtol=1e-10)
    np.testing.assert_array_equal(merged.values, x.values)
    half = merged.move(merged, jnp.asarray(0.5))
    np.testing.assert_allclose(
        half.factors()[0] @ half.factors()[1].T, merged.factors()[0] @ merged.factors()[1].T, atol=1e-12
    )


@pytest.mark.parametrize("shape", [(30, 20), (20, 30), (5, 4), (7, 1)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_leading_pair_is_that_of_a_dense_svd(shape, dtype):
    dense = np.where(np.random.default_rng(2).random(shape) < 0.5, np.random.default_rng(3).standard_normal(shape), 0)
    value, u, v, error = low_rank.top_pair(low_rank.dense(dense.astype(dtype)), np.zeros(min(shape), dtype), 0.0, 500)
    largest = np.linalg.norm(dense, 2)
    precision = 1e-5 if dtype == np.float32 else 1e-12
    assert value == pytest.approx(largest, rel=precision) and largest - value <= error + precision * largest
    np.testing.assert_allclose(u @ dense @ v, largest, rtol=precision)


def test_sides_are_the_matrices_they_stand_for():
    block = rng.standard_normal((P, 3))
    (side, whole), _ = sides()
    np.testing.assert_allclose(side.matvec(block), whole @ block)
    np.testing.assert_allclose(side.rmatvec(block), whole.T @ block)
    np.testing.assert_allclose(side.solve(block), np.linalg.solve(whole, block))


def test_the_oracle_of_a_weighted_ball_is_that_of_a_dense_svd():
    (rows, A), (cols, B) = sides()
    known, _ = sorted_pattern(ROWS, COLS, (P, Q))
    domain = SampledNuclearBall(known, 3.0, rows, cols, tol=1e-12, loose=0.0)
    direction = np.random.default_rng(6).standard_normal(known.size)
    s, memory = domain.lmo(jnp.asarray(direction), domain.start(jnp.zeros(known.size)))
    dense = A.T @ known.matrix(direction).toarray() @ B
    assert float(jnp.vdot(direction, s.values)) == pytest.approx(-3.0 * np.linalg.norm(dense, 2), rel=1e-9)
    left, right = s.factors()
    size = np.linalg.norm(np.linalg.solve(A, left @ right.T) @ np.linalg.inv(B).T, "nuc")
    assert size == pytest.approx(3.0) and bool(domain.contains(s)) and not bool(domain.contains(s, tol=-1.0))
    assert float(memory.error) < 1e-6


def test_products_of_many_entries_do_not_depend_on_how_they_are_divided(monkeypatch):
    known, _ = sorted_pattern(ROWS, COLS, (P, Q))
    values, right, left = rng.standard_normal(known.size), rng.standard_normal((Q, 4)), rng.standard_normal((P, 4))
    whole, sampled = known.matrix(values).toarray(), known.sample(left, right)
    monkeypatch.setattr(row_blocks, "PARALLEL", 10)
    divided = known.operator(values)
    np.testing.assert_allclose(divided.matvec(right), whole @ right)
    np.testing.assert_allclose(divided.rmatvec(left), whole.T @ left)
    np.testing.assert_array_equal(known.sample(left, right), sampled)
    monkeypatch.setattr(row_blocks, "_compiled_dots", lambda: None)  # as without numba
    np.testing.assert_allclose(known.sample(left, right), sampled)


def test_bad_sides_are_refused():
    known, _ = sorted_pattern(ROWS, COLS, (P, Q))
    with pytest.raises(ValueError, match="the scale of rows must be 30 positive"):
        SampledNuclearBall(known, 1.0, AxisWeights(np.ones(3)))
    with pytest.raises(ValueError, match="the vectors of cols must be orthonormal"):
        SampledNuclearBall(known, 1.0, None, AxisWeights(np.ones(Q), np.ones((Q, 2)), np.ones(2)))
    with pytest.raises(ValueError, match="a strength of at least 0"):
        SampledNuclearBall(known, 1.0, None, AxisWeights(np.ones(Q), np.eye(Q)[:, :2], -np.ones(2)))


def test_a_zero_direction_has_an_answer():
    known, _ = sorted_pattern(ROWS, COLS, (P, Q))
    domain = SampledNuclearBall(known, 2.0)
    s, memory = domain.lmo(jnp.zeros(known.size), domain.start(jnp.zeros(known.size)))
    assert bool(domain.contains(s)) and float(memory.error) == 0.0


@pytest.mark.parametrize(
    ("arguments", "options", "words"),
    [
        (([0, 1], [0], [1.0, 2.0]), {}, "must be vectors of one length > 0"),
        (([], [], []), {}, "must be vectors of one length > 0"),
        (([0, 0], [1, 1], [1.0, 2.0]), {}, "an entry is there twice"),
        (([0, 5], [1, 1], [1.0, 2.0]), {"shape": (3, 3)}, r"entries up to \(6, 2\) do not fit"),
        (([0, -1], [1, 1], [1.0, 2.0]), {}, "do not fit"),
        (([0, 1], [1, 1], [1.0, np.nan]), {}, "NaN or infinite"),
        (([0, 1], [1, 1], [1.0, 2.0]), {"omega1": [1, 0]}, "must be boolean masks of length 2"),
        (([0, 1], [1, 1], [1.0, 2.0]), {"regularizer": "l1"}, "not differentiable"),
    ],
)
def test_bad_entries_are_refused(arguments, options, words):
    with pytest.raises(ValueError, match=words):
        sparse_completion(*arguments, 1.0, **options)
