"""What an experiment is: jobs that each leave one run directory, and a report drawn from those directories alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bilevax import __version__
from bilevax.runs import run_directory
from bilevax.runs.result import Result
from bilevax.runs.trace import Trace

PRINTED, REPAIRED = "printed", "repaired"
VARIANTS = (PRINTED, REPAIRED)


@dataclass(frozen=True)
class Options:
    """What the user asked for; None leaves the choice to the experiment."""

    seed: int = 0
    repeats: int | None = None
    methods: tuple[str, ...] | None = None
    variants: tuple[str, ...] = VARIANTS
    quick: bool = False
    steps: int | None = None
    seconds: float | None = None
    size: int | None = None
    """Steps, time limit and size of the synthetic problem, for the demo."""

    def wants(self, variant: str, method: str) -> bool:
        """Whether a method of a variant is asked for; "SBFW" also means its variants in brackets."""
        named = self.methods is None or any(method == name or method.startswith(f"{name} (") for name in self.methods)
        return named and variant in self.variants


class Outcome(NamedTuple):
    """A run and the numbers its trace does not hold."""

    result: Result
    extras: dict[str, Any]


@dataclass(frozen=True)
class Job:
    """One run: where it goes, everything that decides it, and how to make it."""

    folder: str
    variant: str
    method: str
    repeat: int
    protocol: dict[str, Any]
    run: Callable[[str | bool], Outcome] = field(compare=False)

    @property
    def path(self) -> Path:
        """The run directory, relative to the folder of all runs."""
        return Path(self.folder, self.variant, slug(self.method), str(self.repeat))

    @property
    def seconds(self) -> float:
        """The most its steps may take."""
        return float(self.protocol.get("time_limit") or 3.0)

    def notes(self, extras: dict[str, Any]) -> dict[str, Any]:
        """What goes into the run's configuration beside the result."""
        return {
            "folder": self.folder,
            "variant": self.variant,
            "method": self.method,
            "repeat": self.repeat,
            "protocol": self.protocol,
            "extras": extras,
        }


def slug(name: str) -> str:
    """A name as part of a path."""
    return "-".join("".join(c if c.isalnum() or c == "." else " " for c in name.lower()).split())


@dataclass(frozen=True)
class Run:
    """A run directory that has been read back."""

    config: dict[str, Any]
    trace: Trace

    def __getattr__(self, name: str) -> Any:
        """Entries of the configuration: `run.method`, `run.status`, `run.extras`, ..."""
        try:
            return self.config[name]
        except KeyError:
            raise AttributeError(f"the run directory has no entry {name!r}") from None


class Runs:
    """Several runs, picked by what their configurations say."""

    def __init__(self, runs: Sequence[Run]):
        self._runs = list(runs)

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Any:
        return iter(self._runs)

    def pick(self, **entries: Any) -> Runs:
        """Those whose configuration has all the given entries."""
        return Runs([r for r in self._runs if all(r.config.get(name) == value for name, value in entries.items())])

    def values(self, name: str) -> list[Any]:
        """The different values of an entry, in order of appearance."""
        return list(dict.fromkeys(r.config[name] for r in self._runs))

    def last(self, column: str) -> float:
        """The median over the runs of a column's last entry; NaN without runs."""
        return self.median(lambda run: run.trace.last[column])

    def median(self, measure: Callable[[Run], float]) -> float:
        """The median over the runs of a number; NaN without runs."""
        return float(np.median([measure(run) for run in self._runs])) if self._runs else float("nan")


class UnusableRun(ValueError):
    """A run directory in the way: unreadable, of another version or of another protocol."""


def load(root: Path, job: Job) -> Run | None:
    """The finished run of a job, None if there is none; anything else in its place is refused and left alone."""
    folder = root / job.path
    if not (folder / run_directory.CONFIG).exists():
        return None
    advice = "give another --out, or delete it to run it again; nothing was changed"
    try:
        config, trace = run_directory.load(folder)
        version, protocol = config["versions"]["bilevax"], config["protocol"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UnusableRun(f"the run directory {folder} cannot be read ({error}); {advice}.") from error
    if version != __version__:
        raise UnusableRun(f"{folder} was made by bilevax {version}, this is {__version__}; {advice}.")
    wanted = json.loads(json.dumps(job.protocol))
    changed = [n for n in {*protocol, *wanted} if protocol.get(n) != wanted.get(n)]
    if changed:
        name = sorted(changed)[0]
        raise UnusableRun(
            f"{folder} was made with {name} = {protocol.get(name)}, now {wanted.get(name)} is asked for; {advice}."
        )
    return Run(config, trace)


@dataclass(frozen=True)
class Figure:
    """A picture to draw when it is wanted."""

    name: str
    caption: str
    draw: Callable[[], Any]


@dataclass(frozen=True)
class Table:
    """Rows for a markdown table."""

    name: str
    caption: str
    rows: list[dict[str, Any]]


HOLDS, FAILS, UNKNOWN = "holds", "does not hold", "cannot be checked"


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, the numeric rule it is judged by, and what was measured."""

    text: str
    rule: str
    variant: str
    measured: str
    verdict: str


def judge(text: str, rule: str, variant: str, measured: str, holds: bool | None) -> Claim:
    """A claim with its verdict; None where it cannot be checked."""
    return Claim(text, rule, variant, measured, UNKNOWN if holds is None else HOLDS if holds else FAILS)


@dataclass(frozen=True)
class Report:
    """What an experiment has to show for its runs."""

    figures: list[Figure]
    tables: list[Table]
    claims: list[Claim]


@dataclass(frozen=True)
class Experiment:
    """One figure or table of the paper."""

    name: str
    title: str
    shows: str
    """What the paper shows."""
    protocol: str
    """What we ran, in words."""
    needs: tuple[str, ...]
    """Data sets."""
    jobs: Callable[[Options], list[Job]]
    report: Callable[[Runs], Report]
