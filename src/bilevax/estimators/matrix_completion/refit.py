"""The factors beside the shrunk matrix: chosen on held-out entries, fitted to all, and kept for new rows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from bilevax.estimators.matrix_completion.deadline import Deadline
from bilevax.estimators.matrix_completion.entries import Entries
from bilevax.estimators.matrix_completion.factors import Factors
from bilevax.estimators.matrix_completion.journal import Journal
from bilevax.estimators.matrix_completion.journaled import posterior_average, settle
from bilevax.estimators.matrix_completion.observed import few_rows, observe
from bilevax.estimators.matrix_completion.options import Options
from bilevax.estimators.matrix_completion.selection import (
    TAILS,
    Blend,
    Search,
    Setting,
    Split,
    choose_blend,
    choose_factors,
    grown,
)
from bilevax.estimators.matrix_completion.similarity import PatternFeatures

_FEW, _STEP = 500_000, 8  # a matrix with more entries is fitted to an eighth of its rows first
FEW_ENTRIES = 20_000
"""Of fewer entries, other parts are held out as well, and more is tried."""
_SPLITS = 3


class FactorChoice(NamedTuple):
    """The factors that predict held-out entries best."""

    rank: int
    setting: Setting
    rmse: float
    alone: float
    """The error of effects alone."""
    path: list[dict[str, Any]]
    held_out: int
    predictions: np.ndarray
    """Of the entries held out; none where an earlier fit chose."""
    start: Factors | None
    """The factors themselves, where they are at hand."""
    comparisons: list[dict[str, Any]] = []  # noqa: RUF012 - never changed
    ridges: tuple[float, float] | None = None
    """Of the effects of rows and of columns, as estimated without factors."""


class Refit(NamedTuple):
    """What held-out entries say of the factors, alone and beside the shrunk matrix."""

    factors: FactorChoice
    blend: Blend

    def table(self, shrunk: float) -> dict[str, Any]:
        """The errors on held-out entries of all that was tried."""
        setting = self.factors.setting
        taken = {0.0: "shrunk", 1.0: "factors"}.get(self.blend.share, "both")
        if taken == "factors" and self.factors.rank == 0:
            taken = "effects alone"
        return {
            "taken": taken,
            "share_of_factors": self.blend.share,
            "n_factors": self.factors.rank,
            "effects": setting.effects,
            "similarity_of_factors": setting.similarity,
            "long_tails": bool(np.isfinite(setting.tails)),
            "averaged": setting.averaged,
            "rmse": {
                "effects alone": self.factors.alone,
                "shrunk": shrunk,
                "factors": self.factors.rmse,
                "taken": self.blend.rmse,
            },
            "standard_error": self.blend.error,
            "held_out": self.factors.held_out,
            "comparisons": self.factors.comparisons,
            "ranks": self.factors.path,
        }


def choose_refit(entries: Entries, held_out: np.ndarray, options: Options, late: Deadline) -> FactorChoice:
    """The setting and the number of factors that predict the held-out entries best."""
    components = options.n_similarity_components
    levels = _splits(entries, held_out, components, late.journal)
    few = len(entries.values) < FEW_ENTRIES
    if few:
        others = [Split(observe(entries, other), components, late.journal) for other in _other_splits(held_out)]
        levels[0] = partial(list, levels[0]() + others)
    search = Search(options.effects, options.similarity != 0, options.most_factors, bool(options.clip), few)
    chosen = choose_factors(levels, search, late)
    best = chosen.best
    plain = Factors(best.best[0].observed)
    settle(plain, 20, 5e-3, late)
    truth = plain.observed.held_out
    predictions = best.predictions[: len(truth.values)]
    alone, rmse = (float(np.sqrt(np.mean((p - truth.values) ** 2))) for p in (plain.predict(*truth[:2]), predictions))
    return FactorChoice(
        best.best[0].rank, best.setting, rmse, alone, chosen.path, len(predictions), predictions, best.best[0],
        [one._asdict() for one in chosen.comparisons], plain.ridges(),
    )  # fmt: skip


def _other_splits(held_out: np.ndarray) -> list[np.ndarray]:
    """Other entries to hold out, as many each time and none twice as long as there are enough."""
    rest = np.random.default_rng(0).permutation(np.nonzero(~held_out)[0])
    count, found = int(held_out.sum()), []
    for part in (rest[i * count : (i + 1) * count] for i in range(_SPLITS - 1)):
        found.append(np.zeros(len(held_out), bool))
        found[-1][part] = True
    return [other for other in found if other.any()]


def _splits(
    entries: Entries, held_out: np.ndarray, components: int, journal: Journal
) -> list[Callable[[], list[Split]]]:
    """The entries of few rows first, then of more and more; each level is made when it is called."""
    steps = max(0, int(np.ceil(np.log(len(held_out) / _FEW) / np.log(_STEP))))
    return [partial(_level, entries, held_out, components, journal, left) for left in range(steps, -1, -1)]


def _level(entries: Entries, held_out: np.ndarray, components: int, journal: Journal, steps: int) -> list[Split]:
    """The entries of a share of the rows that gets smaller with each step."""
    for _ in range(steps):
        entries, held_out = few_rows(entries, held_out, 1 / _STEP)
    return [Split(observe(entries, held_out), components, journal)]


def blend_with(choice: FactorChoice, shrunk: np.ndarray | None, truth: np.ndarray, clip: bool) -> Blend:
    """How much of the factors to take beside the predictions of a shrunk matrix, if there is one."""
    # Where values are far off, the squared loss of the shrunk matrix has followed them.
    if shrunk is None or np.isfinite(choice.setting.tails):
        return Blend(1.0, choice.rmse, 0.0)
    low, high = (truth.min(), truth.max()) if clip else (-np.inf, np.inf)
    # Where entries are few, the errors of both models differ so much that the middle is nearly always better.
    usual = 0.5 if choice.setting.averaged else 1.0
    return choose_blend(np.clip(shrunk, low, high), np.clip(choice.predictions, low, high), truth, usual)


def again_as(choices: dict[str, Any]) -> Refit | None:
    """What an earlier fit chose, for a warm start."""
    if choices["taken"] == "shrunk":
        return None
    errors, none = choices["rmse"], np.zeros(0)
    tails = TAILS if choices["long_tails"] else np.inf
    setting = Setting(choices["effects"], choices["similarity_of_factors"], tails, choices.get("averaged", False))
    factors = FactorChoice(
        choices["n_factors"], setting, errors["factors"], errors["effects alone"], choices["ranks"],
        choices.get("held_out", 0), none, None,
        comparisons=choices.get("comparisons", []),
    )  # fmt: skip
    return Refit(factors, Blend(choices["share_of_factors"], errors["taken"], choices["standard_error"]))


def fit_refit(
    entries: Entries, chosen: FactorChoice, options: Options, late: Deadline
) -> tuple[Factors, PatternFeatures | None]:
    """The factors of all entries, from those that were chosen or anew, and the features of their pattern."""
    components = options.n_similarity_components
    levels: list[Callable[[], list[Split]]]
    if chosen.start is not None:
        levels = [partial(list, [Split(chosen.start.observed.all_learned(), components, late.journal)])]
    else:
        levels = _splits(entries, np.zeros(len(entries.values), bool), components, late.journal)
    factors = chosen.start
    for level in levels:
        (split,) = level()
        factors = grown(split, chosen.setting, chosen.rank, factors, late)
    assert factors is not None
    if chosen.setting.averaged:
        factors = posterior_average(factors, options.most_factors, late)
    return factors, split.features if chosen.setting.similarity else None
