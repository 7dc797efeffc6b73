"""The projection onto non-negative matrices with given row and column sums, in compiled code.

For prices b of the columns, the nearest matrix with the right row sums is `X(b)`: each row of `V - b` projected onto a
simplex. The columns of `X(b)` have the right sums for the b that maximizes the dual function, whose gradient is
`sums of the columns of X(b) - wanted`. X(b) is linear in pieces, and Newton's method ends on the right piece.

Where V is much larger than the sums, the answer is close to that of a linear program and Newton's method gets lost.
Hence a path: a small multiple of V first, then twice as much and so on, each time from the prices found before.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Scalar

from bilevax import trees
from bilevax.linalg.brief import brief_jit
from bilevax.sets.threshold import project_simplex

_STEPS = 200
"""Newton steps at most on one multiple of V; ten are usual."""
_CUTS = 40
"""Trial steps at most on the line of one Newton step."""
_GROWTH = 2.0
"""Each multiple of V is this many times the one before."""
_SMALL = 1000
"""Entries up to which compilation takes longer than some thousand projections."""
_ROUGH = 0.1
"""Error in the column sums, relative to the largest of them, at which the path goes on."""


class _Prices(NamedTuple):
    b: Float[Array, " n"]
    x: Float[Array, "m n"]
    excess: Float[Array, " n"]

    def error(self) -> Scalar:
        return jnp.max(jnp.abs(self.excess))


_Price = Callable[[Array], _Prices]


class _Newton(NamedTuple):
    now: _Prices
    best: _Prices
    step: Array
    failures: Array


class _Path(NamedTuple):
    part: Scalar
    b: Float[Array, " n"]
    x: Float[Array, "m n"]
    done: Array


def project_margins(
    values: Float[Array, "m n"], rows: Float[Array, " m"], columns: Float[Array, " n"]
) -> Float[Array, "m n"]:
    """The nearest non-negative matrix with these row sums and column sums."""
    return (_quickly_compiled if values.size <= _SMALL else _compiled)(values, rows, columns)


@jax.custom_jvp
def _project(values: Array, rows: Array, columns: Array) -> Array:
    if values.shape[0] < values.shape[1]:  # the linear system has one equation per column
        return _project(values.T, columns, rows).T
    # What is added to a whole row or column changes nothing, and a common offset would cost digits.
    values = values - jnp.mean(values, axis=1, keepdims=True)
    values = values - jnp.mean(values, axis=0)
    spread, mass = jnp.max(values) - jnp.min(values), jnp.max(columns)
    finest = jnp.finfo(values.dtype).eps * (2 + math.sqrt(values.shape[0]))  # rounding of a sum

    def follow(path: _Path) -> _Path:
        def priced(b: Array) -> _Prices:
            x = jax.vmap(project_simplex)(path.part * values - b, rows)
            return _Prices(b, x, jnp.sum(x, axis=0) - columns)

        last = path.part >= 1
        limit = jnp.where(last, finest, _ROUGH) * mass
        found = _newton(priced, priced(path.b), path.part * spread + mass, limit)
        part = jnp.minimum(_GROWTH * path.part, 1)
        return _Path(part, found.b * (part / path.part), found.x, last)

    part = jnp.minimum(mass / jnp.where(spread > 0, spread, 1), 1)
    lost = ~jnp.isfinite(spread)
    begin = _Path(part, jnp.zeros_like(columns), jnp.where(lost, jnp.nan, values), lost)
    return jax.lax.while_loop(lambda path: ~path.done, follow, begin).x


@_project.defjvp
def _slope(point: tuple[Array, Array, Array], change: tuple[Array, Array, Array]) -> tuple[Array, Array]:
    """On one linear piece the positive entries change by `values - a - b`, with prices that keep the sums right."""
    x = _project(*point)
    values, rows, columns = change
    active, counts, curvature = _piece(x)
    values = active * values
    over = (jnp.sum(values, axis=1) - rows) / counts
    b = _solved(curvature, jnp.sum(values, axis=0) - columns - over @ active, 0.0)
    a = over - (active @ b) / counts
    return x, values - active * (a[:, None] + b)


_compiled, _quickly_compiled = jax.jit(_project), brief_jit(_project)


def _newton(priced: _Price, start: _Prices, reach: Scalar, limit: Scalar) -> _Prices:
    """The best prices of a Newton method that ends at the limit, or where rounding allows no progress."""

    def advance(state: _Newton) -> _Newton:
        ahead = _line_search(priced, state.now, _direction(state.now, reach))
        better = ahead.error() < state.best.error()
        best = trees.choose(better, ahead, state.best)
        return _Newton(ahead, best, state.step + 1, jnp.where(better, 0, state.failures + 1))

    def unfinished(state: _Newton) -> Array:
        error = state.best.error()
        # Prices are as large as `reach`, and the sums inherit their rounding.
        rounding = jnp.minimum(64 * jnp.finfo(error.dtype).eps * reach, 1e6 * limit)
        return (error > limit) & (state.step < _STEPS) & ~((error <= rounding) & (state.failures >= 2))

    zero = jnp.zeros((), jnp.int32)
    return jax.lax.while_loop(unfinished, advance, _Newton(start, start, zero, zero)).best


def _piece(x: Array) -> tuple[Array, Array, Array]:
    """Which entries are positive, how many in each row, and minus the derivative of the column sums by the prices."""
    active = (x > 0).astype(x.dtype)
    counts = jnp.maximum(jnp.sum(active, axis=1), 1)
    return active, counts, jnp.diag(jnp.sum(active, axis=0)) - active.T @ (active / counts[:, None])


def _solved(curvature: Array, right: Array, damping: Scalar | float) -> Array:
    """The curvature is singular: equal changes of all prices change nothing. Some damping makes it regular."""
    n = curvature.shape[0]
    damping = jnp.maximum(damping, 16 * jnp.finfo(curvature.dtype).eps * n)
    factor = jax.scipy.linalg.cho_factor(curvature + damping * jnp.eye(n, dtype=curvature.dtype))
    return jax.scipy.linalg.cho_solve(factor, right)


def _direction(now: _Prices, reach: Scalar) -> Array:
    """Newton's direction, damped so that no price moves by much more than `reach`."""
    return _solved(_piece(now.x)[2], now.excess, now.error() / reach)


class _Line(NamedTuple):
    length: Scalar
    ahead: _Prices
    cuts: Array


def _line_search(priced: _Price, now: _Prices, direction: Array) -> _Prices:
    """A step to where the slope of the dual function, which falls along the line, is not clearly negative."""
    slope = jnp.vdot(direction, now.excess)

    def too_far(line: _Line) -> Array:
        falls = jnp.vdot(direction, line.ahead.excess) < -0.1 * slope
        return (line.cuts == 0) | ((line.cuts < _CUTS) & falls)

    def halve(line: _Line) -> _Line:
        length = 0.5 * line.length
        return _Line(length, priced(now.b + length * direction), line.cuts + 1)

    begin = _Line(jnp.full_like(slope, 2.0), now, jnp.zeros((), jnp.int32))
    return jax.lax.while_loop(too_far, halve, begin).ahead
