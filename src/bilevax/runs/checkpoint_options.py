"""Where and how often a run is saved. Loads no JAX: not every estimator needs it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

LEAST_SHARE = 50
"""The time between two checkpoints is at least so many times what writing one takes: 2 % of the run at most."""


@dataclass(frozen=True)
class Checkpoint:
    """Where `bx.solve` writes checkpoints, and after how many seconds.

    A checkpoint is also written before the first step and at the end. Where writing one takes long, the next one comes
    later, so that at most about 2 % of the time is spent on writing; with `seconds=0` one is written after each chunk
    of steps, whatever it takes.

    >>> import bilevax as bx
    >>> often = bx.Checkpoint("run", seconds=2)
    """

    path: str | Path
    seconds: float = 10.0

    def __post_init__(self) -> None:
        if not isinstance(self.path, (str, Path)):
            raise TypeError(f"Checkpoint: path must be the path of a folder, got {self.path!r}.")
        if not (isinstance(self.seconds, (int, float)) and self.seconds >= 0):
            raise ValueError(f"Checkpoint: seconds must be a number of at least 0, got {self.seconds!r}.")

    def wait(self, cost: float) -> float:
        """Seconds from one checkpoint to the next, if writing the last one took `cost` seconds."""
        return max(self.seconds, LEAST_SHARE * cost) if self.seconds else 0.0


def as_checkpoint(given: Any, caller: str = "solve") -> Checkpoint | None:
    """What `checkpoint=` means; `caller` is for messages."""
    if given is None or isinstance(given, Checkpoint):
        return given
    if isinstance(given, (str, Path)):
        return Checkpoint(given)
    raise TypeError(f"{caller}: checkpoint must be the path of a folder or a bx.Checkpoint, got {given!r}.")
