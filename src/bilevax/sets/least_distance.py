"""The nearest point under linear constraints, on the host, as a least-squares problem with non-negative unknowns.

Lawson and Hanson (Solving Least Squares Problems, 1974, chapter 23) turn `min |z|` under `M z <= h` into such a
problem. Its positive unknowns say which constraints hold with equality; these alone then give z to all digits.
"""

from __future__ import annotations

import numpy as np
import scipy

_FLAT = 1e-12
"""Length below which a row does not restrict the directions that the equations leave free."""


class LeastDistance:
    """Projections onto `rows x <= right`, `equal x = level`, `lower <= x <= upper`, a set that is not empty."""

    def __init__(
        self,
        rows: np.ndarray,
        right: np.ndarray,
        equal: np.ndarray,
        level: np.ndarray,
        lower: np.ndarray,
        upper: np.ndarray,
    ):
        d = lower.size
        left, values, across = np.linalg.svd(equal, full_matrices=True)
        rank = int(np.sum(values > max(equal.shape) * np.finfo(float).eps * np.max(values, initial=0.0)))
        self.across, self.free = across[:rank], across[rank:]
        self.level = (left.T @ level)[:rank] / values[:rank]
        above, below = np.isfinite(upper), np.isfinite(lower)
        self.rows = np.vstack([rows, np.eye(d)[above], -np.eye(d)[below]])
        self.right = np.r_[right, upper[above], -lower[below]]
        self.matrix = self.rows @ self.free.T
        self.lengths = np.linalg.norm(self.matrix, axis=1)
        restricts = self.lengths > _FLAT
        self.rows, self.right, self.lengths = self.rows[restricts], self.right[restricts], self.lengths[restricts]
        self.matrix = self.matrix[restricts] / self.lengths[:, None]
        self.lower, self.upper = lower, upper

    def nearest(self, x: np.ndarray) -> np.ndarray:
        """The point of the set nearest to x."""
        x = x - (self.across @ x - self.level) @ self.across
        slack = (self.right - self.rows @ x) / self.lengths
        if np.min(slack, initial=0.0) < 0:
            x = x + _shortest(self.matrix, slack) @ self.free
        return np.clip(x, self.lower, self.upper)

    def lowest(self, x: np.ndarray, F: np.ndarray, B: np.ndarray) -> np.ndarray:
        """The point z of the set where <F, z - x> + 1/2 <z - x, B (z - x)> is least, from x in the set.

        In coordinates in which B is the identity, it is the point nearest to the unconstrained minimum.
        """
        try:
            return self._lowest(x, F, B)
        except (np.linalg.LinAlgError, RuntimeError):  # B is not positive to rounding, or the search does not end
            return self.nearest(x - F / max(float(np.linalg.norm(B)), np.finfo(float).tiny))

    def _lowest(self, x: np.ndarray, F: np.ndarray, B: np.ndarray) -> np.ndarray:
        factor = np.linalg.cholesky(self.free @ B @ self.free.T)
        inverse = scipy.linalg.solve_triangular(factor, np.eye(len(factor)), lower=True)
        start = -inverse @ (self.free @ F)
        matrix = (self.matrix * self.lengths[:, None]) @ inverse.T
        lengths = np.linalg.norm(matrix, axis=1)
        # Rounding may have left x outside by a digit.
        slack = np.maximum(self.right - self.rows @ x, 0) - matrix @ start
        matrix, slack = matrix / lengths[:, None], slack / lengths
        u = start + _shortest(matrix, slack) if np.min(slack, initial=0.0) < 0 else start
        return np.clip(x + (inverse.T @ u) @ self.free, self.lower, self.upper)


def _shortest(matrix: np.ndarray, right: np.ndarray) -> np.ndarray:
    """The shortest z with `matrix @ z <= right`."""
    length = -float(np.min(right))
    for _ in range(2):  # the second time with a right side for which z has about length 1
        system = np.vstack([-matrix.T, -right / length])
        target = np.r_[np.zeros(matrix.shape[1]), 1.0]
        weights, _ = scipy.optimize.nnls(system, target, maxiter=30 * system.shape[1])
        residual = system @ weights - target
        rough = -length * residual[:-1] / residual[-1]
        length = float(np.linalg.norm(rough))
    tight = weights > 0
    sharp = np.linalg.lstsq(matrix[tight], right[tight])[0]
    over, over_rough = (np.max(matrix @ z - right) for z in (sharp, rough))
    return sharp if over <= max(over_rough, 1e-9 * length) else rough
