"""Which ratings to hold out: a random share, or the latest."""

from __future__ import annotations

import numpy as np

from bilevax.ratings.table import Ratings


def split(ratings: Ratings, fraction: float, seed: int) -> np.ndarray:
    """True for a random share of the ratings, to be held out."""
    _check_fraction(fraction)
    return np.random.default_rng(seed).random(len(ratings.values)) < fraction


def split_by_time(ratings: Ratings, fraction: float) -> np.ndarray:
    """True for the latest share of the ratings, to be held out; of the same moment, those later in the file."""
    _check_fraction(fraction)
    if ratings.times is None:
        raise ValueError("split_by_time: the ratings have no times; name the column of times when reading them.")
    count = round(fraction * len(ratings.times))
    held_out = np.zeros(len(ratings.times), bool)
    held_out[np.argsort(ratings.times, kind="stable")[len(held_out) - count :]] = True
    return held_out


def _check_fraction(fraction: float) -> None:
    if not 0 <= fraction < 1:
        raise ValueError(f"split: the fraction must be at least 0 and below 1, got {fraction}.")
