"""Multi-task learning: a covariance of the tasks, learnt on validation data, couples their ridge regressions.

    min over Omega of  sum over i of 1/n_i |A_i w_i - b_i|^2                      on the validation parts
    W = argmin of      sum over i of 1/n_i |A_i w_i - b_i|^2                      on the training parts
                       + lambda1 |W|_F^2 + lambda2 Tr(W Omega^-1 W^T)

W is d x T with one column per task. The paper prints the set {Omega >= 0, Tr Omega <= c} (`eps=0`), whose vertices are
singular: at such a point Omega^-1 does not exist, L_g is infinite on the set, and no step size of the theory works.
`eps > 0` demands Omega >= eps I and repairs it.

y*(Omega) = K (B K + 2 lambda2 I)^-1 b with K = Omega x I is smooth for every Omega >= 0, singular ones included.
`solve_lower` and `solve_adjoint` compute it so; `lower`, `hvp` and `cross` need an invertible Omega.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_factor, cho_solve
from jaxtyping import Array, Float, Scalar

from bilevax.problem import BilevelProblem, LowerStructure
from bilevax.sets import Spectraplex
from bilevax.theory import Constants

Omega = Float[Array, "T T"]
Weights = Float[Array, "d T"]
Rows = Float[Array, "T d"]
Data = dict[str, Any]

GRID = tuple(float(v) for v in np.geomspace(1e-5, 1e2, 29))
"""The weights that `ridge_tuned` tries."""


def _square_loss(W: Weights, part: Data) -> Scalar:
    """Sum over i of 1/n_i |A_i w_i - b_i|^2 from the Gram matrices, in O(T d^2)."""
    return jnp.sum(W * (_by_task(part["G"], W) - 2 * part["h"].T)) + part["const"]


def _by_task(matrices: Float[Array, "T d d"], W: Weights) -> Weights:
    """Each task's matrix times its column."""
    return jnp.einsum("iab,bi->ai", matrices, W)


def _symmetric(omega: Omega) -> Omega:
    return 0.5 * (omega + omega.T)


def upper(omega: Omega, W: Weights, data: Data) -> Scalar:
    """The validation losses; Omega enters only through W."""
    return _square_loss(W, data["valid"])


def lower(omega: Omega, W: Weights, data: Data) -> Scalar:
    """The training losses and both regularizers; of Omega only the symmetric part counts."""
    coupling = jnp.sum(W.T * jnp.linalg.solve(_symmetric(omega), W.T))
    return _square_loss(W, data["train"]) + data["lambda1"] * jnp.sum(W**2) + data["lambda2"] * coupling


def hvp(omega: Omega, W: Weights, w: Weights, data: Data) -> Weights:
    """H w = 2 G_i w_i in each column, + 2 lambda1 w + 2 lambda2 w Omega^-1."""
    coupling = jnp.linalg.solve(_symmetric(omega), w.T).T
    return 2 * _by_task(data["train"]["G"], w) + 2 * data["lambda1"] * w + 2 * data["lambda2"] * coupling


def cross(omega: Omega, W: Weights, w: Weights, data: Data) -> Omega:
    """J w = -lambda2 Omega^-1 (W^T w + w^T W) Omega^-1: symmetric, since `lower` reads the symmetric part of Omega."""
    both = jnp.linalg.solve(_symmetric(omega), jnp.concatenate([W.T, w.T], axis=1))
    left, right = jnp.split(both, 2, axis=1)
    product = left @ right.T
    return -data["lambda2"] * (product + product.T)


