"""MultiTaskRegression: promises of scikit-learn, independent answers, verdicts, bad input, and runs that stop."""

import os
import signal
import threading

import jax
import numpy as np
import pytest
import sklearn
from scipy.optimize import minimize
from sklearn.base import clone
from sklearn.linear_model import RidgeCV
from sklearn.metrics import r2_score
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import bilevax as bx
from bilevax.estimators import MultiTaskRegression, load
from bilevax.estimators.limits import Limits
from bilevax.estimators.multitask import estimator
from bilevax.estimators.multitask.learning import learn
from bilevax.estimators.multitask.logistic import LogisticSample
from bilevax.estimators.multitask.options import options_of
from bilevax.estimators.multitask.prior import Prior
from bilevax.estimators.multitask.rows import Rows, moments_by_fold, scaled_rows
from bilevax.runs.interrupt import Interrupt

EXPECTED = {
    "check_sample_weight_equivalence_on_dense_data": "which rows are in which fold depends on how many there are",
}


@pytest.mark.slow  # every shape has to be compiled
@parametrize_with_checks(
    [MultiTaskRegression(n_folds=2, max_steps=3)], expected_failed_checks=lambda estimator: EXPECTED
)
def test_promises_of_scikit_learn(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks(
    [MultiTaskRegression(loss="logistic", n_folds=2, max_steps=3)], expected_failed_checks=lambda estimator: EXPECTED
)
def test_promises_of_scikit_learn_for_classes(estimator, check):
    check(estimator)


def tasks(seed=0, T=4, n=20, d=4, noise=0.3, differ=0.3):
    """Rows of tasks whose coefficients are alike. Other numbers of tasks or features would have to be compiled."""
    rng = np.random.default_rng(seed)
    W = rng.standard_normal(d) + differ * rng.standard_normal((T, d))
    X, task = rng.standard_normal((T * n, d)), np.repeat(np.arange(T), n)
    y = np.sum(X * W[task], axis=1) + noise * rng.standard_normal(T * n)
    return X, y, task, W


@pytest.fixture(scope="module")
def fitted():
    X, y, task, W = tasks(seed=1, n=12, noise=1.0, differ=0.6)
    return MultiTaskRegression().fit(X, y, task=task), X, y, task, W


def test_tasks_that_are_alike_learn_from_each_other(fitted):
    model, _, _, _, W = fitted
    assert model.shares_ and model.status_ == "CONVERGED" and model.result_.certified
    assert np.mean((model.coef_ - W) ** 2) < 0.8 * np.mean((model.own_coef_ - W) ** 2)
    assert np.mean((model.coef_ - W) ** 2) < np.mean((model.pooled_coef_ - W) ** 2)
    assert model.held_out_["model"] < min(model.held_out_["alone"], model.held_out_["pooled"])
    assert np.all((model.pull_ >= 0) & (model.pull_ <= 1)) and np.median(model.pull_) > 0.2
    low, high = model.coef_intervals(0.95)
    assert 0.8 < np.mean((low < W) & (W < high)) <= 1.0
    assert "tasks learn from each other" in str(model) and "links between tasks used" in str(model)


def test_tasks_with_nothing_in_common_stay_alone_and_are_as_good_as_single_ridges():
    rng = np.random.default_rng(1)
    X, task, W = rng.standard_normal((400, 4)), np.repeat(np.arange(4), 100), 3 * rng.standard_normal((4, 4))
    y = np.sum(X * W[task], axis=1) + rng.standard_normal(400)
    model = MultiTaskRegression().fit(X, y, task=task)
    assert not model.shares_ and "nothing to share: each task has a regression of its own" in str(model)
    assert model.choices_[0].taken == "not used" and np.all(model.pull_ == 0)
    alone = np.stack([RidgeCV(np.geomspace(1e-3, 1e3, 30)).fit(X[task == t], y[task == t]).coef_ for t in range(4)])
    assert np.mean((model.coef_ - W) ** 2) < 1.05 * np.mean((alone - W) ** 2)


@pytest.mark.slow
def test_one_task_is_a_ridge_regression():
    X, y, _, _ = tasks(T=1, n=60)
    model = MultiTaskRegression().fit(X, y)
    assert "one task, so that this is a ridge regression" in str(model) and "nothing to share" in str(model)
    ridge = make_pipeline(StandardScaler(), RidgeCV(np.geomspace(1e-4, 1e4, 60))).fit(X, y)
    np.testing.assert_allclose(model.predict(X), ridge.predict(X), atol=0.05)
    assert model.score(X, y) == r2_score(y, model.predict(X))


def test_the_upper_value_is_the_held_out_loss_of_the_model():
    """The losses come from numpy, the value of the run from JAX."""
    X, y, task, _ = tasks()
    rows, units = scaled_rows(X, y, task, np.ones(len(y)), 4, classes=False)
    options, limits = options_of(MultiTaskRegression()), Limits(0.0, None, Interrupt())
    learned = learn(rows, units, options, limits, classes=False, linked=True)
    x = learned.result.x
    sizes = 0.5 * sum(float((x[name] ** 2).sum()) for name in ("own", "shared")) / (3.0**2 * len(y))
    mean = 0.5 * learned.held_out.linked.sum() / len(y)
    np.testing.assert_allclose(mean + sizes, learned.result.audit().ell, rtol=1e-9)
    slopes = learned.blended.W[:, :-1]
    assert np.all(np.diag(learned.blended.products) > np.mean(slopes**2, axis=1))  # what is not known counts


def test_units_of_features_and_target_do_not_matter(fitted):
    model, X, y, task, _ = fitted
    scale, shift = np.array([1e-6, 1.0, 1e5, 3.0]), np.array([5.0, -2.0, 1e3, 0.0])
    again = MultiTaskRegression().fit(X * scale + shift, 1e4 * y + 7, task=task)
    np.testing.assert_allclose(
        again.predict(X * scale + shift, task=task), 1e4 * model.predict(X, task=task) + 7, rtol=1e-4, atol=20
    )
    np.testing.assert_allclose(again.coef_ * scale / 1e4, model.coef_, atol=5e-3)


def test_an_unknown_task_gets_the_regression_of_all_tasks(fitted):
    model, X, _, _, _ = fitted
    expected = X[:5] @ model.pooled_coef_ + model.pooled_intercept_
    np.testing.assert_allclose(model.predict(X[:5], task=np.full(5, 99)), expected)
    np.testing.assert_allclose(model.predict(X[:5], task=["new"] * 5), expected)
    assert not np.allclose(model.predict(X[:5], task=np.zeros(5, int)), expected)
    with pytest.raises(ValueError, match="the model has 4 tasks; give task=, a label for each row"):
        model.predict(X)


def test_labels_of_tasks_may_be_numbers_or_text(fitted):
    model, X, y, task, _ = fitted
    named = MultiTaskRegression().fit(X, y, task=[f"t{t}" for t in task])
    np.testing.assert_allclose(named.coef_, model.coef_)
    np.testing.assert_allclose(model.predict(X, task=task.astype(str)), model.predict(X, task=task))


def test_a_row_of_weight_two_is_the_row_twice():
    X, y, task, _ = tasks()
    weight, folds = 1.0 + (np.arange(len(y)) % 3 == 0), np.arange(len(y)) % 5
    twice = np.repeat(np.arange(len(y)), weight.astype(int))
    weighted = moments_by_fold(scaled_rows(X, y, task, weight, 4, classes=False)[0], folds, 5)
    ones = np.ones(len(twice))
    repeated = scaled_rows(X[twice], y[twice], task[twice], ones, 4, classes=False)[0]
    for one, other in zip(weighted, moments_by_fold(repeated, folds[twice], 5), strict=True):
        for part, other_part in zip(one, other, strict=True):
            np.testing.assert_allclose(part, other_part, atol=1e-12)


def test_a_column_of_two_values_is_scaled_by_their_distance_however_rare_one_is():
    X = np.column_stack([np.arange(100.0), np.arange(100) == 3, np.full(100, 7.0)])
    rows, units = scaled_rows(X, X[:, 0], np.zeros(100, int), np.ones(100), 1, classes=False)
    np.testing.assert_allclose(units.scale, [X[:, 0].std(), 0.5, np.inf])
    np.testing.assert_allclose(rows.A.std(axis=0), [1.0, X[:, 1].std() / 0.5, 0.0, 0.0])
    np.testing.assert_allclose(units.deviation, [1.0, X[:, 1].std() / 0.5, 1.0, 1.0])


def test_tasks_in_other_units_do_no_harm():
    """Pounds, tons and grams: a prior of one size would drown the smallest task."""
    X, y, task, W = tasks(n=60, noise=0.5)
    unit = np.array([1e-3, 1.0, 1e3, 1e-2])
    model = MultiTaskRegression().fit(X, y * unit[task], task=task)
    assert np.mean((model.coef_ / unit[:, None] - W) ** 2) < 0.02


@pytest.mark.slow
def test_a_target_without_noise_is_fitted_closely():
    """Formulas are compared with autodiff, which a noise of nothing would make impossible."""
    X, _, task, W = tasks()
    model = MultiTaskRegression().fit(X, np.sum(X * W[task], axis=1), task=task)
    np.testing.assert_allclose(model.coef_, W, atol=1e-4)


@pytest.mark.slow
def test_tasks_with_different_features_have_nothing_to_share(tmp_path):
    rng = np.random.default_rng(0)
    Xs = [rng.standard_normal((50, d)) for d in (2, 4, 3)]
    ys = [
        X.sum(axis=1) * size + 0.1 * size * rng.standard_normal(50) for X, size in zip(Xs, (1, 100, 0.01), strict=True)
    ]
    model = MultiTaskRegression().fit_tasks(Xs, ys, tasks=["b", "c", "a"])
    assert "nothing to share: no two tasks have a feature in common" in str(model)
    assert model.tasks_.tolist() == ["a", "b", "c"]
    for y, values in zip((ys[2], ys[0], ys[1]), model.predict_tasks([Xs[2], Xs[0], Xs[1]]), strict=True):
        assert r2_score(y, values) > 0.97
    with pytest.raises(ValueError, match="task a needs 3 columns, got a table of shape"):
        model.predict_tasks(Xs)
    again, _ = load(model.save(tmp_path / "model.npz"))
    np.testing.assert_allclose(
        again.predict_tasks([Xs[2], Xs[0], Xs[1]])[1], model.predict_tasks([Xs[2], Xs[0], Xs[1]])[1], rtol=1e-5
    )


def test_tables_with_names_share_the_columns_they_have_in_common():
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    names = [["x", "y", "p"], ["y", "x"], ["x", "y", "q"], ["x", "y"]]
    truth = {"x": 1.0, "y": -2.0, "p": 0.5, "q": 3.0}
    Xs = [pandas.DataFrame(rng.standard_normal((40, len(part))), columns=part) for part in names]
    ys = [sum(truth[name] * X[name] for name in X) + 0.1 * rng.standard_normal(40) for X in Xs]
    model = MultiTaskRegression().fit_tasks(Xs, ys)
    assert model.feature_names_in_.tolist() == ["x", "y", "p", "q"]
    np.testing.assert_allclose(model.coef_[2, [0, 1, 3]], [1, -2, 3], atol=0.1)
    assert model.coef_[1, 2] == pytest.approx(0.0, abs=0.6)  # a feature that the task does not have
    assert all(r2_score(y, values) > 0.98 for y, values in zip(ys, model.predict_tasks(Xs), strict=True))


@pytest.mark.slow
def test_two_classes_are_told_apart_and_probabilities_are_those_of_the_penalised_likelihood():
    X, scores, task, _ = tasks(noise=1.0)
    y = np.where(scores > 0, "yes", "no")
    model = MultiTaskRegression().fit(X, y, task=task)
    assert model.classes_.tolist() == ["no", "yes"] and model.status_ == "CONVERGED"
    assert model.score(X, y, task=task) > 0.7 and "log loss" in str(model)
    chance = model.predict_proba(X, task=task)
    np.testing.assert_allclose(chance.sum(axis=1), 1.0)
    assert np.all((chance[:, 1] > 0.5) == (model.predict(X, task=task) == "yes"))
    with pytest.raises(AttributeError, match="has no attribute 'predict_proba'"):
        MultiTaskRegression(loss="squared").predict_proba(X)


def test_the_most_likely_coefficients_of_classes_agree_with_a_general_minimizer():
    X, scores, task, _ = tasks(T=3, d=2)
    rows = Rows(X, np.sign(scores), task, np.ones(60), 3)
    rng = np.random.default_rng(0)
    prior = Prior(rng.uniform(0.5, 4, (3, 2)), rng.standard_normal((3, 1)), rng.uniform(0.5, 4, (1, 2)))
    found = LogisticSample(rows, rows.weight, None).fitted(prior).coefficients

    def objective(parts):
        s, z = parts[:6].reshape(3, 2), parts[6:].reshape(1, 2)
        W = s + prior.loadings @ z
        loss = np.logaddexp(0, -rows.b * np.sum(X * W[task], axis=1)).sum()
        return loss + 0.5 * np.sum(s**2 / prior.own) + 0.5 * np.sum(z**2 / prior.shared)

    best = minimize(objective, np.zeros(8), tol=1e-12).x
    np.testing.assert_allclose(found, best[:6].reshape(3, 2) + prior.loadings @ best[6:].reshape(1, 2), atol=1e-4)


@pytest.mark.slow
def test_separated_classes_stay_finite():
    X, scores, task, _ = tasks(noise=0.0)
    model = MultiTaskRegression().fit(X, scores > 0, task=task)
    assert np.isfinite(model.coef_).all() and model.score(X, scores > 0, task=task) > 0.95


def test_the_task_is_routed_through_pipelines():
    X, y, task, _ = tasks()
    with sklearn.config_context(enable_metadata_routing=True):
        model = MultiTaskRegression(max_steps=5).set_fit_request(task=True, sample_weight=False)
        model = model.set_predict_request(task=True)
        pipe = make_pipeline(StandardScaler(), model).fit(X, y, task=task)
        scaled = StandardScaler().fit_transform(X)
        direct = clone(model).fit(scaled, y, task=task)
        np.testing.assert_allclose(pipe.predict(X, task=task), direct.predict(scaled, task=task))


@pytest.mark.slow
def test_the_task_is_routed_through_searches():
    X, y, task, _ = tasks()
    with sklearn.config_context(enable_metadata_routing=True):
        model = MultiTaskRegression().set_fit_request(task=True, sample_weight=False)
        model = model.set_predict_request(task=True).set_score_request(task=True)
        cv = KFold(2, shuffle=True, random_state=0)
        search = GridSearchCV(model, {"max_steps": [1, 2]}, cv=cv).fit(X, y, task=task)
        assert search.best_score_ > 0.6
        assert cross_val_score(model, X, y, cv=cv, params={"task": task}).min() > 0.6


def test_a_column_may_hold_the_task():
    pandas = pytest.importorskip("pandas")
    X, y, task, _ = tasks()
    direct = MultiTaskRegression().fit(X, y, task=task)
    frame = pandas.DataFrame(X, columns=list("abcd")).assign(shop=[f"s{t}" for t in task])
    by_name = MultiTaskRegression(task_column="shop").fit(frame, y)
    np.testing.assert_allclose(by_name.coef_, direct.coef_)
    assert by_name.feature_names_in_.tolist() == list("abcd")
    by_position = MultiTaskRegression(task_column=-1).fit(np.column_stack([X, task]), y)
    np.testing.assert_allclose(by_position.predict(np.column_stack([X, task])), direct.predict(X, task=task))
    with pytest.raises(ValueError, match="task_column 'city' is none of the columns 'a', 'b'"):
        MultiTaskRegression(task_column="city").fit(frame, y)
    with pytest.raises(ValueError, match="give task= or task_column=, not both"):
        by_name.fit(frame, y, task=task)


def test_a_second_fit_of_the_same_shapes_compiles_nothing():
    X, y, task, _ = tasks()
    MultiTaskRegression().fit(X, y, task=task)
    compiled = []
    jax.monitoring.register_event_duration_secs_listener(lambda name, *_, **__: compiled.append(name))
    try:
        model = MultiTaskRegression().fit(X[::-1], y[::-1] + 1, task=task)
    finally:
        jax.monitoring.clear_event_listeners()
    assert model.n_iter_ and not [name for name in compiled if "backend_compile" in name]


def test_a_model_comes_back_from_its_file(fitted, tmp_path):
    model, X, y, task, _ = fitted
    again, schema = load(model.save(tmp_path / "model.npz"))
    assert schema is None and again.choices_ == model.choices_ and again.shares_
    np.testing.assert_allclose(again.predict(X, task=task), model.predict(X, task=task), rtol=1e-5, atol=1e-5)
    assert str(again).splitlines()[:3] == str(model).splitlines()[:3]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda a: a | {"y": np.full(80, 3.0)}, "the target is 3 in all 80 rows; there is nothing to learn"),
        (lambda a: a | {"y": np.where(a["y"] > 0, np.nan, 1.0)}, "Input y contains NaN"),
        (
            lambda a: a | {"y": a["y"] * 1e200},
            "MultiTaskRegression: y has numbers above 1e.150, whose squares overflow",
        ),
        (lambda a: a | {"X": a["X"] * [1, 1e200, 1, 1]}, "X has numbers above 1e.150 in column 1"),
        (lambda a: a | {"X": np.where(a["X"] > 2, np.nan, a["X"])}, "Input X contains NaN"),
        (lambda a: a | {"task": [None] * 80}, "task has missing labels; every row belongs to a task"),
        (lambda a: a | {"task": np.r_[np.nan, np.zeros(79)]}, "task has labels that are NaN or infinite"),
        (lambda a: a | {"task": np.zeros(79)}, r"task has shape \(79,\); give one label for each of the 80 rows"),
        (lambda a: a | {"sample_weight": np.zeros(80)}, "Sample weights must contain at least one non-zero number"),
        (lambda a: a | {"y": np.arange(80) % 3, "loss": "logistic"}, r"needs two classes, got 3 classes \(0, 1, 2\)"),
        (lambda a: a | {"y": ["a"] * 80}, r"needs two classes, got 1 class \(a\)"),
        (lambda a: a | {"loss": "cubic"}, "loss must be 'auto', 'squared' or 'logistic', got 'cubic'"),
        (lambda a: a | {"n_folds": 1}, "n_folds must be a whole number of at least 2, got 1"),
        (lambda a: a | {"tol": 0.0}, "tol must be a positive number, got 0.0"),
        (lambda a: a | {"time_limit": -1}, "time_limit must be a positive number of seconds, got -1"),
    ],
)
def test_bad_input_is_named_before_any_work(change, words, monkeypatch):
    X, y, task, _ = tasks()
    given = change({"X": X, "y": y, "task": task})
    of_fit = {name: given.pop(name) for name in ("X", "y", "task", "sample_weight") if name in given}
    monkeypatch.setattr(estimator, "learn", lambda *_, **__: pytest.fail("work has begun"))
    with pytest.raises(ValueError, match=words):
        MultiTaskRegression(**given).fit(**of_fit)


