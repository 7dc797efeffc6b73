"""What a fit has computed so far, on disk, so that a fit that was killed goes on to the same bits.

A fit makes a fixed sequence of slow calls: sweeps of factors, steps at one radius, singular vectors of a pattern. The
journal numbers these calls and keeps their results. A fit that starts again passes through the same code, and a call
whose result is in the journal takes it from there. The call in which the fit was stopped goes on from its last state.

calls-*.npz    results of calls that have ended; each file has those since the file before
running.npz    the state of the call that was going on, and how many seconds the fit had taken
fit.npz        the fitted model, once there is one; the other files are then deleted
lock           names the process that writes here
"""

from __future__ import annotations

import contextlib
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from bilevax import packed
from bilevax.encoding import decode, encode
from bilevax.estimators.matrix_completion.stored_classes import forms
from bilevax.runs.checkpoint_options import Checkpoint
from bilevax.runs.lock import Lock

_KIND, _FORMAT = "bilevax matrix completion checkpoint", 1
_RUNNING, _FINISHED, _CALLS = "running.npz", "fit.npz", "calls-*.npz"
_WRONG = (packed.DamagedFile, KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError)
T = TypeVar("T")


class Call(NamedTuple):
    """A slow call, and what the journal knows of it."""

    number: int
    name: str
    found: bool = False
    """Whether its result is known."""
    result: Any = None
    running: Any = None
    """The state at which an unfinished call was saved; None if there is none."""


class _Record(NamedTuple):
    number: int
    name: str
    value: Any
    """Encoded if it was read, and itself if it is to be written."""
    arrays: dict[str, np.ndarray]


