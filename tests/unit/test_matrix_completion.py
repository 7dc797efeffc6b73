"""The estimator: truth recovered, every form of input, promises of scikit-learn, what new rows get, bad input."""

import json
import os
import re
import signal

import jax
import numpy as np
import pytest
import scipy.sparse
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.utils.estimator_checks import parametrize_with_checks

import bilevax as bx
from bilevax.estimators import MatrixCompletion, effects_only, load
from bilevax.estimators.matrix_completion import fit as fit_module
from bilevax.estimators.matrix_completion import learning, model_file

HAS_DATA = pytest.mark.skipif("BILEVAX_DATA" not in os.environ, reason="BILEVAX_DATA does not name a data folder")
SHAPE = (120, 90)


def ratings(seed=0, share=0.35):
    """Mean, effects and a matrix of rank two, with noise, seen in random places."""
    rng = np.random.default_rng(seed)
    low_rank = rng.standard_normal((SHAPE[0], 2)) @ rng.standard_normal((2, SHAPE[1]))
    truth = 3 + 0.5 * rng.standard_normal((SHAPE[0], 1)) + 0.5 * rng.standard_normal(SHAPE[1]) + low_rank
    seen = rng.random(SHAPE) < share
    return truth, seen, truth + 0.1 * rng.standard_normal(SHAPE)


TRUTH, SEEN, NOISY = ratings()
TRIPLE = (*np.nonzero(SEEN), NOISY[SEEN])


@pytest.fixture(scope="module")
def model():
    return MatrixCompletion().fit(TRIPLE)


@pytest.fixture(scope="module")
def shrunk():
    return MatrixCompletion(refit=False).fit(TRIPLE)


def rmse(a, b):
    return float(np.sqrt(np.mean((a - b) ** 2)))


def test_what_was_not_seen_is_recovered(model):
    found = model.complete()
    unseen = rmse(found[~SEEN], np.clip(TRUTH, *model.range_)[~SEEN])
    baseline = effects_only(*TRIPLE).predict(*np.nonzero(~SEEN))
    assert unseen < 0.3 < 1.0 < rmse(baseline, TRUTH[~SEEN])
    assert model.similarity_ == 0.0  # places chosen at random tell nothing of tastes
    np.testing.assert_allclose(model.predict(*np.nonzero(~SEEN)), found[~SEEN], atol=1e-9)
    assert model.choices_["taken"] == "factors" and model.rank_ == 2 and model.radius_ == 0


def test_the_shrunk_matrix_alone_recovers_it_too(shrunk):
    assert rmse(shrunk.complete()[~SEEN], TRUTH[~SEEN]) < 0.3 and shrunk.choices_ == {"taken": "shrunk"}
    radii = [row["radius"] for row in shrunk.path_]
    assert len(radii) > 1 and min(radii) <= shrunk.radius_ <= max(radii) and shrunk.rank_ < 90


def test_effects_are_the_ridge_regression_of_a_dense_solver():
    rows, cols, values = TRIPLE
    design = np.zeros((len(values), sum(SHAPE)))
    design[np.arange(len(values)), rows] = design[np.arange(len(values)), SHAPE[0] + cols] = 1
    mean = values.mean()
    best = np.linalg.solve(design.T @ design + 5 * np.eye(sum(SHAPE)), design.T @ (values - mean))
    found = effects_only(rows, cols, values, ridge=5.0)
    np.testing.assert_allclose(np.concatenate([found.rows, found.cols]), best, atol=2e-3)
    # Estimated ridges are close to noise over the variance of the effects; what is low rank is noise here.
    estimated = effects_only(rows, cols, values).ridges
    noise = np.var(NOISY - 3) - 2 * 0.5**2
    assert all(0.5 < ridge / (noise / 0.5**2) < 2 for ridge in estimated)


def test_all_forms_of_input_are_one():
    options = {"radius": 40.0, "similarity": 0.0, "max_steps": 5, "dtype": "float64"}
    a = MatrixCompletion(**options).fit(TRIPLE).complete()
    missing = np.where(SEEN, NOISY, np.nan)
    pairs = np.column_stack(TRIPLE[:2])
    sparse = scipy.sparse.coo_matrix((TRIPLE[2], TRIPLE[:2]), SHAPE)
    for given in ((missing,), (sparse,), (sparse.tocsc(),), (pairs, TRIPLE[2])):
        np.testing.assert_allclose(MatrixCompletion(**options).fit(*given).complete(), a, atol=1e-10)