def _solve(omega: Omega, rhs: Weights, data: Data) -> Weights:
    """H^-1 rhs for any Omega >= 0.

    With B = blockdiag(2 G_i + 2 lambda1 I) = R R and K = Omega x I, H = B + 2 lambda2 K^-1 has the inverse
    K R (R K R + 2 lambda2 I)^-1 R^-1. The inner matrix has no eigenvalue below 2 lambda2 and no inverse of Omega.
    A root of B rather than of Omega makes the answer a smooth function of Omega that autodiff can follow.
    """
    omega = _symmetric(omega)
    d, T = rhs.shape
    inner = (omega[:, None, :, None] * data["root_products"]).reshape(T * d, T * d)
    inner = inner + 2 * data["lambda2"] * jnp.eye(T * d, dtype=inner.dtype)
    u = cho_solve(cho_factor(inner), _by_task(data["inverse_root"], rhs).T.reshape(T * d))
    return _by_task(data["root"], u.reshape(T, d).T) @ omega


def solve_lower(omega: Omega, W: Weights, data: Data) -> Weights:
    """y*(Omega), and where Omega is singular its limit; W is ignored."""
    return _solve(omega, 2 * data["train"]["h"].T, data)


def solve_adjoint(omega: Omega, W: Weights, b: Weights, data: Data) -> Weights:
    """H^-1 b, and where Omega is singular its limit."""
    return _solve(omega, b, data)


STRUCTURE = LowerStructure(hvp, cross, None, solve_lower, solve_adjoint)


class Part(NamedTuple):
    """Features, one row per sample, and labels."""

    A: np.ndarray
    b: np.ndarray


class Task(NamedTuple):
    """One regression task."""

    name: str
    train: Part
    valid: Part
    test: Part


class MultiTask(NamedTuple):
    """The problem, its constants and starts, and the tasks it is made of."""

    problem: BilevelProblem
    constants: Constants
    omega0: Array
    """(c/T) I"""
    w0: Array
    """Zero."""
    tasks: tuple[Task, ...]


def split(
    name: str, A: np.ndarray, b: np.ndarray, rng: np.random.Generator, fractions: tuple[float, float] = (0.6, 0.2)
) -> Task:
    """A random split into training, validation and test part; `fractions` are the shares of the first two.

    >>> import numpy as np
    >>> task = split("toy", np.ones((10, 3)), np.ones(10), np.random.default_rng(0))
    >>> [len(part.b) for part in (task.train, task.valid, task.test)]
    [6, 2, 2]
    """
    if len(fractions) != 2 or not (min(fractions) > 0 and sum(fractions) < 1):
        raise ValueError(
            f"split: fractions are the positive shares of training and validation and must leave some for the test, "
            f"got {tuple(fractions)}."
        )
    A, b = _checked(f"task {name!r}", Part(A, b))
    n = len(b)
    first, second = round(fractions[0] * n), round((fractions[0] + fractions[1]) * n)
    if not 0 < first < second < n:
        raise ValueError(f"split: task {name!r} has {n} samples, too few for three non-empty parts.")
    parts = np.split(rng.permutation(n), [first, second])
    return Task(name, *(Part(A[rows], b[rows]) for rows in parts))


def pad(tasks: Iterable[Task]) -> tuple[Task, ...]:
    """The tasks with zero columns appended, so that all have as many features as the largest."""
    tasks = tuple(_checked_task(t) for t in tasks)
    d = max((part.A.shape[1] for t in tasks for part in (t.train, t.valid, t.test)), default=0)

    def wide(part: Part) -> Part:
        return Part(np.pad(part.A, [(0, 0), (0, d - part.A.shape[1])]), part.b)

    return tuple(Task(t.name, wide(t.train), wide(t.valid), wide(t.test)) for t in tasks)


def _checked(where: str, part: Part) -> Part:
    """A part in double precision, refused in words if it is no data."""
    A, b = np.asarray(part.A, np.float64), np.asarray(part.b, np.float64)
    if A.ndim != 2 or b.shape != A.shape[:1]:
        raise ValueError(f"{where}: need A of shape (n, d) and b of shape (n,), got {A.shape} and {b.shape}.")
    if A.size == 0:
        raise ValueError(f"{where} is empty: A has shape {A.shape}.")
    if not (np.all(np.isfinite(A)) and np.all(np.isfinite(b))):
        raise ValueError(f"{where} holds a NaN or infinite entry; drop or impute such samples first.")
    return Part(A, b)


