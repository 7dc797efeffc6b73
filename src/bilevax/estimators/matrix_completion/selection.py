"""How many factors, with effects or without, with features or without, which noise: held-out entries decide."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from copy import copy
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from bilevax.estimators.choices import root_gain
from bilevax.estimators.matrix_completion.deadline import Deadline
from bilevax.estimators.matrix_completion.factors import Factors
from bilevax.estimators.matrix_completion.journal import Journal
from bilevax.estimators.matrix_completion.journaled import posterior_average, settle
from bilevax.estimators.matrix_completion.observed import Observed
from bilevax.estimators.matrix_completion.similarity import PatternFeatures, features_of

_GAIN, _LEAST_GAIN = 1e-3, 2e-4  # the relative gain for which something else is taken, by how many are held out
_PATIENCE = 3  # ranks in a row that may gain nothing
_FIRST = 3  # factors after which settings that are clearly worse are given up
_CLEARLY = 1e-2
_LARGE = 200_000  # from so many entries on the rank grows by a quarter instead of by one
_ROUGH, _FINAL, _FINE = 2e-2, 7e-3, 2e-3  # how far a sweep may still move predictions, in units of the noise
TAILS = 4.0
"""Degrees of freedom of the noise where some values are far off."""
_LIKELIER = 0.02  # the gain in log-likelihood per entry for which such a noise is taken
_UNKNOWN = 0.2  # the variance of predictions over that of the noise, from which on averaging is tried
_EXACT = 0.02  # the held-out error over the spread of the values, below which averaging is not tried
_ENOUGH = 1000  # entries held out to compare averages with the factors alone
_KEPT = 0.9  # the share of held-out entries, those with the least errors, by which it is judged
_SHARES = np.linspace(0.0, 1.0, 11)


class Setting(NamedTuple):
    """What one path of growing ranks assumes."""

    effects: bool
    similarity: bool = False
    """Whether features of the pattern are used."""
    tails: float = np.inf
    """Degrees of freedom of the noise; infinite for a normal one."""
    averaged: bool = False
    """Whether predictions are averaged over the posterior."""

    def words(self) -> str:
        """What differs from effects, no features and normal noise."""
        parts = {"no effects": not self.effects, "similarity": self.similarity, "long tails": np.isfinite(self.tails)}
        return "".join(f", {name}" for name, here in parts.items() if here)


class Split:
    """Entries with some of them held out, and the features of the pattern of the others once they are asked for."""

    def __init__(self, observed: Observed, components: int, journal: Journal):
        self.observed, self._components, self._journal = observed, components, journal

    @cached_property
    def features(self) -> PatternFeatures | None:
        """None where the pattern says nothing."""
        return features_of(self.observed, self._components, self._journal)

    def matrices(self, setting: Setting) -> tuple[np.ndarray | None, np.ndarray | None]:
        """The features of rows and of columns under this setting."""
        if not setting.similarity or self.features is None:
            return None, None
        return self.features.rows.matrix, self.features.cols.matrix


class Growth:
    """Factors under one setting, grown step by step for each split; keeps those that predict held-out entries best."""

    def __init__(self, splits: Sequence[Split], setting: Setting, late: Deadline, start: Sequence[Factors] = ()):
        self.setting, self.late, self.splits = setting, late, splits
        self.truth = np.concatenate([split.observed.held_out.values for split in splits])
        self.gain = worthwhile(len(self.truth))
        self.path: list[dict[str, Any]] = []
        self.rmse, self.predictions = np.inf, np.zeros(0)
        self.best: list[Factors] = []
        self.lowest, self.done, self._patience = np.inf, False, 1 if start else _PATIENCE
        self._failed = self._stuck = 0
        features = [split.matrices(setting) for split in splits]
        self.factors = [
            Factors(split.observed, given, setting.effects, setting.tails)
            for split, given in zip(splits, features, strict=True)
        ]
        self._settle(20, _FINE)
        self._effects = self.rmse, self.predictions, self.best
        if start:
            self.factors = [
                one.move_to(split.observed, given) for one, split, given in zip(start, splits, features, strict=True)
            ]
            self._settle(30, _ROUGH)

    def to(self, most: int) -> Growth:
        """Grow until there are so many factors, or until more gain nothing."""
        observed = self.splits[0].observed
        most = min(most, *(n - 1 for n in observed.shape))
        while not (self.done or self.late()) and self.rank < most:
            before = self.rank
            self._settle(30, _ROUGH, _more(before, most, len(observed.by_row.index)))
            self._stuck += self.rank <= before  # the data do not support one more
            hopeless = self.rank == before == 0
            self.done = hopeless or max(self._failed, self._stuck) >= self._patience
        alone = (self._effects[1] - self.truth) ** 2
        limit = np.inf if np.isinf(self.setting.tails) else np.quantile(alone, _KEPT)  # or values far off would decide
        if not clearly_better(np.minimum(self.squares, limit), np.minimum(alone, limit)):
            self.rmse, self.predictions, self.best = self._effects
        return self

    @property
    def rank(self) -> int:
        """How many factors there are now; of several splits the most."""
        return max(one.rank for one in self.factors)

    def _settle(self, most: int, tol: float, more: int = 0) -> None:
        """So many factors more, sweeps, then a comparison with the best so far."""
        for one in self.factors:
            settle(one, most, tol, self.late, more)
        predictions = np.concatenate([one.predict(*one.observed.held_out[:2]) for one in self.factors])
        squares = (predictions - self.truth) ** 2
        rmse, score = float(np.sqrt(squares.mean())), float(np.sqrt(_typical(squares, self.setting.tails)))
        self.path.append({"rank": self.rank, **self.setting._asdict(), "rmse": rmse})
        self.late.tell(f"rank {self.rank}{self.setting.words()}: held-out RMSE {rmse:.4g}")
        if score < self.lowest * (1 - self.gain):
            self.lowest, self._failed, self.rmse, self.predictions = score, 0, rmse, predictions
            self.best = [one.copy() for one in self.factors]
        else:
            self._failed += 1

    def on_fewer_splits(self, held_out: int) -> Growth:
        """What the first splits say that together have so many entries held out, or all of them."""
        sizes = np.cumsum([len(split.observed.held_out.values) for split in self.splits])
        count = min(int(np.searchsorted(sizes, held_out)) + 1, len(sizes))
        fewer, entries = copy(self), sizes[count - 1]
        fewer.splits, fewer.factors, fewer.best = self.splits[:count], self.factors[:count], self.best[:count]
        fewer.truth, fewer.predictions = self.truth[:entries], self.predictions[:entries]
        fewer.rmse = float(np.sqrt(fewer.squares.mean()))
        return fewer

    def averaged(self, most: int) -> Growth:
        """The same factors; predictions are averaged over the posterior of which they are a mode."""
        other, means = copy(self), [posterior_average(one, most, self.late) for one in self.best]
        other.setting = self.setting._replace(averaged=True)
        other.predictions = np.concatenate([one.predict(*one.observed.held_out[:2]) for one in means])
        other.rmse = float(np.sqrt(other.squares.mean()))
        other.path = [{"rank": means[0].rank, **other.setting._asdict(), "rmse": other.rmse}]
        self.late.tell(f"averaged over the posterior: held-out RMSE {other.rmse:.4g}")
        return other

    @property
    def squares(self) -> np.ndarray:
        """The squared errors of the best factors on held-out entries."""
        return np.asarray((self.predictions - self.truth) ** 2)

    def log_likelihood(self) -> np.ndarray:
        """Of each held-out entry by the best factors: of a normal, or of Student's t distribution."""
        parts = [one.observed for one in self.best]
        variances = [one.noise * one.observed.scale**2 for one in self.best]
        noise = np.repeat(variances, [len(part.held_out.values) for part in parts])
        squares, tails = self.squares, self.setting.tails
        if np.isinf(tails):
            return np.asarray(-0.5 * (np.log(2 * np.pi * noise) + squares / noise))
        constant = math.lgamma((tails + 1) / 2) - math.lgamma(tails / 2) - 0.5 * np.log(np.pi * tails * noise)
        return np.asarray(constant - (tails + 1) / 2 * np.log1p(squares / (tails * noise)))


