"""Predictions averaged over the posterior, for matrices with few entries."""

import numpy as np
import pytest

from bilevax.estimators import MatrixCompletion, load
from bilevax.estimators.matrix_completion import posterior
from bilevax.estimators.matrix_completion.entries import Entries
from bilevax.estimators.matrix_completion.factors import Factors
from bilevax.estimators.matrix_completion.observed import observe


def scarce(seed=0, shape=(60, 45), rank=6, share=0.33, noise=0.3):
    """A low-rank matrix with less than two entries for each degree of freedom."""
    rng = np.random.default_rng(seed)
    truth = rng.standard_normal((shape[0], rank)) @ rng.standard_normal((rank, shape[1])) / rank**0.5
    observed = rng.random(shape) < share
    rows, cols = np.nonzero(observed)
    values = (truth + noise * rng.standard_normal(shape))[observed]
    return truth, observed, (rows, cols, values)


def factors_of(entries, shape, rank, effects=False):
    rows, cols, values = entries
    nothing = np.zeros(len(values), bool)
    observed = observe(Entries(rows.astype(np.int32), cols.astype(np.int32), values, shape), nothing)
    found = Factors(observed, effects=effects)
    found.go(20, 2e-3, lambda: False)
    while found.rank < rank:
        before = found.rank
        found.grow(1)
        found.go(30, 2e-2, lambda: False)
        if found.rank <= before:
            break
    return found


def error(predict, truth, observed):
    rows, cols = np.nonzero(~observed)
    return np.sqrt(np.mean((predict(rows, cols) - truth[rows, cols]) ** 2))


def test_rows_are_drawn_from_their_posterior_given_the_columns():
    truth, _, entries = scarce()
    factors = factors_of(entries, truth.shape, 3)
    chain = posterior._Chain(factors.copy(), np.random.default_rng(1))
    design = factors.cols.factors[:, :-1]
    precision, noise, lines = factors.rows.precision[:-1], factors.noise, factors.observed.by_row
    drawn = []
    for _ in range(3000):
        chain.factors = factors.copy()
        chain._draw(chain.factors.rows, chain.factors.cols, lines)
        drawn.append(chain.factors.rows.factors[5, :-1].copy())
    at = slice(lines.starts[5], lines.middles[5])
    d, values = design[lines.index[at]], lines.values[at] - factors.mean
    covariance = np.linalg.inv(d.T @ d / noise + np.diag(precision))
    mean = covariance @ (d.T @ values) / noise
    spread = np.sqrt(np.diag(covariance))
    assert np.all(np.abs(np.mean(drawn, axis=0) - mean) < 5 * spread / np.sqrt(len(drawn)))
    np.testing.assert_allclose(np.cov(np.transpose(drawn)), covariance, atol=0.1 * spread.max() ** 2)


def gibbs_by_hand(truth, observed, entries, rank, rng, sweeps=400, first=100):
    """The same posterior mean, sampled with whole matrices from a random start."""
    rows, cols, values = entries
    mask, filled = observed.astype(float), np.zeros(truth.shape)
    filled[rows, cols] = values
    noise, total = 1.0, 0.0
    sides = [rng.standard_normal((n, rank)) for n in truth.shape]
    precisions = [np.ones(rank), np.ones(rank)]
    for sweep in range(sweeps):
        for own, (m, f) in enumerate(((mask, filled), (mask.T, filled.T))):
            other = sides[1 - own]
            grams = np.einsum("ij,ja,jb->iab", m, other, other) / noise + np.diag(precisions[own])
            means = np.linalg.solve(grams, (f @ other / noise)[..., None])[..., 0]
            roots = np.linalg.cholesky(np.linalg.inv(grams))
            sides[own] = means + np.einsum("iab,ib->ia", roots, rng.standard_normal(means.shape))
            precisions[own] = rng.gamma(len(m) / 2 + 1, size=rank) / (0.5 * np.sum(sides[own] ** 2, axis=0))
        left = (sides[0] @ sides[1].T - filled)[observed]
        noise = 0.5 * left @ left / rng.gamma(len(left) / 2)
        total = total + (sides[0] @ sides[1].T if sweep >= first else 0.0)
    return total / (sweeps - first)


def test_the_posterior_mean_is_as_good_as_a_sampler_written_by_hand_and_better_than_the_factors():
    ours, alone, by_hand = [], [], []
    for seed in range(3):
        truth, observed, entries = scarce(seed)
        factors = factors_of(entries, truth.shape, 8)
        mean = posterior.posterior_mean(factors, 30, lambda: False)
        ours.append(error(mean.predict, truth, observed))
        alone.append(error(factors.predict, truth, observed))
        sampled = gibbs_by_hand(truth, observed, entries, 8, np.random.default_rng(seed))
        by_hand.append(error(lambda r, c, sampled=sampled: sampled[r, c], truth, observed))
    assert np.mean(ours) < 0.95 * np.mean(alone)
    assert np.mean(ours) < 1.03 * np.mean(by_hand)


def test_no_time_left_keeps_the_start():
    truth, _, entries = scarce()
    factors = factors_of(entries, truth.shape, 2)
    assert posterior.posterior_mean(factors, 30, lambda: True) is factors


@pytest.fixture(scope="module")
def model():
    _, _, entries = scarce()
    return MatrixCompletion(effort="fast").fit(entries)


def test_few_entries_for_each_degree_of_freedom_are_averaged(model):
    assert model.choices_["averaged"]
    assert "averaged over the posterior" in str(model)
    truth, observed, _ = scarce()
    assert error(model.predict, truth, observed) < 0.85 * truth.std()


@pytest.mark.slow
def test_another_fit_of_an_averaged_model_has_the_same_bits_and_keeps_the_choice(model):
    _, _, entries = scarce()
    again = MatrixCompletion(effort="fast").fit(entries)
    np.testing.assert_array_equal(again.left_, model.left_)
    assert again.fit_again(entries).choices_["averaged"]
    assert again.rank_ == model.rank_


def test_an_averaged_model_places_a_row_that_it_knows_near_its_own_predictions(model, tmp_path):
    _, _, (rows, cols, values) = scarce()
    model.save(tmp_path / "model.npz")
    for one in (model, load(tmp_path / "model.npz")[0]):
        own = np.array([one.predict(np.full(45, i), np.arange(45)) for i in range(60)])
        effects = [one.fold_in(cols[rows == i], values[rows == i]) for i in range(60)]
        placed = np.array([one.mean_ + e + one.col_effects_ + one.right_ @ factor for e, factor in effects])
        assert np.corrcoef(own.ravel(), placed.ravel())[0, 1] > 0.95


def test_entries_in_plenty_are_not_averaged():
    _, _, entries = scarce(rank=2, share=0.9)
    model = MatrixCompletion(effort="fast").fit(entries)
    assert not model.choices_["averaged"]
    assert all(one["choice"] != "averaging" for one in model.choices_["comparisons"])
