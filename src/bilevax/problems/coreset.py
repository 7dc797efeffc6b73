"""The paper's toy: the point nearest to a target whose image under A lies in the hull of four points, eq. (15).

    min over lambda in the simplex of 1/2 |theta(lambda) - target|^2,  theta(lambda) = argmin 1/2 |A theta - X lambda|^2

The paper prints the target (2, 2) and the starts, but neither A nor the points. Ours are below.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Scalar

from bilevax.problem import BilevelProblem
from bilevax.sets import Simplex
from bilevax.theory import Constants

TARGET = np.array([2.0, 2.0])
POINTS = np.array([[0.6, 0.0, -0.6, -0.3], [0.2, 1.0, 0.3, -0.6]])
"""The four points, one per column. For both maps the nearest admissible theta is inside an edge."""
ANGLE = np.pi / 6
L_G = 2.0


def linear_map(mu_g: float) -> np.ndarray:
    """A symmetric A, turned by thirty degrees, for which A^T A has the eigenvalues `mu_g` and 2."""
    turn = np.array([[np.cos(ANGLE), -np.sin(ANGLE)], [np.sin(ANGLE), np.cos(ANGLE)]])
    return (turn * np.sqrt([mu_g, L_G])) @ turn.T


def upper(weights: Float[Array, " 4"], theta: Float[Array, " 2"], data: dict[str, Array]) -> Scalar:
    """1/2 |theta - target|^2."""
    return 0.5 * jnp.sum((theta - data["target"]) ** 2)


def lower(weights: Float[Array, " 4"], theta: Float[Array, " 2"], data: dict[str, Array]) -> Scalar:
    """1/2 |A theta - X lambda|^2."""
    return 0.5 * jnp.sum((data["A"] @ theta - data["X"] @ weights) ** 2)


class Toy(NamedTuple):
    """The problem, its starts and constants, and the exact optimum."""

    problem: BilevelProblem
    x0: Array
    y0: Array
    constants: Constants
    weights_star: np.ndarray
    theta_star: np.ndarray
    ell_star: float


def toy_coreset(mu_g: float = 1.0) -> Toy:
    """The toy problem; `mu_g` is 1 in the paper's first figure and 0.1 in the other two."""
    given = {"A": linear_map(mu_g), "X": POINTS, "target": TARGET}
    data = {name: jnp.asarray(value, float) for name, value in given.items()}
    problem = BilevelProblem(upper, lower, Simplex(), data)
    weights, theta, value = optimum(mu_g)
    return Toy(problem, jnp.full(4, 0.25), jnp.zeros(2), Constants(mu_g, L_G), weights, theta, value)


def optimum(mu_g: float) -> tuple[np.ndarray, np.ndarray, float]:
    """The exact minimiser over the simplex, by solving on every face and keeping the best feasible answer."""
    images = np.linalg.solve(linear_map(mu_g), POINTS)  # theta(lambda) = images @ lambda
    best: tuple[np.ndarray, np.ndarray, float] | None = None
    for size in range(1, 4):  # three corners span the plane: larger faces add nothing
        for face in itertools.combinations(range(4), size):
            corner, edges = images[:, face[0]], images[:, face[1:]] - images[:, face[:1]]
            inside, *_ = np.linalg.lstsq(edges, TARGET - corner, rcond=None) if size > 1 else (np.zeros(0),)
            weights = np.zeros(4)
            weights[list(face)] = np.r_[1 - inside.sum(), inside]
            value = 0.5 * float(np.sum((images @ weights - TARGET) ** 2))
            if weights.min() >= 0 and (best is None or value < best[2]):
                best = weights, images @ weights, value
    assert best is not None  # a single vertex is always feasible
    return best