class Journal:
    """The calls of one fit. Without a folder it keeps nothing and knows nothing.

    Args:
        about: what must be the same for a fit that goes on with this folder.
        check: raises an error if the `about` of the folder is that of another fit.
    """

    def __init__(
        self,
        plan: Checkpoint | None = None,
        about: Any = None,
        check: Callable[[Any], None] = lambda about: None,
    ) -> None:
        self._plan, self._about, self._check = plan, about, check
        self._folder = None if plan is None else Path(plan.path)
        self._number, self._opened, self._closed, self._failed = 0, False, False, False
        self._files: deque[Path] = deque()
        self._records: deque[_Record] = deque()
        self._pending: list[_Record] = []
        self._current: Call | None = None
        self._running: _Record | None = None
        self._finished: tuple[dict[str, Any], dict[str, np.ndarray]] | None = None
        self._began = self._last = time.monotonic()
        self._cost = 0.0
        self.spent = 0.0
        """Seconds that the fit took before this process."""
        self.state: Callable[[], Any] | None = None
        """Makes the state from which the present call could go on."""
        self._lock: Lock | None = None
        if self._folder is not None:
            self._open(self._folder)

    @property
    def on(self) -> bool:
        """Whether there is a folder."""
        return self._folder is not None

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: Any) -> None:
        if self._lock is not None:
            self._lock.release()

    # ---- reading

    def _open(self, folder: Path) -> None:
        if folder.exists() and not folder.is_dir():
            raise ValueError(f"checkpoint: {folder} is a file; give the path of a folder.")
        if folder.is_dir() and any(folder.glob("state-*.npz")):
            raise ValueError(f"checkpoint: {folder} holds a run of bx.solve; give another folder.")
        self._lock = Lock(folder)
        try:
            _delete(folder.glob(".*.npz.*"))  # files that a killed process was writing
            self._finished = self._read(folder / _FINISHED)
            if self._finished is None or self._finished[0].get("limit") is not None:
                self._files = deque(sorted(folder.glob(_CALLS)))
                running = self._read(folder / _RUNNING)
                if running is not None:
                    self._keep_running(*running)
                self._fill()
            self._opened = True
        except BaseException:
            self._lock.release()
            raise

    def _read(self, path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]] | None:
        """The content of a file; None if it is not there, or with a warning if it is damaged."""
        try:
            header, arrays = packed.read(path)
            if (header.get("kind"), header.get("format")) != (_KIND, _FORMAT):
                raise packed.DamagedFile(f"{path} is not a checkpoint of a matrix completion of this version.")
            about = header["about"]
        except FileNotFoundError:
            return None
        except (*_WRONG, OSError) as error:
            _warn(f"{error} What it held is computed again.")
            return None
        try:
            self._check(about)
        except ValueError:
            if not self._opened:
                raise
            _warn(f"{path} belongs to another fit. What it held is computed again.")
            return None
        return header, arrays

    def _keep_running(self, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        try:
            self.spent = float(header["seconds"])
            self._running = _Record(int(header["number"]), str(header["name"]), header["state"], arrays)
        except _WRONG as error:
            _warn(f"{_RUNNING} has another form than expected ({error}). What it held is computed again.")

    def _fill(self) -> None:
        """Read files until a record is at hand or there is none."""
        while not self._records and self._files:
            content = self._read(self._files.popleft())
            if content is None:
                continue
            header, arrays = content
            try:
                self.spent = max(self.spent, float(header["seconds"]))
                self._records.extend(_Record(int(n), str(name), value, arrays) for n, name, value in header["calls"])
            except _WRONG as error:
                _warn(f"calls of a checkpoint have another form than expected ({error}). They are computed again.")

    def _next(self) -> _Record | None:
        """The first record of a later call than those so far, or of the present one."""
        while self._records and self._records[0].number < self._number:
            self._records.popleft()
            self._fill()
        return self._records[0] if self._records else None

    @property
    def replaying(self) -> bool:
        """Whether later calls are known already: what is computed now was computed before."""
        if self._closed:
            return False
        ahead = [self._records[-1]] if self._records else []
        ahead += [] if self._running is None else [self._running]
        return bool(self._files) or any(record.number > self._number for record in ahead)

    def call(self, name: str) -> Call:
        """Begin the next call."""
        self._number, self.state = self._number + 1, None
        self._current = call = Call(self._number, name)
        if self._closed:  # after an interruption calls are others than those of the journal
            return call
        record = self._next()
        if record is not None and (record.number, record.name) == (self._number, name):
            self._records.popleft()
            self._fill()
            value, fine = _decoded(record)
            return call._replace(found=True, result=value) if fine else call
        running = self._running
        if running is None or running.number > self._number:
            return call
        self._running = None  # its memory is needed no more
        if (running.number, running.name) == (self._number, name) and running.value is not None:
            return call._replace(running=_decoded(running)[0])
        return call

    # ---- writing

    def compute(self, name: str, compute: Callable[[], T]) -> T:
        """The result of a call that has no states between, from the journal or computed."""
        call = self.call(name)
        if call.found:
            known: T = call.result
            return known
        value = compute()
        self.keep(call, value)
        return value

    def keep(self, call: Call, value: Any) -> None:
        """Keep the result of a call that came to its end."""
        self.state = None
        if self.on and not self._closed:
            self._pending.append(_Record(call.number, call.name, value, {}))
            self.save_if_due()

    def save_if_due(self) -> None:
        """Write a checkpoint if enough time has passed since the last one."""
        if self._plan is None or self._closed:
            return
        if time.monotonic() - self._last >= self._plan.wait(self._cost):
            self.save()

    def save(self) -> None:
        """Write a checkpoint. A disk that is full ends no fit: a warning tells, and the results are computed again."""
        if self._folder is None or self._closed:
            return
        began, pending = time.monotonic(), self._pending
        self._pending = []  # also if they cannot be written: the memory they take might not be there either
        try:
            if pending:
                arrays: dict[str, np.ndarray] = {}
                calls = [[one.number, one.name, encode(one.value, arrays, forms)] for one in pending]
                self._write(f"calls-{pending[0].number:06d}.npz", {"calls": calls}, arrays)
            if not self.replaying:
                self._write_running()
            self._failed = False
        except OSError as error:
            if not self._failed:
                _warn(f"a checkpoint could not be written: {error}. The fit goes on without it.")
            self._failed = True
        self._last = time.monotonic()
        self._cost = self._last - began

    def _write_running(self) -> None:
        arrays: dict[str, np.ndarray] = {}
        state = None if self.state is None else encode(self.state(), arrays, forms)
        name = "" if self._current is None else self._current.name
        self._write(_RUNNING, {"number": self._number, "name": name, "state": state}, arrays)

    def _write(self, name: str, content: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        assert self._folder is not None
        header = {"kind": _KIND, "format": _FORMAT, "about": self._about, "seconds": self.seconds, **content}
        packed.write(self._folder / name, header, arrays)

    @property
    def seconds(self) -> float:
        """The time that the fit took so far, in all processes."""
        return self.spent + time.monotonic() - self._began

    def cut(self) -> None:
        """The fit is cut short, by the user or by its time limit: save it, and keep nothing of what follows."""
        if not self._closed:
            self.save()
            self._closed = True

    # ---- the end

    def finished(self, limit: float | None) -> dict[str, Any] | None:
        """The attributes of the fitted model; None if the fit has not ended, or only because of a shorter limit."""
        if self._finished is None:
            return None
        header, arrays = self._finished
        try:
            then = header["limit"]
            if then is not None and (limit is None or limit > float(then)):
                return None
            attributes = dict(decode(header["model"], arrays, forms))
        except _WRONG as error:
            _warn(f"{_FINISHED} has another form than expected ({error}). The model is fitted again.")
            return None
        if then is None:
            self._delete_calls()  # a process that was killed when it had just written the model left them
        return attributes

    def finish(self, attributes: dict[str, Any], limit: float | None) -> None:
        """Keep the fitted model; `limit` is the time limit that ended the fit, or None if it came to its end."""
        if self._folder is None:
            return
        arrays: dict[str, np.ndarray] = {}
        try:
            self._write(_FINISHED, {"limit": limit, "model": encode(attributes, arrays, forms)}, arrays)
        except OSError as error:
            _warn(f"the fitted model could not be written: {error}.")
            return
        if limit is None:
            self._delete_calls()

    def _delete_calls(self) -> None:
        assert self._folder is not None
        _delete((*self._folder.glob(_CALLS), self._folder / _RUNNING))


def _delete(paths: Iterable[Path]) -> None:
    for path in paths:
        with contextlib.suppress(OSError):  # files that stay take space and do no harm
            path.unlink(missing_ok=True)


def _decoded(record: _Record) -> tuple[Any, bool]:
    try:
        return decode(record.value, record.arrays, forms), True
    except _WRONG as error:
        _warn(f"the result of the call {record.name!r} has another form than expected ({error}). It is computed again.")
        return None, False


def _warn(words: str) -> None:
    warnings.warn(f"MatrixCompletion: {words}", RuntimeWarning, stacklevel=2)
