"""The step sizes of Corollaries 4.3 and 4.5, and the number of steps the theorems then ask for."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from bilevax.theory.constants import Constants
from bilevax.theory.convergence import convex_bound, nonconvex_bound
from bilevax.theory.setting import Setting


def convex_step(K: int) -> float:
    """Corollary 4.3: gamma = log(K)/K, both for Lipschitz and for bounded grad_y f."""
    return float(np.clip(np.log(K) / K, 1 / K, 1.0))


def nonconvex_step(constants: Constants, K: int, *, bounded: bool = False) -> float:
    """Corollary 4.5: gamma = kappa^-2.5 / sqrt(K), or kappa^-2 / sqrt(K) where grad_y f is bounded."""
    return float(constants.kappa ** (-2.0 if bounded else -2.5) / np.sqrt(K))


def _smallest(enough: Callable[[int], bool], limit: int) -> int:
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
