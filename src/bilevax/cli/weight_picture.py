"""A picture of the leading features: what each of them does to the prediction, and its l2 weight."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bilevax.cli.output import shortened_name

_MOST = 20


def draw_weights(
    file: Path, names: Sequence[str], ranking: np.ndarray, weights: np.ndarray, effects: np.ndarray
) -> bool:
    """Draw effects and weights of the leading features, the most useful on top; False if there is no feature.

    An l2 weight holds a coefficient back, so that useful features have small ones. They span powers of ten. Weights and
    effects are those of features that are divided by their standard deviation.
    """
    from bilevax.drawing.figures import PALETTE, new_figure, save

    leading = ranking[:_MOST]
    if not len(leading):
        return False
    figure, (left, right) = new_figure(2)
    figure.set_size_inches(8.4, 1.8 + 0.24 * len(leading))
    places = np.arange(len(leading))
    left.barh(places, effects[leading], color=PALETTE[0], height=0.65)
    left.axvline(0, color="#555555", linewidth=0.8)
    left.set_title("What a feature does", fontsize=9)
    left.set_xlabel("effect of one standard deviation", fontsize=9)
    right.plot(weights[leading], places, "o", color=PALETTE[1], markersize=5)
    right.set_title("How strongly it is held back", fontsize=9)
    right.set_xlabel("l2 weight of the standardised feature", fontsize=9)
    if np.all(weights > 0):
        right.set_xscale("log")
        right.set_xlim(weights.min() / 1.5, weights.max() * 1.5)  # those of all features, not of the leading ones
    for axis in (left, right):
        axis.set_ylim(len(leading) - 0.4, -0.6)
        axis.grid(axis is right, axis="y")
        labels = [shortened_name(names[f], 28) for f in leading] if axis is left else [""] * len(places)
        axis.set_yticks(places, labels, fontsize=8)
        axis.tick_params(axis="y", length=0)
        axis.tick_params(axis="x", labelsize=8)
    right.minorticks_off()
    few = len(names) <= len(leading)
    title = "All features" if few else f"The {len(leading)} most useful of {len(names)} features"
    figure.suptitle(f"{title}, best first", fontsize=11)
    save(figure, file)
    return True
