"""Checkpoints: what a run needs to go on as if nothing had happened, written while it runs.

A folder holds `rows.csv`, to which the rows of the trace are appended, and the two newest `state-*.npz`. A checkpoint
says how long `rows.csv` was and what its checksum was; rows behind that belong to steps that will be taken again.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import PyTree

from bilevax import files, packed
from bilevax.files import csv_text
from bilevax.limits import check_size
from bilevax.runs import run_directory
from bilevax.runs.checkpoint_options import Checkpoint
from bilevax.runs.described import filled, leaves_of, structure, tree_of
from bilevax.runs.lock import Lock
from bilevax.runs.trace import Trace
from bilevax.verdict.assumptions import Assumptions
from bilevax.verdict.row_bound import RowResiduals

FORMAT = 1
_NAME = re.compile(r"state-(\d{12})\.npz")
_KEPT = 2


def states(folder: Path) -> list[Path]:
    """The checkpoints of a folder, newest first."""
    found = [entry for entry in folder.iterdir() if _NAME.fullmatch(entry.name)] if folder.is_dir() else []
    return sorted(found, key=lambda entry: entry.name, reverse=True)


class Saved:
    """A checkpoint that was read: its header, its arrays and its rows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.header, self._arrays = packed.read(path)
        if self.header.get("kind") != "bilevax checkpoint":
            raise packed.DamagedFile(f"{path} is not a checkpoint of bilevax.")
        if self.header.get("format") != FORMAT:
            raise packed.DamagedFile(
                f"{path} was written in format {self.header.get('format')}; this version reads format {FORMAT}."
            )
        self.trace = self._read_trace(path.parent / run_directory.ROWS)

    def _read_trace(self, path: Path) -> Trace:
        told, size = self.header["trace"], path.stat().st_size if path.is_file() else 0
        length = int(told["bytes"])
        if not 0 <= length <= size:
            raise packed.DamagedFile(f"{path} has {size} bytes; the checkpoint was made when it had {length}.")
        check_size(path, length)
        with open(path, "rb") as stream:
            text = stream.read(length)
        self.sum = hashlib.sha256(text)
        if self.sum.hexdigest() != told["sha256"]:
            raise packed.DamagedFile(f"{path} was changed after the checkpoint was made.")
        return Trace.from_text(text.decode(), path)

    def leaves(self, part: str) -> list[np.ndarray]:
        """The arrays of a part, in order."""
        try:
            return [self._arrays[f"{part}{i}"] for i in range(len(self.header["parts"][part]))]
        except packed.UNEXPECTED as error:
            raise packed.DamagedFile(f"{self.path} lacks {error}, a part of {part}, or has another form.") from None

    def tree(self, part: str) -> PyTree:
        """A tree whose containers are plain; None if they are not."""
        try:
            described = self.header["structures"].get(part)
            return None if described is None else tree_of(described, self.leaves(part))
        except packed.UNEXPECTED as error:
            raise packed.DamagedFile(f"{self.path} lacks {error}, a part of {part}, or has another form.") from None

    def fill(self, part: str, tree: PyTree, *, shapes: bool) -> PyTree:
        """A tree of the same paths, types and, if `shapes`, shapes with the numbers of the checkpoint."""
        paths, now = leaves_of(tree)
        then = self.leaves(part)
        alike = paths == self.header["parts"][part] and all(
            a.dtype == b.dtype and (not shapes or a.shape == b.shape) for a, b in zip(now, then, strict=True)
        )
        if not alike:
            raise ValueError(f"the {part} of the checkpoint has other parts, types or shapes than this run.")
        try:
            return filled(tree, then)
        except packed.UNEXPECTED as error:
            raise packed.DamagedFile(f"{self.path} has {part} in another form: {error}.") from None

    @property
    def residuals(self) -> list[RowResiduals]:
        """What the rows measured for the column `gap_bound`."""
        return [RowResiduals(*map(float, row)) for row in self._arrays["residuals"]]


def newest(folder: Path) -> Saved:
    """The newest checkpoint that can be read; a warning tells of those that cannot."""
    found = states(folder)
    if not found:
        raise FileNotFoundError(f"{folder} has no checkpoint (state-*.npz); was it written with checkpoint=?")
    reasons = []
    for path in found:
        try:
            saved = Saved(path)
        except (*packed.UNEXPECTED, OSError) as error:
            known = isinstance(error, packed.DamagedFile)
            reasons.append(str(error) if known else f"{path} lacks {error} or has it in another form.")
            continue
        if reasons:
            warnings.warn(f"{reasons[0]} The checkpoint before it, {path.name}, is used.", RuntimeWarning, stacklevel=3)
        return saved
    raise packed.DamagedFile(f"no checkpoint in {folder} can be read. {reasons[0]}")


