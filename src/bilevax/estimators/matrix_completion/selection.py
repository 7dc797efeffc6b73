"""How many factors, with effects or without, and how much of the shrunk matrix beside them: held-out entries decide."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from bilevax.estimators.matrix_completion.factors import Factors, Known, known_entries
from bilevax.estimators.matrix_completion.similarity import PatternFeatures
from bilevax.linalg.sparse import Pattern

_GAIN = 1e-3  # the relative gain for which a larger rank is taken
_PATIENCE = 3  # ranks in a row that may gain nothing
_LARGE = 200_000  # from so many entries on the rank grows by a quarter instead of by one
_ROUGH, _FINE = 2e-2, 2e-3  # how far predictions may still move, in units of the noise
TAILS = 4.0
"""Degrees of freedom of the noise where some values are far off."""
_LIKELIER = 0.02  # the gain in log-likelihood per entry for which such a noise is taken
_SHARES = np.linspace(0.0, 1.0, 11)

Late = Callable[[], bool]


class Entries(NamedTuple):
    """The known entries of a matrix in their own units, and those of them that are held out."""

    pattern: Pattern
    values: np.ndarray
    held_out: np.ndarray

    def known(self, mean: float, all_of_them: bool = False) -> Known:
        """What may be learned from, around a mean."""
        chosen = np.ones(len(self.values), bool) if all_of_them else ~self.held_out
        return known_entries(self.pattern, self.values - mean, chosen)

    def places(self) -> tuple[np.ndarray, np.ndarray]:
        """The rows and columns of the entries held out."""
        rows, cols = np.asarray(self.pattern.rows), np.asarray(self.pattern.cols)
        return rows[self.held_out], cols[self.held_out]


class FactorChoice(NamedTuple):
    """The rank that predicts held-out entries best."""

    rank: int
    effects: bool
    similar: bool
    rmse: float
    predictions: np.ndarray
    """Of the entries held out."""
    alone: float
    """The error of effects alone."""
    path: list[dict[str, Any]]
    tails: float = np.inf
    """Degrees of freedom of the noise; infinite for a normal one."""
    likelihood: np.ndarray = np.zeros(0)  # noqa: RUF009 - never changed
    """The logarithm, for each entry held out."""


class Setting(NamedTuple):
    """What one path of growing ranks assumes."""

    features: PatternFeatures | None
    effects: bool
    tails: float = np.inf


def choose_factors(
    entries: Entries, features: PatternFeatures | None, effects: bool, most: int, late: Late
) -> FactorChoice:
    """Grow the factors one by one; with effects and without, with features and without, where both are plausible.

    Noise with long tails is tried if some held-out entries are far off, and taken if all are clearly likelier with it.
    """
    if features is not None:  # a few factors tell whether features help
        plain, helped = (_follow(entries, Setting(f, effects), min(3, most), late) for f in (None, features))
        features = features if helped.rmse < plain.rmse * (1 - _GAIN) else None
    tried = [_follow(entries, Setting(features, effects), most, late)]
    truth = entries.values[entries.held_out]
    if effects and tried[0].alone > 0.9 * float(np.sqrt(np.mean(truth**2))):  # effects explain little
        tried.append(_follow(entries, Setting(features, False), most, late))
    best = min(tried, key=lambda one: one.rmse)
    if best.rmse > 1e-6 * float(np.std(truth)) and _far_off(best.predictions - truth):
        robust = _follow(entries, Setting(features, best.effects, TAILS), most, late)
        tried.append(robust)
        gains = robust.likelihood - best.likelihood
        if gains.mean() > max(_LIKELIER, 2 * gains.std() / np.sqrt(len(gains))):
            best = robust
    return best._replace(path=[row for one in tried for row in one.path], alone=tried[0].alone)


def _far_off(errors: np.ndarray) -> bool:
    """Whether the kurtosis is above that of a normal distribution by a third."""
    squares = errors**2
    return bool(np.mean(squares**2) > 4 * np.mean(squares) ** 2)


def _follow(entries: Entries, setting: Setting, most: int, late: Late) -> FactorChoice:
    mean = _mean(entries.values[~entries.held_out], setting.effects)
    rows, cols = entries.places()
    truth = entries.values[entries.held_out]
    factors = _without_factors(entries.known(mean), entries.pattern.shape, setting, late)
    path: list[dict[str, Any]] = []
    best: FactorChoice | None = None
    lowest = np.inf
    most, failed, stuck = min(most, *(n - 1 for n in entries.pattern.shape)), 0, 0
    while True:
        predictions = mean + factors.predict(rows, cols)
        squares = (predictions - truth) ** 2
        rmse, score = float(np.sqrt(squares.mean())), float(np.sqrt(_typical(squares, setting.tails)))
        similar = setting.features is not None
        words = {"effects": setting.effects, "similarity": similar, "tails": setting.tails}
        path.append({"rank": factors.rank, **words, "rmse": rmse})
        if best is None or score < lowest * (1 - _GAIN):
            likelihood = _log_likelihood(squares, factors.noise, setting.tails)
            best = FactorChoice(
                factors.rank, setting.effects, similar, rmse, predictions, path[0]["rmse"], path,
                setting.tails, likelihood,
            )  # fmt: skip
            failed, lowest = 0, score
        else:
            failed += 1
        before = factors.rank
        if before >= most or max(failed, stuck) >= _PATIENCE or late():
            return best
        factors.grow(_more(before, most, len(entries.values)))
        factors.go(30, _ROUGH, late)
        stuck += factors.rank <= before  # the data do not support one more


def _typical(squares: np.ndarray, tails: float) -> float:
    """The mean; with long tails, without the largest tenth."""
    if np.isinf(tails):
        return float(squares.mean())
    kept = max(1, int(0.9 * len(squares)))
    return float(np.partition(squares, kept - 1)[:kept].mean())


def _log_likelihood(squares: np.ndarray, noise: float, tails: float) -> np.ndarray:
    """Up to a constant: of a normal distribution, or of Student's t."""
    if np.isinf(tails):
        return -0.5 * (np.log(2 * np.pi * noise) + squares / noise)
    constant = math.lgamma((tails + 1) / 2) - math.lgamma(tails / 2) - 0.5 * np.log(np.pi * tails * noise)
    return np.asarray(constant - (tails + 1) / 2 * np.log1p(squares / (tails * noise)))


