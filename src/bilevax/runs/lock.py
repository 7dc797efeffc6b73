"""One run for a folder: a lock that the system takes back when its process ends, however that ends."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import time
from pathlib import Path
from typing import IO

from bilevax import packed

try:
    import fcntl
except ImportError:  # not on Windows, where nothing is locked
    fcntl = None  # type: ignore[assignment]

LOCK = "lock"


class Busy(RuntimeError):
    """Another run writes into this folder."""


class Lock:
    """Holds a folder until `release`; a lock that a dead process has left behind does not count."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._stream: IO[str] | None = open(folder / LOCK, "a+", encoding="utf-8")
        if fcntl is not None:
            try:
                fcntl.flock(self._stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                self._stream.seek(0)
                owner = _owner(self._stream.read(1000))
                self.release()
                raise Busy(
                    f"{folder} belongs to a run that is still going on{owner}; wait for it, or take another folder."
                ) from None
        self._stream.truncate(0)
        self._stream.write(
            json.dumps({"process": os.getpid(), "host": platform.node(), "since": time.strftime("%F %T")})
        )
        self._stream.flush()

    def release(self) -> None:
        """Give the folder back."""
        if self._stream is not None:
            with contextlib.suppress(OSError):
                self._stream.close()
            self._stream = None


def _owner(text: str) -> str:
    try:
        told = json.loads(text)
        return f" (process {int(told['process'])} on {told['host']}, since {told['since']})"
    except packed.UNEXPECTED:
        return ""
