"""The bounds whose print disagrees with its own proof, as printed; `docs/theory.md` shows where they are violated."""

from __future__ import annotations

import numpy as np

from bilevax.theory.constants import required
from bilevax.theory.lipschitz import (
    adjoint_lipschitz,
    adjoint_sensitivity,
    direction_sensitivity,
    hypergradient_lipschitz,
    lower_solution_lipschitz,
)
from bilevax.theory.setting import Real, Setting
from bilevax.theory.tracking import lower_tracking_constant


def adjoint_tracking_as_printed(setting: Setting, k: Real) -> Real:
    """Lemma B.3 as printed: its third term has rho^(k+1)/(rho - beta), one power of rho too many.

    The recursion unrolls to sum of beta^i rho^(k-1-i) <= rho^k/(rho - beta); the print sums beta^i rho^(k-i).
    """
    c, rho, beta = setting.constants, setting.rho, setting.beta
    (D_X,) = required(c, "D_X")
    L_y, C_1 = lower_solution_lipschitz(c), adjoint_sensitivity(c)
    gamma, eta = setting.gamma, setting.eta
    k = np.asarray(k, float)
    return (
        rho**k * setting.w_error
        + gamma * rho * adjoint_lipschitz(c) * D_X / (1 - rho)
        + eta * C_1 * setting.y_error * rho ** (k + 1) / (rho - beta)
        + gamma * eta * beta * C_1 * L_y * D_X / ((1 - rho) * (1 - beta))
    )


def hypergradient_error_as_printed(setting: Setting, k: Real) -> Real:
    """Lemma 4.1 as stated: the power of rho of Lemma B.3, and no factor eta in its last term."""
    c, rho, beta, gamma, eta = setting.constants, setting.rho, setting.beta, setting.gamma, setting.eta
    C_yx_g, D_X = required(c, "C_yx_g", "D_X")
    L_y, C_1 = lower_solution_lipschitz(c), adjoint_sensitivity(c)
    k = np.asarray(k, float)
    adjoint = (
        rho ** (k + 1) * setting.w_error
        + gamma * rho * adjoint_lipschitz(c) * D_X / (1 - rho)
        + eta * C_1 / (rho - beta) * rho ** (k + 2) * setting.y_error
        + gamma * beta * C_1 * L_y * D_X / ((1 - rho) * (1 - beta))
    )
    return direction_sensitivity(c) * lower_tracking_constant(setting, k) + C_yx_g * adjoint


def convex_bound_as_printed(setting: Setting, K: int, first: float) -> float:
    """Theorem 4.2 as printed: every R_k damped by one factor (1-gamma) too many, and rho as in the printed lemma."""
    c, rho, beta, gamma, eta = setting.constants, setting.rho, setting.beta, setting.gamma, setting.eta
    C_yx_g, D_X = required(c, "C_yx_g", "D_X")
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


def nonconvex_bound_as_printed(setting: Setting, K: int, first: float) -> float:
    """Theorem 4.4 as printed: one D_X lost, one rho and one beta gained against the sum it is divided from."""
    c, rho, beta, gamma, eta = setting.constants, setting.rho, setting.beta, setting.gamma, setting.eta
    C_yx_g, D_X = required(c, "C_yx_g", "D_X")
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
