"""A convex quadratic model of ell, corrected after every step of x by how the direction has changed along it.

Limited-memory BFGS remembers the last steps; its compact form is B = s I - W' M W (Byrd, Nocedal, Schnabel 1994). With
few variables B is kept whole, and begins as the Hessian of ell.
"""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jax.scipy.linalg import cho_solve, solve_triangular
from jaxtyping import Array, Bool, Float, PyTree, Scalar

from bilevax import trees


class Pair(NamedTuple):
    """A step of x, scaled to length one, and how the direction changed along it."""

    step: Float[Array, " n"]
    change: Float[Array, " n"]
    useful: Bool[Array, ""]
    """Whether ell bends up along the step, so that the model stays convex, and the change is not mere rounding."""


def pair(step: PyTree, before: PyTree, after: PyTree) -> Pair:
    """The pair of a step with the directions at both of its ends."""
    s, c = ravel_pytree(step)[0], ravel_pytree(trees.sub(after, before))[0]
    rounding = 1e4 * jnp.finfo(s.dtype).eps * trees.norm(before)
    length, size = jnp.linalg.norm(s), jnp.linalg.norm(c)
    useful = (s @ c > 1e-6 * length * size) & (size > rounding)
    unit = jnp.where(length > 0, length, 1)
    return Pair(s / unit, c / unit, useful)


class Model(NamedTuple):
    """B = s I - W' M W and its inverse I / s + W' N W / s^2."""

    scale: Scalar
    W: Float[Array, "q n"]
    M: Float[Array, "q q"]
    N: Float[Array, "q q"]

    def times(self, v: Float[Array, " n"]) -> Float[Array, " n"]:
        """B v."""
        return self.scale * v - (self.M @ (self.W @ v)) @ self.W

    def matrix(self) -> Float[Array, "n n"]:
        """B itself."""
        n = self.W.shape[1]
        return self.scale * jnp.eye(n, dtype=self.W.dtype) - self.W.T @ self.M @ self.W

    def inverse_times(self, v: Float[Array, " n"]) -> Float[Array, " n"]:
        """B^-1 v."""
        return v / self.scale + (self.N @ (self.W @ v)) @ self.W / self.scale**2

    def surprise(self, seen: Pair) -> Scalar:
        """How far the change along a step was from what B says of it, as a share of the change."""
        size = jnp.linalg.norm(seen.change)
        return jnp.linalg.norm(self.times(seen.step) - seen.change) / jnp.where(size > 0, size, 1)


class LastSteps(eqx.Module):
    """The last pairs, the newest last; zeros stand for pairs that are missing."""

    steps: Float[Array, "p n"]
    changes: Float[Array, "p n"]
    scale: Scalar
    """The curvature across all steps, used where nothing else is known."""

    def add(self, new: Pair) -> LastSteps:
        """One pair more."""
        push = lambda rows, row: jnp.concatenate([rows[1:], row[None]])  # noqa: E731
        along = jnp.where(new.useful, new.step @ new.change, 1)
        grown = LastSteps(push(self.steps, new.step), push(self.changes, new.change), new.change @ new.change / along)
        return trees.choose(new.useful, grown, self)

    def forget(self) -> LastSteps:
        """No pairs, and shorter steps: for when the model was wrong."""
        return LastSteps(jnp.zeros_like(self.steps), jnp.zeros_like(self.changes), 10 * self.scale)

    def model(self) -> Model:
        """The model that the pairs define."""
        S, Y, scale = self.steps, self.changes, self.scale
        SY = S @ Y.T
        missing = (jnp.diag(SY) == 0).astype(S.dtype)
        along = jnp.diag(SY) + missing
        below, above = jnp.tril(SY, -1), jnp.triu(SY, 1) + jnp.diag(along)
        T = jnp.linalg.cholesky(scale * (S @ S.T + jnp.diag(missing)) + (below / along) @ below.T)
        top, right = cho_solve((T, True), jnp.eye(len(S), dtype=S.dtype)), below / along
        corner = top @ right
        M = jnp.block([[top, corner], [corner.T, right.T @ corner - jnp.diag(1 / along)]])
        R = solve_triangular(above, jnp.eye(len(S), dtype=S.dtype))
        N = jnp.block([[R.T @ (jnp.diag(along) + Y @ Y.T / scale) @ R, -R.T], [-R, jnp.zeros_like(R)]])
        return Model(scale, jnp.concatenate([scale * S, Y]), M, N)


def last_steps(x: PyTree, memory: int, scale: Scalar) -> LastSteps:
    """Before the first step."""
    flat, _ = ravel_pytree(x)
    nothing = jnp.zeros((memory, flat.size), flat.dtype)
    return LastSteps(nothing, nothing, jnp.asarray(scale, flat.dtype))


class WholeMatrix(eqx.Module):
    """B itself."""

    B: Float[Array, "n n"]

    def add(self, new: Pair) -> WholeMatrix:
        """The BFGS update."""
        s, c = new.step, new.change
        Bs = self.B @ s
        along, bend = (jnp.where(new.useful, v, 1) for v in (s @ c, s @ Bs))
        updated = self.B - jnp.outer(Bs, Bs) / bend + jnp.outer(c, c) / along
        return trees.choose(new.useful, WholeMatrix(updated), self)

    def forget(self) -> WholeMatrix:
        """More curvature: for when the model was wrong."""
        return WholeMatrix(self.B + jnp.trace(self.B) / len(self.B) * jnp.eye(len(self.B), dtype=self.B.dtype))

    def model(self) -> Model:
        """The same matrix as a change of a multiple of the identity."""
        one = jnp.eye(len(self.B), dtype=self.B.dtype)
        scale = jnp.linalg.norm(self.B)  # at least its largest eigenvalue
        inverse = cho_solve((jnp.linalg.cholesky(self.B), True), one)
        return Model(scale, one, scale * one - self.B, scale**2 * inverse - scale * one)


def whole_matrix(hessian: Float[Array, "n n"]) -> WholeMatrix:
    """From a Hessian that need not be positive: negative curvature changes its sign, none becomes a little."""
    B = 0.5 * (hessian + hessian.T)
    positive = jnp.all(jnp.isfinite(jnp.linalg.cholesky(B)))  # a tenth of the work of a decomposition
    return WholeMatrix(jax.lax.cond(positive, lambda: B, lambda: _made_positive(B)))


def _made_positive(B: Float[Array, "n n"]) -> Float[Array, "n n"]:
    values, vectors = jnp.linalg.eigh(B)
    size = jnp.abs(values)
    size = jnp.maximum(size, 1e-10 * jnp.max(size) + jnp.finfo(size.dtype).tiny)
    return (vectors * size) @ vectors.T


def unknown_matrix(x: PyTree) -> WholeMatrix:
    """Before the first Hessian."""
    return WholeMatrix(jnp.zeros((trees.size(x),) * 2, trees.dtype(x)))
