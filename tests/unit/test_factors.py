"""Factors with estimated ridges: against dense algebra, the best ridge in hindsight, and data without factors."""

import numpy as np
import pytest

from bilevax.estimators import MatrixCompletion, load
from bilevax.estimators.matrix_completion import refit
from bilevax.estimators.matrix_completion.effects import effects_only
from bilevax.estimators.matrix_completion.selection import Blend
from bilevax.linalg import row_ridges
from bilevax.linalg.row_ridges import solve_rows


@pytest.fixture
def rng():
    return np.random.default_rng(3)


def low_rank(shape, rank, noise, observed, seed):
    """A matrix of this rank and scale one, and some of its entries with noise."""
    rng = np.random.default_rng(seed)
    whole = rng.standard_normal((shape[0], rank)) @ rng.standard_normal((rank, shape[1]))
    whole /= whole.std()
    mask = rng.random(shape) < observed
    rows, cols = np.nonzero(mask)
    return whole, mask, (rows, cols, whole[mask] + noise * rng.standard_normal(len(rows)))


def error_outside(model, whole, mask):
    rows, cols = np.nonzero(~mask)
    return float(np.sqrt(np.mean((model.predict(rows, cols) - whole[rows, cols]) ** 2)))


def best_ridge_in_hindsight(whole, mask, entries, rank):
    """Alternating ridge regressions with the true rank, and the ridge that does best on what was not seen."""
    rows, cols, values = entries
    seen = np.zeros(whole.shape)
    seen[rows, cols] = values
    u, s, v = np.linalg.svd(seen)
    left, right = u[:, :rank] * np.sqrt(s[:rank]), v[:rank].T * np.sqrt(s[:rank])
    errors = []
    for ridge in (3, 1, 0.3, 0.1, 0.03, 0.01):
        for _ in range(40):
            for own, other, table, known in ((left, right, seen, mask), (right, left, seen.T, mask.T)):
                normal = np.einsum("ij,jk,jl->ikl", known, other, other) + ridge * np.eye(rank)
                own[:] = np.linalg.solve(normal, (table @ other)[..., None])[..., 0]
        errors.append(np.sqrt(np.mean((left @ right.T - whole)[~mask] ** 2)))
    return min(errors)


@pytest.mark.parametrize("weighted", [False, True])
def test_rows_are_solved_as_by_dense_algebra(weighted, rng):
    counts, k = [3, 0, 5, 1], 4
    starts = np.concatenate([[0], np.cumsum(counts)])
    cols = np.concatenate([rng.permutation(6)[:n] for n in counts])
    targets, design, centre = rng.standard_normal(9), rng.standard_normal((6, k)), rng.standard_normal((4, k))
    weights = rng.uniform(0.5, 2, 9) if weighted else None
    root = rng.standard_normal((2, k, k))
    doubt, shares, ridge = root @ root.transpose(0, 2, 1), rng.uniform(0, 2, (4, 2)), rng.uniform(0.1, 1, k)
    found = solve_rows(starts, cols, targets, weights, design, doubt, shares, ridge, centre)
    for i in range(4):
        part = slice(starts[i], starts[i + 1])
        D, W = design[cols[part]], np.diag(np.ones(counts[i]) if weights is None else weights[part])
        normal = D.T @ W @ D + np.tensordot(shares[i], doubt, 1) + np.diag(ridge)
        wanted = np.linalg.solve(normal, D.T @ W @ targets[part] + ridge * centre[i])
        np.testing.assert_allclose(found[i], wanted if counts[i] else centre[i], rtol=1e-9)


def test_without_numba_the_rows_are_the_same(monkeypatch, rng):
    starts, cols = np.array([0, 4, 9]), rng.integers(0, 5, 9)
    arguments = (starts, cols, rng.standard_normal(9), None, rng.standard_normal((5, 3)), np.zeros((1, 3, 3)),
                 np.zeros((2, 1)), np.ones(3), np.zeros((2, 3)))  # fmt: skip
    compiled = solve_rows(*arguments)
    monkeypatch.setattr(row_ridges, "_compiled", lambda: row_ridges._loop)
    np.testing.assert_allclose(solve_rows(*arguments), compiled, rtol=1e-12)


@pytest.mark.parametrize(("shape", "rank", "observed"), [((100, 60), 3, 0.4), ((60, 80), 5, 0.6)])
@pytest.mark.parametrize("noise", [0.1, 0.6])
def test_where_the_rank_is_low_it_is_as_good_as_the_best_ridge_in_hindsight(shape, rank, observed, noise):
    whole, mask, entries = low_rank(shape, rank, noise, observed, 11)
    model = MatrixCompletion().fit(entries)
    assert model.choices_["taken"] == "factors"
    assert error_outside(model, whole, mask) <= 1.1 * best_ridge_in_hindsight(whole, mask, entries, rank)


def test_without_noise_the_matrix_is_recovered():
    whole, mask, entries = low_rank((100, 60), 3, 0.0, 0.4, 12)
    model = MatrixCompletion().fit(entries)
    assert error_outside(model, whole, mask) <= 1e-4 and model.rank_ <= 4