def test_it_ends_at_the_solution_of_the_joint_problem():
    """Against alternating exact steps in numpy: least squares with ridge effects and a bounded nuclear norm."""
    options = {"radius": 40.0, "similarity": 0.0, "weighted": False, "dtype": "float64", "tol": 1e-12, "max_steps": 400}
    options["ridge"] = 5.0
    model = MatrixCompletion(**options, max_rank=None, clip=False).fit(TRIPLE)
    residual = np.where(SEEN, model.complete() - NOISY, 0.0)
    counts = SEEN.sum(axis=1), SEEN.sum(axis=0)
    X = model.left_ @ model.right_.T
    # Stationary in the effects, up to the factor by which the lower level shrinks the residual...
    assert np.abs(residual.sum(axis=1) / 1.05**2 + 5 * model.row_effects_).max() < 1e-3 * counts[0].max()
    assert np.abs(residual.sum(axis=0) / 1.05**2 + 5 * model.col_effects_).max() < 1e-3 * counts[1].max()
    # ... and in the ball: the gap of Frank and Wolfe vanishes.
    gap = np.sum(residual * X) + 40.0 * np.linalg.norm(residual, 2)
    assert 0 <= gap < 1e-4 * np.sum(residual**2) and np.linalg.norm(X, "nuc") <= 40 * (1 + 1e-9)


def test_outliers_are_let_go_by_the_lower_level():
    rng = np.random.default_rng(9)
    rows, cols, values = TRIPLE
    spoiled = np.where(rng.random(len(values)) < 0.05, values + rng.choice([-30.0, 30.0], len(values)), values)
    options = {"radius": 170.0, "similarity": 0.0, "clip": False}
    errors = [
        rmse(MatrixCompletion(**options, outlier=outlier).fit((rows, cols, spoiled)).complete(), TRUTH)
        for outlier in (None, 2.0)
    ]
    assert errors[1] < 0.5 * errors[0], errors


@pytest.mark.slow
def test_with_outlier_the_radius_is_chosen_as_if_held_out_values_far_off_were_not_there():
    rng = np.random.default_rng(9)
    rows, cols, values = TRIPLE
    wrong = rng.random(len(values)) < 0.05
    spoiled = np.where(wrong, values + rng.choice([-300.0, 300.0], len(values)), values)
    options = {"similarity": 0.0, "clip": False, "outlier": 2.0}
    model = MatrixCompletion(**options).fit((rows, cols, spoiled))
    clean = MatrixCompletion(**options).fit((rows[~wrong], cols[~wrong], values[~wrong]))
    assert rmse(model.complete(), TRUTH) < 1.3 * rmse(clean.complete(), TRUTH)
    assert max(row["rmse"] for row in model.path_) <= 2.0  # no error counts for more than `outlier`


@pytest.mark.slow
def test_held_out_entries_choose_between_the_weighted_and_the_plain_norm():
    rng = np.random.default_rng(0)
    busy = rng.pareto(1.0, 60) + 0.2
    seen = rng.random((60, 40)) < np.minimum(busy / busy.mean() * 0.4, 0.95)[:, None]
    rows, cols = np.nonzero(seen)
    truth = rng.standard_normal((60, 2)) @ rng.standard_normal((2, 40))
    entries = rows, cols, truth[seen] + 0.2 * rng.standard_normal(len(rows))
    options = {"similarity": 0.0, "refit": False}
    errors = {
        weighted: min(row["rmse"] for row in MatrixCompletion(weighted=weighted, **options).fit(entries).path_)
        for weighted in (True, False)
    }
    chosen = MatrixCompletion(**options).fit(entries)
    assert chosen.weighted_ == (errors[True] < errors[False])
    assert min(row["rmse"] for row in chosen.path_) == pytest.approx(min(errors.values()), rel=1e-3)


@HAS_DATA
def test_on_real_ratings_it_beats_tuned_factorisations():
    data = bx.datasets.movielens_100k()
    held = np.random.default_rng(0).random(len(data.values)) < 0.1
    train, test = data.subset(~held), (data.rows[held], data.cols[held])
    assert train.shape[0] == data.shape[0]
    model = MatrixCompletion().fit((data.rows[~held], data.cols[~held], data.values[~held]))
    assert rmse(model.predict(*test), data.values[held]) < 0.885  # tuned cmfrec: 0.890, effects alone: 0.942
    assert model.similarity_ == 2.0


