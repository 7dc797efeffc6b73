"""Curves of runs that were read back: the median over repeats, with a band from the lowest to the highest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from bilevax.drawing import figures
from bilevax.experiments.paper.jobs import Runs


class Band(NamedTuple):
    """A column over its repeats, row by row."""

    at: np.ndarray
    middle: np.ndarray
    low: np.ndarray
    high: np.ndarray


def band(runs: Runs, column: str, against: str) -> Band:
    """Rows are at the same steps in every repeat; the shortest repeat ends the curve."""
    traces = [run.trace for run in runs]
    rows = min(len(trace) for trace in traces)
    values = np.stack([trace[column][:rows] for trace in traces])
    at = np.median(np.stack([trace[against][:rows] for trace in traces]), axis=0)
    return Band(at, np.median(values, axis=0), values.min(axis=0), values.max(axis=0))


def draw_band(axis: Any, runs: Runs, column: str, against: str, name: str, index: int) -> None:
    """One method's curve and the spread of its repeats."""
    drawn = band(runs, column, against)
    line = figures.draw_line(axis, drawn.at, drawn.middle, index, name)
    if len(runs) > 1 and not np.array_equal(drawn.low, drawn.high):
        axis.fill_between(drawn.at, drawn.low, drawn.high, color=line.get_color(), alpha=0.15, linewidth=0)


def draw_panels(runs: Runs, panels: Sequence[tuple[str, str]], by: str = "method", title: str | None = None) -> Any:
    """One panel per (column, against), one curve per value of `by`."""
    figure, axes = figures.new_figure(len(panels))
    for axis, (column, against) in zip(axes, panels, strict=True):
        for index, name in enumerate(runs.values(by)):
            draw_band(axis, runs.pick(**{by: name}), column, against, name, index)
        _spread(axis)
        figures.finish_axis(axis, figures.LABELS.get(against, against), figures.LABELS.get(column, column))
    figures.legend_above(figure, axes[0])
    if title:
        figure.suptitle(title)
    return figure


def _spread(axis: Any) -> None:
    """A logarithmic horizontal axis where one curve is more than five times as long as another."""
    ends = [float(line.get_xdata()[-1]) for line in axis.lines if len(line.get_xdata())]
    if ends and min(ends) > 0 and max(ends) > 5 * min(ends):
        axis.set_xscale("log")
