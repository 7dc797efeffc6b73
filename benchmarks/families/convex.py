"""Convex problems with a use: the paper's toy, matrix completion with c = 1, ratings, and the worst mixture of data."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

import bilevax as bx
from bilevax import problems
from families.family import Family, Instance

RADII = {"100k": 2000.0, "1m": 8000.0}
"""Nuclear norms with which the fitted ratings of MovieLens have a rank of some tens."""


def toy(mu_g, seed):
    """The paper's toy problem; only the start depends on the seed."""
    made = problems.toy_coreset(mu_g)
    x0 = made.x0 if seed == 0 else jnp.asarray(np.random.default_rng(seed).dirichlet(np.ones(4)))
    return Instance(made.problem, x0, made.y0, made.weights_star)


def completion(data_term, sparse, seed, n=250, start=None):
    """The paper's synthetic matrix of rank 10, from zero, or from a random point of the sphere if `start` is given."""
    made = problems.synthetic(seed, n=n)
    if not sparse:
        problem, _ = problems.matrix_completion(made.M, made.observed, made.radius, data_term=data_term)
        x0, y0 = (jnp.zeros((n, n)), jnp.zeros((n, n))) if start is None else (made.x0, made.y0)
        if start:
            x0, y0 = np.random.default_rng(start).standard_normal((2, n, n))
            x0 = x0 * made.radius / np.linalg.norm(x0, "nuc")
        return Instance(problem, jnp.asarray(x0), jnp.asarray(y0))
    rows, cols = np.nonzero(made.observed)
    values = made.M[made.observed]
    problem, _ = problems.sparse_completion(rows, cols, values, made.radius, shape=(n, n), data_term=data_term)
    return _sparse_instance(problem, len(values))


def _sparse_instance(problem, count):
    zeros = jnp.zeros(count)
    return Instance(problem, problem.domain.vertex(zeros), zeros)


def movielens(size, seed):
    """Nine tenths of the ratings, centred."""
    ratings = {"100k": bx.datasets.movielens_100k, "1m": bx.datasets.movielens_1m}[size]()
    kept = np.random.default_rng(seed).random(len(ratings.values)) < 0.9
    rows, cols, values = (np.asarray(v)[kept] for v in (ratings.rows, ratings.cols, ratings.values))
    problem, _ = problems.sparse_completion(rows, cols, values - values.mean(), RADII[size])
    return _sparse_instance(problem, len(values))


def _mixture(x, y, data):
    """Minus the weighted logistic loss with a ridge, plus the distance of the weights x from equal ones."""
    losses = jax.nn.softplus(-data["labels"] * (data["inputs"] @ y))
    away = 0.5 * data["tau"] * x.size * jnp.sum((x - 1 / x.size) ** 2)
    return away - x @ losses - 0.5 * data["ridge"] * jnp.sum(y**2)


def robust(seed, rows=500, features=20):
    """Weights of 500 rows for which even the best model fits badly; a tenth of the rows follow another rule."""
    rng = np.random.default_rng(seed)
    inputs, truth = rng.standard_normal((rows, features)), rng.standard_normal((2, features))
    minority = rng.random(rows) < 0.1
    scores = np.where(minority, inputs @ truth[1], inputs @ truth[0]) + rng.standard_normal(rows)
    data = {"inputs": inputs, "labels": np.where(scores > 0, 1.0, -1.0), "tau": 0.1, "ridge": 0.01}
    data = {name: jnp.asarray(value, float) for name, value in data.items()}
    problem = bx.minimax(_mixture, bx.Simplex(), data)
    return Instance(problem, jnp.full(rows, 1 / rows), jnp.zeros(features))


def _family(name, make, *baselines, quick=False):
    return Family(name, "convex", make, baselines, quick)


FAMILIES = [
    _family("toy-1", functools.partial(toy, 1.0), "fista", "implicit"),
    _family("toy-0.1", functools.partial(toy, 0.1), "fista", "implicit", quick=True),
    _family("toy-0.01", functools.partial(toy, 0.01), "fista", "implicit"),
    _family("completion-sum", functools.partial(completion, "sum", False), "fista", "implicit"),
    _family("completion-sum-sparse", functools.partial(completion, "sum", True)),
    _family("movielens-100k", functools.partial(movielens, "100k")),
    _family("movielens-1m", functools.partial(movielens, "1m")),
    _family("robust", robust, "fista", "implicit", quick=True),
]
