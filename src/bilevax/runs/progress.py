"""A progress line for people at a terminal, and sparse plain lines for log files."""

from __future__ import annotations

import sys
import time
from typing import Any

from bilevax.runs.trace import Row


class Progress:
    """Redraws one line at most ten times a second; without a terminal prints a line every ten seconds."""

    def __init__(self, steps: int, label: str = "", stream: Any = None, *, begin: int = 0):
        self.steps, self.label, self.begin = steps, label, begin
        self.stream = sys.stderr if stream is None else stream
        self.terminal = bool(getattr(self.stream, "isatty", lambda: False)())
        self.pause = 0.1 if self.terminal else 10.0
        self.began = self.drawn = time.monotonic()

    def _line(self, step: int, row: Row | None, *, ended: bool = False) -> str:
        step -= self.begin
        share = step / self.steps
        spent = time.monotonic() - self.began
        left = f"{spent / share - spent:.0f} s left" if 0 < share < 1 and spent > 0.5 and not ended else ""
        filled = round(24 * share)
        bar = "█" * filled + "░" * (24 - filled)
        gap = f"gap {row['gap']:.2e}" if row and row["gap"] == row["gap"] else ""
        return f"{self.label:<40} {bar} {share:4.0%}  step {step:>{len(str(self.steps))}}/{self.steps}  {gap}  {left}"

    def show(self, step: int, row: Row | None) -> None:
        """Tell where the run is, if it is time to."""
        if time.monotonic() - self.drawn >= self.pause:
            self._write(self._line(step, row), end=False)

    def close(self, step: int, row: Row | None, words: str) -> None:
        """The last line, which stays."""
        self._write(f"{self._line(step, row, ended=True).rstrip()}  {words}", end=True)

    def _write(self, line: str, *, end: bool) -> None:
        self.drawn = time.monotonic()
        self.stream.write(f"\r\x1b[2K{line}" + ("\n" if end else "") if self.terminal else f"{line.rstrip()}\n")
        self.stream.flush()