def test_rows_and_columns_never_seen_get_the_effects_that_are_known(model):
    new_row, new_col, neither = model.predict([-1, 0, 999], [0, 999, 999])
    low, high = model.range_
    assert new_row == pytest.approx(np.clip(model.mean_ + model.col_effects_[0], low, high))
    assert new_col == pytest.approx(np.clip(model.mean_ + model.row_effects_[0], low, high))
    assert neither == pytest.approx(model.mean_)


def test_a_new_row_is_placed_by_its_entries(model):
    truth, seen, noisy = ratings()
    again = model.complete(np.where(seen, noisy, np.nan)[:20])
    assert rmse(again, model.complete()[:20]) < 0.15  # rows it knows, told anew
    assert rmse(again[~seen[:20]], truth[:20][~seen[:20]]) < 0.3


def test_recommendations_are_the_best_of_what_is_open(model):
    cols, scores = model.recommend(3, 5)
    open_ = np.nonzero(~SEEN[3])[0]
    predictions = model.complete()[3]
    assert set(cols) <= set(open_) and np.all(np.diff(scores) <= 0)
    assert scores[0] == pytest.approx(predictions[open_].max())
    assert len(model.recommend(3, 10**6)[0]) == len(open_)
    np.testing.assert_array_equal(model.recommend(-1, 3)[0], np.argsort(-model.col_effects_)[:3])


def test_a_saved_model_is_the_same_model(model, tmp_path):
    path = model.save(tmp_path / "model.npz", row_ids=[f"u{i}" for i in range(SHAPE[0])])
    again, row_ids, col_ids = load(path)
    np.testing.assert_allclose(again.complete(), model.complete(), rtol=1e-5, atol=1e-5)  # kept in single precision
    np.testing.assert_array_equal(again.recommend(5)[0], model.recommend(5)[0])
    assert str(again) == str(model).rsplit("\n", 1)[0]  # a file does not say how the fit ended
    assert rmse(again.fit_again(TRIPLE).complete(), model.complete()) < 0.05
    assert row_ids[7] == "u7" and col_ids[7] == 7 and again.get_params() == model.get_params()
    (tmp_path / "other.npz").write_bytes(b"no model")
    with pytest.raises(ValueError, match="is not a model written by bilevax"):
        load(tmp_path / "other.npz")


def test_a_model_does_not_change_with_the_arrays_it_learned_from():
    rows, cols, values = (part.copy() for part in TRIPLE)
    model = MatrixCompletion(effort="fast").fit((rows, cols, values))
    before, best = model.predict(rows, cols), model.recommend(3)[0]
    cols[:], values[:] = 0, 0.0
    np.testing.assert_array_equal(model.recommend(3)[0], best)
    np.testing.assert_array_equal(model.predict(*TRIPLE[:2]), before)


def test_new_ratings_begin_where_the_last_fit_ended():
    first = MatrixCompletion(warm_start=True, refit=False).fit(TRIPLE)
    radius, cold = first.radius_, first.n_steps_
    rows, cols, values = TRIPLE
    more = (np.append(rows, [SHAPE[0], SHAPE[0]]), np.append(cols, [0, 1]), np.append(values, [4.0, 2.0]))
    first.fit(more)
    assert first.radius_ == radius and first.n_steps_ < cold and first.left_.shape[0] == SHAPE[0] + 1
    assert rmse(first.complete()[: SHAPE[0]][~SEEN], TRUTH[~SEEN]) < 0.25


def test_a_second_fit_of_the_same_shape_compiles_nothing():
    options = {"radius": 30.0, "max_steps": 3, "similarity": 1.0}
    MatrixCompletion(**options).fit(TRIPLE)
    compiled = []
    listen = lambda name, _, **__: compiled.append(name) if "backend_compile" in name else None  # noqa: E731
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        rows, cols, values = TRIPLE
        MatrixCompletion(**{**options, "radius": 25.0, "ridge": 2.0, "denoise": 0.1}).fit((rows, cols, -values))
    finally:
        jax.monitoring.clear_event_listeners()
    assert compiled == []


