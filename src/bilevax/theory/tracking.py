"""How closely y, w and the direction follow what they track: Lemmas B.1, B.2, B.3 and 4.1, from their proofs."""

from __future__ import annotations

import numpy as np

from bilevax.theory.constants import Constants, required
from bilevax.theory.lipschitz import (
    adjoint_lipschitz,
    adjoint_sensitivity,
    direction_sensitivity,
    lower_solution_lipschitz,
)
from bilevax.theory.setting import Real, Setting


def lower_tracking(constants: Constants, gammas: Real, y_error: float) -> np.ndarray:
    """Lemma B.1: bounds on |y_k - y*(x_k)| for k = 0, ..., len(gammas), for any sequence of steps gamma_k.

    beta^k D_0 + L_y D_X sum over i < k of gamma_i beta^(k-i)
    """
    beta, (D_X,) = float(constants.beta), required(constants, "D_X")
    drift = lower_solution_lipschitz(constants) * D_X
    bounds = [float(y_error)]
    for gamma in np.asarray(gammas, float):
        bounds.append(beta * (bounds[-1] + drift * gamma))
    return np.array(bounds)


def lower_tracking_constant(setting: Setting, k: Real) -> Real:
    """Lemma B.1 with constant gamma: beta^k D_0 + gamma L_y D_X beta / (1 - beta)."""
    (D_X,) = required(setting.constants, "D_X")
    floor = setting.gamma * lower_solution_lipschitz(setting.constants) * D_X * setting.beta / (1 - setting.beta)
    return setting.beta ** np.asarray(k, float) * setting.y_error + floor


def adjoint_tracking_step(setting: Setting, w_error: Real, k: Real) -> Real:
    """Lemma B.2: a bound on |w_(k+1) - v(x_k)| from one on |w_k - v(x_(k-1))|."""
    c = setting.constants
    (D_X,) = required(c, "D_X")
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
    (D_X,) = required(c, "D_X")
    k = np.asarray(k, float)
    sums = (1 - rho**k) / (1 - rho)
    floor = setting.gamma * lower_solution_lipschitz(c) * D_X * setting.beta / (1 - setting.beta)
    drift = rho * adjoint_lipschitz(c) * setting.gamma * D_X * sums
    lagging = setting.y_error * _geometric_sum(setting.beta, rho, k) + floor * sums
    return rho**k * setting.w_error + drift + setting.eta * adjoint_sensitivity(c) * lagging


def hypergradient_error(setting: Setting, k: Real) -> Real:
    """Lemma 4.1: a bound on |grad ell(x_k) - F_k|, from the proofs of Lemmas B.1 and B.3."""
    (C_yx_g,) = required(setting.constants, "C_yx_g")
    lower = direction_sensitivity(setting.constants) * lower_tracking_constant(setting, k)
    return lower + C_yx_g * adjoint_tracking(setting, np.asarray(k) + 1)
