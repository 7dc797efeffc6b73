"""Regressions that share what they have in common; K folds choose how much.

The coefficients of task t in model j are a mixture of parts that are N(0, I) a priori:

    w_t = r_j * (sqrt(b_j) s_t + sum over q of sqrt(c_jq) u_tq z_q)

s_t belongs to the task alone, z_q is shared by all tasks, and the loading u_tq says how strongly task t uses it (the
loading 1 gives the mean of all tasks). So the covariance of the tasks is Omega = b I + sum over q of c_q u_q u_q^T, of
which few numbers are left to choose. r_j scales the features. A prediction averages the models with weights p_j.

    min over x of   held-out loss of the averages over all folds    p in a simplex, the logarithms of b and c in a box
    y = argmin of   training losses of all folds and models + (|s|^2 + |z|^2) / 2

Nothing is divided by Omega: every b and c is allowed, the lower level has mu_g = 1, and its exact solution needs one
matrix of the size of the shared part for each fold and model.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Scalar

from bilevax.problem import BilevelProblem, LowerStructure
from bilevax.sets import Box, Product, Simplex

Data = dict[str, Any]
X = dict[str, Array]
Y = dict[str, Array]


def _sizes(x: X) -> tuple[Array, Array]:
    """sqrt(b) and sqrt(c), shaped to multiply s and the loadings."""
    own, shared = jnp.exp(0.5 * x["own"]), jnp.exp(0.5 * x["shared"])
    return own[None, :, None, None], shared[None, :, None, :]


def _unscaled(x: X, y: Y, data: Data) -> Float[Array, "K J T d"]:
    """The coefficients of each fold and model, before the features are scaled."""
    own, shared = _sizes(x)
    return own * y["s"] + jnp.einsum("kjtq,kjqd->kjtd", shared * data["loadings"], y["z"])


def coefficients(x: X, y: Y, data: Data) -> Float[Array, "K J T d"]:
    """The coefficients of each fold, model and task."""
    return data["scales"][None, :, None, :] * _unscaled(x, y, data)


def upper(x: X, y: Y, data: Data) -> Scalar:
    """Half the mean squared error on held-out rows, in units of the noise variance."""
    held_out = data["valid"]
    W = jnp.einsum("j,kjtd->ktd", x["mix"], coefficients(x, y, data))
    predicted = jnp.einsum("ktab,ktb->kta", held_out["G"], W)
    return (0.5 * jnp.sum(W * predicted) - jnp.sum(W * held_out["h"]) + held_out["const"]) / held_out["rows"]


def lower(x: X, y: Y, data: Data) -> Scalar:
    """The training losses of all folds and models, and the prior; `mix` does not enter."""
    w, train = _unscaled(x, y, data), data["train"]
    turned = jnp.einsum("kjtab,kjta->kjtb", train["vectors"], w)
    loss = 0.5 * jnp.sum(train["values"] * turned**2) - jnp.sum(train["h"] * w)
    return loss + 0.5 * jnp.sum(y["s"] ** 2) + 0.5 * jnp.sum(y["z"] ** 2)


def _solve(x: X, rhs: Y, data: Data) -> Y:
    """H^-1 rhs. The parts of single tasks are eliminated: with G_t the Gram matrix of task t and
    C_t = G_t (I + b G_t)^-1, what is left for z has the matrix I + sum over t of sqrt(c c') u_t u_t^T x C_t."""
    own, shared = _sizes(x)
    vectors, values = data["train"]["vectors"], data["train"]["values"]
    loadings = shared * data["loadings"]
    shrunk = 1 / (1 + own**2 * values)

    def turn(diagonal: Array, v: Array) -> Array:
        """V diag V^T v for each task."""
        inside = diagonal * jnp.einsum("kjtab,kjta->kjtb", vectors, v)
        return jnp.einsum("kjtab,kjtb->kjta", vectors, inside)

    C = jnp.einsum("kjtab,kjtb,kjtcb->kjtac", vectors, values * shrunk, vectors)
    K, J, _, Q = data["loadings"].shape
    d = values.shape[-1]
    matrix = jnp.einsum("kjtq,kjtp,kjtac->kjqapc", loadings, loadings, C).reshape(K * J, Q * d, Q * d)
    right = rhs["z"] - jnp.einsum("kjtq,kjta->kjqa", loadings, turn(own * values * shrunk, rhs["s"]))

    def one(pair: tuple[Array, Array]) -> Array:
        matrix, right = pair
        return jax.scipy.linalg.solve(matrix + jnp.eye(Q * d, dtype=matrix.dtype), right, assume_a="pos")

    # One after the other: two batched factorizations in one program can wait for each other forever on few cores.
    z = jax.lax.map(one, (matrix, right.reshape(K * J, Q * d))).reshape(K, J, Q, d)
    shared_part = jnp.einsum("kjtq,kjqa->kjta", loadings, z)
    s = turn(shrunk, rhs["s"]) - turn(own * values * shrunk, shared_part)
    return {"s": s, "z": z}


def solve_lower(x: X, y: Y, data: Data) -> Y:
    """y*(x); y is ignored."""
    own, shared = _sizes(x)
    h = data["train"]["h"]
    z = jnp.einsum("kjtq,kjta->kjqa", shared * data["loadings"], h)
    return _solve(x, {"s": own * h, "z": z}, data)


def solve_adjoint(x: X, y: Y, b: Y, data: Data) -> Y:
    """H^-1 b."""
    return _solve(x, b, data)


STRUCTURE = LowerStructure(solve_lower=solve_lower, solve_adjoint=solve_adjoint)


class Moments(NamedTuple):
    """What the squared loss needs of the rows of each task, by folds."""

    G: Float[np.ndarray, "K T d d"]
    """A^T A"""
    h: Float[np.ndarray, "K T d"]
    """A^T b"""
    const: Float[np.ndarray, "K T"]
    """b^T b"""
    rows: Float[np.ndarray, "K T"]
    """How many there are, or the sum of their weights."""


class LinkedTasks(NamedTuple):
    """The problem, and a start."""

    problem: BilevelProblem
    x0: X
    y0: Y


def linked_tasks(
    train: Moments,
    valid: Moments,
    scales: Any,
    loadings: Any,
    own: Any,
    shared: Any,
    *,
    span: float = 6.0,
    mix: Any = None,
) -> LinkedTasks:
    """The problem for K folds, J models, T tasks, d features and Q shared parts.

    Divide the rows of a task by the standard deviation of its noise before you compute its moments, and scale features
    to a similar size. Compute in double precision: in single precision `solve` refuses the exact solutions as too
    rough if features differ in size by a factor of 30.

    Args:
        train, valid: moments of the rows of each fold that are used, and of those that are held out.
        scales: r, of shape (J, d).
        loadings: u, of shape (K, J, T, Q); those of a fold must be found without its held-out rows.
        own, shared: logarithms of b and c at the start, of shapes (J,) and (J, Q).
        span: how far these logarithms may move.
        mix: the weights of the models at the start; equal ones by default.

    >>> import numpy as np, bilevax as bx
    >>> from bilevax.problems import Moments, linked_tasks
    >>> rng = np.random.default_rng(0)
    >>> A, b = rng.standard_normal((2, 3, 8, 4)), rng.standard_normal((2, 3, 8))  # two folds, three tasks
    >>> moments = Moments(np.einsum("ktna,ktnb->ktab", A, A), np.einsum("ktna,ktn->kta", A, b), (b**2).sum(2), 8.0)
    >>> made = linked_tasks(moments, moments, np.ones((1, 4)), np.ones((2, 1, 3, 1)), [-2.0], [[-2.0]])
    >>> bx.solve(made.problem, x0=made.x0, y0=made.y0, tol=1e-4).success
    True
    """
    scales, loadings = np.asarray(scales, float), np.asarray(loadings, float)
    own, shared = np.asarray(own, float), np.asarray(shared, float)
    K, T, d = np.shape(train.h)
    J, Q = scales.shape[0], loadings.shape[-1]
    wanted = {"scales": (J, d), "loadings": (K, J, T, Q), "own": (J,), "shared": (J, Q)}
    for name, array in zip(wanted, (scales, loadings, own, shared), strict=True):
        if array.shape != wanted[name]:
            raise ValueError(f"linked_tasks: {name} has shape {array.shape}; expected {wanted[name]}.")
    gram = scales[None, :, None, :, None] * np.asarray(train.G)[:, None] * scales[None, :, None, None, :]
    values, vectors = np.linalg.eigh(gram)
    data = {
        "train": {
            "vectors": jnp.asarray(vectors),
            "values": jnp.asarray(np.maximum(values, 0.0)),
            "h": jnp.asarray(scales[None, :, None, :] * np.asarray(train.h)[:, None]),
        },
        "valid": {
            "G": jnp.asarray(valid.G, float),
            "h": jnp.asarray(valid.h, float),
            "const": jnp.asarray(0.5 * np.sum(valid.const)),
            "rows": jnp.asarray(float(np.sum(np.broadcast_to(valid.rows, (K, T))))),
        },
        "scales": jnp.asarray(scales),
        "loadings": jnp.asarray(loadings),
    }
    x0 = {
        "mix": jnp.full(J, 1 / J) if mix is None else jnp.asarray(mix, float),
        "own": jnp.asarray(own),
        "shared": jnp.asarray(shared),
    }
    boxes = {name: Box(x0[name] - span, x0[name] + span) for name in ("own", "shared")}
    y0 = {"s": jnp.zeros((K, J, T, d)), "z": jnp.zeros((K, J, Q, d))}
    return LinkedTasks(
        BilevelProblem(upper, lower, Product({"mix": Simplex(), **boxes}), data, structure=STRUCTURE), x0, y0
    )