def _checked_task(task: Task) -> Task:
    parts = {"training": task.train, "validation": task.valid, "test": task.test}
    return Task(task.name, *(_checked(f"the {kind} part of task {task.name!r}", part) for kind, part in parts.items()))


def _checked_tasks(tasks: Iterable[Task]) -> tuple[Task, ...]:
    """All parts of all tasks, with one number of features."""
    checked = tuple(_checked_task(t) for t in tasks)
    if not checked:
        raise ValueError("there is no task; give at least one.")
    widths = {t.name: sorted({part.A.shape[1] for part in (t.train, t.valid, t.test)}) for t in checked}
    if len({d for own in widths.values() for d in own}) > 1:
        listed = ", ".join(f"{name!r} has {' and '.join(map(str, own))}" for name, own in widths.items())
        raise ValueError(f"the tasks differ in their number of features; call pad(tasks) first: {listed}.")
    return checked


def _gram(parts: Sequence[Part]) -> dict[str, np.ndarray]:
    """G_i = A_i^T A_i / n_i, h_i = A_i^T b_i / n_i and the sum of |b_i|^2 / n_i, in double precision."""
    return {
        "G": np.stack([A.T @ A / len(b) for A, b in parts]),
        "h": np.stack([A.T @ b / len(b) for A, b in parts]),
        "const": np.asarray(sum(b @ b / len(b) for _, b in parts)),
    }


def multi_task(
    tasks: Iterable[Task], trace: float = 1.0, *, eps: float = 0.0, lambda1: float = 0.1, lambda2: float = 0.1
) -> MultiTask:
    """The problem on `Spectraplex(trace, eps)`, its constants, and the starts (c/T) I and zero.

    `eps=0` is the set as printed. L_g and the constants with a power of 1/eps are then infinite on the set, and those
    returned hold at the start Omega_0 only; `mu_g` holds on the whole set in either case.

    Args:
        tasks: with equally many features (see `pad`).
        trace: the bound c on the trace of Omega.
        eps: the least eigenvalue of Omega.
        lambda1: weight of |W|_F^2; lambda2: weight of Tr(W Omega^-1 W^T).
    """
    tasks = _checked_tasks(tasks)
    if len(tasks) < 2:
        raise ValueError(f"multi_task: one task alone ({tasks[0].name!r}) has no relation to learn; give at least two.")
    if not (0 < lambda1 < np.inf and 0 < lambda2 < np.inf):
        raise ValueError(f"multi_task: need lambda1 > 0 and lambda2 > 0, got {lambda1} and {lambda2}.")
    T, d, dtype = len(tasks), tasks[0].train.A.shape[1], jnp.result_type(float)
    domain = Spectraplex(trace, eps)
    omega0: Any = jnp.asarray(trace / T * np.eye(T), dtype)
    w0: Any = jnp.zeros((d, T), dtype)
    domain.check_like(omega0)
    train, valid = _gram([t.train for t in tasks]), _gram([t.valid for t in tasks])
    values, vectors = np.linalg.eigh(2 * train["G"] + 2 * lambda1 * np.eye(d))
    values = np.maximum(values, 2 * lambda1)  # rounding, where G is singular
    root = np.einsum("iab,ib,icb->iac", vectors, np.sqrt(values), vectors)
    inverse_root = np.einsum("iab,ib,icb->iac", vectors, values**-0.5, vectors)
    given: Data = {
        "train": train,
        "valid": valid,
        "root": root,
        "inverse_root": inverse_root,
        "root_products": np.einsum("iac,jcb->iajb", root, root),
        "lambda1": lambda1,
        "lambda2": lambda2,
    }
    data = jax.tree.map(lambda v: jnp.asarray(v, dtype), given)
    problem = BilevelProblem(upper, lower, domain, data, structure=STRUCTURE, x_like=omega0, y_like=w0)
    width = float(domain.diameter(omega0).value)
    constants = _constants(train, valid, values, float(trace), float(eps), lambda2, width)
    return MultiTask(problem, constants, omega0, w0, tasks)


