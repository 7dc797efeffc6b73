"""What `compare` returns: named results, their table and their curves."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bilevax.drawing import figures, tables
from bilevax.files import write_atomic
from bilevax.runs.result import Result
from bilevax.runs.trace import Row, Trace
from bilevax.solvers.protocol import COUNTS, Solver

CALLS = "oracle_calls"
_SHOWN = ("gap", "upper", "lower_grad_norm")
OWN_COLUMNS = ("step", "seconds", *_SHOWN, "adjoint_residual", "grad_norm", "lmo_error", "gap_bound", *COUNTS)
"""The columns every trace has; any other column came from the user's metrics."""
HEADINGS = ("method", "status", "steps", "seconds", "compile seconds", "oracle calls")


@dataclass(frozen=True, eq=False)
class Entry:
    """One method of a comparison and how it ended."""

    name: str
    solver: Solver
    result: Result | None
    """None if the method failed or did not run."""
    status: str
    """The name of the result's status, "FAILED" or "NOT RUN"."""
    message: str


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """What `compare` returns: named results, their table and their curves."""

    entries: dict[str, Entry]

    def __getitem__(self, name: str) -> Result:
        if name not in self.entries:
            raise KeyError(f"there is no method {name!r}; there are {', '.join(map(repr, self.entries))}.")
        entry = self.entries[name]
        if entry.result is None:
            raise KeyError(f"the method {name!r} has no result: {entry.status}, {entry.message}")
        return entry.result

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def traces(self) -> dict[str, Trace]:
        """The traces of the methods that ran."""
        return {name: entry.result.trace for name, entry in self.entries.items() if entry.result is not None}

    def best(self, column: str = "gap") -> str:
        """The method whose last row has the smallest value; one that is not finite does not count."""
        last = {name: trace.last[column] for name, trace in self._with(column).items()}
        finite = {name: value for name, value in last.items() if np.isfinite(value)}
        if not finite:
            raise ValueError(f"best: no method ended with a finite {column!r}.\n{self}")
        return min(finite, key=lambda name: finite[name])

    def steps_to(self, column: str, value: float) -> dict[str, float]:
        """The step of the first row where a column was at most `value`, for each method; NaN if there is none."""
        return self._first("step", column, value)

    def seconds_to(self, column: str, value: float) -> dict[str, float]:
        """The seconds at the first row where a column was at most `value`, for each method; NaN if there is none."""
        return self._first("seconds", column, value)

    def _first(self, axis: str, column: str, value: float) -> dict[str, float]:
        first = dict.fromkeys(self.entries, float("nan"))
        for name, trace in self._with(column).items():
            reached = np.flatnonzero(trace[column] <= value)
            if len(reached):
                first[name] = float(trace[axis][reached[0]])
        return first

    def _with(self, column: str) -> dict[str, Trace]:
        """The traces that have a column, the sum of all oracle calls being one."""
        traces = {name: _counted(trace) for name, trace in self.traces.items()}
        having = {name: trace for name, trace in traces.items() if column in trace}
        if traces and not having:
            columns = dict.fromkeys(c for trace in traces.values() for c in trace.columns)
            raise ValueError(f"compare: no trace has a column {column!r}; there are {', '.join(columns)}.")
        return having

    def table(self, columns: str | Sequence[str] | None = None) -> str:
        """A markdown table of how each method ended, and below it why some did not run.

        Args:
            columns: whose last values to show; by default gap, upper, lower_grad_norm and your metrics.
        """
        if columns is None:
            own = dict.fromkeys(c for trace in self.traces.values() for c in trace.columns if c not in OWN_COLUMNS)
            columns = [*_SHOWN, *own]
        values = {column: self._with(column) for column in _several(columns)}
        rows = []
        for name, entry in self.entries.items():
            result = entry.result
            row: dict[str, Any] = {
                "method": _one_line(name),
                "status": entry.status,
                "steps": result.steps if result else _DASH,
                "seconds": result.seconds if result else _DASH,
                "compile seconds": result.compile_seconds if result else _DASH,
            }
            for column, traces in values.items():
                row.setdefault(_one_line(column), traces[name].last[column] if name in traces else _DASH)
            row["oracle calls"] = _calls(result.trace.last) if result else _DASH
            rows.append(row)
        missing = [entry for entry in self.entries.values() if entry.result is None]
        notes = [f"- {_one_line(entry.name)}: {entry.status}, {_one_line(entry.message)}" for entry in missing]
        return "\n".join([tables.markdown(rows), *([""] if notes else []), *notes])

    def plot(
        self,
        columns: str | Sequence[str] | None = None,
        *,
        against: str = "seconds",
        path: str | Path | None = None,
        title: str | None = None,
    ) -> Any:
        """Draw columns of the methods that ran, one panel each; see `bx.plot`.

        Args:
            against: "seconds", "step", "oracle_calls" (all of them summed), or any column such as "hvps".
        """
        traces = {name: _counted(trace) for name, trace in self.traces.items()}
        if not traces:
            raise ValueError(f"plot: no method has a trace.\n{self}")
        return figures.plot(
            traces, None if columns is None else _several(columns), against=against, path=path, title=title
        )

    def save(self, folder: str | Path) -> Path:
        """Write each run into a directory of its own, named after the method, and `table.md` beside them."""
        folder = Path(folder)
        if folder.exists() and not folder.is_dir():
            raise ValueError(f"{folder} is a file; give the path of a folder for the comparison.")
        for entry, slug in zip(self.entries.values(), _slugs(self.entries), strict=True):
            if entry.result is not None:
                entry.result.save(folder / slug)
        write_atomic(folder / "table.md", lambda stream: stream.write(f"{self}\n"))
        return folder

    def __str__(self) -> str:
        return self.table()

    def __repr__(self) -> str:
        return f"Comparison({', '.join(f'{entry.name}: {entry.status}' for entry in self.entries.values())})"


class _Dash(float):
    """A number that is missing; being one, it leaves its column aligned to the right."""

    def __format__(self, spec: str) -> str:
        return "-"

    def __str__(self) -> str:
        return "-"


_DASH = _Dash("nan")


def _several(columns: str | Sequence[str]) -> list[str]:
    return [columns] if isinstance(columns, str) else list(columns)


def _calls(row: Row) -> int:
    return sum(int(row[name]) for name in COUNTS)


def _counted(trace: Trace) -> Trace:
    return Trace([{**row, CALLS: _calls(row)} for row in trace])


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _slugs(names: Iterable[str]) -> list[str]:
    """Names of folders, all different, also where letters have no case."""
    slugs: list[str] = []
    for name in names:
        slug = base = re.sub("[^a-z0-9]+", "-", name.lower()).strip("-")[:80] or "method"
        number = 1
        while slug in slugs:
            number += 1
            slug = f"{base}-{number}"
        slugs.append(slug)
    return slugs
