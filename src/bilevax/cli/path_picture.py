"""A picture of the radii that a matrix completion tried."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def draw_path(file: Path, path: Sequence[Mapping[str, Any]], radius: float, rank: int) -> bool:
    """Validation error and rank of the shrunk matrix against the radius, the chosen one marked.

    A radius of 0 says that the model has no shrunk matrix, and nothing is marked. False if there is no path to draw.
    """
    from bilevax.drawing.figures import PALETTE, new_figure, save

    points = sorted(path, key=lambda point: point["radius"])
    if len(points) < 2:
        return False
    radii = [point["radius"] for point in points]
    labelled = radii[:: -(-len(radii) // 8)]  # more than eight labels would run into each other
    figure, axes = new_figure(2)
    for axis, column, colour in zip(axes, ("rmse", "rank"), PALETTE, strict=False):
        axis.plot(radii, [point[column] for point in points], color=colour, marker="o", markersize=4, linewidth=1.6)
        if radius > 0:
            axis.axvline(radius, color="#555555", linewidth=0.9, linestyle=(0, (4, 3)), zorder=0)
        axis.set_xlabel("radius")
        axis.set_xscale("log")
        axis.set_xticks(labelled, [f"{tick:.0f}" if tick >= 100 else f"{tick:.3g}" for tick in labelled])
        axis.minorticks_off()
    axes[0].set_ylabel("RMSE on validation ratings")
    axes[1].set_ylabel("rank of the solution")
    words = "The shrunk matrix, which held-out ratings did not choose"
    if radius > 0:
        words = f"The shrunk matrix: chosen radius {radius:.4g}, rank {rank}"
        label = "fit of all training ratings"
        axes[1].plot(radius, rank, "o", markersize=8, markerfacecolor="none", color="black", label=label)
        axes[1].legend(frameon=False, loc="upper left")
    figure.suptitle(words, fontsize=11)
    figure.get_layout_engine().set(wspace=0.08)
    save(figure, file)
    return True
