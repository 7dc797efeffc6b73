"""Regressions that share what they have in common; K folds choose how much.

A model j is a prior of the coefficients of all tasks, a sum of parts with known variances up to a factor each:

    w_t = sqrt(b_j) s_t + sum over q of sqrt(c_jq) u_tq z_q,   s_tf ~ N(0, own_tf),   z_qf ~ N(0, shared_qf)

s_t belongs to the task alone, z_q is shared by all tasks, and the loading u_tq says how strongly task t uses it (the
loading 1 gives the mean of all tasks). Few numbers are left to choose: the factors b and c, and the weights p_j of the
models, whose coefficients are averaged.

    min over x of   held-out loss of the averages over all folds, and a weak prior of the factors
                    p in a simplex, the logarithms of b and c in a box
    y = argmin of   training losses of all folds and models + (|s|^2 + |z|^2) / 2

In y, s and z are divided by their standard deviations. Nothing is divided by a covariance: every b and c is allowed,
the lower level has mu_g = 1, and its exact solution needs one matrix of the size of the shared parts for each fold and
model.
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
    """sqrt(b) and sqrt(c), shaped to multiply s and z."""
    own, shared = jnp.exp(0.5 * x["own"]), jnp.exp(0.5 * x["shared"])
    return own[None, :, None, None], shared[None, :, :, None]


def _unscaled(x: X, y: Y, data: Data) -> Float[Array, "K J T d"]:
    """The coefficients of each fold and model in units of the standard deviations of their own parts."""
    own, shared = _sizes(x)
    return own * y["s"] + jnp.einsum("kjtqd,kjqd->kjtd", data["loadings"], shared * y["z"])


def coefficients(x: X, y: Y, data: Data) -> Float[Array, "K J T d"]:
    """The coefficients of each fold, model and task."""
    return data["scales"] * _unscaled(x, y, data)


def prior_of_sizes(x: X, data: Data) -> Scalar:
    """A weak normal prior on the logarithms of b and c: where held-out rows say nothing, they stay where they are."""
    return 0.5 * data["certainty"] * (jnp.sum(x["own"] ** 2) + jnp.sum(x["shared"] ** 2))


def upper(x: X, y: Y, data: Data) -> Scalar:
    """Half the mean squared error on held-out rows, in units of the noise variance, and the prior of the sizes."""
    held_out = data["valid"]
    W = jnp.einsum("j,kjtd->ktd", x["mix"], coefficients(x, y, data))
    predicted = jnp.einsum("ktab,ktb->kta", held_out["G"], W)
    loss = 0.5 * jnp.sum(W * predicted) - jnp.sum(W * held_out["h"]) + held_out["const"]
    return loss / held_out["rows"] + prior_of_sizes(x, data)


def lower(x: X, y: Y, data: Data) -> Scalar:
    """The training losses of all folds and models, and the prior; `mix` does not enter."""
    w, train = _unscaled(x, y, data), data["train"]
    turned = jnp.einsum("kjtab,kjta->kjtb", train["vectors"], w)
    loss = 0.5 * jnp.sum(train["values"] * turned**2) - jnp.sum(train["h"] * w)
    return loss + 0.5 * jnp.sum(y["s"] ** 2) + 0.5 * jnp.sum(y["z"] ** 2)


@jax.jit  # checks call it by itself, and a loop that is not compiled with the rest is compiled anew each time
def _solve(x: X, rhs: Y, data: Data) -> Y:
    """H^-1 rhs. The parts of single tasks are eliminated: with G_t the Gram matrix of task t and
    C_t = G_t (I + b G_t)^-1, what is left for z has the matrix I + sum over t of L_t^T C_t L_t, where L_t z is the
    shared part of task t."""
    own, shared = _sizes(x)
    vectors, values = data["train"]["vectors"], data["train"]["values"]
    loadings = shared[:, :, None] * data["loadings"]
    shrunk = 1 / (1 + own**2 * values)

    def turn(diagonal: Array, v: Array) -> Array:
        """V diag V^T v for each task."""
        inside = diagonal * jnp.einsum("kjtab,kjta->kjtb", vectors, v)
        return jnp.einsum("kjtab,kjtb->kjta", vectors, inside)

    C = jnp.einsum("kjtab,kjtb,kjtcb->kjtac", vectors, values * shrunk, vectors)
    K, J, T, Q, d = loadings.shape
    right = rhs["z"] - jnp.einsum("kjtqa,kjta->kjqa", loadings, turn(own * values * shrunk, rhs["s"]))

    def one(parts: tuple[Array, Array, Array]) -> Array:
        loadings, C, right = parts
        matrix = jnp.einsum("tqa,tac,tpc->qapc", loadings, C, loadings).reshape(Q * d, Q * d)
        return jax.scipy.linalg.solve(matrix + jnp.eye(Q * d, dtype=matrix.dtype), right, assume_a="pos")

    # One after the other: two batched factorizations in one program can wait for each other forever on few cores.
    flat = loadings.reshape(K * J, T, Q, d), C.reshape(K * J, T, d, d), right.reshape(K * J, Q * d)
    z = jax.lax.map(one, flat).reshape(K, J, Q, d)
    shared_part = jnp.einsum("kjtqa,kjqa->kjta", loadings, z)
    s = turn(shrunk, rhs["s"]) - turn(own * values * shrunk, shared_part)
    return {"s": s, "z": z}


def solve_lower(x: X, y: Y, data: Data) -> Y:
    """y*(x); y is ignored."""
    own, shared = _sizes(x)
    h = data["train"]["h"]
    z = shared * jnp.einsum("kjtqa,kjta->kjqa", data["loadings"], h)
    return _solve(x, {"s": own * h, "z": z}, data)


def solve_adjoint(x: X, y: Y, b: Y, data: Data) -> Y:
    """H^-1 b."""
    return _solve(x, b, data)


STRUCTURE = LowerStructure(solve_lower=solve_lower, solve_adjoint=solve_adjoint)


class LinkedTasks(NamedTuple):
    """The problem, and a start."""

    problem: BilevelProblem
    x0: X
    y0: Y


SPAN, DEVIATION = 4.0, 3.0


def linked_tasks(
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

    Divide the rows of a task by the standard deviation of its noise before you compute its moments, and scale features
    to a similar size. Compute in double precision: in single precision `solve` refuses the exact solutions as too
    rough if variances differ by a factor of 1000.

    Args:
        train: G = A^T A of shape (K, T, d, d) and h = A^T b of shape (K, T, d), of the rows that a fold learns from.
        valid: the same of the rows that are held out, and the sums of their b^2 and of their numbers or weights.
        own: variances of the own parts, of shape (K, J, T, d); positive.
        loadings: u, of shape (K, J, T, Q). Those of a fold must be found without its held-out rows.
        shared: variances of the shared parts, of shape (K, J, Q, d).
        span: how far the logarithms of the factors b and c may move from 0.
        deviation: standard deviation of a normal prior on them; the held-out loss counts as a log-likelihood.

    >>> import numpy as np
    >>> from bilevax.problems import linked_tasks
    >>> rng = np.random.default_rng(0)
    >>> A, b = rng.standard_normal((2, 3, 8, 4)), rng.standard_normal((2, 3, 8))  # two folds, three tasks
    >>> train = np.einsum("ktna,ktnb->ktab", A, A), np.einsum("ktna,ktn->kta", A, b)
    >>> valid = (*train, np.sum(b**2), b.size)
    >>> made = linked_tasks(train, valid, np.ones((2, 1, 3, 4)), np.ones((2, 1, 3, 1)), np.ones((2, 1, 1, 4)))
    >>> {name: part.shape for name, part in made.x0.items()}
    {'mix': (1,), 'own': (1,), 'shared': (1, 1)}

    `bx.solve(made.problem, x0=made.x0, y0=made.y0)` does the rest.
    """
    own, loadings, shared = (np.asarray(part, float) for part in (own, loadings, shared))
    G, h = (np.asarray(part, float) for part in train)
    prior = prior_data("linked_tasks", h.shape, own, loadings, shared)
    scales = prior["scales"]
    values, vectors = np.linalg.eigh(scales[..., :, None] * G[:, None] * scales[..., None, :])
    held_G, held_h, held_squares, held_rows = valid
    data = {
        "train": {"vectors": vectors, "values": np.maximum(values, 0.0), "h": scales * h[:, None]},
        "valid": {"G": held_G, "h": held_h, "const": 0.5 * held_squares, "rows": held_rows},
        "certainty": 1 / (deviation**2 * held_rows),
        **prior,
    }
    data = jax.tree.map(lambda part: jnp.asarray(part, float), data)
    domain, x0, y0 = prior_start(own.shape, loadings.shape[-1], span)
    return LinkedTasks(BilevelProblem(upper, lower, domain, data, structure=STRUCTURE), x0, y0)