def worthwhile(held_out: int) -> float:
    """The relative gain for which something else is taken, by how many entries are held out."""
    return min(_GAIN, max(_LEAST_GAIN, 2 / held_out))


def clearly_better(squares: np.ndarray, others: np.ndarray) -> bool:
    """Whether squared errors are lower than others on the same entries by more than a standard error."""
    gains = others - squares
    return bool(gains.mean() > gains.std() / np.sqrt(len(gains)))


class Comparison(NamedTuple):
    """Two alternatives on the same held-out entries."""

    choice: str
    taken: str
    rmse: float
    other: str
    other_rmse: float
    standard_error: float
    """Of the difference of both errors."""

    @classmethod
    def of(cls, choice: str, names: tuple[str, str], squares: tuple[np.ndarray, np.ndarray]) -> Comparison:
        """The first alternative, which was taken, and the second by their squared errors."""
        rmse, other = (float(np.sqrt(part.mean())) for part in squares)
        return cls(choice, names[0], rmse, names[1], other, root_gain(*squares)[1])


class Chosen(NamedTuple):
    """The setting that predicts held-out entries best, and how it was found."""

    best: Growth
    path: list[dict[str, Any]]
    """The ranks that were tried under all settings and at all levels."""
    comparisons: list[Comparison]


class Search(NamedTuple):
    """What may be chosen."""

    effects: bool
    similarity: bool
    most_factors: int
    on_a_scale: bool
    """Whether values are on a scale, from 1 to 5 say, so that none is far off by error."""
    few_entries: bool
    """Whether there are so few entries that predictions may be averaged over the posterior."""


