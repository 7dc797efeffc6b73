"""Projections that subtract one number from all entries and clip: simplices, with or without a cap on the entries.

The number `tau` solves `sum(clip(values - tau, 0, cap)) = total`. The left side falls with tau, in straight pieces.
Newton's method on such a function ends after a few passes over the entries, and nothing is sorted.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Scalar

_FREE_STEPS = 8
"""Newton steps before every second step halves the bracket instead: Newton alone may move slowly."""


def project_capped(values: Array, total: Array, cap: Array) -> Array:
    """The nearest vector with entries between 0 and `cap` and the sum `total`."""
    smallest, largest = jnp.min(values), jnp.max(values)
    low = jnp.where(cap >= total, largest - total, smallest - cap)
    guess = jnp.clip((jnp.sum(values) - total) / values.size, low, largest)  # right if no entry meets a bound
    all_full = total >= values.size * cap * (1 - 4 * jnp.finfo(values.dtype).eps)
    start = jnp.where(all_full, smallest - cap, guess)
    centre = _threshold(values, total, cap, _Bracket(low, largest), start)
    # The first search finds tau up to the rounding of the values. Relative to that tau, entries that matter are no
    # larger than the answer, and the second search is exact on that scale: a common offset of 1e8 costs no digits.
    shifted = values - centre
    bracket = _Bracket((smallest - centre) - cap, largest - centre)
    start = jnp.where(all_full, bracket.low, 0)
    tau = _threshold(shifted, total, cap, bracket, start)
    return _subtract(shifted, total, cap, tau)


def project_simplex(values: Array, total: Scalar | float) -> Array:
    """The nearest non-negative vector with the sum `total`."""
    total = jnp.maximum(jnp.asarray(total, values.dtype), 0)
    # Only entries within `total` of the largest one stay positive, so that one search is exact.
    shifted = values - jax.lax.stop_gradient(jnp.max(values))
    bracket = _Bracket(-total, jnp.zeros_like(total))
    tau = _threshold(shifted, total, total, bracket, -total)
    return _subtract(shifted, total, total, tau)


def project_below(values: Array, total: Scalar | float) -> Array:
    """The nearest non-negative vector whose sum is at most `total`."""
    clipped = jnp.maximum(values, 0)
    return jnp.where(jnp.sum(clipped) <= total, clipped, project_simplex(values, total))


class _Bracket(NamedTuple):
    """Two numbers with the threshold between them."""

    low: Array
    high: Array


class _Search(NamedTuple):
    tau: Array
    bracket: _Bracket
    step: Array
    done: Array


def _threshold(values: Array, total: Array, cap: Array, bracket: _Bracket, start: Array) -> Array:
    """The tau at which `clip(values - tau, 0, cap)` sums to the total, up to its rounding, as a constant."""
    values, total, cap, bracket, start = jax.lax.stop_gradient((values, total, cap, bracket, start))
    eps = jnp.finfo(values.dtype).eps

    def advance(now: _Search) -> _Search:
        tau = now.tau
        reached = jnp.sum(jnp.clip(values - tau, 0, cap))
        # Without this barrier XLA computes both sums in one loop that the processor cannot do in parallel.
        reached, again = jax.lax.optimization_barrier((reached, tau))
        between = jnp.sum((values > again) & (values < again + cap), dtype=values.dtype)
        over = reached - total
        low = jnp.where(over >= 0, tau, now.bracket.low)
        high = jnp.where(over <= 0, tau, now.bracket.high)
        newton = tau + over / jnp.maximum(between, 1)
        turn = (now.step >= _FREE_STEPS) & (now.step % 2 == 0)
        usable = (between > 0) & (newton > low) & (newton < high) & ~turn
        # Halving the difference is best for ordinary numbers. Halving the number of floats in between ends
        # within 64 turns also where one entry is 1e200 and another one 1.
        halfway = jnp.where(turn, _middle_float(low, high), 0.5 * low + 0.5 * high)
        ahead = jnp.where(usable, newton, halfway)
        empty = ~((ahead > low) & (ahead < high))
        done = jnp.abs(over) <= eps * total * (4 + jnp.sqrt(between))
        done |= (between > 0) & (newton == tau)
        done |= ~jnp.isfinite(over)  # the answer is then NaN too
        # Where no float is left in between, the sum jumps at the upper end: an entry, up to rounding.
        stop = jnp.where(done, tau, high)
        return _Search(jnp.where(done | empty, stop, ahead), _Bracket(low, high), now.step + 1, done | empty)

    below = _Bracket(jnp.nextafter(bracket.low, -jnp.inf), bracket.high)  # the rounded low may be too high
    begin = _Search(start, below, jnp.zeros((), jnp.int32), jnp.zeros((), bool))
    return jax.lax.while_loop(lambda now: ~now.done, advance, begin).tau


def _middle_float(low: Array, high: Array) -> Array:
    """The number with as many floats above `low` as below `high`."""
    kind: Any = {16: jnp.int16, 32: jnp.int32, 64: jnp.int64}[jnp.finfo(low.dtype).bits]
    # The bits of a positive float, read as an integer, are in the order of the floats; for a negative one they
    # are in the opposite order.
    mirror = lambda bits: jnp.where(bits < 0, jnp.iinfo(kind).min - bits, bits)  # noqa: E731
    a, b = (mirror(jax.lax.bitcast_convert_type(end, kind)) for end in (low, high))
    middle = (a >> 1) + (b >> 1) + (a & b & 1)
    return jax.lax.bitcast_convert_type(mirror(middle), low.dtype)


def _subtract(values: Array, total: Array, cap: Array, tau: Array) -> Array:
    """`clip(values - tau, 0, cap)` with what is missing spread over the entries between the bounds.

    On one straight piece this is exact, and its derivative is that of the projection. The search for tau needs none.
    """
    lowered = values - tau
    between = (lowered > 0) & (lowered < cap)
    kept = jnp.where(between, lowered, jnp.clip(jax.lax.stop_gradient(lowered), 0, cap))
    share = (jnp.sum(kept) - total) / jnp.maximum(jnp.sum(between, dtype=values.dtype), 1)
    return jnp.where(between, jnp.clip(kept - share, 0, cap), kept)