def fit_factors(entries: Entries, features: PatternFeatures | None, choice: FactorChoice, late: Late) -> Factors:
    """The factors of all entries, grown to the rank that was chosen."""
    mean = _mean(entries.values, choice.effects)
    setting = Setting(features, choice.effects, choice.tails)
    factors = _without_factors(entries.known(mean, True), entries.pattern.shape, setting, late)
    factors.mean = mean
    while factors.rank < choice.rank and not late():
        before = factors.rank
        factors.grow(_more(before, choice.rank, len(entries.values)))
        factors.go(30, _ROUGH, late)
        if factors.rank <= before:
            break
    factors.go(200, _FINE, late)
    return factors


def _mean(values: np.ndarray, effects: bool) -> float:
    return float(values.mean()) if effects else 0.0


def _more(rank: int, most: int, entries: int) -> int:
    return min(max(1, rank // 4 if entries >= _LARGE else 1), most - rank)


def _without_factors(known: Known, shape: tuple[int, int], setting: Setting, late: Late) -> Factors:
    features = setting.features
    given = (None, None) if features is None else (features.rows.matrix, features.cols.matrix)
    factors = Factors(known, shape, given, setting.effects, setting.tails)
    factors.go(20, _FINE, late)
    return factors


class Blend(NamedTuple):
    """The share of the factors in the predictions, and what held-out entries say of it."""

    share: float
    rmse: float
    error: float
    """Standard error of the difference to the better of both parts alone."""


def choose_blend(shrunk: np.ndarray, refitted: np.ndarray, truth: np.ndarray) -> Blend:
    """The share that predicts best; one part alone unless both together are better by a standard error."""
    squares = np.array([((1 - share) * shrunk + share * refitted - truth) ** 2 for share in _SHARES])
    means = squares.mean(axis=1)
    alone = 0 if means[0] < means[-1] else len(_SHARES) - 1
    best = int(np.argmin(means))
    gains = squares[alone] - squares[best]
    error = float(np.std(gains) / np.sqrt(max(len(truth), 1)))
    taken = best if gains.mean() > error else alone
    rmse = float(np.sqrt(means[taken]))
    return Blend(float(_SHARES[taken]), rmse, error / max(2 * rmse, 1e-300))