def test_grid_search_over_observations():
    pairs, values = np.column_stack(TRIPLE[:2]), TRIPLE[2]
    folds = KFold(2, shuffle=True, random_state=0)
    search = GridSearchCV(MatrixCompletion(similarity=0.0, max_steps=5), {"radius": [5.0, 100.0]}, cv=folds)
    search.fit(pairs, values)
    assert search.best_params_ == {"radius": 100.0} and search.best_score_ > -1.0
    assert clone(MatrixCompletion(ridge=2.0)).ridge == 2.0


MATRIX = "a matrix is answered by the completed matrix, not by one number for each row"


@pytest.mark.slow
@parametrize_with_checks(
    [MatrixCompletion(max_steps=3)],
    expected_failed_checks=lambda _: {"check_estimator_sparse_array": MATRIX, "check_estimator_sparse_matrix": MATRIX},
)
def test_promises_of_scikit_learn(estimator, check):
    check(estimator)


@pytest.mark.parametrize(
    ("options", "given", "words"),
    [
        ({"weighted": "yes"}, TRIPLE, "weighted must be True, False or 'auto', got 'yes'"),
        ({"radius": "large"}, TRIPLE, "radius must be a number or 'auto', got 'large'"),
        ({"radius": -1.0}, TRIPLE, "radius must be a number above 0, got -1.0"),
        ({"max_rank": 0}, TRIPLE, "max_rank must be a whole number of at least 1"),
        ({"validation_fraction": 0.9}, TRIPLE, "validation_fraction must be .* at most 0.5"),
        ({"dtype": "half"}, TRIPLE, "dtype must be 'float32' or 'float64'"),
        ({}, ([0, 1], [0, 1], [1.0, np.nan]), "the value at position 1 is nan"),
        ({}, ([0, 1], [0], [1.0, 2.0]), r"cols has shape \(1,\) for 2 values"),
        ({}, ([0.5, 1], [0, 1], [1.0, 2.0]), "rows must be whole numbers"),
        ({}, ([0, -1], [0, 1], [1.0, 2.0]), "counted from zero"),
        ({}, ([], [], []), "there is no observed entry"),
        ({"time_limit": 0}, TRIPLE, "time_limit must be a number above 0, got 0"),
        (
            {},
            ([0, 1, 1], [0, 1, 0], [1e25, 2.0, 3.0]),
            "values of size .*e.24 are too large for float32.*dtype='float64'",
        ),
        ({"dtype": "float64"}, ([0, 1], [0, 1], [1e200, 2.0]), "too large for float64.*by a constant\\.$"),
        ({}, (["a", "b"], [0, 1], [1.0, 2.0]), "number the ids first"),
    ],
)
def test_bad_input_is_refused(options, given, words):
    with pytest.raises(ValueError, match=words):
        MatrixCompletion(**options).fit(given)


def test_of_entries_given_twice_the_last_is_kept():
    with pytest.warns(UserWarning, match="1 entries are given more than once"):
        model = MatrixCompletion(radius=1.0, clip=True).fit(([0, 1, 2, 0], [0, 1, 0, 0], [1.0, 2.0, 3.0, 5.0]))
    assert model.range_ == (2.0, 5.0)


# ---- the run behind a fit


def test_a_fit_tells_how_it_ended_and_keeps_its_trace(model, shrunk):
    settled = MatrixCompletion(radius=40.0, similarity=0.0).fit(TRIPLE)
    assert settled.status_ == "STALLED" and "training error settled" in settled.message_
    assert model.status_ == "STALLED" and "the factors settled" in model.message_
    trace = shrunk.trace_
    assert list(trace["step"]) == list(range(shrunk.n_steps_ + 1))
    tried = [row["radius"] for row in shrunk.path_]
    assert set(tried) <= set(trace["radius"]) and trace["radius"][-1] == shrunk.radius_
    assert trace["training_error"][-1] < 0.05 * trace["training_error"][1]
    for row in shrunk.path_:
        errors = trace["held_out_rmse"][trace["radius"] == row["radius"]]
        assert row["rmse"] == errors[~np.isnan(errors)][-1]
    assert np.isnan(trace["held_out_rmse"][-1])  # the last fit holds nothing out


def test_a_step_limit_is_told():
    model = MatrixCompletion(radius=40.0, similarity=0.0, max_steps=2).fit(TRIPLE)
    assert (model.status_, model.message_, model.n_steps_) == ("MAX_STEPS", "all 2 steps were taken", 2)


