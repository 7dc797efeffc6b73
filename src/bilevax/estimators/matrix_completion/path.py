"""The radius and the strength of similarity that predict held-out entries best, along a path of growing radii."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import numpy as np
from sklearn.utils import check_random_state

from bilevax.estimators.matrix_completion.fit import CompletionFit

_GROWTH = 2.0  # from one radius of the path to the next
_STRENGTHS = (0.0, 2.0)
_WORTH = 3e-4  # the relative gain from a larger radius for which the path goes on

NO_BALL = 0.0
"""The radius where no shrunk matrix is asked for."""

PathRow = dict[str, float]


class Choice(NamedTuple):
    """What the held-out entries chose."""

    radius: float
    similarity: float
    path: list[PathRow]
    held_out: np.ndarray | None = None
    predictions: np.ndarray | None = None
    """Of the entries held out, minus the mean, at the best radius that was tried; None if none was."""


def choose(fit: CompletionFit) -> Choice:
    """Follow the path until a larger radius gains nothing, or until the fit is cut short."""
    options, n = fit.options, fit.pattern.size
    strengths = _STRENGTHS if options.similarity is None else (options.similarity,)
    if options.radius is not None and len(strengths) == 1:
        return Choice(options.radius, strengths[0], [])
    held_out = _held_out(fit)
    if held_out is None:
        return Choice(float(np.sqrt(n) * np.std(fit.values)) or 1.0, 0.0, [])
    if options.refit and options.effort.most_radii == 0:
        return Choice(NO_BALL, strengths[-1], [], held_out)
    first: dict[float, tuple[PathRow, Any, np.ndarray]] = {}
    for strength in strengths:
        fit.observe(held_out, strength, fit.zero())
        row = _try(fit, options.radius or _first_radius(fit, strength), [])
        first[strength] = row, fit.state.x, _predictions(fit)
        if fit.cut is not None:
            return Choice(fit.radius, strength, [first[strength][0]])
    strength = min(first, key=lambda one: first[one][0]["rmse"])
    row, x, predictions = first[strength]
    path, best = [row], (row["rmse"], predictions)
    if strength != strengths[-1]:
        fit.observe(held_out, strength, x)
    while options.radius is None and len(path) < options.effort.most_radii and fit.cut is None:
        if len(path) > 1 and path[-1]["rmse"] >= path[-2]["rmse"] * (1 - _WORTH):
            break
        path.append(_try(fit, _GROWTH * path[-1]["radius"], path))
        if path[-1]["rmse"] < best[0]:
            best = path[-1]["rmse"], _predictions(fit)
    radius = fit.radius if fit.cut is not None else _best_radius(path)
    return Choice(radius, strength, path, held_out, best[1])


def _held_out(fit: CompletionFit) -> np.ndarray | None:
    """Entries to choose by; None if there are too few."""
    n, options = fit.pattern.size, fit.options
    chosen = check_random_state(options.random_state).random(n) < options.validation_fraction
    return chosen if n >= 20 and chosen.any() else None


def _predictions(fit: CompletionFit) -> np.ndarray:
    return (fit.residual() + fit.values)[fit.held_out]


def _first_radius(fit: CompletionFit, strength: float) -> float:
    spread = float(np.sqrt(np.mean(fit.residual()[~fit.held_out] ** 2)))
    return 1.5 * max(float(np.sqrt(fit.pattern.size)) * spread, 1e-6) / (1 + strength)


def _try(fit: CompletionFit, radius: float, path: list[PathRow]) -> PathRow:
    """Steps at one radius, as a row of the path."""
    began, steps = time.perf_counter(), fit.steps
    fit.set_radius(radius)
    fit.go(min((row["rmse"] for row in path), default=np.inf))
    rmse = fit.held_out_rmse()
    fit.say(f"held-out RMSE {rmse:.4f}, rank {fit.rank}" + (", with similarity" if fit.similarity else ""))
    seconds = time.perf_counter() - began
    return {"radius": radius, "rmse": rmse, "rank": fit.rank, "steps": fit.steps - steps, "seconds": seconds}


def _best_radius(path: list[PathRow]) -> float:
    """Between the radii: the lowest point of the parabola through the best one and its neighbours, on a log scale."""
    best = min(range(len(path)), key=lambda i: path[i]["rmse"])
    if best in (0, len(path) - 1):
        return path[best]["radius"]
    x = np.log([path[i]["radius"] for i in (best - 1, best, best + 1)])
    curve = np.polyfit(x - x[1], [path[i]["rmse"] for i in (best - 1, best, best + 1)], 2)
    lowest = -curve[1] / (2 * curve[0]) if curve[0] > 0 else 0.0
    return float(np.exp(x[1] + np.clip(lowest, x[0] - x[1], x[2] - x[1])))
