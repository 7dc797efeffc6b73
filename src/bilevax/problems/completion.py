"""Matrix completion with denoising, eq. (2): complete X from a denoised copy Y of the observed entries.

Added to X where it is compared with Y may be a fixed `offset`, such as effects of rows and columns.

    min over |X|_* <= alpha of  mean over Omega1 of (X - Y)^2
    Y = argmin over V of  c * sum over Omega2 of (V - M)^2 + lambda1 R(V) + lambda2 |X - V|_F^2

R is the pseudo-Huber loss. The paper prints c = 1/|Omega2| (`data_term="mean"`): the data then weigh next to nothing,
the optimum is x = 0 up to a thousandth and the normalized error of a perfect solver is 1. `data_term="sum"`, c = 1, is
our default and does what the text describes.

`data_loss="pseudo-huber"` replaces (V - M)^2 by 2 d^2 (sqrt(1 + ((V - M)/d)^2) - 1), which is as curved at M but grows
only linearly beyond `outlier` = d. Without regularizer the upper level then is the mean of (c / lambda2)^2 times
s^2 d^2 / (s^2 + d^2), s = Y - M. This is bounded: the farther an outlier, the less it pulls. But X sees none that is
nearer than about (1 + c / lambda2) d, so lambda2 should be of order c.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Scalar

from bilevax.problem import BilevelProblem, LowerStructure
from bilevax.sets import NuclearBall
from bilevax.theory import Constants

Matrix = Float[Array, "p q"]
Data = dict[str, Any]


def upper(x: Matrix, y: Matrix, data: Data) -> Scalar:
    """The mean over Omega1 of (X - Y)^2."""
    return jnp.sum(data["omega1"] * (x + data["offset"] - y) ** 2) / data["count1"]


def lower_objective(x: Matrix, y: Matrix, data: Data) -> Scalar:
    """Data term, pseudo-Huber regularizer and distance to X."""
    delta, apart = data["delta"], y - data["M"]
    loss = 2 * _pseudo_huber(apart, data["outlier"]) if robust(data) else apart**2
    observed = data["weight"] * jnp.sum(data["omega2"] * loss)
    huber = jnp.sum(_pseudo_huber(y, delta))
    return observed + data["lambda1"] * huber + data["lambda2"] * jnp.sum((x + data["offset"] - y) ** 2)


def robust(data: Data) -> bool:
    """Whether the data term is the pseudo-Huber loss; known without looking at any number, so before compilation."""
    return "outlier" in data


def _pseudo_huber(v: Matrix, scale: Scalar) -> Matrix:
    return scale**2 * (jnp.sqrt(1 + (v / scale) ** 2) - 1)


def hessian_diagonal(x: Matrix, y: Matrix, data: Data) -> Matrix:
    """The lower Hessian, which is diagonal."""
    root = jax.lax.rsqrt(1 + (y / data["delta"]) ** 2)  # its cube: a general power takes ten times as long
    observed = 2 * data["weight"] * data["omega2"]
    if robust(data):
        observed = observed * jax.lax.rsqrt(1 + ((y - data["M"]) / data["outlier"]) ** 2) ** 3
    return observed + data["lambda1"] * root**3 + 2 * data["lambda2"]


def hvp(x: Matrix, y: Matrix, w: Matrix, data: Data) -> Matrix:
    """H w."""
    return hessian_diagonal(x, y, data) * w


def cross(x: Matrix, y: Matrix, w: Matrix, data: Data) -> Matrix:
    """J w = -2 lambda2 w."""
    return -2 * data["lambda2"] * w


def solve_adjoint(x: Matrix, y: Matrix, b: Matrix, data: Data) -> Matrix:
    """H^-1 b."""
    return b / hessian_diagonal(x, y, data)


@jax.jit  # a run that steps on the host would compile the search anew at every call
def solve_lower(x: Matrix, y: Matrix, data: Data) -> Matrix:
    """y*(x), entry by entry, by Newton's method from y.

    With the squared loss the minimiser lies between 0 and that of the quadratic part. The derivative is concave in
    magnitude there, so that Newton's method, which the bracket keeps inside, is monotone after at most one step beyond
    the root.
    """
    if robust(data):
        return _solve_robust(x, y, data)
    observed = data["weight"] * data["omega2"]
    target = (observed * data["M"] + data["lambda2"] * (x + data["offset"])) / (observed + data["lambda2"])
    low, high = jnp.minimum(target, 0), jnp.maximum(target, 0)
    near = 0.1 * jnp.finfo(x.dtype).eps ** 0.5  # the step after one of this relative size is lost in rounding

    def slope(v: Matrix) -> Matrix:
        huber = data["lambda1"] * v / jnp.sqrt(1 + (v / data["delta"]) ** 2)
        return 2 * (observed + data["lambda2"]) * (v - target) + huber

    def newton(carry: tuple[Matrix, Scalar, Array]) -> tuple[Matrix, Scalar, Array]:
        v, _, k = carry
        following = jnp.clip(v - slope(v) / hessian_diagonal(x, v, data), low, high)
        return following, jnp.max(jnp.abs(following - v) - near * jnp.abs(target)), k + 1

    def unfinished(carry: tuple[Matrix, Scalar, Array]) -> Array:
        return (carry[1] > 0) & (carry[2] < 100)

    def search() -> Matrix:
        start = (jnp.clip(y, low, high), jnp.asarray(jnp.inf, x.dtype), jnp.asarray(0))
        return jax.lax.while_loop(unfinished, newton, start)[0]

    # Without the regularizer the quadratic part is all there is.
    return jax.lax.cond(data["lambda1"] == 0, lambda: target, search)


def _solve_robust(x: Matrix, y: Matrix, data: Data) -> Matrix:
    """The same for the pseudo-Huber data term, by Newton's method with bisection.

    The derivative increases, but is neither concave nor convex between 0, x and M, where the minimiser is. A step that
    leaves the bracket, or follows one that did not halve the derivative, is replaced by one to the middle. So any two
    steps halve the derivative or the bracket.
    """
    observed, goal, eps = data["weight"] * data["omega2"], x + data["offset"], jnp.finfo(x.dtype).eps
    ends = (goal, jnp.where(observed > 0, data["M"], goal), jnp.where(data["lambda1"] > 0, 0, goal))
    low, high = functools.reduce(jnp.minimum, ends), functools.reduce(jnp.maximum, ends)
    scale = jnp.minimum(data["outlier"], data["delta"])
    rounding = 4 * eps * jnp.maximum(jnp.abs(low), jnp.abs(high))
    near = jnp.maximum(0.1 * eps**0.5 * jnp.minimum(high - low, scale), rounding)  # the next step is lost in rounding

    def slope(v: Matrix) -> Matrix:
        apart = v - data["M"]
        loss = observed * apart * jax.lax.rsqrt(1 + (apart / data["outlier"]) ** 2)
        huber = data["lambda1"] * v * jax.lax.rsqrt(1 + (v / data["delta"]) ** 2)
        return 2 * loss + huber + 2 * data["lambda2"] * (v - goal)

    def step(carry: _Search) -> _Search:
        v, derivative = carry.v, slope(carry.v)
        low, high = jnp.where(derivative < 0, v, carry.low), jnp.where(derivative > 0, v, carry.high)
        newton = v - derivative / hessian_diagonal(x, v, data)
        fits = (newton >= low) & (newton <= high) & (jnp.abs(derivative) <= 0.5 * carry.slope)
        following = jnp.where(carry.done, v, jnp.where(fits, newton, 0.5 * (low + high)))
        done = carry.done | (fits & (jnp.abs(following - v) <= near)) | (high - low <= rounding)
        return _Search(following, low, high, jnp.abs(derivative), done, carry.k + 1)

    def unfinished(carry: _Search) -> Array:
        return ~jnp.all(carry.done) & (carry.k < 200)

    start = _Search(jnp.clip(y, low, high), low, high, jnp.full_like(low, jnp.inf), high <= low, jnp.asarray(0))
    return jax.lax.while_loop(unfinished, step, start).v


class _Search(NamedTuple):
    """Where the search for a zero of the derivative is, entry by entry: a bracket, the last derivative, the end."""

    v: Matrix
    low: Matrix
    high: Matrix
    slope: Matrix
    done: Bool[Array, "p q"]
    k: Array


STRUCTURE = LowerStructure(hvp, cross, hessian_diagonal, solve_lower, solve_adjoint)


@dataclass(frozen=True)
class LowerLevel:
    """The lower level of a completion: how the observed entries are denoised.

    Args:
        data_term: "sum", or "mean" as printed in the paper.
        regularizer: "pseudo-huber" or None.
        lambda1: weight of the regularizer.
        lambda2: weight of the distance to X.
        delta: scale of the regularizer.
        data_loss: "squared", or "pseudo-huber" of scale `outlier` for data with gross errors.
        outlier: distance from the matrix beyond which a value counts less.
    """

    data_term: str = "sum"
    regularizer: str | None = "pseudo-huber"
    lambda1: float = 0.05
    lambda2: float = 0.05
    delta: float = 0.9
    data_loss: str = "squared"
    outlier: float = 1.0

    def __post_init__(self) -> None:
        if self.data_term not in ("sum", "mean"):
            raise ValueError(
                f"matrix_completion: data_term must be 'sum' or 'mean' (as printed), got {self.data_term!r}."
            )
        if self.regularizer not in ("pseudo-huber", None):
            raise ValueError(
                f"matrix_completion: regularizer must be 'pseudo-huber' or None, got {self.regularizer!r}; "
                f"the l1 norm is not differentiable, which every method here needs."
            )
        if not (self.lambda2 > 0 and self.lambda1 >= 0 and self.delta > 0):
            raise ValueError(
                f"matrix_completion: need lambda1 >= 0, lambda2 > 0 and delta > 0, got {self.lambda1}, "
                f"{self.lambda2}, {self.delta}."
            )
        if self.data_loss not in ("squared", "pseudo-huber"):
            raise ValueError(
                f"matrix_completion: data_loss must be 'squared' or 'pseudo-huber', got {self.data_loss!r}."
            )
        if not self.outlier > 0:
            raise ValueError(
                f"matrix_completion: outlier, the scale of the data loss, must be above 0, got {self.outlier}."
            )


def setting(M: Any, omega1: Any, radius: float, omega2: Any, lower: LowerLevel) -> tuple[Data, Constants]:
    """The data of the two levels and the constants; `M` and the masks are matrices, or lists of their known entries."""
    omega2 = omega1 if omega2 is None else omega2
    for name, mask in (("omega1", omega1), ("omega2", omega2)):
        if np.shape(mask) != np.shape(M) or np.asarray(mask).dtype != bool:
            raise ValueError(f"matrix_completion: {name} must be a boolean mask of shape {np.shape(M)}.")
        if not np.any(mask):
            raise ValueError(f"matrix_completion: {name} has no observed entry.")
    observed = np.asarray(omega1) | np.asarray(omega2)
    if not np.all(np.isfinite(np.asarray(M)[observed])):
        raise ValueError("matrix_completion: M has a NaN or infinite entry among the observed ones.")
    dtype = jnp.result_type(float)
    lambda1, lambda2, delta = lower.lambda1 if lower.regularizer else 0.0, lower.lambda2, lower.delta
    is_robust = lower.data_loss == "pseudo-huber"
    weight = 1.0 if lower.data_term == "sum" else 1.0 / float(np.sum(omega2))
    numbers = {
        "weight": weight,
        "lambda1": lambda1,
        "lambda2": lambda2,
        "delta": delta,
        "offset": 0.0,
        "count1": float(np.sum(omega1)),
    }
    if is_robust:
        numbers["outlier"] = lower.outlier  # the functions above choose the loss by this key
    upper_mask = jnp.asarray(omega1, dtype)
    data: Data = {
        "M": jnp.asarray(np.where(observed, M, 0.0), dtype),
        "omega1": upper_mask,
        "omega2": upper_mask if omega2 is omega1 else jnp.asarray(omega2, dtype),
        **{name: jnp.asarray(value, dtype) for name, value in numbers.items()},
    }
    # Entries outside Omega2 have the least curvature, where the pseudo-Huber loss is flat; zero ones inside the most.
    # |x - y*| is at most |x| + |M| entry by entry, since y* lies between the least and the greatest of 0, x and M.
    farthest = radius + float(np.linalg.norm(np.where(omega1, data["M"], 0.0)))
    curved = 2 / numbers["count1"]
    sharpest = 1.5 * 1.25**-2.5  # the third derivative of the pseudo-Huber loss at half its scale, times the scale
    constants = Constants(
        2 * lambda2,
        2 * weight + lambda1 + 2 * lambda2,
        C_yx_g=2 * lambda2,
        L_yx_g=0.0,
        L_yy_g=sharpest * (lambda1 / delta + (2 * weight / lower.outlier if is_robust else 0.0)),
        L_xx_f=curved,
        L_xy_f=curved,
        L_yx_f=curved,
        L_yy_f=curved,
        C_y_f=curved * farthest,
        D_X=2 * radius,
    )
    return data, constants


def matrix_completion(
    M: Matrix | np.ndarray,
    omega1: Bool[Array, "p q"] | np.ndarray,
    radius: float,
    *,
    omega2: Bool[Array, "p q"] | np.ndarray | None = None,
    **lower: Any,
) -> tuple[BilevelProblem, Constants]:
    """The dense problem and its constants.

    Args:
        M: observations; entries outside the masks are ignored.
        omega1: entries of the upper level.
        radius: bound on the nuclear norm.
        omega2: entries of the lower level, by default those of the upper level.
        lower: the lower level: `data_term`, `regularizer`, `lambda1`, `lambda2`, `delta`, `data_loss`, `outlier`, which
            `LowerLevel` explains.
    """
    data, constants = setting(M, omega1, radius, omega2, LowerLevel(**lower))
    return BilevelProblem(upper, lower_objective, NuclearBall(radius), data, structure=STRUCTURE), constants


class Synthetic(NamedTuple):
    """The paper's synthetic instance: a noisy view of a low-rank matrix."""

    truth: np.ndarray
    M: np.ndarray
    observed: np.ndarray
    radius: float
    x0: np.ndarray
    y0: np.ndarray

    def normalized_error(self, x: Matrix, *, unobserved: bool = False) -> float:
        """The paper's error: squared error on Omega, or outside it, over the squared truth on the same entries."""
        where = ~self.observed if unobserved else self.observed
        return float(np.sum((np.asarray(x) - self.truth)[where] ** 2) / np.sum(self.truth[where] ** 2))


def synthetic(seed: int = 0, *, n: int = 250, rank: int = 10, noise: float = 0.5, fraction: float = 0.8) -> Synthetic:
    """W W^T plus symmetric noise, a share of its entries observed, random starts with x_0 on the boundary."""
    rng = np.random.default_rng(seed)
    factor, disturbance = rng.standard_normal((n, rank)), rng.standard_normal((n, n))
    truth = factor @ factor.T
    observed = rng.random((n, n)) < fraction
    radius = float(np.linalg.norm(truth, "nuc"))
    x0 = rng.standard_normal((n, n))
    x0 *= radius / np.linalg.norm(x0, "nuc")
    M = truth + noise * (disturbance + disturbance.T)
    return Synthetic(truth, M, observed, radius, x0, rng.standard_normal((n, n)))
