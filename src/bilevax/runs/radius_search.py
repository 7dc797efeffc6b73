"""Search for the radius with the lowest score, whatever is fitted at each radius and however it is scored."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

_GOLDEN = (3 - math.sqrt(5)) / 2  # the share of a segment at which golden-section search tries its next point
_NARROW = math.log(1.1)  # a bracket of 10 % is not divided any more

Evaluate = Callable[[float, float | None], float]


class RadiusSearch(NamedTuple):
    """What a search tried, and what it chose."""

    tried: list[tuple[float, float]]
    """Each radius with its score, in the order of evaluation."""
    radius: float
    """The chosen radius; NaN if every score was NaN."""


def search_radius(
    evaluate: Evaluate,
    first: float,
    *,
    growth: float = 2.0,
    gain: float = 3e-4,
    most: int = 20,
    refine: int = 4,
    spread: float | None = None,
    stop: Callable[[], bool] | None = None,
) -> RadiusSearch:
    """Choose the radius with the lowest score.

    The search multiplies the radius by `growth` as long as the score falls. If the second radius is no better than the
    first, the search also divides by `growth`. Golden-section search on the logarithm of the radius then narrows the
    bracket around the best radius. Of radii whose scores differ by less than a third of `gain`, the smallest is chosen.

    Args:
        evaluate: `evaluate(radius, near)` fits at this radius and returns the score, lower is better; NaN says that the
            fit failed. `near` is the largest smaller radius tried so far, for a warm start; None if there is none.
        gain: the relative improvement that counts. One radius without it is passed over if the score stays the same;
            a second one, or a score that rises, ends the search in that direction.
        most: the most radii to try before the bracket is refined.
        refine: the most radii to try in the bracket, until its width is below 10 % or its scores differ by less than
            `spread` of the lowest one, by default `gain`.
        stop: asked before each radius but the first; True ends the search with the best radius so far.

    >>> from bilevax.runs.radius_search import search_radius
    >>> found = search_radius(lambda radius, near: 1 + (radius - 5) ** 2, 1.0)
    >>> [radius for radius, _ in found.tried[:4]], round(found.radius, 1)
    ([1.0, 2.0, 4.0, 8.0], 5.2)
    """
    search = _Search(evaluate, gain, stop)
    search.try_at(first)
    search.walk(growth, most)
    if not best_radius(search.scores, gain) > first:
        search.walk(1 / growth, most)
    for _ in range(refine):
        radius = search.next_in_bracket(gain if spread is None else spread)
        if radius is None or search.try_at(radius) is None:
            break
    return RadiusSearch(search.tried, best_radius(search.scores, gain))


def best_radius(scores: Mapping[float, float], gain: float = 3e-4) -> float:
    """The smallest radius whose score is the lowest, up to a third of the gain; NaN if no score is finite."""
    best = min((score for score in scores.values() if math.isfinite(score)), default=math.nan)
    return min((radius for radius, score in scores.items() if _close(score, best, gain / 3)), default=math.nan)


def _close(score: float, best: float, tolerance: float) -> bool:
    return abs(score - best) <= tolerance * abs(best)


class _Search:
    """The radii tried so far and their scores, a NaN as infinity."""

    def __init__(self, evaluate: Evaluate, gain: float, stop: Callable[[], bool] | None):
        self.evaluate, self.gain, self.stop = evaluate, gain, stop
        self.tried: list[tuple[float, float]] = []
        self.scores: dict[float, float] = {}

    def try_at(self, radius: float) -> float | None:
        """The score of this radius; None if the search was stopped."""
        if self.tried and self.stop is not None and self.stop():
            return None
        score = float(self.evaluate(radius, max((r for r in self.scores if r < radius), default=None)))
        self.tried.append((radius, score))
        self.scores[radius] = math.inf if math.isnan(score) else score
        return self.scores[radius]

    def walk(self, growth: float, most: int) -> None:
        """Multiply the outermost radius by `growth` until this gains nothing."""
        flat = 0
        while len(self.tried) < most and flat < 2:
            best = min(self.scores.values())
            outermost = max(self.scores) if growth > 1 else min(self.scores)
            score = self.try_at(growth * outermost)
            if score is None or (score > best and not _close(score, best, self.gain)):
                return
            flat = 0 if score < best and not _close(score, best, self.gain) else flat + 1

    def next_in_bracket(self, spread: float) -> float | None:
        """A radius in the longer half of the bracket around the best radius; None if the bracket needs none.

        Of equal halves the one with the lower score at its end.
        """
        best = best_radius(self.scores, self.gain)
        if math.isnan(best):
            return None
        low = max((r for r in self.scores if r < best), default=best)
        high = min((r for r in self.scores if r > best), default=best)
        worst = max(self.scores[low], self.scores[high])
        if math.log(high / low) < _NARROW or _close(worst, self.scores[best], spread):
            return None
        end = max(low, high, key=lambda end: (round(abs(math.log(end / best)), 9), -self.scores[end]))
        return best * (end / best) ** _GOLDEN
