"""Logistic regressions that share what they have in common; K folds choose how much.

The prior, x and y are those of `linked_tasks`; the loss is log(1 + exp(-b a.w)) with labels b of -1 and 1, so that the
lower level has no closed form. Rows that a fold holds out have the weight 0 there.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Scalar

from bilevax.problem import BilevelProblem
from bilevax.problems.linked_tasks import (
    DEVIATION,
    SPAN,
    Data,
    LinkedTasks,
    X,
    Y,
    coefficients,
    prior_data,
    prior_of_sizes,
    prior_start,
)


def _losses(W: Float[Array, "T d"], data: Data) -> Float[Array, " n"]:
    """The loss of each row."""
    scores = jnp.sum(data["A"] * W[data["task"]], axis=1)
    return jax.nn.softplus(-data["b"] * scores)


@jax.jit  # checks call it by itself, and a loop that is not compiled with the rest is compiled anew each time
def upper(x: X, y: Y, data: Data) -> Scalar:
    """The mean loss on held-out rows, and the prior of the sizes."""
    W = jnp.einsum("j,kjtd->ktd", x["mix"], coefficients(x, y, data))
    folds = jax.lax.map(lambda part: part[1] @ _losses(part[0], data), (W, data["valid"]))
    return jnp.sum(folds) / data["rows"] + prior_of_sizes(x, data)


@jax.jit
def lower(x: X, y: Y, data: Data) -> Scalar:
    """The training losses of all folds and models, and the prior; `mix` does not enter."""
    W = coefficients(x, y, data)

    def fold(part: tuple[Array, Array]) -> Array:
        models, weights = part
        return jnp.sum(jax.lax.map(lambda W: weights @ _losses(W, data), models))

    losses = jax.lax.map(fold, (W, data["train"]))
    return jnp.sum(losses) + 0.5 * jnp.sum(y["s"] ** 2) + 0.5 * jnp.sum(y["z"] ** 2)


def linked_classifiers(
    rows: Any,
    train: Any,
    valid: Any,
    own: Any,
    loadings: Any,
    shared: Any,
    *,
    span: float = SPAN,
    deviation: float = DEVIATION,
) -> LinkedTasks:
    """The problem for K folds, J models, T tasks, d features and Q shared parts.

    Args:
        rows: features of shape (n, d), labels -1 and 1, and the number of the task of each row.
        train, valid: weights of the rows in each fold, of shape (K, n), where it learns and where it is judged.
        own, loadings, shared, span, deviation: as for `linked_tasks`.

    >>> import numpy as np
    >>> from bilevax.problems import linked_classifiers
    >>> rng = np.random.default_rng(0)
    >>> rows = rng.standard_normal((40, 3)), np.sign(rng.standard_normal(40)), np.arange(40) % 4
    >>> held_out = np.arange(40) // 4 % 2 == np.arange(2)[:, None]
    >>> prior = np.ones((2, 1, 4, 3)), np.ones((2, 1, 4, 1)), np.ones((2, 1, 1, 3))
    >>> made = linked_classifiers(rows, ~held_out, held_out, *prior)
    >>> float(made.problem.upper(made.x0, made.y0, made.problem.data).round(4))  # without slopes: log 2
    0.6931

    `bx.solve(made.problem, x0=made.x0, y0=made.y0)` does the rest.
    """
    A, b, task = (np.asarray(part) for part in rows)
    own, loadings, shared = (np.asarray(part, float) for part in (own, loadings, shared))
    train, valid = np.asarray(train, float), np.asarray(valid, float)
    n_tasks = own.shape[2]
    if train.shape != valid.shape or train.shape[1:] != (len(A),) or b.shape != (len(A),):
        raise ValueError(
            f"linked_classifiers: expected {len(A)} labels and weights of shape (folds, {len(A)}), got shapes "
            f"{b.shape}, {train.shape} and {valid.shape}."
        )
    if not np.all(np.abs(b) == 1):
        raise ValueError("linked_classifiers: labels must be -1 and 1.")
    if task.shape != b.shape or not (0 <= task.min() and task.max() < n_tasks):
        raise ValueError(f"linked_classifiers: task must number the task of each row, from 0 to {n_tasks - 1}.")
    prior = prior_data("linked_classifiers", (len(train), n_tasks, A.shape[1]), own, loadings, shared)
    data = {"A": A, "b": b, "train": train, "valid": valid, "rows": valid.sum()}
    data |= {"certainty": 1 / (deviation**2 * valid.sum()), **prior}
    data = {"task": jnp.asarray(task), **jax.tree.map(lambda part: jnp.asarray(part, float), data)}
    domain, x0, y0 = prior_start(own.shape, loadings.shape[-1], span)
    return LinkedTasks(BilevelProblem(upper, lower, domain, data), x0, y0)