@pytest.mark.parametrize("kind", ["noise", "rows"])
def test_where_no_rank_helps_effects_are_left(kind, rng):
    rows, cols = np.nonzero(rng.random((80, 50)) < 0.4)
    truth = rng.standard_normal(80)[:, None] * np.ones(50) if kind == "rows" else np.zeros((80, 50))
    values = truth[rows, cols] + 0.5 * rng.standard_normal(len(rows))
    model = MatrixCompletion().fit((rows, cols, values))
    assert model.rank_ == 0 and "alone" in model.choices_["taken"]
    error = np.sqrt(np.mean((model.complete() - truth) ** 2))
    alone = effects_only(rows, cols, values)
    every = np.indices((80, 50)).reshape(2, -1)
    assert error <= 1.01 * np.sqrt(np.mean((alone.predict(*every) - truth.ravel()) ** 2))


def test_values_that_are_far_off_do_little_harm_and_nobody_has_to_say_how_far(rng):
    whole, mask, (rows, cols, values) = low_rank((150, 100), 3, 0.3, 0.5, 13)
    wrong = rng.random(len(values)) < 0.05
    spoiled = values + wrong * rng.choice([-1, 1], len(values)) * (1.5 + rng.exponential(3, len(values)))
    model = MatrixCompletion().fit((rows, cols, spoiled))
    clean = MatrixCompletion().fit((rows[~wrong], cols[~wrong], values[~wrong]))
    assert model.choices_["long_tails"] and not clean.choices_["long_tails"]
    assert error_outside(model, whole, mask) <= 1.15 * error_outside(clean, whole, mask)
    off = np.abs(model.predict(rows, cols) - spoiled)
    ranks = off.argsort().argsort()
    area = (ranks[wrong].sum() - wrong.sum() * (wrong.sum() - 1) / 2) / (wrong.sum() * (~wrong).sum())
    assert area >= 0.99


@pytest.fixture(scope="module")
def mixed():
    """A model of both parts, whatever held-out entries say, and its entries: singular values that fall like 1/k."""
    rng = np.random.default_rng(1)
    left, right = (np.linalg.qr(rng.standard_normal((n, 60)))[0] for n in (100, 60))
    whole = (left / np.arange(1, 61)) @ right.T
    whole /= whole.std()
    rows, cols = np.nonzero(rng.random(whole.shape) < 0.2)
    entries = rows, cols, whole[rows, cols] + 0.3 * rng.standard_normal(len(rows))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(refit, "choose_blend", lambda *_: Blend(0.4, 1.0, 0.0))
        return MatrixCompletion(warm_start=True).fit(entries), entries


def test_a_mix_is_saved_and_continued(mixed, tmp_path):
    model, (rows, cols, values) = mixed
    assert model.choices_["taken"] == "both" and 0 < model.share_ < 1
    again = load(model.save(tmp_path / "model.npz"))[0]
    np.testing.assert_allclose(again.predict(rows, cols), model.predict(rows, cols), rtol=1e-6)
    np.testing.assert_allclose(
        again.fold_in(cols[:9], values[:9])[1], model.fold_in(cols[:9], values[:9])[1], rtol=1e-6
    )
    before = model.predict(rows, cols)
    again.set_params(warm_start=True).fit((rows, cols, values))
    assert again.choices_["taken"] == model.choices_["taken"]
    assert np.sqrt(np.mean((again.predict(rows, cols) - before) ** 2)) < 0.1 * values.std()


def test_a_row_that_is_folded_in_gets_about_what_the_fit_gave_it(mixed):
    model, (rows, cols, values) = mixed
    offs = []
    for row in range(20):
        own = rows == row
        effect, factor = model.fold_in(cols[own], values[own])
        folded = model.mean_ + effect + model.col_effects_ + model.right_ @ factor
        offs.append(
            folded - (model.mean_ + model.row_effects_[row] + model.col_effects_ + model.right_ @ model.left_[row])
        )
    assert np.sqrt(np.mean(np.square(offs))) < 0.35 * values.std()


@pytest.mark.parametrize("effort", ["fast", "best"])
def test_with_more_or_less_effort_the_matrix_is_found_too(effort):
    whole, mask, entries = low_rank((60, 80), 5, 0.3, 0.6, 14)
    model = MatrixCompletion(effort=effort).fit(entries)
    assert error_outside(model, whole, mask) <= 1.1 * best_ridge_in_hindsight(whole, mask, entries, 5)
    assert (model.radius_ == 0) == (effort == "fast") == (not model.path_)
    effect, factor = model.fold_in(entries[1][:9], entries[2][:9])
    assert np.isfinite(effect) and factor.shape == (model.rank_,)
    with pytest.raises(ValueError, match="effort must be one of 'fast', 'default', 'best', got 'much'"):
        MatrixCompletion(effort="much").fit(entries)


def test_a_time_limit_and_the_number_of_components_reach_the_factors(monkeypatch):
    _, _, entries = low_rank((60, 80), 5, 0.3, 0.6, 15)
    assert MatrixCompletion(effort="fast", time_limit=1e-9).fit(entries).rank_ == 0
    asked = []
    monkeypatch.setattr(refit, "find_similarity", lambda pattern, weights, components: asked.append(components))
    MatrixCompletion(effort="fast", n_similarity_components=7).fit(entries)
    MatrixCompletion(effort="best", similarity=2.0, n_similarity_components=8).fit(entries)
    assert asked == [7, 20]
