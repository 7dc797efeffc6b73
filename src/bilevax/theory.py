"""The paper's theory as functions: what each statement bounds, with the constants it needs.

Where the print disagrees with its own proof we follow the proof; the printed form stands beside it under a name that
ends in `_as_printed`. `docs/theory.md` lists every difference and shows where a printed bound is violated.

All functions are plain floating-point arithmetic on the host, vectorised over the step index k.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Scalar

from bilevax.trees import as_leaf, is_concrete

Real = Any  # a float, or an array where k or gamma is one


class Constants(eqx.Module):
    """The constants of Assumptions 2.1 and 2.2, in the paper's letters.

    Solvers need only `mu_g` and `L_g`; the bounds of this module need the rest. `C_y_f` bounds |grad_y f| along
    (x, y*(x)): known in the bounded case, otherwise from `upper_gradient_bound`.
    """

    mu_g: Scalar | float = eqx.field(converter=as_leaf)
    """Strong convexity of g in y."""
    L_g: Scalar | float = eqx.field(converter=as_leaf)
    """Lipschitz constant of grad_y g in y."""
    estimated: bool = eqx.field(static=True, default=False)
    C_yx_g: Scalar | float = eqx.field(converter=as_leaf, default=np.nan, kw_only=True)
    """Lipschitz constant of grad_y g in x, a bound on |J|."""
    L_yx_g: Scalar | float = eqx.field(converter=as_leaf, default=np.nan, kw_only=True)
    """Lipschitz constant of J in (x, y)."""
    L_yy_g: Scalar | float = eqx.field(converter=as_leaf, default=np.nan, kw_only=True)
    """Lipschitz constant of H in (x, y)."""
    L_xx_f: Scalar | float = eqx.field(converter=as_leaf, default=np.nan, kw_only=True)
    L_xy_f: Scalar | float = eqx.field(converter=as_leaf, default=np.nan, kw_only=True)
    """Lipschitz constants of grad_x f in x and in y."""
    L_yx_f: Scalar | float = eqx.field(converter=as_leaf, default=np.nan, kw_only=True)
    L_yy_f: Scalar | float = eqx.field(converter=as_leaf, default=np.nan, kw_only=True)
    """Lipschitz constants of grad_y f in x and in y."""
    C_y_f: Scalar | float = eqx.field(converter=as_leaf, default=np.nan, kw_only=True)
    """Bound on |grad_y f(x, y*(x))|."""
    D_X: Scalar | float = eqx.field(converter=as_leaf, default=np.nan, kw_only=True)
    """Diameter of the set."""
    products: Any = eqx.field(default=0, kw_only=True)
    """Hessian products spent on estimating them."""

    def __check_init__(self) -> None:
        if self.estimated or not is_concrete((self.mu_g, self.L_g)):
            return
        if not 0 < float(self.mu_g) <= float(self.L_g) < np.inf:
            raise ValueError(
                f"Constants: need 0 < mu_g <= L_g, got mu_g={float(self.mu_g):g}, L_g={float(self.L_g):g}; "
                f"they are the extreme eigenvalues of the lower Hessian in y."
            )

    @property
    def kappa(self) -> Scalar | float:
        """The condition number L_g / mu_g."""
        return self.L_g / self.mu_g

    @property
    def beta(self) -> Scalar | float:
        """The contraction of a lower step with the step size `alpha` (Lemma 4.1)."""
        return (self.L_g - self.mu_g) / (self.L_g + self.mu_g)

    @property
    def alpha(self) -> Scalar | float:
        """The lower step size 2 / (mu_g + L_g) of the paper."""
        return 2 / (self.mu_g + self.L_g)

    @property
    def eta_limit(self) -> Scalar | float:
        """The bound (1 - beta) / mu_g on the adjoint step size; it equals `alpha`."""
        return (1 - self.beta) / self.mu_g


def _given(constants: Constants, *names: str) -> list[float]:
    """The named constants as floats; a missing one is refused by name."""
    values = [float(getattr(constants, name)) for name in names]
    missing = [name for name, value in zip(names, values, strict=True) if np.isnan(value)]
    if missing:
        raise ValueError(
            f"this bound needs {', '.join(missing)}; give it to bx.Constants or estimate it with bx.diagnose."
        )
    return values


def lower_solution_lipschitz(constants: Constants) -> float:
    """Lemma 2.1 (I): y*(x) is Lipschitz with L_y = C_yx_g / mu_g."""
    C_yx_g, mu_g = _given(constants, "C_yx_g", "mu_g")
    return C_yx_g / mu_g


def upper_gradient_bound(constants: Constants, at_solution: float) -> float:
    """Lemma 2.1 (II): C_y_f bounds |grad_y f(x, y*(x))| on the set, given that norm at x* (or any point of the set)."""
    L_yx_f, L_yy_f, D_X = _given(constants, "L_yx_f", "L_yy_f", "D_X")
    return (L_yx_f + L_yy_f * lower_solution_lipschitz(constants)) * D_X + at_solution


def adjoint_lipschitz(constants: Constants) -> float:
    """Lemma A.1: v(x) is Lipschitz with C_v. Its order is kappa^4 where C_y_f is of order kappa, not kappa^3."""
    mu_g, L_yx_f, L_yy_f, C_y_f, L_yy_g = _given(constants, "mu_g", "L_yx_f", "L_yy_f", "C_y_f", "L_yy_g")
    L_y = lower_solution_lipschitz(constants)
    return (L_yx_f + L_yy_f * L_y) / mu_g + C_y_f * L_yy_g / mu_g**2 * (1 + L_y)


def hypergradient_lipschitz(constants: Constants) -> float:
    """Lemma 2.1 (III): the gradient of ell is Lipschitz with L_ell."""
    mu_g, C_yx_g, L_yx_g = _given(constants, "mu_g", "C_yx_g", "L_yx_g")
    L_xx_f, L_xy_f, C_y_f = _given(constants, "L_xx_f", "L_xy_f", "C_y_f")
    L_y = lower_solution_lipschitz(constants)
    direct = L_xx_f + L_xy_f * L_y + C_yx_g * adjoint_lipschitz(constants)
    return direct + C_y_f / mu_g * L_yx_g * (1 + L_y)


def adjoint_sensitivity(constants: Constants) -> float:
    """C_1 of Lemma 4.1: how an error in y disturbs the adjoint step."""
    L_yy_g, C_y_f, mu_g, L_yy_f = _given(constants, "L_yy_g", "C_y_f", "mu_g", "L_yy_f")
    return L_yy_g * C_y_f / mu_g + L_yy_f


def direction_sensitivity(constants: Constants) -> float:
    """C_2 of Lemma 4.1: how an error in y disturbs the direction."""
    L_xy_f, L_yx_g, C_y_f, mu_g = _given(constants, "L_xy_f", "L_yx_g", "C_y_f", "mu_g")
    return L_xy_f + L_yx_g * C_y_f / mu_g


@dataclass(frozen=True)
class Setting:
    """A run of IBCG that the bounds speak about: constants, constant step sizes, and the errors it starts with."""

    constants: Constants
    gamma: float
    eta: float
    y_error: float
    """D_0^y = |y_0 - y*(x_0)|"""
    w_error: float
    """|w_0 - v(x_0)|"""

    def __post_init__(self) -> None:
        limit = float(self.constants.eta_limit)
        if not (0 < self.gamma <= 1 and 0 < self.eta < limit * (1 + 1e-12)):
            raise ValueError(
                f"Setting: Lemma 4.1 needs 0 < gamma <= 1 and 0 < eta < (1 - beta)/mu_g = {limit:g}, "
                f"got gamma={self.gamma:g}, eta={self.eta:g}."
            )

    @property
    def rho(self) -> float:
        """The contraction 1 - eta mu_g of an adjoint step."""
        return 1 - self.eta * float(self.constants.mu_g)

    @property
    def beta(self) -> float:
        """The contraction of a lower step."""
        return float(self.constants.beta)


def lower_tracking(constants: Constants, gammas: Real, y_error: float) -> np.ndarray:
    """Lemma B.1: bounds on |y_k - y*(x_k)| for k = 0, ..., len(gammas), for any sequence of steps gamma_k.

    beta^k D_0 + L_y D_X sum over i < k of gamma_i beta^(k-i)
    """
    beta, (D_X,) = float(constants.beta), _given(constants, "D_X")
    drift = lower_solution_lipschitz(constants) * D_X
    bounds = [float(y_error)]
    for gamma in np.asarray(gammas, float):
        bounds.append(beta * (bounds[-1] + drift * gamma))
    return np.array(bounds)


def lower_tracking_constant(setting: Setting, k: Real) -> Real:
    """Lemma B.1 with constant gamma: beta^k D_0 + gamma L_y D_X beta / (1 - beta)."""
    (D_X,) = _given(setting.constants, "D_X")
    floor = setting.gamma * lower_solution_lipschitz(setting.constants) * D_X * setting.beta / (1 - setting.beta)
    return setting.beta ** np.asarray(k, float) * setting.y_error + floor


def adjoint_tracking_step(setting: Setting, w_error: Real, k: Real) -> Real:
    """Lemma B.2: a bound on |w_(k+1) - v(x_k)| from one on |w_k - v(x_(k-1))|."""
    c = setting.constants
    (D_X,) = _given(c, "D_X")
    drift = setting.rho * adjoint_lipschitz(c) * setting.gamma * D_X
    return setting.rho * w_error + drift + setting.eta * adjoint_sensitivity(c) * lower_tracking_constant(setting, k)


def _geometric_sum(beta: float, rho: float, k: Real) -> Real:
    """Sum over i < k of beta^i rho^(k-1-i), also where beta = rho."""
    k = np.asarray(k, float)
    if abs(rho - beta) > 1e-9:
        return (rho**k - beta**k) / (rho - beta)
    return k * rho ** np.maximum(k - 1, 0)


def adjoint_tracking(setting: Setting, k: Real) -> Real:
    """Lemma B.3, unrolled from Lemma B.2: a bound on |w_k - v(x_(k-1))| for k >= 1, with constant steps.

    The sum of beta^i rho^(k-1-i) is kept exactly, so that nothing blows up as eta reaches its limit and rho = beta.
    """
    c, rho = setting.constants, setting.rho
    (D_X,) = _given(c, "D_X")
    k = np.asarray(k, float)
    sums = (1 - rho**k) / (1 - rho)
    floor = setting.gamma * lower_solution_lipschitz(c) * D_X * setting.beta / (1 - setting.beta)
    drift = rho * adjoint_lipschitz(c) * setting.gamma * D_X * sums
    lagging = setting.y_error * _geometric_sum(setting.beta, rho, k) + floor * sums
    return rho**k * setting.w_error + drift + setting.eta * adjoint_sensitivity(c) * lagging


def adjoint_tracking_as_printed(setting: Setting, k: Real) -> Real:
    """Lemma B.3 as printed: its third term has rho^(k+1)/(rho - beta), one power of rho too many.

    The recursion unrolls to sum of beta^i rho^(k-1-i) <= rho^k/(rho - beta); the print sums beta^i rho^(k-i).
    """
    c, rho, beta = setting.constants, setting.rho, setting.beta
    (D_X,) = _given(c, "D_X")
    L_y, C_1 = lower_solution_lipschitz(c), adjoint_sensitivity(c)
    gamma, eta = setting.gamma, setting.eta
    k = np.asarray(k, float)
    return (
        rho**k * setting.w_error
        + gamma * rho * adjoint_lipschitz(c) * D_X / (1 - rho)
        + eta * C_1 * setting.y_error * rho ** (k + 1) / (rho - beta)
        + gamma * eta * beta * C_1 * L_y * D_X / ((1 - rho) * (1 - beta))
    )


def hypergradient_error(setting: Setting, k: Real) -> Real:
    """Lemma 4.1: a bound on |grad ell(x_k) - F_k|, from the proofs of Lemmas B.1 and B.3."""
    (C_yx_g,) = _given(setting.constants, "C_yx_g")
    lower = direction_sensitivity(setting.constants) * lower_tracking_constant(setting, k)
    return lower + C_yx_g * adjoint_tracking(setting, np.asarray(k) + 1)


def hypergradient_error_as_printed(setting: Setting, k: Real) -> Real:
    """Lemma 4.1 as stated: the power of rho of Lemma B.3, and no factor eta in its last term."""
    c, rho, beta, gamma, eta = setting.constants, setting.rho, setting.beta, setting.gamma, setting.eta
    C_yx_g, D_X = _given(c, "C_yx_g", "D_X")
    L_y, C_1 = lower_solution_lipschitz(c), adjoint_sensitivity(c)
    k = np.asarray(k, float)
    adjoint = (
        rho ** (k + 1) * setting.w_error
        + gamma * rho * adjoint_lipschitz(c) * D_X / (1 - rho)
        + eta * C_1 / (rho - beta) * rho ** (k + 2) * setting.y_error
        + gamma * beta * C_1 * L_y * D_X / ((1 - rho) * (1 - beta))
    )
    return direction_sensitivity(c) * lower_tracking_constant(setting, k) + C_yx_g * adjoint


def one_step_excess(setting: Setting, k: Real) -> Real:
    """Lemma B.4: ell(x_(k+1)) <= ell(x_k) - gamma G(x_k) + R_k(gamma); this is R_k."""
    (D_X,) = _given(setting.constants, "D_X")
    curvature = 0.5 * hypergradient_lipschitz(setting.constants) * setting.gamma**2 * D_X**2
    return setting.gamma * D_X * hypergradient_error(setting, k) + curvature


def convex_bound(setting: Setting, K: int, first: float) -> float:
    """Theorem 4.2: a bound on ell(x_K) - ell* for convex ell, where `first` is ell(x_0) - ell*.

    (1-gamma)^K first + sum over k < K of (1-gamma)^(K-1-k) R_k
    """
    k = np.arange(K)
    decay = (1 - setting.gamma) ** (K - 1.0 - k)
    return float((1 - setting.gamma) ** K * first + np.sum(decay * one_step_excess(setting, k)))


def convex_bound_as_printed(setting: Setting, K: int, first: float) -> float:
    """Theorem 4.2 as printed: every R_k damped by one factor (1-gamma) too many, and rho as in the printed lemma."""
    c, rho, beta, gamma, eta = setting.constants, setting.rho, setting.beta, setting.gamma, setting.eta
    C_yx_g, D_X = _given(c, "C_yx_g", "D_X")
    C_1, L_y = adjoint_sensitivity(c), lower_solution_lipschitz(c)
    k = np.arange(K, dtype=float)
    adjoint = (
        gamma * D_X * rho ** (k + 1) * setting.w_error
        + gamma**2 * D_X**2 * rho * adjoint_lipschitz(c) / (1 - rho)
        + gamma * D_X * setting.y_error * C_1 * eta * rho ** (k + 2) / (rho - beta)
        + gamma**2 * D_X**2 * L_y * C_1 * beta * eta / ((1 - beta) * (1 - rho))
    )
    lower = gamma * D_X * direction_sensitivity(c) * lower_tracking_constant(setting, k)
    R = lower + C_yx_g * adjoint + 0.5 * hypergradient_lipschitz(c) * gamma**2 * D_X**2
    return float((1 - gamma) ** K * first + np.sum((1 - gamma) ** (K - k) * R))


def nonconvex_bound(setting: Setting, K: int, first: float) -> float:
    """Theorem 4.4: a bound on the smallest Frank-Wolfe gap of x_0, ..., x_(K-1).

    (first + sum over k < K of R_k) / (K gamma)
    """
    return float((first + np.sum(one_step_excess(setting, np.arange(K)))) / (K * setting.gamma))


def nonconvex_bound_as_printed(setting: Setting, K: int, first: float) -> float:
    """Theorem 4.4 as printed: one D_X lost, one rho and one beta gained against the sum it is divided from."""
    c, rho, beta, gamma, eta = setting.constants, setting.rho, setting.beta, setting.gamma, setting.eta
    C_yx_g, D_X = _given(c, "C_yx_g", "D_X")
    C_1, C_2, L_y = adjoint_sensitivity(c), direction_sensitivity(c), lower_solution_lipschitz(c)
    return float(
        first / (K * gamma)
        + gamma * C_2 * D_X * L_y * beta / (1 - beta)
        + gamma * D_X**2 * rho * adjoint_lipschitz(c) * C_yx_g * rho / (1 - rho)
        + gamma * D_X**2 * C_yx_g * L_y * C_1 * beta * eta / ((1 - beta) * (1 - rho))
        + 0.5 * hypergradient_lipschitz(c) * gamma * D_X**2
        + C_2 * setting.y_error * D_X * beta / (K * (1 - beta))
        + D_X * C_yx_g * rho * setting.w_error / (K * (1 - rho))
        + D_X * setting.y_error * C_yx_g * C_1 * eta * rho**2 / (K * (rho - beta) * (1 - rho))
    )


def convex_step(K: int) -> float:
    """Corollary 4.3: gamma = log(K)/K, for Lipschitz and for bounded grad_y f alike."""
    return float(np.clip(np.log(K) / K, 1 / K, 1.0))


def nonconvex_step(constants: Constants, K: int, *, bounded: bool = False) -> float:
    """Corollary 4.5: gamma = kappa^-2.5 / sqrt(K), or kappa^-2 / sqrt(K) where grad_y f is bounded."""
    return float(constants.kappa ** (-2.0 if bounded else -2.5) / np.sqrt(K))


def _smallest(enough: Any, limit: int) -> int:
    high = 2
    while not enough(high):
        high *= 2
        if high > limit:
            raise ValueError(f"more than {limit:.0e} steps would be needed; the bound is not useful here.")
    low = high // 2
    while high - low > max(1, low // 100):  # within a percent: the bounds are not sharper than that
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def convex_iterations(
    constants: Constants, eta: float, y_error: float, w_error: float, first: float, epsilon: float, limit: int = 10**7
) -> int:
    """Corollary 4.3 with its constants: about the fewest steps K with ell(x_K) - ell* <= epsilon by Theorem 4.2."""

    def enough(K: int) -> bool:
        return convex_bound(Setting(constants, convex_step(K), eta, y_error, w_error), K, first) <= epsilon

    return _smallest(enough, limit)


def nonconvex_iterations(
    constants: Constants, eta: float, y_error: float, w_error: float, first: float, epsilon: float,
    *, bounded: bool = False, limit: int = 10**7,
) -> int:  # fmt: skip
    """Corollary 4.5 with its constants: about the fewest steps K for which Theorem 4.4 gives a gap <= epsilon."""

    def enough(K: int) -> bool:
        gamma = min(1.0, nonconvex_step(constants, K, bounded=bounded))
        return nonconvex_bound(Setting(constants, gamma, eta, y_error, w_error), K, first) <= epsilon

    return _smallest(enough, limit)


@dataclass(frozen=True)
class TTSASteps:
    """The step sizes the paper quotes for TTSA (appendix C.1)."""

    alpha: float
    beta: float


def ttsa_steps(constants: Constants, steps: int) -> TTSASteps:
    """Both steps for a horizon of `steps`, from the constants of f and g."""
    mu_g, L_g, L_xy_f, L_yy_f, C_yx_g = _given(constants, "mu_g", "L_g", "L_xy_f", "L_yy_f", "C_yx_g")
    C_y_f, L_yx_g, L_yy_g = _given(constants, "C_y_f", "L_yx_g", "L_yy_g")
    L = L_xy_f + L_yy_f * C_yx_g / mu_g + C_y_f * (L_yx_g / mu_g + L_yy_g * C_yx_g / mu_g**2)
    L_y = C_yx_g / mu_g
    alpha = min(mu_g**2 / (8 * L_y * L * L_g**2), steps**-0.6 / (4 * L_y * L))
    return TTSASteps(alpha, min(mu_g / L_g**2, 2 / mu_g * steps**-0.4))
