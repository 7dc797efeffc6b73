"""Which rows of a table to hold out: a random share of every group."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def split_rows(groups: Sequence[np.ndarray], fraction: float, seed: int) -> np.ndarray:
    """True for a random share of the rows, to be held out.

    The share is the same in every group, as near as whole rows allow. Each of `groups` has a number for every row,
    such as its task, then its class. At least one row of every group stays.
    """
    count = len(groups[0])
    order = np.random.default_rng(seed).permutation(count)
    for group in reversed(groups):
        order = order[np.argsort(group[order], kind="stable")]
    steps = np.floor(fraction * np.arange(count + 1) + 0.5)  # the next group begins where the last one ended
    held_out = np.zeros(count, bool)
    held_out[order] = np.diff(steps) > 0
    for group in groups:
        left = np.bincount(group[~held_out], minlength=group.max() + 1)
        for number in np.flatnonzero(left == 0):
            held_out[order[np.argmax(group[order] == number)]] = False
    return held_out