def test_a_time_limit_keeps_the_model_so_far():
    for options in ({}, {"refit": False}):
        model = MatrixCompletion(time_limit=1e-6, **options).fit(TRIPLE)
        assert model.status_ == "TIME_LIMIT" and "time limit of 1e-06 s" in model.message_
        assert np.all(np.isfinite(model.complete())) and model.n_steps_ <= 2


@pytest.mark.parametrize("at", [1, 12])
def test_ctrl_c_keeps_the_model_so_far(monkeypatch, at):
    columns = fit_module.CompletionFit._columns

    def pressing(self, problem, state):
        if self.steps == at:
            os.kill(os.getpid(), signal.SIGINT)
        return columns(self, problem, state)

    monkeypatch.setattr(fit_module.CompletionFit, "_columns", pressing)
    monkeypatch.setattr(learning, "_ALMOST_ALL", 0.0)  # fit the ball although factors are good enough
    both = MatrixCompletion().fit(TRIPLE)  # factors were chosen before the shrunk matrix was begun
    assert both.status_ == "STOPPED" and both.choices_["taken"] == "factors" and both.n_steps_ == at
    model = MatrixCompletion(refit=False).fit(TRIPLE)
    assert model.status_ == "STOPPED" and model.message_.startswith(f"interrupted at step {at};")
    assert model.n_steps_ == at and model.complete().shape == SHAPE
    # Nothing is begun after it: no radius without a step, and the model is the one of the last radius.
    assert all(row["steps"] > 0 for row in model.path_) and model.path_[-1]["radius"] == model.radius_
    assert model.trace_["radius"][-1] == model.radius_


def test_a_quantity_that_is_not_finite_is_named(monkeypatch):
    real = fit_module.CompletionFit._fit_effects

    def spoiling(self, run):
        real(self, run)
        if self.steps == 1:
            self.effects.move_to(self.effects.rows * np.inf, self.effects.cols)
            self.set_offset()
            run.use(self.problem)

    monkeypatch.setattr(fit_module.CompletionFit, "_fit_effects", spoiling)
    with pytest.warns(RuntimeWarning, match="step 1 made w non-finite"), np.errstate(invalid="ignore"):
        model = MatrixCompletion(radius=40.0, similarity=0.0).fit(TRIPLE)
    assert model.status_ == "NONFINITE" and np.all(np.isfinite(model.left_))


@pytest.mark.slow
def test_verbose_shows_each_radius(capsys, monkeypatch):
    monkeypatch.setattr(learning, "_ALMOST_ALL", 0.0)
    model = MatrixCompletion(verbose=1, similarity=0.0).fit(TRIPLE)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == len(model.choices_["ranks"]) + len(model.path_)
    assert re.fullmatch(r"rank 1: held-out RMSE 0\.\d+", lines[1]) and "radius" in lines[-1]
    MatrixCompletion(verbose=1, radius=40.0, similarity=0.0).fit(TRIPLE)
    assert f"all {len(TRIPLE[0])} entries" in capsys.readouterr().err


# ---- names of version 0.1


def test_old_names_warn_and_work():
    with pytest.warns(FutureWarning, match="alike is now called similarity"):
        old = MatrixCompletion(radius=30.0, max_steps=3, alike=1.0).fit(TRIPLE)
    assert old.similarity_ == 1.0 and old.similarity == "auto"  # the parameters of the user are left alone
    with pytest.warns(FutureWarning, match="alike_ is now called similarity_"):
        assert old.alike_ == 1.0
    with pytest.warns(FutureWarning, match="directions is now called n_similarity_components"):
        MatrixCompletion(radius=30.0, max_steps=3, similarity=1.0, directions=2).fit(TRIPLE)


def test_a_model_file_of_the_first_format_is_read(model, tmp_path):
    with np.load(model.save(tmp_path / "model.npz")) as stored:
        arrays, header = dict(stored), json.loads(str(stored["header"]))
    for new, old in model_file._IN_FORMAT_1.items():
        for part in (arrays, header, header["parameters"]):
            if new in part:
                part[old] = part.pop(new)
    arrays["header"] = np.array(json.dumps({**header, "format": 1}))
    np.savez(tmp_path / "old.npz", **arrays)
    old, _, _ = load(tmp_path / "old.npz")
    np.testing.assert_allclose(old.complete(), model.complete(), atol=1e-5)
    assert old.get_params() == model.get_params() and old.similarity_ == model.similarity_
