"""Several methods on one problem: the same start, key, metrics, rows and clock for each."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Array, PyTree

from bilevax.runs import checks
from bilevax.files import write_whole
from bilevax.runs.loop import Metrics, solve
from bilevax.problem import BilevelProblem
from bilevax.drawing import figures
from bilevax.drawing import tables
from bilevax.runs.result import Result
from bilevax.solvers import COUNTS, Solver
from bilevax.runs.stopping import Rule, Status, gap_below
from bilevax.runs.trace import Row, Trace

FAILED, NOT_RUN = "FAILED", "NOT RUN"
CALLS = "oracle_calls"
_SHOWN = ("gap", "upper", "lower_grad_norm")
# The columns every trace has; what else is there came from the user's metrics.
_OWN = ("step", "seconds", *_SHOWN, "adjoint_residual", "grad_norm", "lmo_error", *COUNTS)
_HEADINGS = ("method", "status", "steps", "seconds", "compile seconds", "oracle calls")


def compare(
    problem: BilevelProblem,
    solvers: Mapping[str, Solver],
    x0: PyTree = None,
    y0: PyTree = None,
    *,
    steps: int = 1000,
    tol: float | None = None,
    stop: Rule | Iterable[Rule] = (),
    time_limit: float | None = None,
    key: Array | None = None,
    metrics: Metrics | Iterable[Metrics] | None = None,
    every: int | None = None,
    progress: bool | str = False,
) -> Comparison:
    """Run several methods one after the other, each by one `solve` with the same arguments.

    A method that cannot run is a row that says why; the others run all the same. Ctrl-C ends the present method and
    leaves out the rest. Methods that differ in numbers only share compiled code: the first of them pays for it.

    Args:
        solvers: named methods, in the order of the table.
        steps: the limit of each method, as are `tol`, `stop` and `time_limit`; see `bx.solve`.
        progress: draw a progress line for each method; a string goes before its name.

    >>> import jax.numpy as jnp, bilevax as bx
    >>> problem = bx.BilevelProblem(
    ...     lambda x, y, _: jnp.sum((y - 0.2) ** 2), lambda x, y, _: jnp.sum((y - x) ** 2), bx.Simplex()
    ... )
    >>> methods = {"open loop": bx.IBCG(), "constant": bx.IBCG(gamma=0.001)}
    >>> found = bx.compare(problem, methods, jnp.array([1.0, 0.0, 0.0]), jnp.zeros(3), steps=50)
    >>> found.best("upper"), found["constant"].status.name
    ('open loop', 'MAX_STEPS')
    """
    _check_solvers(solvers)
    every = checks.check_steps(steps, every, time_limit)
    if tol is not None:
        if not isinstance(tol, (int, float, np.number)):
            raise ValueError(f"compare: tol must be a positive number, the true gap to reach, got {tol!r}.")
        gap_below(float(tol))
    rules, measured = _rules(stop), _metrics(metrics)
    if key is not None:
        checks.check_key(key)
    x, y = checks.check_start(problem, x0, y0)

    def run(name: str) -> Result:
        label = f"{progress} {name}" if isinstance(progress, str) and progress else name
        return solve(
            problem,
            solvers[name],
            x,
            y,
            steps=steps,
            tol=tol,
            stop=rules,
            time_limit=time_limit,
            key=key,
            metrics=measured,
            every=every,
            progress=label if progress else False,
        )

    return Comparison(_in_turn(solvers, run))


def _in_turn(solvers: Mapping[str, Solver], run: Callable[[str], Result]) -> dict[str, Entry]:
    entries: dict[str, Entry] = {}
    try:
        for name, solver in solvers.items():
            try:
                result = run(name)
            except Exception as error:
                entries[name] = Entry(name, solver, None, FAILED, _words(error))
                continue
            entries[name] = Entry(name, solver, result, result.status.name, result.message)
            if _interrupted(result):
                break
    except KeyboardInterrupt:  # a second Ctrl-C, or one while a method was being prepared
        if all(entry.result is None for entry in entries.values()):
            raise
    for name, solver in solvers.items():
        entries.setdefault(name, Entry(name, solver, None, NOT_RUN, "interrupted before it had a result"))
    return entries


def _interrupted(result: Result) -> bool:
    """Whether Ctrl-C ended the run; a rule that says STOPPED ends its own method only."""
    return result.status is Status.STOPPED and result.message.startswith(f"interrupted at step {result.steps};")


def _words(error: Exception) -> str:
    kind, text = type(error).__name__, str(error).strip()
    first = text.splitlines()[0] if text else ""
    if first and isinstance(error, (TypeError, ValueError, NotImplementedError)):
        return first
    return f"{kind}: {first}" if first else kind


def _check_solvers(solvers: Any) -> None:
    if not isinstance(solvers, Mapping):
        raise TypeError(
            f"compare: the second argument must be a dictionary of named solvers such as {{'IBCG': bx.IBCG()}}, "
            f"got {type(solvers).__name__}."
        )
    if not solvers:
        raise ValueError("compare: there are no solvers; give a dictionary with at least one.")
    for name, solver in solvers.items():
        if not isinstance(name, str) or not name.strip():
            raise TypeError(f"compare: the name of a method must be a string with something in it, got {name!r}.")
        if solver is None:
            raise TypeError(f"compare: the solver {name!r} is None; write bx.auto(problem, x0) for the default method.")
        try:
            checks.check_solver(solver)
        except TypeError as error:
            raise TypeError(f"compare: the solver {name!r} is not one. {error}") from None


def _rules(given: Any) -> list[Rule]:
    rules = [given] if callable(given) else _listed("stop", given)
    for rule in rules:
        if not callable(rule):
            raise TypeError(f"compare: stop= takes a rule such as bx.gap_below(0.1) or several, got {rule!r}.")
    return rules


def _metrics(given: Any) -> list[Metrics]:
    """The metrics as a list that every method reads from its beginning."""
    listed = [given] if callable(given) or isinstance(given, Mapping) else _listed("metrics", given)
    taken = {*_OWN, *_HEADINGS, CALLS}
    for one in listed:
        if not (callable(one) or isinstance(one, Mapping)):
            raise TypeError(f"compare: metrics= takes {{name: function}}, a function or several, got {one!r}.")
        for name, function in one.items() if isinstance(one, Mapping) else ():
            if not callable(function):
                raise TypeError(f"compare: the metric {name!r} must be a function of (x, y, data), got {function!r}.")
            if name in taken:
                raise ValueError(f"compare: a metric is named {name!r}, which is taken; rename it.")
            taken.add(name)
    return listed


def _listed(name: str, given: Any) -> list[Any]:
    if given is None:
        return []
    if isinstance(given, (str, Mapping)) or not isinstance(given, Iterable):
        raise TypeError(f"compare: {name}= takes a function or several of them, got {given!r}.")
    return list(given)


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
        found = dict.fromkeys(self.entries, float("nan"))
        for name, trace in self._with(column).items():
            reached = np.flatnonzero(trace[column] <= value)
            if len(reached):
                found[name] = float(trace[axis][reached[0]])
        return found

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
            own = dict.fromkeys(c for trace in self.traces.values() for c in trace.columns if c not in _OWN)
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
        write_whole(folder / "table.md", lambda stream: stream.write(f"{self}\n"))
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
    found: list[str] = []
    for name in names:
        slug = base = re.sub("[^a-z0-9]+", "-", name.lower()).strip("-")[:80] or "method"
        number = 1
        while slug in found:
            number += 1
            slug = f"{base}-{number}"
        found.append(slug)
    return found
