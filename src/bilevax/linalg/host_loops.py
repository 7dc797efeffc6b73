"""Where kernels run, and control flow that is compiled, or in Python where a kernel lives on the host."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import TypeVar

import jax
from jaxtyping import Array, Bool, Int

Carry = TypeVar("Carry")
Chosen = TypeVar("Chosen")


class Kernels(enum.IntEnum):
    """Where the kernels of a set, a lower structure, a problem or a solver run; the largest of several decides."""

    COMPILED = 0
    CALLBACK = 1
    """On the host, but compiled code may call them back: small oracles, such as a linear program."""
    HOST = 2
    """On the host only."""

    @property
    def on_host(self) -> bool:
        """Whether `solve` steps outside compiled code."""
        return self is not Kernels.COMPILED


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


def either(first: Bool[Array, ""], a: Callable[[], Chosen], b: Callable[[], Chosen], *, host: bool) -> Chosen:
    """`a()` if `first`, otherwise `b()`."""
    if host and not isinstance(first, jax.core.Tracer):
        return a() if bool(first) else b()
    return jax.lax.cond(first, a, b)
