"""Nonconvex problems: completion as printed, related tasks, noisy labels, and a ridge weight per feature.

The 36,568 features of 20 Newsgroups are sparse. Their products are sums over the stored entries by row
(`jax.ops.segment_sum`), the fastest form that can be differentiated twice: 1.3 ms for 340,000 entries on two cores,
against 2.5 ms for BCOO. scipy takes 0.25 ms, but would have to be called from compiled code without derivatives.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

import bilevax as bx
from bilevax import problems
from bilevax.experiments.paper import multitask
from families.convex import completion
from families.family import Family, Instance

LABEL_RIDGE = 1e-2
WEIGHTS = (-8.0, 4.0)
"""Bounds on the logarithms of ridge weights."""


def completion_mean(seed):
    """The paper's completion with c = 1/|Omega2|, from three random starts."""
    return completion("mean", False, 0, start=seed)


def related_tasks(case, seed):
    """The paper's tasks with the least eigenvalue of Omega at 0.05, from a random point beyond the first seed."""
    made = multitask.posed(case, multitask.REPAIRED, 0)
    omega = np.asarray(made.omega0)
    if seed:
        T = len(omega)
        vectors = np.linalg.qr(np.random.default_rng(seed).standard_normal((T, T)))[0]
        values = 0.05 + (T - 0.05 * T) * np.random.default_rng(seed).dirichlet(np.ones(T))
        omega = (vectors * values) @ vectors.T
    return Instance(made.problem, jnp.asarray(0.5 * (omega + omega.T)), made.w0)


def _cross_entropies(y, part):
    scores = part["inputs"] @ y
    return jax.nn.logsumexp(scores, axis=1) - jnp.sum(scores * part["labels"], axis=1)


def _label_upper(x, y, data):
    return jnp.mean(_cross_entropies(y, data["valid"]))


def _label_lower(x, y, data):
    return jnp.mean(x * _cross_entropies(y, data["train"])) + 0.5 * data["ridge"] * jnp.sum(y**2)


def _label_diagonal(x, y, data):
    shares = jax.nn.softmax(data["train"]["inputs"] @ y, axis=1)
    return (data["train"]["inputs"] ** 2).T @ (x[:, None] * shares * (1 - shares)) / x.size + data["ridge"]


def label_weights(seed, rows=5000, wrong=0.4):
    """A weight for each of 5,000 images, 40 % of them with a random label; another 5,000 validate.

    Images are averaged over squares of four pixels, 196 features, which keeps an exact hypergradient below a second.
    """
    rng, digits = np.random.default_rng(0), bx.datasets.mnist()
    chosen = rng.permutation(len(digits.labels))[: 2 * rows]
    images = digits.images[chosen].reshape(2, rows, 14, 2, 14, 2).mean(axis=(3, 5)).reshape(2, rows, -1) / 255.0
    labels = digits.labels[chosen].reshape(2, rows).astype(int)
    labels[0] = np.where(rng.random(rows) < wrong, rng.integers(0, 10, rows), labels[0])
    parts = {
        name: {"inputs": jnp.asarray(images[i]), "labels": jnp.asarray(np.eye(10)[labels[i]])}
        for i, name in enumerate(("train", "valid"))
    }
    data = {**parts, "ridge": jnp.asarray(LABEL_RIDGE)}
    problem = bx.BilevelProblem(_label_upper, _label_lower, bx.Box(0.0, 1.0), data)
    x0 = np.full(rows, 0.5) if seed == 0 else np.random.default_rng(seed).uniform(0, 1, rows)
    return Instance(problem, jnp.asarray(x0), jnp.zeros((images.shape[2], 10)), diagonal=_label_diagonal)


def _halves(rows):
    order = np.random.default_rng(0).permutation(rows)
    return order[: rows // 2], order[rows // 2 :]


def _weights_start(size, seed):
    x0 = np.full(size, -4.0) if seed == 0 else np.random.default_rng(seed).uniform(*WEIGHTS, size)
    return jnp.asarray(x0), jnp.zeros(size)


def feature_ridge(name, seed):
    """A ridge weight for each feature of a9a or ijcnn1, half of the rows to train on and half to validate."""
    table = {"a9a": bx.datasets.a9a, "ijcnn1": bx.datasets.ijcnn1}[name]()
    inputs = table.X if isinstance(table.X, np.ndarray) else table.X.toarray()
    train, valid = _halves(len(table.y))
    problem = problems.feature_weights(
        (inputs[train], table.y[train]), (inputs[valid], table.y[valid]), bx.Box(*WEIGHTS)
    )
    return Instance(problem, *_weights_start(inputs.shape[1], seed))


def _scores(y, part):
    return jax.ops.segment_sum(part["values"] * y[part["cols"]], part["rows"], part["labels"].size, True)


def _sparse_loss(y, part):
    return jnp.mean(jax.nn.softplus(-part["labels"] * _scores(y, part)))


def _sparse_upper(x, y, data):
    return _sparse_loss(y, data["valid"])


def _sparse_lower(x, y, data):
    return _sparse_loss(y, data["train"]) + 0.5 * jnp.sum(jnp.exp(x) * y**2)


def _sparse_diagonal(x, y, data):
    part = data["train"]
    share = jax.nn.sigmoid(_scores(y, part))
    curvature = (share * (1 - share) / share.size)[part["rows"]] * part["values"] ** 2
    return jax.ops.segment_sum(curvature, part["cols"], x.size) + jnp.exp(x)


def newsgroups_ridge(seed):
    """A ridge weight for each term: are messages about computers or sports, the first and second group of topics?"""
    news = bx.datasets.newsgroups()
    counts = news.counts.copy()
    counts.data = np.log1p(counts.data)
    lengths = np.sqrt(np.asarray(counts.multiply(counts).sum(axis=1)).ravel())
    counts.data /= np.repeat(np.where(lengths > 0, lengths, 1), np.diff(counts.indptr))
    labels, data = np.where(news.y6 <= 2, 1.0, -1.0), {}
    for name, rows in zip(("train", "valid"), _halves(len(labels)), strict=True):
        part = counts[rows].tocoo()
        data[name] = {
            "rows": jnp.asarray(part.row, jnp.int32),
            "cols": jnp.asarray(part.col, jnp.int32),
            "values": jnp.asarray(part.data),
            "labels": jnp.asarray(labels[rows]),
        }
    problem = bx.BilevelProblem(_sparse_upper, _sparse_lower, bx.Box(*WEIGHTS), data)
    return Instance(problem, *_weights_start(counts.shape[1], seed), diagonal=_sparse_diagonal)


def _family(name, make, *baselines, quick=False):
    return Family(name, "nonconvex", make, baselines, quick)


BOXED = ("fista", "implicit", "lbfgsb")
FAMILIES = [
    _family("completion-mean", completion_mean, "fista", "implicit"),
    _family("multitask-libsvm", functools.partial(related_tasks, "libsvm"), "fista", "implicit"),
    _family("multitask-nlsy", functools.partial(related_tasks, "nlsy-parts"), "fista", "implicit"),
    _family("labels-mnist", label_weights, *BOXED),
    _family("ridge-a9a", functools.partial(feature_ridge, "a9a"), *BOXED),
    _family("ridge-ijcnn1", functools.partial(feature_ridge, "ijcnn1"), *BOXED, quick=True),
    _family("ridge-newsgroups", newsgroups_ridge, *BOXED),
]
