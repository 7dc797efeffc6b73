"""The example of meta-learning on real ratings: nothing leaks, it pays, and two methods find its solution."""

import functools
import importlib.util
import os
from dataclasses import replace
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import brentq

import bilevax as bx
from bilevax.datasets.registry import ENTRIES

SOURCE = Path(__file__).parents[2] / "examples" / "04_meta_learning.py"


@pytest.fixture(scope="module")
def example():
    """The example as a module; its data must be here."""
    folder = os.environ.get("BILEVAX_DATA")
    if not folder:
        pytest.skip("BILEVAX_DATA is not set")
    for file in ENTRIES["movielens-100k"].files:
        if not (Path(folder) / file.path).is_file():
            pytest.skip(f"{Path(folder) / file.path} is not here")
    spec = importlib.util.spec_from_file_location("meta_learning_example", SOURCE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def loaded(example):
    return example.load()


@pytest.fixture(scope="module")
def lambdas(example, loaded):
    return example.choose_lambdas(loaded[1])


@pytest.fixture(scope="module")
def solved(example, loaded, lambdas):
    """A function: the radius and the points of two methods on a share of the example's ball."""
    tasks, methods = loaded[1], {"IBCG": bx.IBCG(), "AIDBiO": bx.AIDBiO()}

    @functools.cache
    def solve(share):
        problem = example.meta_problem(tasks, lambdas["learned"])
        problem = replace(problem, domain=bx.L2Ball(share * problem.domain.radius))
        found = bx.compare(problem, methods, jnp.zeros(10), jnp.zeros((len(tasks["a"]), 10)), steps=1000, every=1000)
        return float(problem.domain.radius), {name: found[name].x for name in methods}

    return solve


def quadratic(tasks, lam, shots=5):
    """M and r with query residuals M x - r: the weights of each user eliminated by normal equations."""
    M, r = [], []
    for A, a in zip(np.asarray(tasks["A"]), np.asarray(tasks["a"]), strict=True):
        S, Q = A[:shots], A[shots:]
        inverse = np.linalg.inv(S.T @ S / shots + lam * np.eye(S.shape[1]))
        M.append(lam * Q @ inverse)
        r.append(a[shots:] - Q @ inverse @ S.T @ a[:shots] / shots)
    return np.concatenate(M), np.concatenate(r)


def smallest_on_ball(M, r, radius):
    """The x of a ball with the smallest |M x - r|, by the secular equation."""
    values, vectors = np.linalg.eigh(M.T @ M)
    h = vectors.T @ (M.T @ r)
    excess = lambda shift: np.linalg.norm(h / (values + shift)) - radius  # noqa: E731
    shift = 0.0 if excess(0.0) <= 0 else brentq(excess, 0.0, np.linalg.norm(h) / radius, xtol=1e-12)
    return vectors @ (h / (values + shift))


def test_no_user_is_in_two_groups_and_only_those_with_few_ratings_are_left_out(loaded):
    groups, seen, unseen = loaded
    together = np.concatenate(groups)
    assert len(np.unique(together)) == len(together)
    assert len(groups[0]) == 400 and (len(seen["a"]), len(unseen["a"])) == (len(groups[1]), len(groups[2]))
    ratings = bx.datasets.movielens_100k()
    absent = np.setdiff1d(np.arange(943), together)
    counts = np.bincount(ratings.rows)
    assert counts[absent].max() < 25 <= counts[np.concatenate(groups[1:])].min()


def test_film_features_do_not_know_the_ratings_they_predict(example, loaded, monkeypatch):
    groups, *tasks = loaded
    ratings = bx.datasets.movielens_100k()
    turned = np.where(np.isin(ratings.rows, groups[0]), ratings.values, 6 - ratings.values)
    monkeypatch.setattr(bx.datasets, "movielens_100k", lambda: ratings._replace(values=turned))
    for before, after in zip(tasks, example.load()[1:], strict=True):
        np.testing.assert_array_equal(before["A"], after["A"])
        assert np.mean(before["a"] != after["a"]) > 0.5


@pytest.mark.slow
def test_meta_learning_beats_no_meta_learning_on_unseen_users(example, loaded, lambdas, solved):
    unseen, x = loaded[2], solved(1.0)[1]["IBCG"]
    M, r = quadratic(unseen, float(lambdas["learned"]))
    learned = np.sqrt(np.mean((M @ np.asarray(x) - r) ** 2))
    assert float(example.rmse(x, lambdas["learned"], unseen)) == pytest.approx(learned, rel=1e-10)
    without = {float(lam): np.sqrt(np.mean(quadratic(unseen, float(lam))[1] ** 2)) for lam in example.LAMBDAS}
    chosen = float(lambdas["zero"])
    assert float(example.rmse(jnp.zeros(10), chosen, unseen)) == pytest.approx(without[chosen], rel=1e-10)
    assert learned < 0.95 * min(without.values())  # also if x = 0 had the lambda that suits the unseen users best


@pytest.mark.slow
@pytest.mark.parametrize("share", [1.0, 0.4], ids=["inside the ball", "on its boundary"])
def test_ibcg_and_aidbio_find_the_solution_on_the_ball(loaded, lambdas, solved, share):
    radius, found = solved(share)
    M, r = quadratic(loaded[1], float(lambdas["learned"]))
    x = smallest_on_ball(M, r, radius)
    assert (np.linalg.norm(x) < 0.99 * radius) == (share == 1.0)
    best = np.mean((M @ x - r) ** 2)
    for point in found.values():
        assert np.linalg.norm(point) <= radius * (1 + 1e-9)
        assert best * (1 - 1e-9) <= np.mean((M @ np.asarray(point) - r) ** 2) <= best * 1.001
