"""Evidence on labels against brute force: ridges without a row, votes, and planted noise."""

import numpy as np
import pytest
import scipy.sparse
from sklearn.linear_model import Ridge as PlainRidge
from sklearn.metrics import roc_auc_score

from bilevax.estimators.label_cleaning.cross_fit import cross_fit
from bilevax.estimators.label_cleaning.evidence import Folds, Neighbours, Ridge, comparable
from bilevax.estimators.label_cleaning.labels import Labels
from bilevax.estimators.label_cleaning.pool import Pool, log_softmax, uniform_noise

N, D, K = 60, 4, 3


@pytest.fixture
def table():
    rng = np.random.default_rng(0)
    X = comparable(rng.standard_normal((N, D)))
    return X, rng.dirichlet(np.ones(K), N).astype(np.float32), rng


def two_folds():
    odd = np.arange(N) % 2 == 1
    return Folds([np.flatnonzero(~odd), np.flatnonzero(odd)], [np.flatnonzero(odd), np.flatnonzero(~odd)])


def predicted(X, soft, rows, ridge):
    """By scikit-learn; the features are centred over all rows, as they are there."""
    Z = np.asarray(X, float) - np.asarray(X, float).mean(axis=0)
    off = soft - soft.mean(axis=0)
    fit = PlainRidge(alpha=ridge, fit_intercept=False).fit(Z[rows], off)
    return fit.predict(Z) + soft.mean(axis=0)


def test_scores_of_a_fold_are_those_of_a_ridge_on_the_other_rows(table):
    X, soft, rng = table
    evidence, folds = Ridge(X, rng, kernel=False), two_folds()
    settings = evidence.near((0.0, next(evidence.first(np.arange(N), soft))[0][1]), all_of_them=True)
    evidence.prepare(folds, settings[0])
    learned, held = folds.learned[0], folds.held_out[0]
    for setting, scores in zip(settings, evidence.held_out(0, soft[learned], settings), strict=True):
        expected = predicted(X, soft[learned], learned, setting[1])[held]
        np.testing.assert_allclose(scores, expected, atol=2e-4)


@pytest.mark.parametrize("kernel", [False, True])
def test_the_own_label_of_a_row_does_not_count(table, kernel):
    X, soft, rng = table
    evidence, folds = Ridge(X, rng, kernel=kernel), two_folds()
    changed = soft.copy()
    changed[0] = np.roll(soft[0], 1)
    both = [list(evidence.first(np.arange(N), labels)) for labels in (soft, changed)]
    for (_, before), (_, after) in zip(*both, strict=True):
        np.testing.assert_allclose(before[0], after[0], atol=2e-4)
        assert np.abs(before[1:] - after[1:]).max() > 1e-3
    setting = both[0][-1][0]
    evidence.prepare(folds, setting)
    learned = folds.learned[0]  # row 0 is the first of them
    before, after = (evidence.within(0, labels[learned], setting) for labels in (soft, changed))
    np.testing.assert_allclose(before[0], after[0], atol=2e-4)
    assert np.abs(before[1:] - after[1:]).max() > 1e-4


def test_leaving_a_row_out_is_a_fit_without_it(table):
    """The mean of the labels is that of the other rows as well."""
    X, soft, rng = table
    Z = np.asarray(X, float) - np.asarray(X, float).mean(axis=0)
    for (_, ridge), scores in Ridge(X, rng, kernel=False).first(np.arange(N), soft):
        others = np.arange(N) != 5
        A = np.column_stack([Z, np.ones(N)])
        penalty = np.diag([ridge] * D + [0.0])
        left = np.linalg.solve(A[others].T @ A[others] + penalty, A[others].T @ soft[others])
        np.testing.assert_allclose(scores[5], A[5] @ left, atol=2e-4)


