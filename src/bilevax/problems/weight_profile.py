"""K ridge or logistic regressions whose l2 weights follow a profile with few parameters, in a subspace.

The l2 weight of feature j in fold k is base_kj exp(level + adaptivity E_kj), where E_kj says how useful the feature
was in a first fit of that fold. The coefficients of fold k are a combination of few vectors, y_k their coordinates:
fits at some x, and the derivatives of these fits, so that value and gradient of the upper level are exact there.

    min over x of   held-out loss of all folds + a weak prior on the adaptivity
    y = argmin of   training losses of all folds + 1/2 sum over k of y_k^T M_k(x) y_k

`moderation` scales how much a score shrinks with its posterior variance (MacKay 1992): the probability of an
observation then accounts for what is not known about the coefficients.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Scalar

from bilevax.problem import BilevelProblem, LowerStructure
from bilevax.sets import Box, Product

X = dict[str, Scalar]
Y = Float[Array, "K J"]
Data = dict[str, Any]


def _squared(Z: Array, T: Array) -> Array:
    return 0.5 * jnp.sum((Z - T) ** 2, axis=-1)


def _logistic(Z: Array, T: Array) -> Array:
    return jnp.sum(jax.nn.softplus(Z) - T * Z, axis=-1)


def _softmax(Z: Array, T: Array) -> Array:
    return jax.nn.logsumexp(Z, axis=-1) - jnp.sum(T * Z, axis=-1)


def _scores(y: Y, data: Data) -> Array:
    K, n = data["training"].shape
    return jnp.einsum("kjm,kj->km", data["scores"], y).reshape(K, n, -1)


def _penalty(x: X, data: Data) -> Float[Array, "K J J"]:
    weights = jnp.exp(x["level"] + x["adaptivity"] * data["profile"])
    return jnp.einsum("b,kbij->kij", weights, data["penalties"]) + data["fixed"]


class _Levels(NamedTuple):
    """Both levels for one loss, and the exact solutions of the lower one; one object for each loss."""

    loss: Callable[[Array, Array], Array]
    curvature: Callable[[Array], tuple[Array, Array]]
    """Scores -> (D, P): the second derivative of the loss of a row is diag(D) - P P^T."""

    def upper(self, x: X, y: Y, data: Data) -> Scalar:
        """The held-out loss and the prior."""
        Z = jnp.sum(data["held_out"] * y.T[:, data["fold"], None], axis=0)
        Z = Z / jnp.sqrt(1 + x["moderation"] * data["variance"])
        prior = 0.5 * data["prior"] * (x["adaptivity"] - 1) ** 2
        return data["rows"] @ self.loss(Z, data["targets"]) + prior

    def lower(self, x: X, y: Y, data: Data) -> Scalar:
        """The training losses of all folds, each with its penalty."""
        return jnp.sum(self._values(x, y, data))

    def _values(self, x: X, y: Y, data: Data) -> Float[Array, " K"]:
        losses = jnp.sum(data["training"] * self.loss(_scores(y, data), data["targets"]), axis=1)
        return losses + 0.5 * jnp.einsum("ki,kij,kj->k", y, _penalty(x, data), y)

    def _solve(self, x: X, y: Y, b: Y, data: Data) -> Y:
        D, P = self.curvature(_scores(y, data))
        S, rows = data["scores"], data["training"]
        D = (rows[..., None] * D).reshape(len(S), 1, -1)
        H = jnp.einsum("kjm,kim->kji", D * S, S) + _penalty(x, data)
        turned = jnp.sum(S.reshape(*S.shape[:2], *P.shape[1:]) * P[:, None], axis=-1)
        H = H - jnp.einsum("kjn,kin->kji", turned * rows[:, None], turned)
        # One after the other: two batched factorizations in one program can wait for each other forever on few cores.
        return jax.lax.map(lambda pair: jax.scipy.linalg.solve(pair[0], pair[1], assume_a="pos"), (H, b))

    @functools.partial(jax.jit, static_argnums=0)  # the audit calls it by itself
    def solve_lower(self, x: X, y: Y, data: Data) -> Y:
        """y*(x) by Newton's method from y; each fold has its own step length."""

        def unfinished(carry: tuple[Array, Y, Array]) -> Array:
            k, _, decrease = carry
            return (k < _NEWTON_STEPS) & jnp.any(decrease > _DECREASE)

        def newton(carry: tuple[Array, Y, Array]) -> tuple[Array, Y, Array]:
            k, y, _ = carry
            g = jax.grad(lambda y: jnp.sum(self._values(x, y, data)))(y)
            step, value = self._solve(x, y, g, data), self._values(x, y, data)
            promised = jnp.sum(g * step, axis=1)

            def lowers(t: Array) -> Array:
                wanted = value - 1e-4 * t * promised + 1e-14 * jnp.abs(value)  # rounding decides at the end
                return self._values(x, y - t[:, None] * step, data) <= wanted

            def too_long(carry: tuple[Array, Array, Array]) -> Array:
                tries, _, good = carry
                return (tries < _HALVINGS) & ~jnp.all(good)

            def shorter(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
                tries, t, good = carry
                t = jnp.where(good, t, 0.5 * t)
                return tries + 1, t, lowers(t)

            whole = jnp.ones_like(promised)
            tries = (jnp.zeros((), jnp.int32), whole, lowers(whole))
            _, t, good = jax.lax.while_loop(too_long, shorter, tries)
            length = jnp.where(good, t, 0.0)
            return k + 1, y - length[:, None] * step, jnp.where(good, promised, 0.0)

        start = (jnp.zeros((), jnp.int32), y, jnp.full(y.shape[0], jnp.inf, y.dtype))
        return jax.lax.while_loop(unfinished, newton, start)[1]

    @functools.partial(jax.jit, static_argnums=0)
    def solve_adjoint(self, x: X, y: Y, b: Y, data: Data) -> Y:
        """H^-1 b."""
        return self._solve(x, y, b, data)


def _flat(Z: Array) -> tuple[Array, Array]:
    return jnp.ones_like(Z), jnp.zeros_like(Z)


def _of_logistic(Z: Array) -> tuple[Array, Array]:
    return jax.nn.sigmoid(Z) * jax.nn.sigmoid(-Z), jnp.zeros_like(Z)


def _of_softmax(Z: Array) -> tuple[Array, Array]:
    P = jax.nn.softmax(Z)
    return P, P


_NEWTON_STEPS, _HALVINGS, _DECREASE = 100, 40, 1e-18
LEVELS = {
    "squared": _Levels(_squared, _flat),
    "logistic": _Levels(_logistic, _of_logistic),
    "softmax": _Levels(_softmax, _of_softmax),
}
SPAN, MOST_ADAPTIVE, MOST_MODERATE = 3.0, 2.0, 3.0
"""Bounds: on |level|, on the adaptivity, and on the moderation in units of pi / 8."""


def weight_profile(loss: str, data: Data) -> BilevelProblem:
    """The problem for "squared", "logistic" or "softmax" loss.

    `data` has arrays for K folds, n rows, C outputs, J directions and B steps of the profile: `scores` (K, J, n C) of
    each direction at each row and `held_out` (J, n, C), the same for the fold that holds the row out; `fold` and `rows`
    (n), the number of that fold and the weight of the row, which add up to 1; `training` (K, n), the weights in the
    lower level; `targets` (n, C) and `variance` (n, 1); `profile` (B), `penalties` (K, B, J, J) and `fixed` (K, J, J),
    which make M; and the strength `prior`.
    """
    if loss not in LEVELS:
        raise ValueError(f"weight_profile: loss must be one of {', '.join(LEVELS)}, got {loss!r}.")
    domain = {
        "level": Box(-SPAN, SPAN),
        "adaptivity": Box(0.0, MOST_ADAPTIVE),
        "moderation": Box(0.0, MOST_MODERATE),
    }
    levels = LEVELS[loss]
    structure = LowerStructure(solve_lower=levels.solve_lower, solve_adjoint=levels.solve_adjoint)
    return BilevelProblem(levels.upper, levels.lower, Product(domain), data, structure=structure)