def prior_data(caller: str, sizes: tuple[int, ...], own: Any, loadings: Any, shared: Any) -> dict[str, np.ndarray]:
    """What `coefficients` reads, for `sizes` of K folds, T tasks and d features; what does not fit is refused."""
    (K, T, d), J, Q = sizes, own.shape[1], loadings.shape[-1]
    wanted = {"own": (K, J, T, d), "loadings": (K, J, T, Q), "shared": (K, J, Q, d)}
    for name, array in zip(wanted, (own, loadings, shared), strict=True):
        if array.shape != wanted[name]:
            raise ValueError(f"{caller}: {name} has shape {array.shape}; expected {wanted[name]}.")
    if not np.all(own > 0) or not np.all(shared >= 0):
        raise ValueError(f"{caller}: variances of own parts must be positive, those of shared parts not negative.")
    scales = np.sqrt(own)
    relative = np.sqrt(shared)[:, :, None] / scales[:, :, :, None]
    return {"scales": scales, "loadings": loadings[..., None] * relative}


def prior_start(shape: tuple[int, ...], n_shared: int, span: float) -> tuple[Product, X, Y]:
    """The set, x with equal weights and the sizes of the prior, and y = 0."""
    K, J, T, d = shape
    x0 = {"mix": jnp.full(J, 1 / J), "own": jnp.zeros(J), "shared": jnp.zeros((J, n_shared))}
    y0 = {"s": jnp.zeros((K, J, T, d)), "z": jnp.zeros((K, J, n_shared, d))}
    return Product({"mix": Simplex(), "own": Box(-span, span), "shared": Box(-span, span)}), x0, y0
