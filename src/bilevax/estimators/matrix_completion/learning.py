"""From entries to a model: held-out entries choose, then all entries are fitted.

There are two parts. The factors (`refit.py`) come first, since they are fast and tell whether similarity helps. The
shrunk matrix (`fit.py`, `path.py`) is fitted where it may add something. Held-out entries choose one of them, or a mix.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from sklearn.utils import check_random_state

from bilevax.estimators.matrix_completion.deadline import Deadline
from bilevax.estimators.matrix_completion.entries import Entries
from bilevax.estimators.matrix_completion.factors import Factors
from bilevax.estimators.matrix_completion.fit import CompletionFit
from bilevax.estimators.matrix_completion.new_rows import Shrunk
from bilevax.estimators.matrix_completion.options import Options
from bilevax.estimators.matrix_completion.path import NO_BALL, Choice, choose
from bilevax.estimators.matrix_completion.refit import (
    FactorChoice,
    Refit,
    blend_with,
    choose_refit,
    fit_refit,
)
from bilevax.estimators.matrix_completion.selection import Blend
from bilevax.estimators.matrix_completion.similarity import PatternFeatures
from bilevax.runs.clock import Interrupt
from bilevax.runs.stopping import Stop
from bilevax.runs.trace import Trace

_SIMILARITY = 2.0  # the strength in the ball where similarity helps
_WORTH = 2e-3  # the relative gain for which a shrunk matrix is added where there are many entries


class Start(NamedTuple):
    """What an earlier fit has chosen, and its shrunk matrix for a warm start."""

    shrunk: Shrunk | None
    radius: float
    similarity: float
    refit: Refit | None


@dataclass
class Learned:
    """The parts of a model and how they were found."""

    entries: Entries
    options: Options
    stop: Stop
    radius: float
    similarity: float
    path: list[dict[str, float]]
    refit: Refit | None
    factors: tuple[Factors, PatternFeatures | None] | None
    fit: CompletionFit | None
    """The shrunk matrix; None if the model has none."""
    trace: Trace
    """A row for each step of the shrunk matrix, also if it was not taken."""


def learn(entries: Entries, options: Options, interrupt: Interrupt, start: Start | None = None) -> Learned:
    """Fit the parts of a model."""
    deadline = Deadline(options.time_limit, interrupt, options.verbose)
    held_out = hold_out(len(entries.values), options) if start is None else None
    chosen = None if held_out is None or not options.refit else choose_refit(entries, held_out, options, deadline)
    similarity = options.similarity
    if similarity is None and chosen is not None:
        similarity = _SIMILARITY if chosen.setting.similarity else 0.0
    fit, choice = None, Choice(NO_BALL, similarity or 0.0, [])
    ball = options._replace(similarity=similarity)
    if chosen is not None:
        ball = ball._replace(time_limit=deadline.left)
    if _needs_ball(chosen, ball, start, interrupt) and not (chosen is not None and deadline()):
        fit = CompletionFit(entries, ball, interrupt)
        choice = choose(fit, held_out) if start is None else _again(fit, start, entries.shape)
    refit = start.refit if start is not None else _compare(chosen, choice, entries.values, fit)
    tried, stop = fit, None if fit is None else fit.cut
    if fit is not None and refit is not None and refit.blend.share == 1:
        fit, choice = None, choice._replace(radius=NO_BALL)  # the factors alone predict better
    factors = None
    if refit is not None and refit.blend.share > 0:
        factors = fit_refit(entries, refit.factors, options, deadline)
    if fit is not None and stop is None:
        stop = fit.finish(options.radius or choice.radius, choice.similarity)
    choice = choice if fit is None else choice._replace(radius=fit.radius)
    stop = stop or deadline.stop("the factors settled: a sweep hardly changes the predictions")
    trace = Trace() if tried is None else tried.trace
    return Learned(entries, options, stop, choice.radius, choice.similarity, choice.path, refit, factors, fit, trace)


def hold_out(n: int, options: Options) -> np.ndarray | None:
    """The entries to choose by; None if there are too few."""
    chosen: np.ndarray = check_random_state(options.random_state).random(n) < options.validation_fraction
    return chosen if n >= 20 and chosen.any() else None


def _needs_ball(chosen: FactorChoice | None, options: Options, start: Start | None, interrupt: Interrupt) -> bool:
    if start is not None:
        return start.refit is None or start.refit.blend.share < 1
    if chosen is None:
        return True
    # Where values are far off, the squared loss of the shrunk matrix would follow them.
    if options.effort.most_radii == 0 or np.isfinite(chosen.setting.tails):
        return False
    few = chosen.few_rows
    if few is None:
        return True
    fit = CompletionFit(few.entries, options, interrupt)
    choice = choose(fit, few.held_out)
    compared = _compare(chosen._replace(predictions=few.predictions), choice, few.entries.values, fit)
    alone = float(np.sqrt(np.mean((few.predictions - few.entries.values[few.held_out]) ** 2)))
    return compared is not None and compared.blend.rmse < (1 - _WORTH) * alone


def _again(fit: CompletionFit, start: Start, shape: tuple[int, int]) -> Choice:
    if start.shrunk is not None:
        fit.start_from(*start.shrunk.resized(shape)[1:])
    return Choice(start.radius, start.similarity, [])


def _compare(
    chosen: FactorChoice | None, choice: Choice, values: np.ndarray, fit: CompletionFit | None
) -> Refit | None:
    """The factors beside the shrunk matrix, as held-out entries see them; None if there are no factors."""
    if chosen is None:
        return None
    if fit is None or choice.predictions is None or choice.held_out is None:
        return Refit(chosen, Blend(1.0, chosen.rmse, 0.0))
    truth = values[choice.held_out]
    return Refit(chosen, blend_with(chosen, choice.predictions + fit.mean, truth, bool(fit.options.clip)))