def test_neighbours_vote_and_those_of_the_own_fold_do_not(table):
    X, soft, rng = table
    evidence, folds = Neighbours(X, rng), two_folds()
    distances = ((np.asarray(X)[:, None] - np.asarray(X)) ** 2).sum(axis=2)
    np.fill_diagonal(distances, np.inf)
    (_, count), scores = next(evidence.first(np.arange(N), soft))
    nearest = np.argsort(distances, axis=1)[:, : int(count)]
    expected = np.log((soft[nearest].sum(axis=1) + soft.mean(axis=0)) / (count + 1) + 1e-6)
    np.testing.assert_allclose(scores, expected, rtol=1e-5)
    evidence.prepare(folds, (0.0, count))
    learned, held = folds.learned[0], folds.held_out[0]
    (scores,) = evidence.held_out(0, soft[learned], [(0.0, count)])
    nearest = learned[np.argsort(distances[np.ix_(held, learned)], axis=1)[:, : int(count)]]
    own = soft[learned]
    expected = np.log((soft[nearest].sum(axis=1) + own.mean(axis=0)) / (count + 1) + 1e-6)
    enough = np.isin(evidence._nearest[held], learned).sum(axis=1) >= count  # only spare neighbours are kept
    assert enough.mean() > 0.8
    np.testing.assert_allclose(scores[enough], expected[enough], rtol=1e-5)


def planted(n=20_000, seed=0):
    """Scores that are right up to a factor and offsets, and labels with a noise of their own."""
    rng = np.random.default_rng(seed)
    truth = log_softmax(2.0 * rng.standard_normal((n, K)))
    true = np.argmax(truth + rng.gumbel(size=(n, K)), axis=1)
    noise = np.array([[0.8, 0.15, 0.05], [0.0, 0.9, 0.1], [0.3, 0.0, 0.7]])
    given = np.array([rng.choice(K, p=noise[k]) for k in true])
    useless = rng.standard_normal((n, K))
    scores = [(0.5 * truth + [0.3, 0.0, -0.2]).astype(np.float32), useless.astype(np.float32)]
    return scores, Labels(given, np.zeros(n, bool), K), true, noise


def test_a_pool_finds_the_noise_and_weighs_evidence_by_what_it_is_worth():
    scores, labels, true, noise = planted()
    start = Pool(np.ones(2), np.zeros(K), uniform_noise(0.5, K))
    found = start.fit(scores, labels, rounds=60, tol=1e-8)
    np.testing.assert_allclose(found.noise, noise, atol=0.03)
    assert found.weights[0] == pytest.approx(2.0, rel=0.1) and found.weights[1] < 0.1
    judged = found.judge(scores, labels)
    wrong = labels.given != true
    assert judged.suspicion(labels).sum() == pytest.approx(wrong.sum(), rel=0.08)
    for chance in (0.2, 0.5, 0.8):  # of those with this suspicion, this share is wrong
        near = np.abs(judged.suspicion(labels) - chance) < 0.1
        assert wrong[near].mean() == pytest.approx(chance, abs=0.05)


def test_known_labels_are_believed():
    scores, labels, true, _ = planted(2000)
    known = np.arange(2000) % 4 == 0
    given = np.where(known, true, labels.given)
    labels = Labels(given, known, K)
    found = Pool(np.ones(2), np.zeros(K), uniform_noise(0.5, K)).fit(scores, labels, rounds=10)
    assert np.all(found.judge(scores, labels).suspicion(labels)[known] < 1e-6)


def blobs(rate, seed=0, n=600):
    rng = np.random.default_rng(seed)
    true = rng.integers(0, K, n)
    X = 1.6 * np.eye(K, 6)[true] * 2 + rng.standard_normal((n, 6))
    given = np.where(rng.random(n) < rate, rng.integers(0, K, n), true)
    return X, Labels(given, np.zeros(n, bool), K), given != true


@pytest.mark.parametrize(("rate", "least"), [(0.3, 0.97), (0.7, 0.93)])
@pytest.mark.parametrize("sparse", [False, True])
def test_wrong_labels_are_found(rate, least, sparse):
    X, labels, wrong = blobs(rate)
    features = comparable(scipy.sparse.csr_array(X) if sparse else X)
    rng = np.random.default_rng(1)
    kinds = [Ridge(features, rng, kernel=False), Ridge(features, rng, kernel=True), Neighbours(features, rng)]
    found = cross_fit(kinds, labels, rng)
    assert roc_auc_score(wrong, found.judgement.suspicion(labels)) > least
    assert found.judgement.suspicion(labels).sum() == pytest.approx(wrong.sum(), rel=0.2)


def test_without_wrong_labels_none_are_found():
    X, labels, _ = blobs(0.0)
    rng = np.random.default_rng(1)
    features = comparable(X)
    found = cross_fit([Ridge(features, rng, kernel=False), Neighbours(features, rng)], labels, rng)
    assert np.mean(found.judgement.suspicion(labels) > 0.5) < 0.02
