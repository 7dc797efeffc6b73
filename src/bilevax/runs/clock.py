"""Time spent in steps, time spent compiling, and Ctrl-C."""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType
from typing import Any

import jax


class Interrupt:
    """While it holds, the first Ctrl-C sets a flag and the second raises."""

    flag = False

    def __enter__(self) -> Interrupt:
        self.flag = False
        self.previous: Any = None
        if threading.current_thread() is threading.main_thread():
            self.previous = signal.signal(signal.SIGINT, self._receive)
        return self

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.flag:
            raise KeyboardInterrupt
        self.flag = True

    def __exit__(self, *_: Any) -> None:
        if self.previous is not None:
            signal.signal(signal.SIGINT, self.previous)


class Clock:
    """Calls functions and tells how long they ran; what compiling them took is summed apart."""

    def __init__(self) -> None:
        self.seconds = self.compiling = 0.0
        self.ready: set[int] = set()

    def call(self, function: Any, *args: Any) -> tuple[Any, float]:
        """The value of a call and its seconds; the caller decides whether they count."""
        if hasattr(function, "lower") and id(function) not in self.ready:
            self.ready.add(id(function))  # shapes never change within a run
            began = time.perf_counter()
            function.lower(*args).compile()  # what the call below then finds in JAX's cache
            self.compiling += time.perf_counter() - began
        began = time.perf_counter()
        value = jax.block_until_ready(function(*args))
        return value, time.perf_counter() - began
