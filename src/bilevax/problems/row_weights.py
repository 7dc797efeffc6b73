"""Weights of rows: which rows should a classifier learn from, so that it does well on others?

    min over x of   mean loss of y(x) on the rows that judge
    y(x) = argmin of   sum over i of x_i loss(y; row i) / n + ridge/2 |slopes|^2 + a tiny ridge on the intercepts

Each row of the lower level has a weight x_i. With x in a box the weights say which labels to believe; a capped simplex
limits how many may be thrown away; a simplex with few corners in use is a coreset.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Scalar

from bilevax.problem import BilevelProblem

Data = dict[str, Any]
Y = dict[str, Array]
_INTERCEPTS = 1e-3
"""The ridge on intercepts, relative to that on slopes: the lower level has to be strongly convex."""


class RowWeights(NamedTuple):
    """The problem, and a start for y."""

    problem: BilevelProblem
    y0: Y


def losses(y: Y, rows: Data) -> Float[Array, " n"]:
    """The cross-entropy of each row with its soft label."""
    scores = rows["A"] @ y["slopes"] + y["intercepts"]
    return jax.nn.logsumexp(scores, axis=1) * jnp.sum(rows["soft"], axis=1) - jnp.sum(scores * rows["soft"], axis=1)


def upper(x: Float[Array, " n"], y: Y, data: Data) -> Scalar:
    """The mean loss on the rows that judge."""
    rows = data["judges"]
    return jnp.sum(rows["weight"] * losses(y, rows)) / jnp.sum(rows["weight"])


def lower(x: Float[Array, " n"], y: Y, data: Data) -> Scalar:
    """The weighted losses and the ridge."""
    rows = data["learns"]
    ridge = jnp.sum(y["slopes"] ** 2) + _INTERCEPTS * jnp.sum(y["intercepts"] ** 2)
    return jnp.sum(x * losses(y, rows)) / x.size + 0.5 * data["ridge"] * ridge


def row_weights(learns: Any, judges: Any, domain: Any, *, ridge: float) -> RowWeights:
    """The problem for rows that learn and rows that judge, each a pair of features and soft labels.

    Args:
        learns: features of shape (n, d), and a probability for each class of shape (n, C); x has n weights.
        judges: the same, and if you like a weight for each row.
        domain: where x may be, such as `bx.Box(0.0, 1.0)`.
        ridge: positive.

    >>> import numpy as np, bilevax as bx
    >>> from bilevax.problems import row_weights
    >>> rng = np.random.default_rng(0)
    >>> A, soft = rng.standard_normal((30, 2)), np.eye(2)[rng.integers(0, 2, 30)]
    >>> made = row_weights((A[:20], soft[:20]), (A[20:], soft[20:]), bx.Box(0.0, 1.0), ridge=0.1)
    >>> float(made.problem.upper(np.ones(20), made.y0, made.problem.data).round(4))  # without slopes: log 2
    0.6931

    `bx.solve(made.problem, x0=jnp.ones(20), y0=made.y0)` does the rest.
    """
    A, soft = (np.asarray(part, float) for part in learns)
    B, soft_too, *weight = (np.asarray(part, float) for part in judges)
    for name, features, labels in (("learns", A, soft), ("judges", B, soft_too)):
        if features.ndim != 2 or labels.ndim != 2 or len(features) != len(labels):
            raise ValueError(
                f"row_weights: {name} has features of shape {features.shape} and soft labels of shape {labels.shape}; "
                "expected a row of each for every row."
            )
    if A.shape[1] != B.shape[1] or soft.shape[1] != soft_too.shape[1]:
        raise ValueError(
            f"row_weights: rows that learn have {A.shape[1]} features and {soft.shape[1]} classes, rows that judge "
            f"{B.shape[1]} and {soft_too.shape[1]}."
        )
    if not ridge > 0:
        raise ValueError(f"row_weights: ridge must be positive, got {ridge!r}.")
    data = {
        "learns": {"A": A, "soft": soft},
        "judges": {"A": B, "soft": soft_too, "weight": weight[0] if weight else np.ones(len(B))},
        "ridge": ridge,
    }
    data = jax.tree.map(lambda part: jnp.asarray(part, float), data)
    y0 = {"slopes": jnp.zeros((A.shape[1], soft.shape[1])), "intercepts": jnp.zeros(soft.shape[1])}
    return RowWeights(BilevelProblem(upper, lower, domain, data), y0)