class Saver:
    """Writes the checkpoints of one run."""

    def __init__(self, checkpoint: Checkpoint, after: Saved | None = None) -> None:
        self._folder, self._plan, self._cost = Path(checkpoint.path), checkpoint, 0.0
        if self._folder.exists() and not self._folder.is_dir():
            raise ValueError(f"checkpoint: {self._folder} is a file; give the path of a folder.")
        self._lock = Lock(self._folder)
        if after is None and states(self._folder):
            self._lock.release()
            raise ValueError(
                f"checkpoint: {self._folder} already holds a run; bx.resume({str(self._folder)!r}, problem) goes on "
                f"with it, or give another folder."
            )
        for left in self._folder.glob(".state-*"):  # what a killed process was writing
            left.unlink(missing_ok=True)
        self._sum = hashlib.sha256() if after is None else after.sum
        self._bytes: int = 0 if after is None else after.header["trace"]["bytes"]
        self._rows = 0 if after is None else len(after.trace)
        self._last = time.monotonic()
        self.failed = ""
        """Why the last checkpoint could not be written; empty if it could."""

    def begin(self, run: Any, about: dict[str, Any]) -> None:
        """The checkpoint before the first step, or the first one after another process has ended."""
        self._about = about
        self.save(run)
        run.saver = self

    def due(self) -> bool:
        """Whether it is time for the next one."""
        return time.monotonic() - self._last >= self._plan.wait(self._cost)

    def save(self, run: Any) -> None:
        """Write one. A disk that is full ends no run: a warning tells, and the checkpoint before is still there."""
        began = time.monotonic()
        try:
            self._append(run.trace)
            self._write(run)
            self.failed = ""
        except OSError as error:
            if not self.failed:
                warnings.warn(f"checkpoint: step {run.k} could not be written: {error}.", RuntimeWarning, stacklevel=2)
            self.failed = str(error)
        self._last = time.monotonic()
        self._cost = self._last - began

    def _append(self, trace: Trace) -> None:
        """Rows that are new, behind those of the last checkpoint, whatever a failed one left there."""
        rows = [trace.row(i) for i in range(self._rows, len(trace))]
        text = csv_text(trace.columns, ([repr(value) for value in row.values()] for row in rows)) if rows else ""
        if rows and self._rows:
            text = text.split("\n", 1)[1]
        path = self._folder / run_directory.ROWS
        with files.DISK.append(path) as stream:
            os.truncate(stream.fileno(), self._bytes)
            stream.write(text.encode())
            files.DISK.flush(stream)
        self._sum.update(text.encode())
        self._bytes, self._rows = self._bytes + len(text.encode()), len(trace)

    def _write(self, run: Any) -> None:
        parts = {"state": run.state, "solver": run.solver, "x0": run.begun[0], "y0": run.begun[1]}
        arrays, paths = {"residuals": np.array(run.certificate.residuals, float).reshape(-1, 4)}, {}
        for part, tree in parts.items():
            paths[part], leaves = leaves_of(tree)
            arrays |= {f"{part}{i}": leaf for i, leaf in enumerate(leaves)}
        header = {
            **self._about,
            "kind": "bilevax checkpoint",
            "format": FORMAT,
            "step": run.k,
            "next_row": run.next_row,
            "seconds": run.clock.seconds,
            "compiling": run.clock.compiling,
            "counts": run.counts,
            "verify_after": run.verify_after,
            "unverified": run.unverified,
            "chosen": run.chosen,
            "spoiled": run.spoiled,
            "examined": None if run.examined is None else list(run.examined),
            "trace": {"rows": self._rows, "bytes": self._bytes, "sha256": self._sum.hexdigest()},
            "parts": paths,
            "structures": {name: structure(parts[name]) for name in ("x0", "y0")},
        }
        packed.write(self._folder / f"state-{run.k:012d}.npz", header, arrays)
        for old in states(self._folder)[_KEPT:]:
            old.unlink(missing_ok=True)

    def close(self) -> None:
        """Give the folder back."""
        self._lock.release()


def restore(run: Any, saved: Saved) -> None:
    """Put a run that has just begun where the checkpoint was made."""
    header, host = saved.header, run.problem.host
    run.solver = saved.fill("solver", run.solver, shapes=True)
    run.state = saved.fill("state", run.state, shapes=not host)
    try:
        run.k, run.next_row = int(header["step"]), int(header["next_row"])
        run.clock.seconds, run.clock.compiling = float(header["seconds"]), float(header["compiling"])
        run.counts = {name: int(header["counts"][name]) for name in run.counts}
        run.verify_after, run.unverified = int(header["verify_after"]), str(header["unverified"])
        run.chosen, run.spoiled = str(header["chosen"]), bool(header["spoiled"])
        run.examined = None if header["examined"] is None else Assumptions(*map(str, header["examined"]))
        run.trace, run.certificate.residuals = saved.trace, saved.residuals
    except packed.UNEXPECTED as error:
        raise packed.DamagedFile(f"{saved.path} lacks {error} or has it in another form.") from None
    run.leaves_windows()
