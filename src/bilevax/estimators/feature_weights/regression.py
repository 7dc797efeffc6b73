"""One regression with an l2 weight per feature, solved by Newton's method, and how it depends on the weights.

    minimise over W, b   sum over rows of r_i loss(x_i W + b, t_i) + 1/2 sum over j of weight_j |W_j|^2

All work is done in coordinates scaled by weight^(-1/2), in which the Hessian is at least the identity. Small dense
problems are factorized; large and sparse ones use conjugate gradients with scipy's products.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg
import scipy.sparse

from bilevax.estimators.feature_weights.losses import Loss

INTERCEPT = 1e-6
"""The l2 weight of the intercept, for each row: enough to make the problem strongly convex."""
_FACTORIZED = 1000
"""Up to so many dense features the Hessian is factorized."""
_FLOPS = 4e9
"""Up to so many operations the covariance of the coefficients is computed; beyond, only its diagonal is estimated."""
_SMALL = 300_000
"""Up to so many products of features and outputs, accurate solutions cost little."""
_STEPS = 60


class Design:
    """The features: dense and centred, or sparse as they are. The intercept is the last coordinate."""

    A: Any
    back_A: Any
    squares: Any
    """Of the transposed features, if they are sparse."""

    def __init__(self, A: Any):
        self.sparse = bool(scipy.sparse.issparse(A))
        if self.sparse:
            A = scipy.sparse.csr_matrix(A)
            self.A, self.back_A, self.size = A, A.T.tocsr(), int(A.nnz)
            self.squares = self.back_A.multiply(self.back_A).tocsr()
        else:
            A = np.asarray(A)
            self.A, self.back_A, self.squares, self.size = A, A.T, None, A.size
        self.n, self.d = A.shape

    def scores(self, P: np.ndarray) -> np.ndarray:
        """`A W + b` for coordinates P = (W, b)."""
        return np.asarray(self.A @ P[:-1]) + P[-1]

    def back(self, R: np.ndarray) -> np.ndarray:
        """The transposed product."""
        return np.vstack([np.asarray(self.back_A @ R), R.sum(axis=0)])

    def back_squares(self, D: np.ndarray) -> np.ndarray:
        """The transposed product with squared features."""
        squares = self.squares if self.sparse else self.back_A**2
        return np.vstack([np.asarray(squares @ D), D.sum(axis=0)])

    def square_scores(self, S: np.ndarray) -> np.ndarray:
        """Squared features times S."""
        squares = self.squares.T if self.sparse else self.A**2
        return np.asarray(squares @ S[:-1]) + S[-1]


def conjugate_gradient(
    product: Callable[[np.ndarray], np.ndarray], b: np.ndarray, diagonal: np.ndarray, share: float, most: int = 500
) -> np.ndarray:
    """`H^-1 b` up to this share of |b|; `diagonal` is that of H."""
    x, r = np.zeros_like(b), b.copy()
    z = r / diagonal
    p, rz, goal = z, np.vdot(r, z), share * np.linalg.norm(b)
    for _ in range(most):
        if np.linalg.norm(r) <= goal:
            break
        Hp = product(p)
        alpha = rz / np.vdot(p, Hp)
        x, r = x + alpha * p, r - alpha * Hp
        z = r / diagonal
        rz, before = np.vdot(r, z), rz
        p = z + (rz / before) * p
    return x


class Spread(NamedTuple):
    """Posterior variances of the coordinates, one column for each output."""

    diagonal: np.ndarray
    roots: np.ndarray | None
    """Square roots of the covariances of the outputs; None where only the diagonal is known."""

    def of_rows(self, design: Design) -> np.ndarray:
        """The variance of each score."""
        if self.roots is None:
            return design.square_scores(self.diagonal)
        return np.stack([np.sum((design.A @ root[:-1] + root[-1]) ** 2, axis=1) for root in self.roots], axis=1)


class Regression:
    """The regressions on some rows of a design: `rows` are the weights of the rows, 0 for those held out."""

    def __init__(self, design: Design, loss: Loss, T: np.ndarray, rows: np.ndarray):
        self.design, self.loss, self.T, self.rows = design, loss, T, rows[:, None]
        self.direct = not design.sparse and design.d <= _FACTORIZED and T.shape[1] == 1
        self.small = design.size * T.shape[1] <= _SMALL

    def with_intercept(self, log_weights: np.ndarray) -> np.ndarray:
        """The l2 weights of all coordinates."""
        return np.append(np.exp(log_weights), INTERCEPT * float(np.sum(self.rows)))

    def value(self, P: np.ndarray, Z: np.ndarray, weights: np.ndarray) -> float:
        """The objective at coordinates P with scores Z."""
        loss = float(self.rows[:, 0] @ self.loss.values(Z, self.T))
        return loss + 0.5 * float(weights @ np.sum(P**2, axis=1))

    def inverse(self, Z: np.ndarray, scale: np.ndarray, share: float) -> Callable[[np.ndarray], np.ndarray]:
        """`b -> H^-1 b` in scaled coordinates, at scores Z."""
        if self.direct:
            factor = self._factor(self.rows * self.loss.diagonal(Z), scale)
            return lambda b: scipy.linalg.cho_solve(factor, b)
        diagonal = 1 + scale**2 * self.design.back_squares(self.rows * self.loss.diagonal(Z))

        def product(u: np.ndarray) -> np.ndarray:
            bent = self.rows * self.loss.curved(Z, self.design.scores(scale * u))
            return u + scale * self.design.back(bent)

        return lambda b: conjugate_gradient(product, b, diagonal, share)

    def _factor(self, D: np.ndarray, scale: np.ndarray) -> tuple[np.ndarray, bool]:
        A = np.hstack([self.design.A, np.ones((self.design.n, 1))]) * scale[:, 0]
        A *= np.sqrt(D)
        H = A.T @ A
        H[np.diag_indices_from(H)] += 1
        return scipy.linalg.cho_factor(H, lower=True, overwrite_a=True, check_finite=False)

    def fit(self, log_weights: np.ndarray, start: np.ndarray | None = None, tol: float = 1e-5) -> np.ndarray:
        """The coordinates of the minimum, up to `tol` times the gradient at zero."""
        weights = self.with_intercept(log_weights)
        scale = (weights**-0.5)[:, None]
        zero = np.zeros((self.design.d + 1, self.T.shape[1]))

        def gradient_at(P: np.ndarray, Z: np.ndarray) -> np.ndarray:
            slopes = self.design.back(self.rows * self.loss.slopes(Z, self.T))
            return scale * (slopes + weights[:, None] * P)

        goal = tol * np.linalg.norm(gradient_at(zero, np.zeros_like(self.T)))
        P = zero if start is None else start
        Z = self.design.scores(P)
        value, gradient = self.value(P, Z, weights), gradient_at(P, Z)
        for _ in range(_STEPS):
            size = np.linalg.norm(gradient)
            if size <= goal:
                break
            step = scale * self.inverse(Z, scale, share=0.1 if size > 100 * goal else 0.02)(gradient)
            along, promised, t = self.design.scores(step), float(np.vdot(step / scale, gradient)), 1.0
            while True:
                following = self.value(P - t * step, Z - t * along, weights)
                if following <= value - 1e-4 * t * promised or t < 1e-3:
                    break
                t /= 2
            if not following < value:
                break  # the end of the precision
            P, Z, value = P - t * step, Z - t * along, following
            gradient = gradient_at(P, Z)
        return P

    def tangents(self, P: np.ndarray, log_weights: np.ndarray, along: list[np.ndarray]) -> list[np.ndarray]:
        """The derivatives of the minimum P when the logarithms of the weights move along these vectors."""
        weights = self.with_intercept(log_weights)
        scale = (weights**-0.5)[:, None]
        solve = self.inverse(self.design.scores(P), scale, share=1e-6 if self.small else 3e-3)
        moves = [np.append(direction, 0.0)[:, None] * P / scale for direction in along]
        return [-scale * solve(move) if np.any(move) else np.zeros_like(P) for move in moves]

    def spread(self, P: np.ndarray, log_weights: np.ndarray) -> Spread:
        """The posterior covariance of the coordinates at the minimum P, for a loss that is a log-likelihood."""
        weights, C = self.with_intercept(log_weights), self.T.shape[1]
        scale = (weights**-0.5)[:, None]
        D = self.rows * self.loss.diagonal(self.design.scores(P))
        n, d = self.design.n, self.design.d
        if self.design.sparse or d > 2 * _FACTORIZED or n * d**2 * C > _FLOPS:
            return Spread(1 / (weights[:, None] + self.design.back_squares(D)), None)
        roots = np.empty((C, d + 1, d + 1))
        for c in range(C):
            L, _ = self._factor(D[:, c : c + 1], scale)
            roots[c] = scipy.linalg.solve_triangular(np.tril(L), np.diag(scale[:, 0]), lower=True).T
        return Spread(np.stack([np.sum(root**2, axis=1) for root in roots], axis=1), roots)
