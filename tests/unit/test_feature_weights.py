"""FeatureWeights: answers of other solvers, promises of scikit-learn, limits, checkpoints, bad input."""

import os
import pickle
import signal

import jax
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import bilevax as bx
from bilevax.estimators import FeatureWeights, load
from bilevax.estimators.feature_weights import stages
from bilevax.estimators.feature_weights.kept import Kept
from bilevax.estimators.feature_weights.losses import Logistic, Softmax, Squared
from bilevax.estimators.feature_weights.regression import Design, Regression
from bilevax.estimators.feature_weights.subspace import evaluate, reduced
from bilevax.estimators.folds import fold_numbers
from bilevax.estimators.magnitudes import check_target
from bilevax.problems.weight_profile import weight_profile


def table(kind="logistic", n=200, d=12, seed=0):
    """Three useful features; two are in the first columns of a group."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)) * np.geomspace(0.5, 2, d)
    scores = X[:, 0] * 2 - X[:, 1] * 1.5 + 0.7 * X[:, 5]
    if kind == "squared":
        return X, 3 + 2 * scores + rng.standard_normal(n)
    if kind == "logistic":
        return X, np.where(scores + rng.logistic(size=n) > 0, "yes", "no")
    other = np.stack([scores, X[:, 2] - scores, 0.5 * X[:, 5]], axis=1) + rng.gumbel(size=(n, 3))
    return X, np.argmax(other, axis=1)


KINDS = ["squared", "logistic", "softmax"]
FITTED = [
    "logistic",
    *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("squared", "softmax")),
]  # each has to be compiled


@pytest.fixture(scope="module")
def models():
    class Models(dict):
        """Each is fitted when a test first asks for it: a worker need not compile for all."""

        def __missing__(self, kind):
            self[kind] = FeatureWeights().fit(*table(kind))
            return self[kind]

    return Models()


# ---- against other solvers


@pytest.mark.parametrize("kind", FITTED)
def test_plain_l2_on_transformed_features_is_the_same_model(models, kind):
    X, y = table(kind)
    A = models[kind].transform(X)
    plain = Ridge(alpha=1.0) if kind == "squared" else LogisticRegression(C=1.0, tol=1e-10, max_iter=5000)
    plain.fit(A, y)
    scores = plain.predict(A) if kind == "squared" else plain.decision_function(A)
    own = models[kind].predict(X) if kind == "squared" else models[kind].decision_function(X)
    np.testing.assert_allclose(own, scores, atol=2e-4)
    np.testing.assert_allclose(models[kind].coef_ * models[kind].weights_ ** 0.5, plain.coef_, atol=1e-4)


def parts_of(kind, n=150):
    """The regressions of five folds, a profile with steps, and fits at one point."""
    X, y = table(kind, n)
    loss = {"squared": Squared(), "logistic": Logistic(), "softmax": Softmax()}[kind]
    labels = np.unique(y, return_inverse=True)[1]
    T = np.eye(3)[labels] if kind == "softmax" else (y - y.mean() if kind == "squared" else labels * 1.0)[:, None]
    folds = fold_numbers(labels if kind != "squared" else np.zeros(n, int), 5, 0)
    design = Design(X)
    rows = [np.where(folds == k, 0.0, 1.0) for k in range(5)]
    regressions = [Regression(design, loss, T, part) for part in (*rows, np.ones(n))]
    made = stages.Folds(regressions, folds, np.full(n, 1 / n))
    flat = stages.flat_profile(made, np.full(X.shape[1], 1.0))
    rng = np.random.default_rng(1)
    place = rng.integers(0, 512, (6, X.shape[1]))
    profile = flat._replace(steps=np.linspace(-1, 1, 512), place=place, variance=rng.random((n, 1)))
    zero = np.zeros((5, X.shape[1] + 1, T.shape[1]))
    return made, profile, evaluate(made, profile, 0.3, 0.8, zero, 1e-10), X, y, T


@pytest.mark.parametrize("kind", KINDS)
def test_value_and_gradient_of_the_small_problem_are_those_of_all_regressions(kind):
    folds, profile, point, *_ = parts_of(kind)
    data, y0 = reduced(folds, profile, [point], prior=0.01)
    data = jax.tree.map(jax.numpy.asarray, data)
    problem = weight_profile(kind, data)
    x = {"level": 0.3, "adaptivity": 0.8, "moderation": 0.7}
    seen = bx.audit(problem, {name: jax.numpy.asarray(value) for name, value in x.items()}, jax.numpy.asarray(y0))

    def exact(x):
        at = evaluate(folds, profile, x["level"], x["adaptivity"], point.fits[:, 0], 1e-10)
        stage = stages._stage("", folds, profile, at, x, 0.01, None, None)
        return stage.value + 0.005 * (x["adaptivity"] - 1) ** 2

    assert seen.ell == pytest.approx(exact(x), rel=1e-6)
    for name, value in x.items():
        up, down = (exact({**x, name: value + step}) for step in (1e-3, -1e-3))
        assert float(seen.gradient[name]) == pytest.approx((up - down) / 2e-3, rel=2e-3, abs=2e-6), name
    assert seen.certified


def test_fits_that_are_nearly_the_same_do_not_spoil_the_small_problem():
    """With all directions kept, rounding errors were divided by tiny numbers, and `solve` refused the formulas."""
    folds, profile, point, *_ = parts_of("softmax")
    near = [evaluate(folds, profile, 0.3 + step, 0.8 + step, point.fits[:, 0], 1e-10) for step in (2e-4, 1e-4, 0.0)]
    data, y0 = reduced(folds, profile, near, prior=0.01)
    problem = weight_profile("softmax", jax.tree.map(jax.numpy.asarray, data))
    x = {name: jax.numpy.asarray(value) for name, value in (("level", 0.3), ("adaptivity", 0.8), ("moderation", 0.7))}
    H = jax.hessian(lambda y: problem.lower(x, y, problem.data))(jax.numpy.asarray(y0))
    K, J = y0.shape
    np.testing.assert_allclose(np.reshape(H, (K * J, K * J)), np.eye(K * J), atol=3e-8)


@pytest.mark.parametrize("kind", ["squared", "logistic"])
def test_held_out_loss_is_that_of_scikit_learn_fold_by_fold(kind):
    folds, profile, point, X, y, T = parts_of(kind)
    losses = np.zeros(len(y))
    for k in range(5):
        train, held = folds.number != k, folds.number == k
        scale = np.exp(-0.5 * profile.log_weights(k, 0.3, 0.8))
        A = X * scale
        if kind == "squared":
            losses[held] = 0.5 * (Ridge(alpha=1.0).fit(A[train], T[train, 0]).predict(A[held]) - T[held, 0]) ** 2
        else:
            fit = LogisticRegression(C=1.0, tol=1e-10, max_iter=5000).fit(A[train], y[train])
            losses[held] = -np.log(fit.predict_proba(A[held])[np.arange(held.sum()), T[held, 0].astype(int)])
    x = {"level": 0.3, "adaptivity": 0.8, "moderation": 0.0}
    found = stages._stage("", folds, profile, point, x, 0.0, None, None)
    np.testing.assert_allclose(found.losses, losses, atol=2e-4)


def test_conjugate_gradients_and_factorizations_agree():
    X, y = table("logistic")
    T = (y == "yes")[:, None] * 1.0
    weights = np.linspace(-1, 2, X.shape[1])
    dense, sparse = (Regression(Design(A), Logistic(), T, np.ones(len(y))) for A in (X, scipy.sparse.csr_matrix(X)))
    P, Q = dense.fit(weights, tol=1e-10), sparse.fit(weights, tol=1e-10)
    np.testing.assert_allclose(P, Q, atol=1e-7)
    along = [np.ones_like(weights), weights]
    for a, b in zip(dense.tangents(P, weights, along), sparse.tangents(Q, weights, along), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-2 * np.abs(a).max())


def test_the_spread_is_the_inverse_hessian():
    X, y = table("logistic")
    regression = Regression(Design(X), Logistic(), (y == "yes")[:, None] * 1.0, np.ones(len(y)))
    weights = np.linspace(-1, 2, X.shape[1])
    P = regression.fit(weights)
    A = np.hstack([X, np.ones((len(y), 1))])
    D = Logistic().diagonal(A @ P)[:, 0]
    S = np.linalg.inv((A.T * D) @ A + np.diag(regression.with_intercept(weights)))
    spread = regression.spread(P, weights)
    np.testing.assert_allclose(spread.diagonal[:, 0], np.diag(S), rtol=1e-8)
    np.testing.assert_allclose(spread.of_rows(Design(X))[:, 0], np.einsum("ni,ij,nj->n", A, S, A), rtol=1e-8)


# ---- what it learns


@pytest.mark.parametrize("kind", FITTED)
def test_useful_features_come_first_and_have_small_weights(models, kind):
    model = models[kind]
    assert set(model.ranking_[:2]) == {0, 1}
    assert np.sort(model.ranking_).tolist() == list(range(12))
    useless = np.median(model.weights_[6:])
    assert model.weights_[0] < useless and model.weights_[1] < useless


@pytest.mark.parametrize("kind", FITTED)
def test_how_the_search_ended_is_told(models, kind):
    model = models[kind]
    assert model.status_ == "CONVERGED", model.message_
    assert "from exact fits is at most 0.0001" in model.message_ and model.gap_ <= 1e-4
    assert len(model.trace_) >= 1 and model.n_iter_ >= 0 and model.seconds_ > 0
    assert [choice["chosen"] for choice in model.stages_].count(True) == 1
    chosen = next(choice for choice in model.stages_ if choice["chosen"])
    assert chosen["difference"] == 0 and chosen["standard_error"] == 0
    assert model.stages_[0]["weights"] == "equal weights"
    words = str(model)
    assert "chosen  " in words and "most useful  " in words and "standard error" in words


@pytest.mark.parametrize("kind", FITTED)
def test_a_model_comes_back_from_its_file(models, kind, tmp_path):
    model, X = models[kind], table(kind)[0]
    again, schema = load(model.save(tmp_path / "model.npz"))
    assert schema is None and again.choices_ == model.choices_
    assert again.ranking_.tolist() == model.ranking_.tolist()
    if kind == "squared":
        np.testing.assert_allclose(again.predict(X), model.predict(X), rtol=1e-4, atol=1e-5)
    else:
        np.testing.assert_allclose(again.predict_proba(X), model.predict_proba(X), atol=1e-5)
    assert str(again).splitlines()[:2] == str(model).splitlines()[:2]


@pytest.mark.slow
def test_fewer_features_than_that_are_useful_in_many(models):
    rng = np.random.default_rng(3)
    X = rng.standard_normal((150, 60))
    y = X[:, :4] @ [1.0, -1.0, 1.0, -1.0] + rng.standard_normal(150)
    model = FeatureWeights().fit(X, y)
    assert set(model.ranking_[:4]) == {0, 1, 2, 3} and model.adaptivity_ > 0.5
    assert model.stages_[0]["difference"] > 2 * model.stages_[0]["standard_error"] > 0


@pytest.mark.slow
def test_without_a_budget_it_is_plain_l2():
    X, y = table("squared")
    model = FeatureWeights(budget=0).fit(X, y)
    chosen = next(choice for choice in model.stages_ if choice["chosen"])["weights"]
    expected = X.var(axis=0) if "standardised" in chosen else np.ones(12)
    np.testing.assert_allclose(model.weights_ / model.weights_[0], expected / expected[0], rtol=1e-8)
    small = FeatureWeights(budget=0.5).fit(X, y)
    logs = np.log(small.weights_) - np.log(expected)
    assert np.ptp(logs) <= 1.0 + 1e-9 and np.ptp(logs) > 0.3


@pytest.mark.parametrize("kind", ["box", "l1"])
def test_weights_stay_within_their_budget(kind):
    model = FeatureWeights(budget=0.5, budget_kind=kind).fit(*table("squared"))
    logs = np.log(model.weights_)
    off = np.abs(logs - logs.mean())
    most = off.max() if kind == "box" else off.mean()
    assert model.adaptivity_ > 0 and 0.1 < most <= 0.5 + 0.25  # the level is that of the search, not of the mean


def test_steps_of_an_l1_budget_keep_their_shape():
    plan = stages.Plan(None, 1, 1.0, 1.0, "l1")
    steps, moved = np.array([[3.0, -1.0, -2.0, 0.0]]), np.array([[0.4, -0.4, 0.0, 0.0]])
    short = plan.within_budget(steps, moved)
    np.testing.assert_allclose(short / steps[0, 0] * 3.0, steps * short[0, 0] / steps[0, 0])
    assert np.isclose(np.mean(np.abs(moved)) + stages.MOST_ADAPTIVE * np.mean(np.abs(short)), 1.0)


@pytest.mark.slow
def test_features_of_a_group_share_a_weight():
    X, y = table("squared")
    groups = [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]
    weights = FeatureWeights(groups=groups).fit(X, y).weights_.reshape(3, 4)
    np.testing.assert_allclose(weights, weights[:, :1] * np.ones(4))
    assert weights[0, 0] < weights[2, 0]
    frame = pd.DataFrame(X, columns=list("abcdefghijkl"))
    named = FeatureWeights(groups={"a": "first", "b": "first"}).fit(frame, y).weights_
    assert named[0] == named[1] and len(np.unique(named)) > 5


@pytest.mark.slow
def test_moderated_probabilities_are_closer_to_the_middle_and_better_where_rows_are_few():
    rng = np.random.default_rng(5)
    X = rng.standard_normal((2060, 15))
    y = (X[:, :8].sum(axis=1) * 0.8 + rng.logistic(size=2060) > 0).astype(int)
    model = FeatureWeights().fit(X[:60], y[:60])
    model.moderation_ = 1.0
    moderated = model.predict_proba(X[60:])
    model.moderation_ = 0.0
    plain = model.predict_proba(X[60:])
    assert np.all(np.abs(moderated - 0.5) <= np.abs(plain - 0.5) + 1e-12)
    assert log_loss(y[60:], moderated) < log_loss(y[60:], plain)


# ---- forms of input


@pytest.mark.slow
def test_sparse_and_dense_features_give_the_same_model():
    rng = np.random.default_rng(2)
    X = rng.standard_normal((150, 10)) * (rng.random((150, 10)) < 0.4)
    y = X[:, 0] - X[:, 1] + 0.5 * rng.standard_normal(150)
    dense = FeatureWeights(loss="squared").fit(X, y)
    sparse = FeatureWeights(loss="squared").fit(scipy.sparse.csr_matrix(X), y)
    np.testing.assert_allclose(sparse.predict(scipy.sparse.csr_matrix(X)), dense.predict(X), atol=0.05)
    np.testing.assert_allclose(sparse.predict(X), sparse.predict(scipy.sparse.csr_matrix(X)), atol=1e-12)
    assert scipy.sparse.issparse(sparse.transform(scipy.sparse.csr_matrix(X)))


@pytest.mark.slow
def test_single_precision_and_frames_with_names():
    X, y = table("squared")
    full = FeatureWeights().fit(X, y)
    single = FeatureWeights().fit(X.astype(np.float32), y.astype(np.float32))
    np.testing.assert_allclose(single.predict(X.astype(np.float32)), full.predict(X), atol=1e-3)
    assert single.coef_.dtype == np.float64
    frame = pd.DataFrame(X, columns=[f"column {i}" for i in range(12)])
    named = FeatureWeights().fit(frame, y)
    assert named.get_feature_names_out().tolist() == list(frame.columns)
    assert "most useful  column " in str(named)


def test_columns_without_information_get_no_coefficient():
    X, y = table("squared")
    X[:, 3], X[:, 4] = 0.0, 7.25
    model = FeatureWeights().fit(X, y)
    np.testing.assert_allclose(model.coef_[[3, 4]], 0.0, atol=1e-12)
    assert set(model.ranking_[-2:]) == {3, 4} and np.all(np.isfinite(model.weights_))


@pytest.mark.slow
def test_sample_weights_count():
    X, y = table("squared")
    bad = np.arange(200) % 4 == 0
    y[bad] = -y[bad]
    model = FeatureWeights().fit(X, y, sample_weight=np.where(bad, 0.0, 3.0))
    same = FeatureWeights().fit(X[~bad], y[~bad])
    np.testing.assert_allclose(model.coef_, same.coef_)
    np.testing.assert_allclose(model.weights_, 3 * same.weights_)


@pytest.mark.slow
def test_it_works_in_the_tools_of_scikit_learn(models):
    X, y = table("logistic")
    pipeline = make_pipeline(StandardScaler(), FeatureWeights(loss="logistic"))
    assert cross_val_score(pipeline, X, y, cv=2).mean() > 0.6
    found = GridSearchCV(FeatureWeights(loss="logistic"), {"budget": [0.0, 12.0]}, cv=2).fit(X, y)
    assert found.best_params_["budget"] in (0.0, 12.0)
    again = pickle.loads(pickle.dumps(models["logistic"]))
    np.testing.assert_array_equal(again.predict_proba(X), models["logistic"].predict_proba(X))
    assert clone(models["logistic"]).get_params() == FeatureWeights().get_params()


def test_a_second_fit_of_the_same_shapes_compiles_nothing(models):
    assert models["logistic"].status_ == "CONVERGED"
    compiled = []
    listen = lambda name, _, **__: compiled.append(name) if "backend_compile" in name else None  # noqa: E731
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        FeatureWeights().fit(*table("logistic", n=190, d=15, seed=6))  # nor do a few rows less and other features
    finally:
        jax.monitoring.clear_event_listeners()
    assert not compiled


EXPECTED = {
    "check_sample_weight_equivalence_on_dense_data": "a row of weight 2 is in one fold, two rows may be in two",
    "check_sample_weight_equivalence_on_sparse_data": "a row of weight 2 is in one fold, two rows may be in two",
}


@parametrize_with_checks([FeatureWeights(loss="squared", budget=0.0)], expected_failed_checks=lambda _: EXPECTED)
@pytest.mark.slow
def test_the_checks_of_scikit_learn(estimator, check):
    check(estimator)


@parametrize_with_checks([FeatureWeights(loss="logistic", budget=0.0)], expected_failed_checks=lambda _: EXPECTED)
@pytest.mark.slow
def test_the_checks_of_scikit_learn_for_classes(estimator, check):
    check(estimator)


# ---- limits


def test_a_time_limit_ends_the_search_with_a_model():
    model = FeatureWeights(time_limit=1e-3).fit(*table("squared"))
    assert model.status_ == "TIME_LIMIT" and "time limit of 0.001 s" in model.message_
    assert np.all(np.isfinite(model.predict(table("squared")[0])))


def test_ctrl_c_ends_the_search_with_a_model(monkeypatch):
    whole = stages.run_stage

    def interrupted(*arguments, **options):
        os.kill(os.getpid(), signal.SIGINT)
        return whole(*arguments, **options)

    monkeypatch.setattr(stages, "run_stage", interrupted)
    model = FeatureWeights().fit(*table("squared"))
    assert model.status_ == "STOPPED" and model.message_ == "the user stopped the fit"
    assert len(model.stages_) == 1 and np.all(np.isfinite(model.coef_))


@pytest.mark.slow
def test_a_search_that_was_killed_goes_on_to_the_same_answer(tmp_path, monkeypatch):
    X, y = table("logistic")
    once = FeatureWeights().fit(X, y)
    whole, fits = Regression.fit, []

    def counted(self, *arguments):
        fits.append(1)
        if len(fits) == 30:
            raise MemoryError("killed")
        return whole(self, *arguments)

    monkeypatch.setattr(Regression, "fit", counted)
    with pytest.raises(MemoryError):
        FeatureWeights(checkpoint=tmp_path).fit(X, y)
    fits.clear()
    monkeypatch.setattr(Regression, "fit", lambda self, *a: (fits.append(1), whole(self, *a))[1])
    again = FeatureWeights(checkpoint=tmp_path).fit(X, y)
    np.testing.assert_array_equal(again.coef_, once.coef_)
    np.testing.assert_array_equal(again.weights_, once.weights_)
    first = len(fits)
    fits.clear()
    FeatureWeights(checkpoint=tmp_path).fit(X, y)
    assert len(fits) == 1 < first  # the fit on all rows at the end
    with pytest.raises(ValueError, match="holds a fit of other data or with other parameters"):
        FeatureWeights(checkpoint=tmp_path).fit(X[::-1], y[::-1])
    file = sorted(tmp_path.glob("fit-*.npz"))[0]
    file.write_bytes(b"nothing")
    with pytest.warns(RuntimeWarning, match="The fit is computed again"):
        FeatureWeights(checkpoint=tmp_path).fit(X, y)
    with pytest.raises(ValueError, match="is a file; give the path of a folder"):
        Kept(file)


# ---- bad input


@pytest.mark.parametrize(
    "options, message",
    [
        ({"loss": "hinge"}, 'loss must be "auto", "squared" or "logistic", got \'hinge\''),
        ({"n_folds": 1}, "n_folds must be an integer of at least 2, got 1"),
        ({"max_steps": 0}, "max_steps must be an integer of at least 1, got 0"),
        ({"tol": 0}, "tol must be positive, got 0"),
        ({"budget": -1}, "budget must be at least 0, got -1"),
        ({"time_limit": "soon"}, "time_limit must be None or positive, got 'soon'"),
        ({"groups": [1, 2]}, r"one label for each of the 12 features, got an array of shape \(2,\)"),
        ({"groups": {"height": 1}}, "groups names a feature 'height' that X does not have"),
    ],
)
def test_parameters_that_make_no_sense_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        FeatureWeights(**options).fit(*table("squared"))


def test_data_that_cannot_be_learned_from_are_refused():
    X, y = table("squared")
    with pytest.raises(ValueError, match="y is 2 in every row; there is nothing to learn"):
        FeatureWeights(loss="squared").fit(X, np.full(200, 2.0))
    with pytest.raises(ValueError, match="y has one class"):
        FeatureWeights(loss="logistic").fit(X, np.zeros(200))
    with pytest.raises(ValueError, match="class c has 1 row; every class needs 2"):
        FeatureWeights().fit(X, np.array(["a", "b"] * 99 + ["a", "c"]))
    with pytest.raises(ValueError, match="contains NaN"):
        FeatureWeights().fit(np.where(X > 2, np.nan, X), y)
    with pytest.raises(ValueError, match="at least one non-zero"):
        FeatureWeights().fit(X, y, sample_weight=np.zeros(200))
    with pytest.raises(AttributeError, match="has no attribute .predict_proba."):
        FeatureWeights().fit(X, y).predict_proba(X)


@pytest.mark.slow
def test_a_class_that_a_fold_does_not_hold_out_is_no_trouble():
    X, y = table("logistic")
    y = np.where(np.arange(200) < 2, "rare", y)
    model = FeatureWeights().fit(X, y)
    assert model.classes_.tolist() == ["no", "rare", "yes"]
    np.testing.assert_allclose(model.predict_proba(X).sum(axis=1), 1.0)


def test_numbers_whose_squares_overflow_or_vanish_are_refused():
    check_target("FeatureWeights", np.array([1, 2], np.float32))
    X, y = table("squared")
    for features, target, words in (
        (
            X * np.where(np.arange(12) == 4, 1e200, 1.0),
            y,
            "X has numbers above 1e.150 in column 4, whose squares overflow",
        ),
        (scipy.sparse.csr_matrix(X * np.where(np.arange(12) == 4, 1e200, 1.0)), y, "in column 4"),
        (X, y * 1e200, "y has numbers above 1e.150, whose squares overflow"),
        (X, y * 1e-200, "the numbers in y differ by less than 1e-150"),
    ):
        with pytest.raises(ValueError, match=f"FeatureWeights: .*{words}"):
            FeatureWeights().fit(features, target)


@pytest.mark.slow
def test_the_unit_of_the_target_does_not_matter():
    X, y = table("squared")
    tiny = FeatureWeights().fit(X, (y - y.mean()) * 1e-20)
    np.testing.assert_allclose(tiny.coef_ * 1e20, FeatureWeights().fit(X, y).coef_, rtol=1e-6)
