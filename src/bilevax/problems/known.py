"""Problems whose constants are known, for every statement of the paper's theory: nothing is estimated.

    known_quadratic       f and g quadratic                     y* affine, ell convex
    known_robust_lower    a pseudo-Huber loss in g              H varies with y, ell convex
    known_robust_upper    a pseudo-Huber loss in f              grad_y f bounded, ell convex
    known_nonconvex       f bends down, g bends y*(x)           J varies with x, grad_x f with y, ell not convex

Solution maps are closed forms in numpy, independent of autodiff, and take rows of points.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Scalar

from bilevax.problem import BilevelProblem, Objective
from bilevax.problems import quadratic
from bilevax.sets import Box, ConvexSet, L2Ball, Simplex
from bilevax.theory import Constants, upper_gradient_bound

Rows = np.ndarray
Data = dict[str, Any]

HUBER_THIRD = 1.5 * 0.8**2.5
"""The largest third derivative of the pseudo-Huber loss with delta = 1: 3 t (1 + t^2)^(-5/2) peaks at t = 1/2."""


@dataclass(frozen=True)
class KnownProblem:
    """A problem, all constants of Assumptions 2.1 and 2.2, and its parts as numpy formulas over rows of points."""

    problem: BilevelProblem
    constants: Constants
    lower_solution: Callable[[Rows], Rows]
    """y*(x)"""
    hessian: Callable[[Rows], Rows]
    """H as a function of y"""
    cross: Callable[[Rows, Rows], Rows]
    """J w as a function of x and w; in none of these problems does J depend on y"""
    upper_value: Callable[[Rows, Rows], Rows]
    upper_grads: Callable[[Rows, Rows], tuple[Rows, Rows]]
    x_star: np.ndarray | None = None
    """The minimiser where ell is convex."""

    def adjoint(self, x: Rows) -> Rows:
        """v(x) = H^-1 f_y at y*(x)."""
        y = self.lower_solution(x)
        return np.linalg.solve(self.hessian(y), self.upper_grads(x, y)[1][..., None])[..., 0]

    def gradient(self, x: Rows) -> Rows:
        """The gradient of ell, eq. (5)."""
        return self.upper_grads(x, self.lower_solution(x))[0] - self.cross(x, self.adjoint(x))

    def ell(self, x: Rows) -> Rows:
        """f(x, y*(x))."""
        return self.upper_value(x, self.lower_solution(x))

    @property
    def ell_star(self) -> float:
        """The least value of ell on the set, where it is known."""
        return float("nan") if self.x_star is None else float(self.ell(self.x_star))

    def gap(self, x: Rows) -> Rows:
        """The Frank-Wolfe gap of ell, eq. (4)."""
        slope = self.gradient(x)
        return np.sum(slope * x, axis=-1) - _least(self.problem.domain, slope)


def _least(domain: ConvexSet, slope: Rows) -> Rows:
    """The least value of <slope, s> on the set."""
    if isinstance(domain, Simplex):
        return np.asarray(domain.radius) * slope.min(axis=-1)
    if isinstance(domain, L2Ball):
        return -np.asarray(domain.radius) * np.linalg.norm(slope, axis=-1)
    assert isinstance(domain, Box), "known problems live on a simplex, a ball or a box"
    return np.sum(np.minimum(slope * np.asarray(domain.lower), slope * np.asarray(domain.upper)), axis=-1)


def _numpy(data: Data) -> Data:
    return {name: np.asarray(value) for name, value in data.items()}


def _norm(matrix: np.ndarray) -> float:
    return float(np.linalg.norm(matrix, 2))


def _problem(upper: Objective, lower: Objective, domain: ConvexSet, data: Data, n: int, m: int) -> BilevelProblem:
    x_like: Any = jnp.zeros(n)
    y_like: Any = jnp.zeros(m)
    given = {name: jnp.asarray(value) for name, value in data.items()}
    return BilevelProblem(upper, lower, domain, given, x_like=x_like, y_like=y_like)


def _diameter(domain: ConvexSet, n: int) -> float:
    return float(domain.diameter(np.zeros(n)).value)


def _bounded_on_the_path(constants: Constants, at: Rows) -> Constants:
    """Lemma 2.1 (II) with `at`, the value of grad_y f(x, y*(x)) at some point of the set."""
    return replace(constants, C_y_f=upper_gradient_bound(constants, float(np.linalg.norm(at))))


def _affine(
    domain: ConvexSet, n: int, m: int, key: Array, kappa: float, mu_g: float, rho: float
) -> tuple[quadratic.KnownQuadratic, Data, Constants, dict[str, Any]]:
    """A random quadratic with the spectrum of A moved to [mu_g, kappa mu_g]; the constants and formulas of its g."""
    known = quadratic.random_quadratic(domain, jnp.zeros(n), m, key, kappa=kappa, rho=rho)
    data = _numpy(known.problem.data) | {"A": mu_g * np.asarray(known.problem.data["A"])}
    spectrum = np.linalg.eigvalsh(data["A"])
    constants = Constants(
        spectrum[0], spectrum[-1], C_yx_g=_norm(data["B"]), L_yx_g=0.0, L_yy_g=0.0,
        L_xx_f=rho, L_xy_f=0.0, L_yx_f=0.0, L_yy_f=1.0, D_X=_diameter(domain, n),
    )  # fmt: skip
    formulas = {
        "lower_solution": lambda x: np.linalg.solve(data["A"], (x @ data["B"].T + data["b"])[..., None])[..., 0],
        "hessian": lambda y: np.broadcast_to(data["A"], (*y.shape, y.shape[-1])),
        "cross": lambda x, w: -w @ data["B"],
    }
    return known, data, constants, formulas


def _keep_optimal(made: KnownProblem, base: quadratic.KnownQuadratic, data: Data) -> KnownProblem:
    """Choose q such that the minimiser drawn with `base` is also one of the changed problem."""
    x_star = np.asarray(base.x_star)
    data["q"] = np.asarray(data["q"]) + np.asarray(base.gradient(base.x_star)) - made.gradient(x_star)
    problem = replace(made.problem, data={name: jnp.asarray(value) for name, value in data.items()})
    return replace(made, problem=problem, x_star=x_star)


def known_quadratic(
    domain: ConvexSet, n: int, m: int, key: Array, *, kappa: float = 10.0, mu_g: float = 1.0, rho: float = 0.1
) -> KnownProblem:
    """`random_quadratic` with all its constants."""
    base, data, constants, formulas = _affine(domain, n, m, key, kappa, mu_g, rho)
    made = KnownProblem(
        base.problem, constants, **formulas,
        upper_value=lambda x, y: 0.5 * np.sum((y - data["c"]) ** 2, -1) + 0.5 * rho * np.sum(x * x, -1) + x @ data["q"],
        upper_grads=lambda x, y: (rho * x + data["q"], y - data["c"]),
    )  # fmt: skip
    made = _keep_optimal(made, base, data)
    at = formulas["lower_solution"](made.x_star) - data["c"]
    return replace(made, constants=_bounded_on_the_path(constants, at))


def robust_upper(x: Float[Array, " n"], y: Float[Array, " m"], data: Data) -> Scalar:
    """f(x, y) = pseudo-Huber loss of y - c, plus rho/2 |x|^2 + <q, x>."""
    delta = data["delta"]
    near = jnp.sum(delta**2 * (jnp.sqrt(1 + ((y - data["c"]) / delta) ** 2) - 1))
    return near + 0.5 * data["rho"] * jnp.sum(x**2) + data["q"] @ x


def known_robust_upper(
    domain: ConvexSet, n: int, m: int, key: Array, *,
    kappa: float = 10.0, mu_g: float = 1.0, rho: float = 0.1, delta: float = 0.5,
) -> KnownProblem:  # fmt: skip
    """The bounded case of Corollaries 4.3 and 4.5: |grad_y f| < delta sqrt(m) everywhere."""
    base, data, constants, formulas = _affine(domain, n, m, key, kappa, mu_g, rho)
    data["delta"] = np.asarray(delta)

    def value(x: Rows, y: Rows) -> Rows:
        near = np.sum(delta**2 * (np.sqrt(1 + ((y - data["c"]) / delta) ** 2) - 1), -1)
        return near + 0.5 * rho * np.sum(x * x, -1) + x @ data["q"]

    def grads(x: Rows, y: Rows) -> tuple[Rows, Rows]:
        return rho * x + data["q"], (y - data["c"]) / np.sqrt(1 + ((y - data["c"]) / delta) ** 2)

    problem = replace(base.problem, upper=robust_upper)
    bounded = replace(constants, C_y_f=delta * np.sqrt(m))
    made = KnownProblem(problem, bounded, **formulas, upper_value=value, upper_grads=grads)
    return _keep_optimal(made, base, data)


def mean_square(x: Float[Array, " n"], y: Float[Array, " n"], data: Data) -> Scalar:
    """f(x, y) = mean of (x - y)^2."""
    return jnp.mean((x - y) ** 2)


def robust_lower(x: Float[Array, " n"], y: Float[Array, " n"], data: Data) -> Scalar:
    """g(x, y) = sum of c (y - M)^2 + lambda1 pseudo-Huber(y) + lambda2 (x - y)^2, as in matrix completion."""
    delta = data["delta"]
    huber = jnp.sum(delta**2 * (jnp.sqrt(1 + (y / delta) ** 2) - 1))
    near = jnp.sum(data["c"] * (y - data["M"]) ** 2)
    return near + data["lambda1"] * huber + data["lambda2"] * jnp.sum((x - y) ** 2)


def known_robust_lower(
    n: int, key: Array, *, kappa: float = 2.0, lambda1: float = 0.3, lambda2: float = 0.5, delta: float = 1.0
) -> KnownProblem:
    """Matrix completion without the matrix, on the box [-1, 1]^n. `kappa` is reached through the weights c.

    ell is convex: it suffices that (2c)^2 (2c + 2 lambda2) >= 4 lambda2^2 lambda1 max|huber'''| max|x - y*|, which the
    defaults meet. The slope of (x - y*(x))^2 vanishes where y = x, so that each entry of x* is that root, clipped.
    """
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    low = 0.5
    high = 0.5 * (kappa * (2 * low + 2 * lambda2) - lambda1 - 2 * lambda2)
    if not high >= low:
        raise ValueError(f"known_robust_lower: kappa must be at least {1 + lambda1 / (2 * low + 2 * lambda2):g}.")
    c, M = np.geomspace(low, high, n), rng.uniform(-1.6, 1.6, n)
    domain = Box(-1.0, 1.0)
    numbers = {"lambda1": lambda1, "lambda2": lambda2, "delta": delta}
    data: Data = {"c": c, "M": M, **{name: np.asarray(value) for name, value in numbers.items()}}

    def curvature(y: Rows) -> Rows:
        return 2 * c + 2 * lambda2 + lambda1 * (1 + (y / delta) ** 2) ** -1.5

    def root(target: Rows, quadratic_part: Rows) -> Rows:
        """Where 2 quadratic_part (y - target) + lambda1 huber'(y) = 0; Newton's method from zero is monotone."""
        y = np.zeros_like(target)
        for _ in range(60):
            huber, second = y / np.sqrt(1 + (y / delta) ** 2), (1 + (y / delta) ** 2) ** -1.5
            step = (2 * quadratic_part * (y - target) + lambda1 * huber) / (2 * quadratic_part + lambda1 * second)
            y = np.clip(y - step, np.minimum(target, 0), np.maximum(target, 0))
        return y

    def solution(x: Rows) -> Rows:
        return root((c * M + lambda2 * x) / (c + lambda2), c + lambda2)

    x_star = np.clip(root(M, c), -1, 1)
    spectrum = 2 * low + 2 * lambda2, 2 * high + 2 * lambda2 + lambda1
    L = 2.0 / n
    constants = Constants(
        *spectrum, C_yx_g=2 * lambda2, L_yx_g=0.0, L_yy_g=lambda1 / delta * HUBER_THIRD,
        L_xx_f=L, L_xy_f=L, L_yx_f=L, L_yy_f=L, D_X=_diameter(domain, n),
    )  # fmt: skip
    return KnownProblem(
        _problem(mean_square, robust_lower, domain, data, n, n),
        _bounded_on_the_path(constants, L * (x_star - solution(x_star))),
        lower_solution=solution,
        hessian=lambda y: curvature(y)[..., None] * np.eye(n),
        cross=lambda x, w: -2 * lambda2 * w,
        upper_value=lambda x, y: np.mean((x - y) ** 2, -1),
        upper_grads=lambda x, y: (L * (x - y), L * (y - x)),
        x_star=x_star,
    )


def coupled(x: Float[Array, " n"], y: Float[Array, " m"], data: Data) -> Scalar:
    """f(x, y) = 1/2 |y - c|^2 + 1/2 x^T P x + <q, x> + x^T E y; P may be indefinite."""
    return 0.5 * jnp.sum((y - data["c"]) ** 2) + 0.5 * x @ data["P"] @ x + data["q"] @ x + x @ data["E"] @ y


def bent(x: Float[Array, " n"], y: Float[Array, " m"], data: Data) -> Scalar:
    """g(x, y) = 1/2 y^T A y - y^T (B (x + bend sin x) + b)."""
    return 0.5 * y @ data["A"] @ y - y @ (data["B"] @ (x + data["bend"] * jnp.sin(x)) + data["b"])


def bent_and_coupled(domain: Box, bend: float = 0.0, **matrices: Any) -> KnownProblem:
    """The problem `coupled` over `bent` with the matrices A, B, b, c, P, q, E given."""
    data = {name: np.asarray(value, float) for name, value in matrices.items()} | {"bend": np.asarray(float(bend))}
    A, B, P, E = (data[name] for name in ("A", "B", "P", "E"))
    spectrum, n, m = np.linalg.eigvalsh(A), B.shape[1], B.shape[0]
    C = _norm(B)
    constants = Constants(
        spectrum[0], spectrum[-1], C_yx_g=C * (1 + bend), L_yx_g=C * bend, L_yy_g=0.0, L_xx_f=_norm(P),
        L_xy_f=_norm(E), L_yx_f=_norm(E), L_yy_f=1.0, D_X=_diameter(domain, n),
    )  # fmt: skip

    def solution(x: Rows) -> Rows:
        return np.linalg.solve(A, ((x + bend * np.sin(x)) @ B.T + data["b"])[..., None])[..., 0]

    def value(x: Rows, y: Rows) -> Rows:
        near = 0.5 * np.sum((y - data["c"]) ** 2, -1)
        return near + 0.5 * np.sum((x @ P) * x, -1) + x @ data["q"] + np.sum((x @ E) * y, -1)

    def grads(x: Rows, y: Rows) -> tuple[Rows, Rows]:
        return x @ P + data["q"] + y @ E.T, y - data["c"] + x @ E

    inside = np.broadcast_to((np.asarray(domain.lower) + np.asarray(domain.upper)) / 2, (n,))
    return KnownProblem(
        _problem(coupled, bent, domain, data, n, m),
        _bounded_on_the_path(constants, grads(inside, solution(inside))[1]),
        lower_solution=solution,
        hessian=lambda y: np.broadcast_to(A, (*y.shape, m)),
        cross=lambda x, w: -(w @ B) * (1 + bend * np.cos(x)),
        upper_value=value,
        upper_grads=grads,
    )


def known_nonconvex(n: int, m: int, key: Array, *, kappa: float = 2.0, bend: float = 0.5) -> KnownProblem:
    """A random problem on the box [-1, 1]^n whose ell has curvature of both signs, for Theorem 4.4."""
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    turn, frame = (np.linalg.qr(rng.standard_normal((k, k)))[0] for k in (m, n))
    signs = np.where(np.arange(n) % 2 == 0, -1.0, 1.0)
    return bent_and_coupled(
        Box(-1.0, 1.0),
        bend,
        A=turn * np.geomspace(1.0, kappa, m) @ turn.T if m > 1 else np.eye(1),
        B=rng.standard_normal((m, n)) / np.sqrt(n),
        b=rng.standard_normal(m),
        c=rng.standard_normal(m),
        P=frame * (2 * signs * rng.uniform(0.5, 1.5, n)) @ frame.T,
        q=0.3 * rng.standard_normal(n),
        E=0.3 * rng.standard_normal((n, m)) / np.sqrt(m),
    )
