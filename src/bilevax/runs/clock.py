"""Time spent in steps, and time spent compiling."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import jax


class CompileTime:
    """While it holds, sums the time that JAX spends on tracing, lowering and compiling, in all threads."""

    def __enter__(self) -> CompileTime:
        self.seconds = 0.0
        self._spans: list[tuple[float, float]] = []
        jax.monitoring.register_event_duration_secs_listener(self._hear)
        return self

    def _hear(self, event: str, duration_secs: float, **_: str | int) -> None:
        """An event that has just ended. An outer one ends after those inside it and replaces them."""
        if not event.startswith("/jax/core/compile/"):
            return
        end = time.perf_counter()
        begin = end - duration_secs
        while self._spans and self._spans[-1][0] >= begin:
            inner = self._spans.pop()
            self.seconds -= inner[1] - inner[0]
        self._spans.append((begin, end))
        self.seconds += duration_secs

    def __exit__(self, *_: Any) -> None:
        with contextlib.suppress(ValueError, AssertionError):  # someone else may have cleared all listeners
            jax.monitoring.unregister_event_duration_listener(self._hear)


class Clock:
    """Calls functions and tells how long they ran; compilation is summed apart."""

    def __init__(self) -> None:
        self.seconds = self.compiling = 0.0

    def call(self, function: Any, *args: Any) -> tuple[Any, float]:
        """The value of a call and its seconds without compilation; the caller decides whether they count."""
        with self.compilation() as compilation:
            began = time.perf_counter()
            value = jax.block_until_ready(function(*args))
            elapsed = time.perf_counter() - began
        return value, max(elapsed - compilation.seconds, 0.0)

    @contextlib.contextmanager
    def compilation(self) -> Iterator[CompileTime]:
        """Add what is compiled inside to the compilation of this clock."""
        with CompileTime() as compilation:
            yield compilation
        self.compiling += compilation.seconds
