"""The factors beside the shrunk matrix: chosen on held-out entries, fitted to all, and kept for new rows."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import numpy as np

from bilevax.estimators.matrix_completion.factors import Factors
from bilevax.estimators.matrix_completion.fit import CompletionFit
from bilevax.estimators.matrix_completion.path import Choice
from bilevax.estimators.matrix_completion.selection import (
    TAILS,
    Blend,
    Entries,
    FactorChoice,
    Late,
    choose_blend,
    choose_factors,
    fit_factors,
)
from bilevax.estimators.matrix_completion.similarity import (
    PatternFeatures,
    entry_counts,
    find_similarity,
    pattern_features,
)


class Refit(NamedTuple):
    """What held-out entries say of the factors, alone and beside the shrunk matrix."""

    factors: FactorChoice
    blend: Blend

    def table(self, shrunk: float) -> dict[str, Any]:
        """The errors on held-out entries of all that was tried."""
        taken = {0.0: "shrunk", 1.0: "factors"}.get(self.blend.share, "both")
        if taken == "factors" and self.factors.rank == 0:
            taken = "effects alone"
        return {
            "taken": taken,
            "share_of_factors": self.blend.share,
            "n_factors": self.factors.rank,
            "effects": self.factors.effects,
            "similarity_of_factors": self.factors.similar,
            "long_tails": bool(np.isfinite(self.factors.tails)),
            "rmse": {
                "effects alone": self.factors.alone,
                "shrunk": shrunk,
                "factors": self.factors.rmse,
                "taken": self.blend.rmse,
            },
            "standard_error": self.blend.error,
            "ranks": self.factors.path,
        }


def choose_refit(fit: CompletionFit, values: np.ndarray, choice: Choice) -> Refit | None:
    """Factors on the entries that the path has learned from; None if the path held nothing out."""
    if choice.held_out is None:
        return None
    entries = Entries(fit.pattern, values, choice.held_out)
    features = _features(fit, ~choice.held_out) if choice.similarity > 0 else None
    most = fit.options.effort.most_factors
    most = min(most, fit.options.max_rank or most)
    factors = choose_factors(entries, features, fit.options.effects, most, _late(fit))
    # Where values are far off, the squared loss of the shrunk matrix has followed them.
    if choice.predictions is None or np.isfinite(factors.tails):
        return Refit(factors, Blend(1.0, factors.rmse, 0.0))
    truth, shrunk, refitted = values[choice.held_out], choice.predictions + fit.mean, factors.predictions
    if fit.options.clip:
        shrunk, refitted = (np.clip(part, values.min(), values.max()) for part in (shrunk, refitted))
    return Refit(factors, choose_blend(shrunk, refitted, truth))


def again_as(choices: dict[str, Any]) -> Refit | None:
    """What an earlier fit chose, for a warm start."""
    if choices["taken"] == "shrunk":
        return None
    errors, none = choices["rmse"], np.zeros(0)
    rank, effects, similar = (choices[name] for name in ("n_factors", "effects", "similarity_of_factors"))
    tails = TAILS if choices["long_tails"] else np.inf
    factors = FactorChoice(
        rank, effects, similar, errors["factors"], none, errors["effects alone"], choices["ranks"], tails
    )
    return Refit(factors, Blend(choices["share_of_factors"], errors["taken"], choices["standard_error"]))


def fit_refit(fit: CompletionFit, values: np.ndarray, chosen: Refit) -> tuple[Factors, PatternFeatures | None]:
    """The factors of all entries."""
    everything = np.ones(len(values), bool)
    features = _features(fit, everything) if chosen.factors.similar else None
    entries = Entries(fit.pattern, values, ~everything)
    return fit_factors(entries, features, chosen.factors, _late(fit)), features


def _features(fit: CompletionFit, known: np.ndarray) -> PatternFeatures | None:
    weights = known.astype(fit.values.dtype)
    components = int(fit.options.effort.more_components * fit.options.n_similarity_components)
    similarity = find_similarity(fit.pattern, weights, components)
    return None if similarity is None else pattern_features(similarity, entry_counts(fit.pattern, weights))


def _late(fit: CompletionFit) -> Late:
    """Whether Ctrl-C was pressed, or the time limit is over: the seconds of steps count, and those from now on."""
    limit = np.inf if fit.options.time_limit is None else fit.options.time_limit
    end = time.perf_counter() + limit - fit.seconds
    return lambda: fit.interrupt.flag or time.perf_counter() > end
