"""From entries to a model: held-out entries choose, then all entries are fitted.

There are two parts. The factors (`refit.py`) come first, since they are fast and tell whether similarity helps. The
shrunk matrix (`fit.py`, `path.py`) is fitted where it may add something. Held-out entries choose one of them, or a mix.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from sklearn.utils import check_random_state

from bilevax.estimators.matrix_completion.baseline import EffectsOnly
from bilevax.estimators.matrix_completion.deadline import Deadline
from bilevax.estimators.matrix_completion.entries import Entries, in_order
from bilevax.estimators.matrix_completion.factors import Factors
from bilevax.estimators.matrix_completion.journal import Journal
from bilevax.estimators.matrix_completion.new_rows import Shrunk
from bilevax.estimators.matrix_completion.options import EFFORTS, Norm, Options
from bilevax.estimators.matrix_completion.refit import (
    FEW_ENTRIES,
    FactorChoice,
    Refit,
    blend_with,
    choose_refit,
    fit_refit,
)
from bilevax.estimators.matrix_completion.selection import TAILS, Blend
from bilevax.estimators.matrix_completion.similarity import PatternFeatures
from bilevax.runs.interrupt import Interrupt
from bilevax.runs.stopping import Stop
from bilevax.runs.trace import Trace

if TYPE_CHECKING:  # they need JAX, which a fit of factors alone does not load
    from bilevax.estimators.matrix_completion.fit import CompletionFit
    from bilevax.estimators.matrix_completion.path import Choice

_ALMOST_ALL = 0.1  # the error of the factors as a share of that of effects alone, below which no ball is fitted
_SIMILARITY = 2.0  # the strength in the ball where similarity helps


class Start(NamedTuple):
    """What an earlier fit has chosen, and its shrunk matrix for a warm start."""

    shrunk: Shrunk | None
    radius: float
    norm: Norm
    refit: Refit | None
    ridges: tuple[float, float]


@dataclass
class Learned:
    """The parts of a model and how they were found."""

    entries: Entries
    options: Options
    stop: Stop
    radius: float
    norm: Norm
    path: list[dict[str, float]]
    refit: Refit | None
    factors: tuple[Factors, PatternFeatures | None] | None
    fit: CompletionFit | None
    """The shrunk matrix; None if the model has none."""
    trace: Trace
    """A row for each step of the shrunk matrix, also if it was not taken."""


def learn(
    entries: Entries,
    options: Options,
    interrupt: Interrupt,
    start: Start | None = None,
    journal: Journal | None = None,
) -> Learned:
    """Fit the parts of a model; what the journal knows is not computed again."""
    deadline = Deadline(options.time_limit, interrupt, options.verbose, journal)
    with ExitStack() as precision:
        return _learn(entries, options, deadline, start, precision)


def _learn(
    entries: Entries, options: Options, deadline: Deadline, start: Start | None, precision: ExitStack
) -> Learned:
    if start is not None or not options.refit or len(entries.values) <= options.effort.most_entries:
        entries = in_order(entries)  # for the shrunk matrix; factors sort them anyway
    held_out = None
    if start is None:  # kept, since without a seed others would be held out the next time
        held_out = deadline.journal.compute("held-out entries", lambda: hold_out(len(entries.values), options))
    chosen = None if held_out is None or not options.refit else choose_refit(entries, held_out, options, deadline)
    options = _settled(entries, options, chosen, start)
    radius, path = 0.0, []
    norm = Norm(options.similarity or 0.0, options.weighted is not False)
    fit, refit = None, None if start is None else start.refit
    if _needs_ball(entries, options, chosen, start, deadline):
        limit = options.time_limit if chosen is None else deadline.left
        fit = _begin(entries, options._replace(time_limit=limit), deadline, precision)
        choice = _choose(fit, held_out, start)
        radius, norm, path = choice.radius, choice.norm, choice.path
        refit = refit if start is not None else _compare(chosen, choice, fit, entries.values)
    elif start is None:
        refit = _factors_alone(chosen)
    ball = fit if fit is not None and (refit is None or refit.blend.share < 1) else None
    factors = None
    if refit is not None and refit.blend.share > 0:
        factors = fit_refit(entries, refit.factors, options, deadline)
    stop = None if fit is None else fit.cut
    if ball is not None:
        stop = stop or ball.finish(options.radius or radius, norm)
    stop = stop or deadline.stop("the factors settled: a sweep hardly changes the predictions")
    return Learned(
        entries, options, stop, 0.0 if ball is None else ball.radius, norm, path, refit, factors, ball,
        Trace() if fit is None else fit.trace,
    )  # fmt: skip


def _settled(entries: Entries, options: Options, chosen: FactorChoice | None, start: Start | None) -> Options:
    """The options with those filled in that the ball takes from the factors: ridges of the effects, and similarity."""
    ridges, similarity = options.ridges, options.similarity
    if ridges is None and start is not None:
        ridges = start.ridges
    if ridges is None:
        tails = np.inf if options.outlier is None else TAILS
        ridges = EffectsOnly(entries, tails=tails).ridges if chosen is None else chosen.ridges
    if similarity is None and chosen is not None:
        similarity = _SIMILARITY if chosen.setting.similarity else 0.0
    weighted = options.weighted
    if weighted is None and options.effort is not EFFORTS["best"] and len(entries.values) >= FEW_ENTRIES:
        weighted = True  # the plain norm would double the time, and the weighted one is better on all ratings we know
    return options._replace(ridges=ridges, similarity=similarity, weighted=weighted)


def hold_out(n: int, options: Options) -> np.ndarray | None:
    """The entries to choose by; None if there are too few."""
    chosen: np.ndarray = check_random_state(options.random_state).random(n) < options.validation_fraction
    return chosen if n >= 20 and chosen.any() else None


def _needs_ball(
    entries: Entries, options: Options, chosen: FactorChoice | None, start: Start | None, deadline: Deadline
) -> bool:
    if start is not None:
        return start.refit is None or start.refit.blend.share < 1
    if chosen is None:
        return True
    effort, normal = options.effort, np.isinf(chosen.setting.tails)
    # Where values are far off, the squared loss of the shrunk matrix would follow them. Where the data support no
    # factor, a shrunk matrix adds little, and much work if most of many rows have few entries.
    worth_a_try = normal and (chosen.rank > 0 or len(entries.values) < FEW_ENTRIES or effort is EFFORTS["best"])
    # Nor does it where factors explain nearly everything: what it shrinks is then more than what is left.
    worth_a_try = worth_a_try and chosen.rmse > _ALMOST_ALL * chosen.alone
    return bool(worth_a_try and len(entries.values) <= effort.most_entries and not deadline())


def _begin(entries: Entries, options: Options, deadline: Deadline, precision: ExitStack) -> CompletionFit:
    """A shrunk matrix in the precision that was asked for, which lasts until `precision` is closed."""
    import jax

    from bilevax.estimators.matrix_completion.fit import CompletionFit

    precision.enter_context(jax.enable_x64(options.dtype == "float64"))
    return CompletionFit(entries, options, deadline)


def _choose(fit: CompletionFit, held_out: np.ndarray | None, start: Start | None) -> Choice:
    from bilevax.estimators.matrix_completion.path import Choice, choose

    if start is None:
        return choose(fit, held_out)
    if start.shrunk is not None:
        fit.start_from(*start.shrunk.resized(fit.pattern.shape)[1:])
    return Choice(start.radius, start.norm, [])


def _factors_alone(chosen: FactorChoice | None) -> Refit | None:
    return None if chosen is None else Refit(chosen, Blend(1.0, chosen.rmse, 0.0))


def _compare(chosen: FactorChoice | None, choice: Choice, fit: CompletionFit, values: np.ndarray) -> Refit | None:
    """The factors beside the shrunk matrix, as held-out entries see them; None if there are no factors."""
    if chosen is None or choice.predictions is None or choice.held_out is None:
        return _factors_alone(chosen)
    truth = values[choice.held_out]
    return Refit(chosen, blend_with(chosen, choice.predictions + fit.mean, truth, bool(fit.options.clip)))
