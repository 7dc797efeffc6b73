"""How a fit goes: folds, priors of several kinds, the upper level, a verdict on sharing, and the fit of all rows."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from bilevax.estimators.folds import fold_numbers
from bilevax.estimators.limits import Limits
from bilevax.estimators.multitask.candidates import Candidate, candidates, padded, with_parts
from bilevax.estimators.multitask.empirical_bayes import Links
from bilevax.estimators.multitask.held_out import HeldOut
from bilevax.estimators.multitask.logistic import logistic_samples
from bilevax.estimators.multitask.options import Options
from bilevax.estimators.multitask.prior import Prior
from bilevax.estimators.multitask.rows import Rows, Units
from bilevax.estimators.multitask.squared import squared_samples
from bilevax.estimators.upper_level import solve_upper_level
from bilevax.linalg.row_blocks import side_by_side
from bilevax.problems.linked_tasks import LinkedTasks
from bilevax.runs.result import Result

_FACTORS = np.exp(np.linspace(-4.0, 4.0, 9))
"""Tried on the variances of the simple models that others are compared with."""
_WIDTHS = (1, 3, 5)
"""Room for shared parts; another width would have to be compiled."""
_TASKS_FOR_A_PART = 4
"""A shared part besides the mean is tried for each so many tasks."""


class Sample(Protocol):
    """Some rows: those of all tasks, those that a fold learns from, or those that it holds out."""

    n_rows: float
    numbers_of_parts: tuple[int, ...]

    def estimate(self, kind: Candidate, stop: Callable[[], Any]) -> Links:
        """The prior of this kind that makes the rows most likely, or the one so far when `stop` is not None."""

    def fitted(self, prior: Prior) -> Any:
        """Has `coefficients`, `spread()` and `slope_covariances()`."""

    def losses(self, W: np.ndarray) -> np.ndarray:
        """The loss of each task."""

    @staticmethod
    def problem(train: list[Any], rest: list[Any], priors: list[list[Prior]]) -> LinkedTasks:
        """The upper and the lower level for all folds."""


Parts = Sequence[tuple[Sample, Sample]]


class Fitted(NamedTuple):
    """Coefficients of every task in the units of the rows, and how sure they are."""

    W: np.ndarray
    """tasks by features"""
    spread: np.ndarray
    """covariances, tasks by features by features"""
    products: np.ndarray
    """Expected products of the slopes of two tasks, averaged over features."""


class Learned(NamedTuple):
    """What a fit has found."""

    blended: Fitted
    own: Fitted
    """Every task alone."""
    pooled: np.ndarray
    """One regression for all rows."""
    mix: list[tuple[str, float]]
    """Kinds of priors with their weights."""
    shares: bool
    """Whether sharing was found to help."""
    linked: bool
    """Whether there was anything to share."""
    pull: np.ndarray
    """How far each task is from its own regression (0) to the one for all tasks (1), by its rows."""
    held_out: HeldOut
    result: Result


def learn(rows: Rows, units: Units, options: Options, limits: Limits, *, classes: bool, linked: bool) -> Learned:
    """Learn from rows; if not `linked`, features of different tasks have nothing to do with each other."""
    everything, parts, unit = _samples(rows, units, options, classes, linked)
    n_tasks = rows.n_tasks if linked else 1
    estimates = _Estimates([*(train for train, _ in parts), everything], limits)
    n_parts = _choose_parts(parts, estimates, n_tasks, limits)
    kinds, priors = _choose_kinds(estimates, candidates(n_tasks, units, n_parts), limits)
    result = _upper_level(parts, priors[:-1], options, limits)
    x = {name: np.asarray(part) for name, part in result.x.items()}
    sizes = [(np.exp(own), np.exp(shared)) for own, shared in zip(x["own"], x["shared"], strict=True)]
    chosen = [[prior.resized(*size) for prior, size in zip(row, sizes, strict=True)] for row in priors]
    alone, alone_losses = _best(parts, [row[-1] for row in priors], own=True)
    pooled, pooled_losses = _best(parts, [_without_own(row[0]) for row in priors], own=False)
    held_out = HeldOut(
        _losses(parts, chosen[:-1], x["mix"]),
        alone_losses,
        pooled_losses,
        unit * units.target[1] ** 2,
        everything.n_rows,
        squared=not classes,
    )
    shares = len(kinds) > 1 and held_out.linking_helps
    models, mix = (chosen[-1], x["mix"]) if shares else ([alone], np.ones(1))
    blended, own = _blend(everything, models, mix), _blend(everything, [alone], np.ones(1))
    one_for_all = everything.fitted(pooled).coefficients[0]
    return Learned(
        blended=blended,
        own=own,
        pooled=one_for_all,
        mix=[(kind.words, float(share)) for kind, share in zip(kinds if shares else kinds[-1:], mix, strict=True)],
        shares=shares,
        linked=linked,
        pull=_pull(rows, blended.W, own.W, one_for_all),
        held_out=held_out,
        result=result,
    )


def _samples(
    rows: Rows, units: Units, options: Options, classes: bool, linked: bool
) -> tuple[Sample, Parts, np.ndarray]:
    """All rows, those that each fold learns from with those held out, and the unit of the losses of each task."""
    if classes:  # both classes of each task in every fold, as far as they have rows
        folds = fold_numbers(2 * rows.task + (rows.b > 0), options.n_folds, options.random_state)
        return logistic_samples(rows, units, folds, options.n_folds)
    folds = fold_numbers(rows.task, options.n_folds, options.random_state)
    return squared_samples(rows, units, folds, options.n_folds, linked)


class _Estimates:
    """Priors of all samples; those of one kind are estimated once, each sample by a thread of its own."""

    def __init__(self, samples: list[Sample], limits: Limits) -> None:
        self._samples, self._limits = samples, limits
        self._found: dict[Candidate, list[Links]] = {}

    def __call__(self, kind: Candidate) -> list[Links]:
        if kind not in self._found:
            self._found[kind] = side_by_side(lambda sample: sample.estimate(kind, self._limits.stop), self._samples)
        return self._found[kind]


def _choose_kinds(
    estimates: _Estimates, kinds: list[Candidate], limits: Limits
) -> tuple[list[Candidate], list[list[Prior]]]:
    """All kinds, or at least the first and the last if a limit is reached; and for each sample its priors."""
    chosen: list[Candidate] = []
    for kind in (kinds[0], kinds[-1], *kinds[1:-1]):
        if len(chosen) < 2 or limits.stop() is None:
            estimates(kind)
            chosen.append(kind)
    chosen = [kind for kind in kinds if kind in chosen]
    n_shared = max(kind.n_shared or 0 for kind in chosen)
    width = next(width for width in _WIDTHS if width > n_shared)
    rows = zip(*(estimates(kind) for kind in chosen), strict=True)
    return chosen, [[padded(links.prior, width) for links in row] for row in rows]


def _choose_parts(parts: Parts, estimates: _Estimates, n_tasks: int, limits: Limits) -> int:
    """How many shared parts besides the mean predict held-out rows best; 0 where tasks are too few."""
    losses = {}
    for count in parts[0][0].numbers_of_parts:
        if count * _TASKS_FOR_A_PART <= n_tasks and limits.stop() is None:
            found = zip(parts, estimates(with_parts(count)), strict=False)  # the last one has all rows
            losses[count] = sum(rest.losses(links.coefficients).sum() for (_, rest), links in found)
    return min(losses, key=losses.__getitem__, default=0)


def _upper_level(parts: Parts, priors: list[list[Prior]], options: Options, limits: Limits) -> Result:
    train, rest = zip(*parts, strict=True)
    if options.verbose:
        seconds = time.perf_counter() - limits.began
        words = f"MultiTaskRegression: {len(priors[0])} kinds of priors after {seconds:.1f} s"
        print(f"{words}; their mixture comes next, and is compiled if it is the first", file=sys.stderr, flush=True)
    with jax.enable_x64(True):
        problem, x0, y0 = train[0].problem(list(train), list(rest), priors)
        return solve_upper_level(
            problem,
            x0,
            y0,
            owner="MultiTaskRegression",
            tol=options.tol,
            max_steps=options.max_steps,
            limits=limits,
            checkpoint=None if limits.stop() else options.checkpoint,  # the next fit has all kinds of priors
            verbose=options.verbose,
        )


def _blend(rows: Sample, priors: list[Prior], mix: np.ndarray) -> Fitted:
    """Average the models; their differences add to what is not sure."""
    fits = [rows.fitted(prior) for prior in priors]
    W = np.einsum("j,jtf->tf", mix, [fit.coefficients for fit in fits])
    spread, products = np.zeros((*W.shape, W.shape[1])), np.zeros((len(W), len(W)))
    for share, fit in zip(mix, fits, strict=True):
        off, slopes = fit.coefficients - W, fit.coefficients[:, :-1]
        spread += share * (fit.spread() + off[:, :, None] * off[:, None, :])
        products += share * (slopes @ slopes.T + fit.slope_covariances()) / max(slopes.shape[1], 1)
    return Fitted(W, spread, products)


def _losses(parts: Parts, priors: list[list[Prior]], mix: np.ndarray) -> np.ndarray:
    """Losses on held-out rows, folds by tasks."""
    losses = []
    for (train, rest), row in zip(parts, priors, strict=True):
        W = np.einsum("j,jtf->tf", mix, [train.fitted(prior).coefficients for prior in row])
        losses.append(rest.losses(W))
    return np.array(losses)


def _best(parts: Parts, priors: list[Prior], *, own: bool) -> tuple[Prior, np.ndarray]:
    """One model by itself, with the factor of its variances that predicts held-out rows best."""
    found = []
    for factor in _FACTORS:
        shared = np.full(len(priors[0].shared), 1.0 if own else factor)
        resized = [prior.resized(factor if own else 1.0, shared) for prior in priors]
        found.append((resized[-1], _losses(parts, [[prior] for prior in resized[:-1]], np.ones(1))))
    return min(found, key=lambda pair: float(pair[1].sum()))


def _without_own(prior: Prior) -> Prior:
    """One regression for all rows: the first shared part alone."""
    size = np.maximum(prior.shared[:1], prior.own.mean(axis=0))
    return Prior(np.zeros_like(prior.own), np.ones((len(prior.own), 1)), size)


def _pull(rows: Rows, blended: np.ndarray, own: np.ndarray, pooled: np.ndarray) -> np.ndarray:
    """Where the predictions of a task lie on the way from its own regression to the one for all tasks."""
    to_blended, to_pooled = (
        np.einsum("nf,nf->n", rows.A, (end - own)[rows.task]) for end in (blended, pooled + 0 * own)
    )
    moved, way = (
        np.bincount(rows.task, rows.weight * to_pooled * part, rows.n_tasks) for part in (to_blended, to_pooled)
    )
    return np.clip(np.divide(moved, way, out=np.zeros_like(way), where=way > 0), 0.0, 1.0)
