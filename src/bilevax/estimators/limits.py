"""What ends a fit early: a time limit, and Ctrl-C."""

from __future__ import annotations

import time
from typing import NamedTuple

from bilevax.runs.interrupt import Interrupt
from bilevax.runs.stopping import Status, Stop


class Limits(NamedTuple):
    """The time limit of a fit, from its beginning, and Ctrl-C."""

    began: float
    """`time.perf_counter()` at the beginning."""
    time_limit: float | None
    interrupt: Interrupt

    def stop(self) -> Stop | None:
        """Why the fit should end with what it has; None as long as it should not."""
        if self.interrupt.flag:
            return Stop(Status.STOPPED, "the user stopped the fit")
        if self.time_limit is not None and time.perf_counter() - self.began >= self.time_limit:
            return Stop(Status.TIME_LIMIT, f"the time limit of {self.time_limit:g} s was reached")
        return None
