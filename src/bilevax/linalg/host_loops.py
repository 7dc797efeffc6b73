"""Loops that run compiled, or in Python where a kernel lives on the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import jax
from jaxtyping import Array, Int

Carry = TypeVar("Carry")


def repeat(count: Int[Array, ""] | int, body: Callable[[Carry], Carry], carry: Carry, *, host: bool = False) -> Carry:
    """Apply `body` `count` times."""
    if host and not isinstance(count, jax.core.Tracer):
        for _ in range(int(count)):
            carry = body(carry)
        return carry
    return jax.lax.fori_loop(0, count, lambda _, value: body(value), carry)


def loop_while(
    unfinished: Callable[[Carry], Array], body: Callable[[Carry], Carry], carry: Carry, *, host: bool = False
) -> Carry:
    """Apply `body` while `unfinished`."""
    if host:
        while bool(unfinished(carry)):
            carry = body(carry)
        return carry
    return jax.lax.while_loop(unfinished, body, carry)