def _constants(
    train: Data, valid: Data, curvature: np.ndarray, trace: float, eps: float, lambda2: float, width: float
) -> Constants:
    """The constants for Omega >= floor I and |W|_F <= radius; `curvature` are the eigenvalues of 2 G_i + 2 lambda1 I.

    The ball of that radius holds every y*(Omega), and every lower gradient step of size at most 2/(mu_g + L_g) maps
    it into itself: |W - alpha (H W - 2h)| <= (1 - alpha mu_g) |W| + alpha |2h|.
    """
    T = len(curvature)
    floor = eps if eps > 0 else trace / T
    mu_g = float(curvature.min()) + 2 * lambda2 / (trace - (T - 1) * eps)  # Omega <= (trace - (T-1) eps) I
    radius = 2 * float(np.linalg.norm(train["h"])) / mu_g
    L_yy_f = 2 * float(np.linalg.eigvalsh(valid["G"]).max())
    return Constants(
        mu_g,
        float(curvature.max()) + 2 * lambda2 / floor,
        # |J w| <= lambda2 |Omega^-1|^2 |W^T w + w^T W|
        C_yx_g=2 * lambda2 * radius / floor**2,
        # J changes with W by 2 lambda2 / floor^2, with Omega (twice in a product) by 4 lambda2 radius / floor^3
        L_yx_g=math.hypot(2 * lambda2 / floor**2, 4 * lambda2 * radius / floor**3),
        # H contains 2 lambda2 Omega^-1, and |P^-1 - Q^-1| = |P^-1 (Q - P) Q^-1|
        L_yy_g=2 * lambda2 / floor**2,
        L_xx_f=0.0,
        L_xy_f=0.0,
        L_yx_f=0.0,
        L_yy_f=L_yy_f,
        # grad_y f = 2 G W - 2 h of the validation parts
        C_y_f=L_yy_f * radius + 2 * float(np.linalg.norm(valid["h"])),
        D_X=width,
    )


def _errors(W: Any, parts: Sequence[Part]) -> np.ndarray:
    """The mean squared error of each column on its part."""
    columns = np.asarray(W, np.float64)
    wanted = (parts[0].A.shape[1], len(parts))
    if columns.shape != wanted:
        raise ValueError(f"W must have one column per task, shape {wanted}, got {columns.shape}.")
    return np.array([np.mean((A @ w - b) ** 2) for (A, b), w in zip(parts, columns.T, strict=True)])


def task_errors(W: Weights | np.ndarray, tasks: Iterable[Task]) -> np.ndarray:
    """The mean squared error of each task on its test part."""
    return _errors(W, [t.test for t in _checked_tasks(tasks)])


def ridge(tasks: Iterable[Task], lam: float = 0.1) -> np.ndarray:
    """Each task alone: column i minimises 1/n_i |A_i w - b_i|^2 + lam |w|^2 on its training part."""
    if not 0 < lam < np.inf:
        raise ValueError(f"ridge: lam must be a positive number, got {lam!r}.")
    gram = _gram([t.train for t in _checked_tasks(tasks)])
    return np.linalg.solve(gram["G"] + lam * np.eye(gram["G"].shape[1]), gram["h"][..., None])[..., 0].T


def ridge_tuned(tasks: Iterable[Task], grid: Iterable[float] = GRID) -> tuple[np.ndarray, np.ndarray]:
    """Ridge regression with each task's own weight, the one of `grid` with the least validation error; W and weights.

    It spends the validation parts as the bilevel problem does, so that a comparison with it is fair.
    """
    tasks, weights = _checked_tasks(tasks), np.array([float(lam) for lam in grid])
    if weights.size == 0:
        raise ValueError("ridge_tuned: grid is empty; give at least one weight.")
    candidates = np.stack([ridge(tasks, lam) for lam in weights])
    best = np.argmin([_errors(W, [t.valid for t in tasks]) for W in candidates], axis=0)
    return np.stack([candidates[k, :, i] for i, k in enumerate(best)], axis=1), weights[best]
