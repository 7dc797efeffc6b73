"""Figures from columns of numbers alone; nothing here computes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from bilevax.files import write_atomic

# Okabe and Ito's palette, which colour-blind readers can tell apart; a method keeps its colour everywhere.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
MARKS = ("o", "s", "^", "D", "v", "P", "X", "*")
OWN_COLOUR = {"IBCG": 0, "SBFW": 1, "SBFW (Hessian inverse)": 2, "TTSA": 3, "SBFW (factors divide)": 4}

LABELS = {
    "step": "step",
    "seconds": "time (s)",
    "gap": "tracked gap",
    "true_gap": "true Frank–Wolfe gap",
    "upper": r"$f(x_k, y_k)$",
    "ell": r"$\ell(x_k)$",
    "lower_grad_norm": r"$\|\nabla_y g(x_k, y_k)\|$",
    "adjoint_residual": r"$\|H w_k - \nabla_y f\|$",
    "grad_norm": r"$\|F_k\|$",
    "y_error": r"$\|y_k - y^*(x_k)\|$",
    "w_error": r"$\|w_k - v(x_k)\|$",
    "adjoint_error": "relative error of the adjoint",
    "error": r"normalized error $\bar e$ on Ω",
    "error_unseen": r"normalized error outside Ω",
    "ell_error": r"$\ell(x_k) - \ell^*$",
    "f_error": r"$|f(x_k, y_k) - f^*|$",
    "hvps": "Hessian products",
    "oracle_calls": "oracle calls",
}


class Columns(Protocol):
    """A table read by columns, such as `bx.Trace`."""

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""

    def __getitem__(self, name: str) -> np.ndarray:
        """One column."""


def _named_tables(given: Any) -> dict[str, Columns]:
    if isinstance(given, Mapping):
        return {str(name): _table(value) for name, value in given.items()}
    return {"": _table(given)}


def _table(value: Any) -> Columns:
    """The table itself, or the trace of a result."""
    table: Columns = getattr(value, "trace", value)
    if not hasattr(table, "columns"):
        raise TypeError(f"plot: expected a Result, a Trace, or a dictionary of them, got {type(value).__name__}.")
    return table


def new_figure(panels: int) -> tuple[Any, list[Any]]:
    """Panels in the house style: up to three in a row, then two rows."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError("figures need matplotlib: pip install 'bilevax[plot]'.") from None
    rows = -(-panels // 3)
    columns = -(-panels // rows)
    figure = Figure(figsize=(4.2 * columns, 3.4 * rows), layout="constrained", dpi=150)
    axes = [figure.add_subplot(rows, columns, i + 1) for i in range(panels)]
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(True, which="major", color="#dddddd", linewidth=0.6)
        axis.set_axisbelow(True)
    return figure, axes


def plot(
    results: Any,
    columns: Sequence[str] | None = None,
    *,
    against: str = "seconds",
    path: str | Path | None = None,
    title: str | None = None,
) -> Any:
    """Draw columns of one or several traces, one panel each; returns a matplotlib figure and saves it if asked.

    Args:
        results: a `Result`, a `Trace`, or a dictionary of named ones.
        columns: what to draw; by default the tracked gap, the lower gradient and f.
        against: the horizontal axis, "seconds", "step" or any other column.
        path: where to save; the ending chooses the format.

    >>> import bilevax as bx
    >>> figure = bx.plot(bx.Trace([{"seconds": 0.0, "gap": 1.0}, {"seconds": 1.0, "gap": 0.1}]), ["gap"])
    """
    traces = _named_tables(results)
    columns = list(columns) if columns else ["gap", "lower_grad_norm", "upper"]
    for name, trace in traces.items():
        for column in (*columns, against):
            if column not in trace.columns:
                raise ValueError(
                    f"plot: the trace {name!r} has no column {column!r}; it has {', '.join(trace.columns)}."
                )
    figure, axes = new_figure(len(columns))
    for axis, column in zip(axes, columns, strict=True):
        for i, (name, trace) in enumerate(traces.items()):
            draw_line(axis, trace[against], trace[column], i, name)
        finish_axis(axis, LABELS.get(against, against), LABELS.get(column, column.replace("_", " ")))
    if list(traces) != [""]:
        legend_above(figure, axes[0])
    if title:
        figure.suptitle(title)
    return save(figure, path)


def draw_line(axis: Any, horizontal: np.ndarray, vertical: np.ndarray, index: int, name: str) -> Any:
    """One method's curve, told apart by colour and by a few marks; methods of the paper have colours of their own."""
    usable = np.isfinite(vertical)
    index = OWN_COLOUR.get(name, index)
    (line,) = axis.plot(
        horizontal[usable],
        vertical[usable],
        color=PALETTE[index % len(PALETTE)],
        marker=MARKS[index % len(MARKS)],
        markevery=(0.04 * index, 0.2),  # shares of the diagonal, so that marks do not crowd on logarithmic axes
        markersize=4,
        linewidth=1.6,
        label=name,
    )
    return line


def finish_axis(axis: Any, horizontal: str, vertical: str) -> None:
    """Labels, and a logarithmic scale where the values span more than a decade and a half."""
    values = np.concatenate([line.get_ydata() for line in axis.lines] or [np.zeros(0)])
    positive = values[values > 0]
    if len(positive) == len(values) > 0 and positive.max() > 30 * positive.min():
        axis.set_yscale("log")
    axis.set_xlabel(horizontal)
    axis.set_ylabel(vertical)


def legend_above(figure: Any, axis: Any) -> None:
    """One legend for all panels, above them."""
    handles, labels = axis.get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="outside upper center",
        ncols=len(labels) if len(labels) <= 3 else -(-len(labels) // 2),
        frameon=False,
    )


def save(figure: Any, path: str | Path | None) -> Any:
    """Write a figure whole or not at all; the ending chooses the format."""
    if path is not None:
        kind = Path(path).suffix.lstrip(".") or "png"
        write_atomic(path, lambda stream: figure.savefig(stream, format=kind), mode="wb")
    return figure
