"""When a fit has to end, and what it tells meanwhile."""

from __future__ import annotations

import sys
import time

import numpy as np

from bilevax.estimators.matrix_completion.journal import Journal
from bilevax.runs.interrupt import Interrupt
from bilevax.runs.stopping import Status, Stop


class Deadline:
    """The time limit of a fit, and Ctrl-C. Seconds of processes before, as its journal knows them, count."""

    def __init__(
        self, limit: float | None, interrupt: Interrupt, verbose: bool = False, journal: Journal | None = None
    ):
        self.limit, self.interrupt, self.verbose = limit, interrupt, verbose
        self.journal = Journal() if journal is None else journal
        self._end = time.perf_counter() + (np.inf if limit is None else limit)
        if verbose and self.journal.spent:
            print(f"the fit goes on after {self.journal.spent:.0f} s", file=sys.stderr, flush=True)

    def __call__(self) -> bool:
        """Whether it is time to end: Ctrl-C was pressed, or the time limit is over. The journal is then saved.

        What the journal knows already takes no time, and is never left out.
        """
        over = not self.journal.replaying and time.perf_counter() + self.journal.spent > self._end
        if self.interrupt.flag or over:
            self.journal.cut()
            return True
        return False

    @property
    def left(self) -> float | None:
        """Seconds; None without a limit."""
        spent = time.perf_counter() + self.journal.spent
        return None if self.limit is None else max(self._end - spent, 1e-9)

    def tell(self, words: str) -> None:
        """A line on standard error, if the user wants to see progress."""
        if self.verbose and not self.journal.replaying:
            print(words, file=sys.stderr, flush=True)

    def stop(self, otherwise: str) -> Stop:
        """Why a fit of factors ended."""
        if self.interrupt.flag:
            return Stop(Status.STOPPED, "interrupted; the model is the one at that moment")
        if self():
            return Stop(Status.TIME_LIMIT, f"the time limit of {self.limit:g} s was reached")
        return Stop(Status.STALLED, otherwise)
