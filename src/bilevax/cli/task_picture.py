"""A picture of how tasks relate: their correlations as a map of colours, similar tasks next to each other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bilevax.cli.output import shortened_name

_MOST_LABELS = 60  # more names would run into each other
_MOST_NUMBERS = 12


def similar_first(correlation: np.ndarray) -> np.ndarray:
    """An order in which tasks stand next to those that they correlate with most, by hierarchical clustering."""
    from scipy.cluster.hierarchy import leaves_list, linkage
    from scipy.spatial.distance import squareform

    if len(correlation) < 3:
        return np.arange(len(correlation))
    distance = np.clip(1 - (correlation + correlation.T) / 2, 0, 2)
    np.fill_diagonal(distance, 0)
    return leaves_list(linkage(squareform(distance, checks=False), "average", optimal_ordering=len(distance) <= 400))


def _ends(correlation: np.ndarray) -> tuple[float, float]:
    """The ends of the scale: around zero if tasks may oppose each other, else where almost all correlations are."""
    between = correlation[~np.eye(len(correlation), dtype=bool)]
    low, high = np.quantile(between, [0.01, 0.99])
    if low < -0.05:
        end = float(max(-low, high, 0.5))
        return -end, end
    return max(0.0, min(np.floor(20 * float(low)) / 20, 0.9)), 1.0  # a narrower scale would show noise


def draw_tasks(file: Path, tasks: Sequence[str], correlation: np.ndarray) -> bool:
    """Draw the map; False if there are not two tasks."""
    from bilevax.drawing.figures import new_figure, save

    count = len(tasks)
    if count < 2:
        return False
    order = similar_first(correlation)
    figure, (axis,) = new_figure(1)
    side = 2.6 + 0.42 * count if count <= _MOST_NUMBERS else float(np.clip(2.6 + 0.14 * count, 6, 9.5))
    figure.set_size_inches(max(side, 4) + 1.1, side)
    axis.grid(False)
    low, high = _ends(correlation)
    colours = "RdBu_r" if low < 0 else "viridis"
    image = axis.imshow(correlation[np.ix_(order, order)], cmap=colours, vmin=low, vmax=high, interpolation="nearest")
    axis.spines[:].set_visible(False)
    names = [shortened_name(tasks[number]) for number in order]
    every = -(-count // _MOST_LABELS)
    shown = range(0, count, every)
    size = float(np.clip(340 / max(len(shown), 1), 5, 9))
    axis.set_yticks(shown, [names[i] for i in shown], fontsize=size)
    upright = max(map(len, names)) * count > 24
    axis.set_xticks(shown, [names[i] for i in shown], fontsize=size, rotation=90 if upright else 0)
    axis.tick_params(length=0)
    if count <= _MOST_NUMBERS:
        for i, row in enumerate(order):
            for j, column in enumerate(order):
                value = correlation[row, column]
                dark = abs(value) > 0.6 * high if low < 0 else value < (low + high) / 2
                colour = "white" if dark else "black"
                axis.text(j, i, f"{value:.2f}", ha="center", va="center", fontsize=8, color=colour)
    bar = figure.colorbar(image, ax=axis, shrink=0.7, pad=0.02)
    bar.outline.set_visible(False)
    bar.set_ticks(np.linspace(low, high, 5), labels=[f"{tick:.2f}" for tick in np.linspace(low, high, 5)])
    bar.ax.tick_params(labelsize=8)
    bar.set_label("correlation of coefficients", fontsize=9)
    between = correlation[~np.eye(count, dtype=bool)]
    title = f"How {count} tasks relate" + ("; similar tasks stand together" if count > 2 else "")
    title += f", one in {every} is named" if every > 1 else ""
    axis.set_title(f"{title}\ncorrelations from {between.min():.3g} to {between.max():.3g}", fontsize=10, pad=10)
    save(figure, file)
    return True