def test_tables_of_tasks_that_do_not_fit_are_named():
    X, y, _, _ = tasks(T=1, n=20)
    for Xs, ys, names, words in (
        ([X], [y, y], None, "a table and a target for each task, got 1 and 2"),
        ([X, X[:5]], [y, y], None, r"task 1 has a table of shape \(5, 4\) and a target of shape \(20,\)"),
        ([X, X * np.nan], [y, y], None, "the table of task 1 has NaN"),
        ([X, X], [y, y], ["a", "a"], "two tasks have the same label"),
    ):
        with pytest.raises(ValueError, match=words):
            MultiTaskRegression().fit_tasks(Xs, ys, names)


def test_odd_rows_do_no_harm():
    """A task with one row, a constant column, a column of huge numbers, tasks of very different sizes."""
    X, y, task, _ = tasks(n=30)
    X[:, 1] = 7.0
    X[:, 2] += 1e7
    keep = (task != 0) | (np.arange(len(y)) == 3)
    model = MultiTaskRegression().fit(X[keep], y[keep], task=task[keep])
    assert model.n_rows_by_task_[0] == 1 and np.isfinite(model.coef_).all()
    assert np.all(model.coef_[:, 1] == 0)
    assert np.isfinite(model.predict(X, task=task)).all()
    np.testing.assert_allclose(model.coef_[0, [0, 2, 3]], model.coef_[1:, [0, 2, 3]].mean(axis=0), atol=0.7)


