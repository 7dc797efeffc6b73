"""Every experiment of the paper, by name, in the order of the page."""

from __future__ import annotations

from bilevax.experiments.paper import adjoint, completion_report, multitask_report, toy
from bilevax.experiments.paper.jobs import Experiment

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        toy.EXPERIMENT,
        *completion_report.EXPERIMENTS,
        *multitask_report.EXPERIMENTS,
        adjoint.EXPERIMENT,
    )
}
ALL = "all"


def named(name: str) -> list[Experiment]:
    """One experiment, or all of them."""
    if name != ALL and name not in EXPERIMENTS:
        raise ValueError(f"unknown experiment {name!r}; there are {', '.join(EXPERIMENTS)} and {ALL}.")
    return list(EXPERIMENTS.values()) if name == ALL else [EXPERIMENTS[name]]