def choose_factors(levels: Sequence[Callable[[], Sequence[Split]]], search: Search, late: Deadline) -> Chosen:
    """The setting, and the factors under it.

    The first level is the whole matrix, or few of its rows if it is large: they choose the setting. Each further level
    has more rows, begins with the columns of the level before, and grows more factors if it supports them. A level
    is made when it is called.
    """
    best, path, comparisons = _choose_setting(levels[0](), search, late)
    for level in levels[1:]:
        setting, start = best.setting, [one.without_entries() for one in best.best]
        del best  # frees the entries of the level before, which are not needed beside those of this one
        best = Growth(level(), setting, late, start).to(search.most_factors)
        path += best.path
    return Chosen(best, path, comparisons)


def _choose_setting(splits: Sequence[Split], search: Search, late: Deadline) -> Chosen:
    """A few factors tell which settings are clearly worse.

    Noise with long tails is tried if some held-out entries are far off, and taken if all are clearly likelier with it;
    on a scale it has to predict better.
    """
    best = Growth(splits, Setting(search.effects), late).to(_FIRST)
    tried, comparisons = [best], []

    def compare(choice: str, other: Growth, taken: bool, names: tuple[str, str]) -> Growth:
        """Remember both and return the better one; the first name is that of the one so far."""
        tried.append(other)
        pair = (other, best) if taken else (best, other)
        comparisons.append(Comparison.of(choice, names[::-1] if taken else names, (pair[0].squares, pair[1].squares)))
        return pair[0]

    if search.similarity and all(split.features is not None for split in splits):
        similar = Growth(splits, Setting(search.effects, True), late).to(_FIRST)
        helps = similar.rmse < best.rmse * (1 - best.gain) and clearly_better(similar.squares, best.squares)
        best = compare("similarity", similar, helps, ("no", "yes"))
    if search.effects and best.path[0]["rmse"] > 0.9 * float(np.sqrt(np.mean(best.truth**2))):  # effects explain little
        without = Growth(splits, best.setting._replace(effects=False), late).to(_FIRST)
        if without.rmse < (1 + _CLEARLY) * best.rmse:
            without.to(search.most_factors)
        if best.rmse < (1 + _CLEARLY) * without.rmse:
            best.to(search.most_factors)
        best = compare("effects", without, without.rmse < best.rmse, ("yes", "no"))
    best.to(search.most_factors)
    if best.rmse > 1e-6 * float(np.std(best.truth)) and _far_off(best.predictions - best.truth):
        robust = Growth(splits, best.setting._replace(tails=TAILS), late).to(search.most_factors)
        gains = robust.log_likelihood() - best.log_likelihood()
        likelier = gains.mean() > max(_LIKELIER, 2 * gains.std() / np.sqrt(len(gains)))
        taken = likelier and (robust.rmse < best.rmse * (1 - best.gain) or not search.on_a_scale)
        best = compare("noise", robust, bool(taken), ("normal", "long tails"))
    # Not with long tails, which would need a draw of the weight of each entry, nor where next to nothing is left.
    unknown = np.isinf(best.setting.tails) and best.best[0].unknown > _UNKNOWN * best.best[0].noise
    if search.few_entries and unknown and best.rmse > _EXACT * float(np.std(best.truth)):
        whole, best = best, best.on_fewer_splits(_ENOUGH)  # averages take longer than all that was tried before
        averaged = best.averaged(search.most_factors)
        taken = clearly_better(averaged.squares, best.squares)
        compare("averaging", averaged, taken, ("no", "yes"))
        best = averaged if taken else whole
    return Chosen(best, [row for one in tried for row in one.path], comparisons)


