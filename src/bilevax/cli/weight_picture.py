"""A picture of the leading features: how much weight each of them got, and its coefficient."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bilevax.cli.output import shortened_name

_MOST = 20


def draw_weights(
    file: Path, names: Sequence[str], ranking: np.ndarray, weights: np.ndarray, coefficients: np.ndarray
) -> bool:
    """Draw weights and coefficients of the leading features, the first one on top; False if there is no feature."""
    from bilevax.drawing.figures import PALETTE, new_figure, save

    leading = ranking[:_MOST]
    if not len(leading):
        return False
    figure, axes = new_figure(2)
    figure.set_size_inches(8.4, 1.6 + 0.24 * len(leading))
    places = np.arange(len(leading))
    labels = [shortened_name(names[f], 28) for f in leading]
    for axis, values, colour, title in (
        (axes[0], weights[leading], PALETTE[0], "weight"),
        (axes[1], coefficients[leading], PALETTE[1], "coefficient"),
    ):
        axis.barh(places, values, color=colour, height=0.65)
        axis.set_ylim(len(leading) - 0.4, -0.6)
        axis.set_xlabel(title)
        axis.grid(False, axis="y")
        axis.set_yticks(places, labels if axis is axes[0] else [""] * len(places), fontsize=8)
        axis.tick_params(axis="y", length=0)
    axes[1].axvline(0, color="#555555", linewidth=0.8)
    more = f"the {len(leading)} leading of {len(names)} features" if len(names) > len(leading) else "all features"
    figure.suptitle(f"What matters: {more}", fontsize=11)
    save(figure, file)
    return True
