"""How far IBCG is from a solution after K steps: Lemma B.4 and Theorems 4.2 and 4.4, from their proofs."""

from __future__ import annotations

import numpy as np

from bilevax.theory.constants import required
from bilevax.theory.lipschitz import hypergradient_lipschitz
from bilevax.theory.setting import Real, Setting
from bilevax.theory.tracking import hypergradient_error


def one_step_excess(setting: Setting, k: Real) -> Real:
    """Lemma B.4: ell(x_(k+1)) <= ell(x_k) - gamma G(x_k) + R_k(gamma); this is R_k."""
    (D_X,) = required(setting.constants, "D_X")
    curvature = 0.5 * hypergradient_lipschitz(setting.constants) * setting.gamma**2 * D_X**2
    return setting.gamma * D_X * hypergradient_error(setting, k) + curvature


def convex_bound(setting: Setting, K: int, first: float) -> float:
    """Theorem 4.2: a bound on ell(x_K) - ell* for convex ell, where `first` is ell(x_0) - ell*.

    (1-gamma)^K first + sum over k < K of (1-gamma)^(K-1-k) R_k
    """
    k = np.arange(K)
    decay = (1 - setting.gamma) ** (K - 1.0 - k)
    return float((1 - setting.gamma) ** K * first + np.sum(decay * one_step_excess(setting, k)))


def nonconvex_bound(setting: Setting, K: int, first: float) -> float:
    """Theorem 4.4: a bound on the smallest Frank-Wolfe gap of x_0, ..., x_(K-1).

    (first + sum over k < K of R_k) / (K gamma)
    """
    return float((first + np.sum(one_step_excess(setting, np.arange(K)))) / (K * setting.gamma))
