"""The radius and the norm of the ball that predict held-out entries best."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import numpy as np

from bilevax.estimators.matrix_completion import ball_state
from bilevax.estimators.matrix_completion.fit import CompletionFit
from bilevax.estimators.matrix_completion.journal import Call
from bilevax.estimators.matrix_completion.norm import entry_counts
from bilevax.estimators.matrix_completion.options import Norm, weights_matter
from bilevax.runs.radius_search import search_radius

_STRENGTHS = (0.0, 2.0)
_GAIN = 3e-4  # the relative gain from another radius that counts
_REFINE, _SPREAD = 6, 3e-2  # radii between those of the path, unless its errors around the best one hardly differ
_CLEAR = 3.0  # standard errors between two norms, from which on the first radius decides

PathRow = dict[str, float]


class Choice(NamedTuple):
    """What the held-out entries chose."""

    radius: float
    norm: Norm
    path: list[PathRow]
    held_out: np.ndarray | None = None
    predictions: np.ndarray | None = None
    """Of the entries held out, minus the mean, at the radius that was chosen; None if none was tried."""


def choose(fit: CompletionFit, held_out: np.ndarray | None) -> Choice:
    """Search for the best radius, in each norm that is plausible, or until the fit is cut short.

    The fit is left at the matrix of the radius that was chosen.
    """
    options, n = fit.options, fit.pattern.size
    norms = _norms(fit)
    if options.radius is not None and len(norms) == 1:
        return Choice(options.radius, norms[0], [])
    if held_out is None:
        return Choice(float(np.sqrt(n) * np.std(fit.values)) or 1.0, Norm(0.0, options.weighted is not False), [])
    paths = [_Path(fit, held_out, norm) for norm in norms]
    for path in paths:
        path.begin()
        if fit.cut is not None:
            return Choice(fit.radius, path.norm, path.rows)
    paths = [min(paths, key=lambda path: path.rmse)] if options.radius is not None else _plausible(paths)
    for path in reversed(paths):  # the last one is the present one
        path.search()
        if fit.cut is not None:
            return Choice(fit.radius, path.norm, path.rows)
    best = min(paths, key=lambda path: path.rmse)
    best.resume()
    return Choice(best.radius, best.norm, best.rows, held_out, best.predictions)


def _norms(fit: CompletionFit) -> list[Norm]:
    """The norms to choose from: plain ones before weighted ones, without similarity before with it."""
    options, weights = fit.options, [False, True]
    strengths = _STRENGTHS if options.similarity is None else (options.similarity,)
    if options.weighted is not None:
        weights = [options.weighted]
    elif not any(weights_matter(counts) for counts in entry_counts(fit.pattern, np.ones_like(fit.values))):
        weights = [True]
    return [Norm(strength, weighted) for weighted in weights for strength in strengths]


class _Tried(NamedTuple):
    """Where the steps at one radius ended."""

    x: Any
    predictions: np.ndarray
    """Of the entries held out."""


class _Path:
    """The radii that were tried in one norm."""

    def __init__(self, fit: CompletionFit, held_out: np.ndarray, norm: Norm):
        self.fit, self.held_out, self.norm = fit, held_out, norm
        self.rows: list[PathRow] = []
        self.scores: dict[float, float] = {}
        self.kept: dict[float, _Tried] = {}
        self.radius, self.training_error = np.nan, np.nan

    def begin(self) -> None:
        """Steps at the first radius."""
        fit = self.fit
        fit.observe(self.held_out, self.norm, fit.zero())
        self.radius = fit.options.radius or _first_radius(fit)
        self.evaluate(self.radius, None)
        self.training_error = fit.training_error

    def search(self) -> None:
        """Search for the best radius from the first one on."""
        self.resume()
        if self.fit.options.radius is None:
            found = search_radius(
                self.evaluate,
                self.radius,
                gain=_GAIN,
                most=self.fit.options.effort.most_radii,
                refine=_REFINE,
                spread=_SPREAD,
                stop=lambda: self.fit.cut is not None,
            )
            self.radius = min(self.kept) if np.isnan(found.radius) else found.radius

    def resume(self) -> None:
        """Go back to the matrix of the radius that is the best so far."""
        fit, x = self.fit, self.kept[self.radius].x
        if fit.norm != self.norm:
            fit.observe(self.held_out, self.norm, x)
        elif fit.radius != self.radius:
            fit.begin_at(x)
        fit.set_radius(self.radius)

    def evaluate(self, radius: float, near: float | None) -> float:
        """The error on held-out entries at this radius, from the matrix of the radius `near`."""
        if radius in self.kept:  # the first radius, when the search begins
            return self.scores[radius]
        fit, call = self.fit, self.fit.journal.call(f"radius {radius!r}")
        if call.found:
            fit.set_radius(radius)
            ball_state.at_end(fit, call.result["fit"])
            self.rows.append(call.result["row"])
        else:
            self.rows.append(self._fit_at(radius, near, call))
        rmse = self.rows[-1]["rmse"]
        if fit.cut is not None:
            return np.nan
        if not call.found and ball_state.keeps_matrix(fit):
            fit.journal.keep(call, {"row": self.rows[-1], "fit": ball_state.after_radius(fit)})
        # Where the ball does not bind, the error depends on the start: such a radius must not win.
        best = self.lowest
        may_win = fit.ball_binds() or not np.isfinite(best)
        self.scores[radius] = rmse if may_win else max(rmse, (1 + 2 * _GAIN) * best)
        self.kept[radius] = _Tried(fit.state.x, (fit.residual() + fit.values)[fit.held_out])
        self._forget()
        return self.scores[radius]

    def _fit_at(self, radius: float, near: float | None, call: Call) -> PathRow:
        """Steps at this radius, and what they led to."""
        fit, began = self.fit, time.perf_counter()
        if self.rows:  # the momentum and the step size of another radius would raise the rank
            fit.begin_at(self.kept[near].x if near in self.kept else fit.zero())
        fit.set_radius(radius)
        fit.go(call, self.lowest)
        rmse = fit.held_out_rmse()
        words = {", with similarity": fit.similarity is not None, ", plain norm": not self.norm.weighted}
        fit.say(f"held-out RMSE {rmse:.4f}, rank {fit.rank}" + "".join(word for word, said in words.items() if said))
        steps, seconds = fit.steps - fit.first_step, time.perf_counter() - began
        return {"radius": radius, "rmse": rmse, "rank": fit.rank, "steps": steps, "seconds": seconds}

    def _forget(self) -> None:
        """Drop matrices that are no start of a later radius: those below the neighbours of the best radii."""
        good = min(radius for radius, score in self.scores.items() if score <= (1 + _GAIN) * self.lowest)
        least = max((radius for radius in self.kept if radius < good), default=0.0)
        self.kept = {radius: tried for radius, tried in self.kept.items() if radius >= least}

    @property
    def lowest(self) -> float:
        """The lowest score so far."""
        return min(self.scores.values(), default=np.inf)

    @property
    def rmse(self) -> float:
        """The error on held-out entries at the best radius."""
        return next(row["rmse"] for row in self.rows if row["radius"] == self.radius)

    @property
    def predictions(self) -> np.ndarray:
        """The predictions of held-out entries at the best radius."""
        return self.kept[self.radius].predictions


def _plausible(paths: list[_Path]) -> list[_Path]:
    """The norms to search with, where the first radius is enough to decide about some.

    The ball of one norm fits more or less than another of the same radius. So a path is left out at once if one before
    it predicts clearly better, or one after it that does so with a training error that is no lower.
    """

    def beaten(own: int) -> bool:
        return any(
            _clearly_better(other, paths[own]) and (at < own or other.training_error >= paths[own].training_error)
            for at, other in enumerate(paths)
        )

    return [path for at, path in enumerate(paths) if not beaten(at)] or paths


def _clearly_better(path: _Path, other: _Path) -> bool:
    truth = path.fit.values[path.held_out]
    gains = (other.predictions - truth) ** 2 - (path.predictions - truth) ** 2
    return bool(gains.mean() > _CLEAR * gains.std() / np.sqrt(len(gains)))


def _first_radius(fit: CompletionFit) -> float:
    assert fit.norm is not None
    return 1.5 * max(float(np.sqrt(fit.pattern.size)) * fit.spread(), 1e-6) / (1 + fit.norm.strength)