def _far_off(errors: np.ndarray) -> bool:
    """Whether the kurtosis is above that of a normal distribution by a third."""
    squares = errors**2
    return bool(np.mean(squares**2) > 4 * np.mean(squares) ** 2)


def _typical(squares: np.ndarray, tails: float) -> float:
    """The mean; with long tails, without the largest ones."""
    if np.isinf(tails):
        return float(squares.mean())
    kept = max(1, int(_KEPT * len(squares)))
    return float(np.partition(squares, kept - 1)[:kept].mean())


def _more(rank: int, most: int, entries: int) -> int:
    return min(max(1, rank // 4 if entries >= _LARGE else 1), most - rank)


def grown(split: Split, setting: Setting, rank: int, start: Factors | None, late: Deadline) -> Factors:
    """The factors of all entries, from a start or from the beginning."""
    features = split.matrices(setting)
    factors = Factors(split.observed, features, setting.effects, setting.tails)
    if start is not None:
        factors = start.move_to(split.observed, features)
    else:
        settle(factors, 20, _FINE, late)
    while factors.rank < rank and not late():
        before = factors.rank
        settle(factors, 30, _ROUGH, late, _more(before, rank, split.observed.count))
        if factors.rank <= before:
            break
    settle(factors, 200, _FINAL if factors.rank else _FINE, late)
    return factors


class Blend(NamedTuple):
    """The share of the factors in the predictions, and what held-out entries say of it."""

    share: float
    rmse: float
    error: float
    """Standard error of the difference to the factors alone."""


def choose_blend(shrunk: np.ndarray, refitted: np.ndarray, truth: np.ndarray, usual: float = 1.0) -> Blend:
    """The share of the factors that predicts best.

    The usual one unless another is better, and by a standard error; then the factors alone by the same rule.
    """
    squares = np.array([((1 - share) * shrunk + share * refitted - truth) ** 2 for share in _SHARES])
    rmse, gain = np.sqrt(squares.mean(axis=1)), max(_LEAST_GAIN, 1 / len(truth))
    best, default, alone = int(np.argmin(rmse)), int(np.argmin(np.abs(_SHARES - usual))), len(_SHARES) - 1

    def beaten(one: int) -> bool:
        return bool(rmse[best] < rmse[one] * (1 - gain) and clearly_better(squares[best], squares[one]))

    taken = next(one for one in (default, alone, best) if not beaten(one))
    compared = Comparison.of("share", ("", ""), (squares[taken], squares[alone]))
    return Blend(float(_SHARES[taken]), compared.rmse, compared.standard_error)
