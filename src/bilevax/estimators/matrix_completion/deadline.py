"""When a fit has to end, and what it tells meanwhile."""

from __future__ import annotations

import sys
import time

import numpy as np

from bilevax.runs.interrupt import Interrupt
from bilevax.runs.stopping import Status, Stop


class Deadline:
    """The time limit of a fit, and Ctrl-C."""

    def __init__(self, limit: float | None, interrupt: Interrupt, verbose: bool = False):
        self.limit, self.interrupt, self.verbose = limit, interrupt, verbose
        self._end = time.perf_counter() + (np.inf if limit is None else limit)

    def __call__(self) -> bool:
        """Whether it is time to end: Ctrl-C was pressed, or the time limit is over."""
        return self.interrupt.flag or time.perf_counter() > self._end

    @property
    def left(self) -> float | None:
        """Seconds; None without a limit."""
        return None if self.limit is None else max(self._end - time.perf_counter(), 1e-9)

    def tell(self, words: str) -> None:
        """A line on standard error, if the user wants to see progress."""
        if self.verbose:
            print(words, file=sys.stderr, flush=True)

    def stop(self, otherwise: str) -> Stop:
        """Why a fit of factors ended."""
        if self.interrupt.flag:
            return Stop(Status.STOPPED, "interrupted; the model is the one at that moment")
        if self():
            return Stop(Status.TIME_LIMIT, f"the time limit of {self.limit:g} s was reached")
        return Stop(Status.STALLED, otherwise)
