"""The search for the weights: stage by stage, each one a bilevel problem with few parameters.

Stage 0 finds the level of equal weights. Each later stage reads from the fits of the stage before how useful every
feature is, fold by fold, so that held-out rows never enter, and finds the level and the adaptivity of a profile made of
it. The first such stage is taken unless held-out rows speak against it; later ones must lower the held-out loss.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bilevax.estimators.feature_weights.kept import Kept
from bilevax.estimators.feature_weights.regression import Spread
from bilevax.estimators.feature_weights.subspace import BINS, Folds, Point, Profile, evaluate, reduced
from bilevax.estimators.limits import Limits
from bilevax.estimators.upper_level import solve_upper_level
from bilevax.problems.weight_profile import MOST_ADAPTIVE, SPAN, weight_profile
from bilevax.runs.result import Result
from bilevax.runs.stopping import Stop

_ROUNDS = 6
"""The most exact fits in a stage."""
_SURE = 0.3
"""The standard deviation of the prior on the adaptivity, whose mean is 1; the loss counts as a log-likelihood."""
_CLOSE = 0.005
"""A point whose logarithms of weights differ by less is the same."""
MOST_STAGES = 10


class Plan(NamedTuple):
    """How long to search, how exactly, and how far weights may differ."""

    limits: Limits
    max_steps: int
    tol: float
    budget: float
    budget_kind: str

    @property
    def over(self) -> bool:
        """Whether the search should end with what it has."""
        return self.limits.stop() is not None

    def within_budget(self, steps: np.ndarray, moved: np.ndarray) -> np.ndarray:
        """Steps so short that no choice of the adaptivity leaves the budget; weights have `moved` from their start."""
        if self.budget_kind == "box":
            return np.clip(steps, (-self.budget - moved) / MOST_ADAPTIVE, (self.budget - moved) / MOST_ADAPTIVE)
        left = np.maximum(self.budget - np.mean(np.abs(moved), axis=1), 0.0)
        longest = MOST_ADAPTIVE * np.mean(np.abs(steps), axis=1)
        return steps * np.minimum(1.0, left / np.maximum(longest, 1e-300))[:, None]


class Stage(NamedTuple):
    """What one stage found."""

    name: str
    profile: Profile
    point: Point
    moderation: float
    losses: np.ndarray
    """The held-out loss of each row."""
    value: float
    """Their mean."""
    gap: float
    """The Frank-Wolfe gap of the whole problem at the point, from exact fits."""
    result: Result | None
    """Of the last run of `solve`; None before the first."""
    spread: Spread | None
    """Of the fit on all rows from which the variances come; None where probabilities are not moderated."""

    def log_weights(self, k: int) -> np.ndarray:
        """Those of fold k; the last one has all rows."""
        return self.profile.log_weights(k, self.point.level, self.point.adaptivity)


def run_stage(
    name: str, folds: Folds, profile: Profile, start: np.ndarray, x0: dict[str, float], plan: Plan, kept: Kept,
    spread: Spread | None = None,
) -> Stage:  # fmt: skip
    """Alternate between exact fits and the bilevel problem in their span."""
    fit_tol = 1e-8 if folds.regressions[0].direct or folds.regressions[0].small else 1e-4
    x, best, result = dict(x0), None, None
    points: list[Point] = []
    prior = profile.dispersion / (_SURE**2 * len(folds.number)) if profile.adaptive else 0.0
    for _ in range(_ROUNDS):
        level, adaptivity = x["level"], x["adaptivity"]
        near = points[-1].fits[:, 0] if points else start
        make = lambda: evaluate(folds, profile, level, adaptivity, near, fit_tol)  # noqa: B023, E731
        points.append(Point(*kept(f"{name}", lambda: tuple(make()))))  # noqa: B023
        found = _stage(name, folds, profile, points[-1], x, prior, result, spread)
        if best is not None and found.value + _prior(found, prior) > best.value + _prior(best, prior):
            break  # the subspace promised more than there was
        done = best is not None and _distance(best, found) < _CLOSE
        best = found
        if plan.over or (result is not None and (done or best.gap <= plan.tol)):
            break
        data, y0 = reduced(folds, profile, points, prior)
        result = _solve(folds.loss.name, data, x, y0, plan)
        x = {key: float(value) for key, value in result.x.items()}
        moved = abs(x["level"] - best.point.level) + 5 * abs(x["adaptivity"] - best.point.adaptivity) * profile.adaptive
        if moved < _CLOSE:  # the fits would be the same; only the moderation is new
            best = _stage(name, folds, profile, best.point, x, prior, result, spread)
            break
    assert best is not None
    return best._replace(result=result)


def _prior(stage: Stage, prior: float) -> float:
    return 0.5 * prior * (stage.point.adaptivity - 1) ** 2


def _distance(a: Stage, b: Stage) -> float:
    adaptive = abs(a.point.adaptivity - b.point.adaptivity) if a.profile.adaptive else 0.0
    return abs(a.point.level - b.point.level) + 5 * adaptive + abs(a.moderation - b.moderation)


def _solve(loss: str, data: dict[str, Any], x: dict[str, float], y0: np.ndarray, plan: Plan) -> Result:
    with jax.enable_x64(True):
        arrays = jax.tree.map(jnp.asarray, data)
        start = {name: jnp.asarray(value, float) for name, value in x.items()}
        return solve_upper_level(
            weight_profile(loss, arrays), start, jnp.asarray(y0), owner="FeatureWeights", tol=plan.tol,
            max_steps=plan.max_steps, limits=plan.limits, checkpoint=None, verbose=0,
        )  # fmt: skip


def _stage(
    name: str, folds: Folds, profile: Profile, point: Point, x: dict[str, float], prior: float, result: Result | None,
    spread: Spread | None,
) -> Stage:  # fmt: skip
    """The held-out losses at a point of exact fits, and the gap from their derivatives."""
    moderation, own = x["moderation"], folds.own(point.scores)
    shrink = 1 / np.sqrt(1 + moderation * profile.variance)
    Z = own[..., 0] * shrink
    losses, slopes = folds.loss.values(Z, folds.targets), folds.loss.slopes(Z, folds.targets)
    along = lambda dZ: float(folds.rows @ np.sum(slopes * dZ, axis=1))  # noqa: E731
    gradient = {
        "level": along(own[..., 1] * shrink),
        "adaptivity": along(own[..., 2] * shrink) + prior * (point.adaptivity - 1),
        "moderation": along(-0.5 * Z * shrink**2 * profile.variance),
    }
    bounds = {"level": (-SPAN, SPAN), "adaptivity": (0.0, MOST_ADAPTIVE), "moderation": (0.0, 3.0)}
    gap = sum(max(g * (x[key] - end) for end in bounds[key]) for key, g in gradient.items())
    return Stage(name, profile, point, moderation, losses, float(folds.rows @ losses), gap, result, spread)


def flat_profile(folds: Folds, base: np.ndarray) -> Profile:
    """The same base weights for all folds, and a level."""
    K = len(folds.held_out)
    nothing = np.zeros((K + 1, len(base)), int)
    return Profile(np.tile(base, (K + 1, 1)), np.zeros(BINS), nothing, np.zeros((len(folds.targets), 1)), 1.0)


def next_profile(
    folds: Folds, stage: Stage, pool: Callable[[np.ndarray], np.ndarray], base: np.ndarray, plan: Plan, kept: Kept
) -> tuple[Profile, Spread]:
    """The profile that the fits of a stage suggest, and the posterior covariance of the fit on all rows.

    The prior variance of a feature that explains these fits best is its mean squared coefficient plus its posterior
    variance (one step of expectation maximization). `pool` averages over the features of a group. `base` has the
    logarithms of the weights at the start of the search.
    """
    K, last = len(folds.held_out), folds.regressions[-1]
    log_weights = np.stack([stage.log_weights(k) for k in range(K + 1)])
    (whole,) = kept("all rows", lambda: (last.fit(log_weights[K], np.mean(stage.point.fits[:, 0], axis=0), 1e-5),))
    fits = [*stage.point.fits[:, 0], whole]
    squared = folds.loss.name == "squared"
    dispersion = 2 * stage.value if squared else 1.0
    wanted, variance, spread = [], np.zeros((len(folds.targets), 1)), None
    for k, (regression, P) in enumerate(zip(folds.regressions, fits, strict=True)):
        spread = regression.spread(P, log_weights[k])
        second = np.mean(P[:-1] ** 2 + dispersion * spread.diagonal[:-1], axis=1)
        wanted.append(-np.log(pool(second * np.exp(log_weights[k]) / dispersion)))
        if k < K and not squared:
            of_rows = np.mean(spread.of_rows(folds.design), axis=1, keepdims=True)  # one factor for all classes
            variance[folds.number == k] = np.pi / 8 * of_rows[folds.number == k]
    centred = lambda logs: logs - np.mean(logs, axis=-1, keepdims=True)  # noqa: E731
    steps = plan.within_budget(centred(np.stack(wanted)), centred(log_weights) - centred(base))
    grid = np.linspace(steps.min(), steps.max(), BINS) if np.ptp(steps) else np.zeros(BINS)
    place = np.abs(np.searchsorted((grid[1:] + grid[:-1]) / 2, steps)) if np.any(grid) else np.zeros(steps.shape, int)
    assert spread is not None
    return Profile(log_weights, grid, place, variance, dispersion), spread


class Search(NamedTuple):
    """Every stage that was tried, in order, and the one that was chosen."""

    stages: list[Stage]
    chosen: Stage
    stop: Stop | None
    """The limit that ended the search, if one did."""


def difference(folds: Folds, a: Stage, b: Stage) -> tuple[float, float]:
    """The mean of the held-out loss of a minus that of b, and its standard error."""
    gap = a.losses - b.losses
    mean = float(folds.rows @ gap)
    return mean, float(np.sqrt(np.sum(folds.rows**2 * (gap - mean) ** 2)))


def search(
    folds: Folds, bases: dict[str, np.ndarray], pool: Callable[[np.ndarray], np.ndarray], plan: Plan, kept: Kept,
    report: Callable[[Stage], None],
) -> Search:  # fmt: skip
    """Find the weights. `bases` are logarithms of weights to begin with, by name; `report` is called for each stage."""
    K, (d, C) = len(folds.held_out), (folds.design.d, folds.targets.shape[1])
    tried: list[Stage] = []

    def add(stage: Stage) -> Stage:
        tried.append(stage)
        report(stage)
        return stage

    def refined(name: str, stage: Stage, x0: dict[str, float], adaptive: bool) -> Stage:
        profile, spread = next_profile(folds, stage, pool, base, plan, kept)
        profile = profile if adaptive else profile._replace(steps=np.zeros(BINS))
        return add(run_stage(name, folds, profile, stage.point.fits[:, 0], x0, plan, kept, spread))

    for name, base in bases.items():
        if not tried or not plan.over:
            add(_level(name, folds, base, np.zeros((K, d + 1, C)), plan, kept))
    chosen = tried[0]
    for stage in tried[1:]:
        # Equal weights are kept unless the others are surely better: the profile can correct the rest.
        mean, error = difference(folds, stage, chosen)
        chosen = stage if mean < -error else chosen
    base = bases[chosen.name]
    if folds.loss.name != "squared" and not plan.over:
        x0 = {"level": 0.0, "adaptivity": 1.0, "moderation": 1.0}
        stage = refined(f"{chosen.name}, moderated", chosen, x0, adaptive=False)
        chosen = min(chosen, stage, key=lambda stage: stage.value)
    for number in range(1, MOST_STAGES + 1 if plan.budget > 0 else 1):
        if plan.over:
            break
        x0 = {"level": 0.0, "adaptivity": 1.0, "moderation": chosen.moderation}
        stage = refined(f"adaptive weights, round {number}", chosen, x0, adaptive=True)
        mean, error = difference(folds, stage, chosen)
        if not mean <= (error if number == 1 else -error):
            break
        chosen = stage
    return Search(tried, chosen, plan.limits.stop())


def _level(name: str, folds: Folds, base: np.ndarray, start: np.ndarray, plan: Plan, kept: Kept) -> Stage:
    """The level of equal weights, also where it is far from the first guess."""
    x0 = {"level": 0.0, "adaptivity": 1.0, "moderation": 0.0}
    for _ in range(5):
        stage = run_stage(name, folds, flat_profile(folds, base), start, x0, plan, kept)
        if abs(stage.point.level) < 0.9 * SPAN or plan.over:
            break
        base, start = base + stage.point.level, stage.point.fits[:, 0]
    return stage
