"""Factors with estimated ridges: against dense algebra, the best ridge in hindsight, and data without factors."""

import re
import subprocess
import sys

import numpy as np
import pytest

from bilevax.estimators import MatrixCompletion, load
from bilevax.estimators.matrix_completion import entries as forms
from bilevax.estimators.matrix_completion import refit, selection
from bilevax.estimators.matrix_completion.baseline import effects_only
from bilevax.estimators.matrix_completion.entries import Entries, valid_entries
from bilevax.estimators.matrix_completion.observed import few_rows, observe
from bilevax.estimators.matrix_completion.selection import Blend, choose_blend, clearly_better


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


def test_entries_are_sorted_both_ways_with_those_held_out_last(rng):
    mask = rng.random((9, 7)) < 0.6
    mask[4] = False
    rows, cols = np.nonzero(mask)
    entries = Entries(rows, cols, rng.standard_normal(len(rows)) * 3 + 100, (9, 7))
    held_out = rng.random(len(rows)) < 0.3
    observed = observe(entries, held_out)
    whole = np.full((9, 7), np.nan)
    whole[rows, cols] = entries.values
    for lines, table in ((observed.by_row, whole), (observed.by_col, whole.T)):
        for i in range(len(table)):
            part = slice(lines.starts[i], lines.ends[i])
            values = observed.centre + observed.scale * lines.values[part]
            np.testing.assert_allclose(values, table[i, lines.index[part]])
            assert sorted(lines.index[part]) == np.nonzero(~np.isnan(table[i]))[0].tolist()
    held = observed.held_out
    np.testing.assert_array_equal(held.rows, rows[held_out])
    np.testing.assert_array_equal(held.cols, cols[held_out])
    np.testing.assert_allclose(held.values, entries.values[held_out])
    assert observed.count == np.sum(~held_out) and observed.all_learned().count == len(rows)
    whole_ones = np.zeros((9, 7))
    whole_ones[rows[~held_out], cols[~held_out]] = 1
    operator = observed.operator(observed.ones(float))
    np.testing.assert_allclose(operator.matvec(np.eye(7)), whole_ones)
    np.testing.assert_allclose(operator.rmatvec(np.eye(9)), whole_ones.T)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "rank", "observed"), [pytest.param((100, 60), 3, 0.4, marks=pytest.mark.slow), ((60, 80), 5, 0.6)]
)
@pytest.mark.parametrize("noise", [pytest.param(0.1, marks=pytest.mark.slow), 0.6])
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
    np.testing.assert_allclose(again.predict(rows, cols), model.predict(rows, cols), atol=1e-5)  # single precision
    np.testing.assert_allclose(
        again.fold_in(cols[:9], values[:9])[1], model.fold_in(cols[:9], values[:9])[1], atol=1e-4
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


@pytest.mark.parametrize("effort", ["fast", pytest.param("best", marks=pytest.mark.slow)])
def test_with_more_or_less_effort_the_matrix_is_found_too(effort):
    whole, mask, entries = low_rank((60, 80), 5, 0.3, 0.6, 14)
    model = MatrixCompletion(effort=effort).fit(entries)
    assert error_outside(model, whole, mask) <= 1.1 * best_ridge_in_hindsight(whole, mask, entries, 5)
    assert (effort == "fast") == (not model.path_) and model.choices_["taken"] == "factors" and model.radius_ == 0
    effect, factor = model.fold_in(entries[1][:9], entries[2][:9])
    assert np.isfinite(effect) and factor.shape == (model.rank_,)
    with pytest.raises(ValueError, match="effort must be one of 'fast', 'default', 'best', got 'much'"):
        MatrixCompletion(effort="much").fit(entries)


@pytest.mark.slow
def test_a_time_limit_and_the_number_of_components_reach_the_factors(monkeypatch):
    _, _, entries = low_rank((60, 80), 5, 0.3, 0.6, 15)
    assert MatrixCompletion(effort="fast", time_limit=1e-9).fit(entries).rank_ == 0
    asked = []
    monkeypatch.setattr(selection, "features_of", lambda observed, components, journal: asked.append(components))
    MatrixCompletion(effort="fast", n_similarity_components=7).fit(entries)
    MatrixCompletion(effort="best", similarity=2.0, n_similarity_components=8).fit(entries)
    assert asked == [7, 8]


# ---- what was chosen, and where


def test_on_a_scale_noise_with_long_tails_has_to_predict_better(rng):
    """Where some values are far below the others, as on ratings from 1 to 10, a median is likelier than a mean."""
    rows, cols = np.nonzero(rng.random((150, 100)) < 0.4)
    bad = rng.random(len(rows)) < 0.12
    values = np.where(bad, rng.integers(1, 4, len(rows)), rng.integers(8, 11, len(rows))).astype(float)
    model = MatrixCompletion(effort="fast").fit((rows, cols, values))
    assert model.range_ == (1.0, 10.0) and not model.choices_["long_tails"]
    expected = np.mean(values)
    assert abs(model.complete().mean() - expected) < 0.1  # not the median, which is far above


def test_a_large_matrix_begins_with_few_rows(monkeypatch):
    whole, mask, entries = low_rank((400, 60), 3, 0.3, 0.5, 16)
    at_once = error_outside(MatrixCompletion(effort="fast").fit(entries), whole, mask)
    monkeypatch.setattr(refit, "_FEW", 3000)
    monkeypatch.setattr(refit, "FEW_ENTRIES", 0)
    model = MatrixCompletion(effort="fast").fit(entries)
    assert error_outside(model, whole, mask) < 1.05 * at_once
    # The ranks of few rows come first, then those of all of them, which begin where the few have ended.
    ranks = [row["rank"] for row in model.choices_["ranks"]]
    all_rows = ranks[len(ranks) - 1 - ranks[::-1].index(0) :]
    assert all_rows[0] == 0 and all_rows[1] >= 2
    choices = model.choices_
    assert error_outside(model.fit_again(entries), whole, mask) < 1.05 * at_once
    assert model.choices_ == choices


def test_few_rows_keep_the_entries_of_the_rows_that_are_drawn(rng):
    for shape in ((30, 8), (8, 30)):
        rows, cols = np.nonzero(rng.random(shape) < 0.7)
        entries = Entries(rows, cols, 100.0 * rows + cols, shape)
        part, held_out = few_rows(entries, rows + cols == 5, 0.5)
        axis = int(shape[1] > shape[0])
        assert part.shape[1 - axis] == 8 and 0 < part.shape[axis] < 30
        # The values tell where an entry comes from.
        origin = np.divmod(part.values.astype(int), 100)
        drawn = np.unique(origin[axis])
        np.testing.assert_array_equal(drawn[part[axis]], origin[axis])
        np.testing.assert_array_equal(part[1 - axis], origin[1 - axis])
        assert len(part.values) == np.sum(np.isin(entries[axis], drawn))
        np.testing.assert_array_equal(held_out, origin[0] + origin[1] == 5)


@pytest.mark.slow
def test_units_and_origin_of_the_values_do_not_matter():
    whole, mask, (rows, cols, values) = low_rank((80, 60), 3, 0.3, 0.5, 17)
    first = MatrixCompletion().fit((rows, cols, values))
    for scale, shift, tol in ((1e-9, 0.0, 1e-6), (1e6, 0.0, 1e-6), (1e-3, 5.0, 0.2)):  # a shift needs effects
        model = MatrixCompletion(dtype="float64").fit((rows, cols, scale * values + shift))
        assert model.choices_["taken"] == first.choices_["taken"]
        np.testing.assert_allclose((model.complete() - shift) / scale, first.complete(), atol=tol)


def test_a_fit_of_factors_does_not_load_jax():
    code = """
import sys, numpy as np
from bilevax.estimators import MatrixCompletion
rng = np.random.default_rng(0)
rows, cols = np.nonzero(rng.random((30, 20)) < 0.5)
MatrixCompletion(effort="fast").fit((rows, cols, rng.standard_normal(len(rows)))).predict([0], [1])
assert "jax" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_model_says_what_it_is_and_how_sure_that_is():
    _, _, entries = low_rank((100, 60), 3, 0.3, 0.5, 18)
    assert str(MatrixCompletion()) == repr(MatrixCompletion())
    words = str(MatrixCompletion(effort="fast").fit(entries))
    assert "of a 100 x 60 matrix from" in words and "3 factors" in words
    assert re.search(r"held out +RMSE 0\.\d+ on \d+ entries \(effects alone 1\.\d+, factors 0\.\d+\)", words)
    assert re.search(r"similarity of rows and columns not used; RMSE lower .* \(standard error \S+\)", words)
    alone = str(MatrixCompletion(radius=5.0).fit(entries))
    assert "in a ball of radius 5" in alone and "held out" not in alone


def test_sorted_entries_are_not_copied_and_others_are_sorted(rng):
    rows, cols = np.nonzero(rng.random((20, 15)) < 0.5)
    values = rng.standard_normal(len(rows))
    kept = valid_entries(rows, cols, values)
    assert kept.rows is rows and kept.cols is cols and kept.values is values
    order = rng.permutation(len(rows))
    found = valid_entries(rows[order], cols[order], values[order])
    for a, b in zip(found[:3], (rows, cols, values), strict=True):
        np.testing.assert_array_equal(a, b)


def test_something_is_added_only_if_it_is_better_by_a_standard_error(rng):
    truth, noise = rng.standard_normal(4000), 0.5 * rng.standard_normal((2, 4000))
    both = choose_blend(truth + noise[0], truth + noise[1], truth)
    assert 0.3 <= both.share <= 0.7 and both.rmse == pytest.approx(0.5 / np.sqrt(2), rel=0.05)
    # A gain on forty entries that comes from a single one is chance.
    few, errors = np.zeros(40), np.full(40, 1.0)
    luckier = errors.copy()
    luckier[:2] = 0.0, 1.2
    assert np.mean(luckier**2) < 0.99 * np.mean(errors**2) and not clearly_better(luckier**2, errors**2)
    assert choose_blend(few + luckier, few + errors, few).share == 1.0
    # Where the middle is usual, it takes a clear difference to leave it.
    assert choose_blend(few + luckier, few + errors, few, usual=0.5).share == 0.5
    assert choose_blend(truth + 5 * noise[0], truth + noise[1], truth, usual=0.5).share > 0.8


def test_many_entries_stay_in_their_order_and_the_model_knows_where_they_are(rng, monkeypatch):
    whole, mask, (rows, cols, values) = low_rank((120, 80), 3, 0.3, 0.5, 19)
    at_once = error_outside(MatrixCompletion(effort="fast").fit((rows, cols, values)), whole, mask)
    monkeypatch.setattr(forms, "MANY", 1000)
    order = rng.permutation(len(rows))
    given = rows[order], cols[order], values[order]
    kept = valid_entries(*given)
    assert all(np.shares_memory(a, b) for a, b in zip(kept[:3], given, strict=True))
    model = MatrixCompletion(effort="fast").fit(given)
    assert error_outside(model, whole, mask) < 1.05 * at_once
    np.testing.assert_array_equal(np.sort(model.recommend(5, 80)[0]), np.nonzero(~mask[5])[0])
    np.testing.assert_array_equal(model.row_counts_, mask.sum(axis=1))
    np.testing.assert_array_equal(model.col_counts_, mask.sum(axis=0))
    with pytest.warns(UserWarning, match="1 entries are given more than once"):
        twice = valid_entries(*(np.append(part, part[:1]) for part in given))
    assert len(twice.values) == len(values) and np.all(np.diff(twice.rows) >= 0)
    ball, shuffled = (MatrixCompletion(radius=30.0).fit(one).complete() for one in ((rows, cols, values), given))
    np.testing.assert_allclose(ball, shuffled)  # a shrunk matrix sorts them first