def test_a_time_limit_keeps_the_model_so_far():
    X, y, task, _ = tasks()
    model = MultiTaskRegression(time_limit=1e-9).fit(X, y, task=task)
    assert model.status_ == "TIME_LIMIT" and model.n_iter_ == 0 and "1e-09 s" in model.message_
    assert model.score(X, y, task=task) > 0.7


def test_ctrl_c_keeps_the_model_so_far(monkeypatch):
    X, y, task, _ = tasks()
    began = threading.Event()
    from bilevax.runs.loop import Run

    def interrupt_first(self, *args, old=Run._look):
        if not began.is_set():
            began.set()
            os.kill(os.getpid(), signal.SIGINT)
        return old(self, *args)

    monkeypatch.setattr(Run, "_look", interrupt_first)
    model = MultiTaskRegression(tol=1e-12).fit(X, y, task=task)
    assert model.status_ == "STOPPED" and model.score(X, y, task=task) > 0.7


def test_ctrl_c_before_the_upper_level_keeps_the_first_model(monkeypatch, tmp_path):
    from bilevax.estimators.multitask import candidates

    X, y, task, _ = tasks()
    whole = candidates.estimate_links

    def interrupted(*arguments, **options):
        monkeypatch.setattr(candidates, "estimate_links", whole)
        os.kill(os.getpid(), signal.SIGINT)
        return whole(*arguments, **options)

    monkeypatch.setattr(candidates, "estimate_links", interrupted)
    model = MultiTaskRegression(checkpoint=tmp_path / "run").fit(X, y, task=task)
    assert model.status_ == "STOPPED" and model.n_iter_ == 0
    assert model.score(X, y, task=task) > 0.7
    assert not (tmp_path / "run").exists()  # a fit with fewer kinds of priors is not one to go on with


def test_a_fit_that_was_stopped_goes_on_from_its_folder_to_the_same_bits(tmp_path):
    X, y, task, _ = tasks()
    options = {"tol": 1e-9, "max_steps": 12}
    whole = MultiTaskRegression(**options).fit(X, y, task=task)
    saved = bx.Checkpoint(tmp_path / "run", seconds=0)
    MultiTaskRegression(tol=1e-9, max_steps=3, checkpoint=saved).fit(X, y, task=task)
    again = MultiTaskRegression(**options, checkpoint=saved).fit(X, y, task=task)
    assert again.n_iter_ == whole.n_iter_ and len(again.trace_) >= len(whole.trace_)
    assert np.array_equal(again.coef_, whole.coef_)
    with pytest.raises(ValueError, match="data"):
        MultiTaskRegression(**options, checkpoint=saved).fit(X + 1e-3 * X**2, y, task=task)
