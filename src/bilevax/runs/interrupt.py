"""Ctrl-C as a flag that a run reads when it is ready to stop."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class Interrupt:
    """While it holds, the first Ctrl-C sets a flag and the second raises; SIGTERM as well for a run that is saved."""

    flag = False

    def __init__(self, saved: bool = False) -> None:
        self._signals = [signal.SIGINT, signal.SIGTERM] if saved else [signal.SIGINT]

    def __enter__(self) -> Interrupt:
        self.flag = False
        self._previous: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._receive) for number in self._signals}
        return self

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.flag:
            raise KeyboardInterrupt
        self.flag = True

    def __exit__(self, *_: Any) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
