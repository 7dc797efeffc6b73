"""`bilevax reproduce`: make the runs that are missing, then draw figures, tables and the page from the run directories.

OUT/runs/...              one run directory per run
OUT/figures/*.png, *.svg  OUT/tables/*.csv
OUT/reproduction.md       the page
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bilevax import datasets
from bilevax.drawing import figures
from bilevax.experiments.paper import page
from bilevax.experiments.paper.jobs import Experiment, Job, Options, Run, Runs, load
from bilevax.files import write_atomic, write_csv


def reproduce(
    experiments: Sequence[Experiment], folder: Path, options: Options, *, progress: bool = True
) -> tuple[str, list[str]]:
    """Run, draw and write; returns the page and, in words, what could not be run."""
    planned = {experiment.name: experiment.jobs(options) for experiment in experiments}
    if not any(planned.values()):
        raise ValueError("nothing to run: no method of these experiments was asked for.")
    root = folder / "runs"
    finished: dict[Path, Run] = {}
    for job in _once(planned.values()):  # every obstacle is named before any work
        run = load(root, job)
        if run is not None:
            finished[job.path] = run
    missing = {
        e.name: words for e in experiments if not _done(planned[e.name], finished) and (words := _unavailable(e))
    }
    waiting = [
        j for j in _once([planned[e.name] for e in experiments if e.name not in missing]) if j.path not in finished
    ]
    _work(root, waiting, finished, progress)

    sections = []
    for experiment in experiments:
        own = Runs([finished[job.path] for job in planned[experiment.name] if job.path in finished])
        report = experiment.report(own) if len(own) else None
        sections.append(page.Section(experiment, own, report, missing.get(experiment.name)))
        for picture in report.figures if report else []:
            drawn = picture.draw()
            for kind in ("png", "svg"):
                figures.save(drawn, folder / "figures" / f"{picture.name}.{kind}")
        for table in report.tables if report else []:
            names = list(table.rows[0])
            rows = ([row.get(name, "") for name in names] for row in table.rows)
            write_csv(folder / "tables" / f"{table.name}.csv", names, rows)
    text = page.write(sections)
    write_atomic(folder / page.NAME, lambda stream: stream.write(text))
    return text, [f"{name}: {words}" for name, words in missing.items()]


def _once(groups: Any) -> list[Job]:
    """The jobs of several experiments; one that two of them share comes once."""
    return list({job.path: job for group in groups for job in group}.values())


def _done(jobs: list[Job], finished: dict[Path, Run]) -> bool:
    return all(job.path in finished for job in jobs)


def _unavailable(experiment: Experiment) -> str | None:
    """Why its data cannot be had, if so."""
    try:
        for name in experiment.needs:
            datasets.fetch(name)
    except (OSError, ImportError) as error:
        return str(error)
    return None


def _work(root: Path, waiting: list[Job], finished: dict[Path, Run], progress: bool) -> None:
    took: dict[tuple[str, str, str], float] = {}

    def expected(job: Job) -> float:
        """What the last repeat took, or the most it may take."""
        return took.get((job.folder, job.variant, job.method), job.seconds)

    for number, job in enumerate(waiting, 1):
        name = f"[{number}/{len(waiting)}] {job.folder} {job.variant} {job.method} #{job.repeat}"
        if progress:
            left = sum(map(expected, waiting[number - 1 :])) / 60
            print(f"{name}: about {expected(job):.0f} s; left in all: at most {left:.0f} min", file=sys.stderr)
        began = time.monotonic()
        outcome = job.run(name if progress else False)
        if outcome.result.status.name == "STOPPED":
            raise KeyboardInterrupt  # an interrupted run is not a result; the finished ones are kept
        took[job.folder, job.variant, job.method] = time.monotonic() - began
        notes = {**job.notes(outcome.extras), "wall_seconds": time.monotonic() - began}
        try:
            outcome.result.save(root / job.path, notes)
        except OSError as error:
            raise OSError(
                f"the run {root / job.path} could not be saved ({error}); make room and give the same command again: "
                f"finished runs are kept."
            ) from error
        run = load(root, job)
        assert run is not None, f"{job.path} was saved but cannot be read back"
        finished[job.path] = run
