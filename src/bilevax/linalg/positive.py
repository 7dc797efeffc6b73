"""A proof that a symmetric matrix is positive definite, and by how much."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy.linalg

Factor = tuple[np.ndarray, bool]


class Definiteness(NamedTuple):
    """What a factorization shows about the smallest eigenvalue of a symmetric matrix."""

    low: float
    """The smallest eigenvalue is proved to be larger than this; 0 if nothing positive could be proved."""
    factor: Factor | None
    """The Cholesky factorization; None if there is none."""
    estimate: float
    """The smallest eigenvalue as computed, with no proof."""
    margin: float
    """How far rounding may have moved eigenvalues."""


def definiteness(matrix: np.ndarray, noise: float = 0.0) -> Definiteness:
    """Prove a lower bound on the smallest eigenvalue of a symmetric matrix that is known up to `noise` in norm.

    A Cholesky factorization of `A - c I` that runs to its end proves that the smallest eigenvalue exceeds c less
    (n + 2) eps trace(A), the margin for its own rounding (Rump, "Verification of positive definiteness").
    """
    n = len(matrix)
    if not np.all(np.isfinite(matrix)):
        return Definiteness(0.0, None, np.nan, np.nan)
    margin = (n + 2) * np.finfo(float).eps * max(float(np.trace(matrix)), float(np.abs(matrix).max())) + noise
    factor = _cholesky(matrix)
    if factor is None:
        return Definiteness(0.0, None, float(np.linalg.eigvalsh(matrix)[0]), margin)
    estimate = _smallest(factor, n)
    for share in (0.9, 0.5, 0.1):
        low = share * estimate - margin
        if low > 0 and _cholesky(matrix - share * estimate * np.eye(n)) is not None:
            return Definiteness(low, factor, estimate, margin)
    return Definiteness(0.0, factor, estimate, margin)


def _cholesky(matrix: np.ndarray) -> Factor | None:
    try:
        return scipy.linalg.cho_factor(matrix, lower=True)
    except np.linalg.LinAlgError:
        return None


def _smallest(factor: Factor, n: int) -> float:
    """The smallest eigenvalue by inverse iteration; never too small, and that is what the proof is for."""
    v = np.random.default_rng(n).standard_normal(n)
    for _ in range(6):
        v = scipy.linalg.cho_solve(factor, v / np.linalg.norm(v))
    return float(1 / np.linalg.norm(v)) if np.any(v) else 0.0
