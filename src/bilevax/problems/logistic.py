"""Logistic regression with one l2 weight per feature, tuned on validation data.

    min over x in X of  mean over the validation rows of log(1 + exp(-b a.y))
    y = argmin of       mean over the training rows of the same + 1/2 sum over j of exp(x_j) y_j^2

x holds the logarithms of the weights, so that a box keeps the lower level strongly convex and the search well scaled.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Scalar

from bilevax import trees
from bilevax.problem import BilevelProblem
from bilevax.sampling import Blocks, PerPart
from bilevax.sets import Box, ConvexSet

Data = dict[str, dict[str, Any]]


def _loss(y: Float[Array, " d"], part: dict[str, Any]) -> Scalar:
    """The mean logistic loss of labels in {-1, 1}."""
    return jnp.mean(jax.nn.softplus(-part["b"] * (part["A"] @ y)))


def upper(x: Float[Array, " d"], y: Float[Array, " d"], data: Data) -> Scalar:
    """The validation loss; x enters only through y."""
    return _loss(y, data["valid"])


def lower(x: Float[Array, " d"], y: Float[Array, " d"], data: Data) -> Scalar:
    """The training loss with a weighted ridge."""
    return _loss(y, data["train"]) + 0.5 * jnp.sum(jnp.exp(x) * y**2)


def feature_weights(
    train: tuple[Any, Any], valid: tuple[Any, Any], domain: ConvexSet | None = None, *, blocks: int | None = None
) -> BilevelProblem:
    """The problem for pairs (A, b) of features and labels in {-1, 1}.

    `domain` is the set of the logarithms, by default weights between e^-7 and 1. With `blocks`, both parts are cut into
    that many mini-batches of consecutive rows, so shuffle first.
    """
    parts: Data = {}
    for name, (A, b) in (("train", train), ("valid", valid)):
        A, b = np.asarray(A), np.asarray(b)
        if A.ndim != 2 or b.shape != (len(A),):
            raise ValueError(
                f"feature_weights: {name} needs A of shape (n, d) and b of shape (n,), got {A.shape}, {b.shape}."
            )
        if not set(np.unique(b)) <= {-1, 1}:
            raise ValueError(f"feature_weights: labels of {name} must be -1 and 1, got {np.unique(b)[:5].tolist()}.")
        parts[name] = {"A": jnp.asarray(A, float), "b": jnp.asarray(b, float)}
    d = parts["train"]["A"].shape[1]
    if parts["valid"]["A"].shape[1] != d:
        raise ValueError(f"feature_weights: train has {d} features, valid {parts['valid']['A'].shape[1]}.")
    sampler = None
    if blocks is not None:
        rows = {name: len(part["b"]) for name, part in parts.items()}
        if not 1 <= blocks <= min(rows.values()) or any(n % blocks for n in rows.values()):
            raise ValueError(f"feature_weights: {rows} rows do not divide into {blocks!r} blocks; drop some rows.")
        sampler = PerPart({name: Blocks(n // blocks, n) for name, n in rows.items()})
    like = trees.shapes(jnp.zeros(d))
    domain = Box(-7.0, 0.0) if domain is None else domain
    return BilevelProblem(upper, lower, domain, parts, sampler, x_like=like, y_like=like)
