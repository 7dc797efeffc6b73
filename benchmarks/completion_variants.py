"""The variants of `bx.estimators.MatrixCompletion` that docs/completion.md compares, and how to fit them."""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple
from unittest import mock

import jax.numpy as jnp
import numpy as np

from bilevax.estimators import MatrixCompletion, effects_only
from bilevax.estimators.matrix_completion import fit as ball
from bilevax.estimators.matrix_completion.entries import at
from bilevax.estimators.matrix_completion.fit import CompletionFit


class WithLowerLevel(MatrixCompletion):
    """The estimator with any lower level that the problem has."""

    lower: dict = {}

    def with_lower(self, **lower):
        """Set fields of `LowerLevel` that the estimator does not offer in this combination."""
        self.lower = lower
        return self

    def _options(self):
        options = super()._options()
        return options._replace(lower={**options.lower, **self.lower})


class SplitFit(CompletionFit):
    """A fit whose two levels have entries of their own."""

    def __init__(self, entries, options, interrupt, *, disjoint):
        """Draw a random half of the entries as Omega1; Omega2 is the other half, or all of them."""
        super().__init__(entries, options, interrupt)
        self.first = np.random.default_rng(0).random(len(self.values)) < 0.5
        self.second = ~self.first if disjoint else np.ones_like(self.first)

    def observe(self, held_out, norm, x=None):
        """Observe as always, then give each level its own entries."""
        super().observe(held_out, norm, x)
        omega1, omega2 = (self.mask * part for part in (self.first, self.second))
        data = {"omega1": jnp.asarray(omega1), "omega2": jnp.asarray(omega2), "count1": jnp.asarray(omega1.sum())}
        self.problem = replace(self.problem, data={**self.problem.data, **data})
        self._begin_at(self.state.x)


class Task(NamedTuple):
    """Entries to learn from and entries to predict."""

    train: tuple[np.ndarray, np.ndarray, np.ndarray]
    test: tuple[np.ndarray, np.ndarray, np.ndarray]


class Fit(NamedTuple):
    """A fitted model and how it predicts."""

    model: MatrixCompletion
    predict: Callable


class Variant(NamedTuple):
    """One row of a table: `fit(task, defaults)` gets the figures of the defaults on the same task."""

    fit: Callable[[Task, dict], Fit]
    on: tuple[str, ...] = ("100k", "1m")


def fitted(train, *, lower=None, **options):
    """A fit with these options; a short fit before it compiles what it needs."""
    options = {"refit": False, "ridge": 5.0, **options}  # the shrunk matrix alone
    model = WithLowerLevel(**options).with_lower(**(lower or {}))
    short = {**options, "radius": 1.0, "similarity": 0.0, "max_steps": 1}
    WithLowerLevel(**short).with_lower(**(lower or {})).fit(train)
    began = time.process_time()
    model.fit(train)
    model.cpu_seconds = time.process_time() - began
    return model


def plain(task, defaults, **options):
    """The estimator with other options than the defaults."""
    model = fitted(task.train, **options)
    return Fit(model, model.predict)


def at_radius(task, defaults, factor, **options):
    """A multiple of the radius that the path chooses, with the similarity it chooses."""
    return plain(task, defaults, radius=factor * defaults["radius"], similarity=defaults["similarity"], **options)


def after_effects(task, defaults, *, make_fit=CompletionFit, **options):
    """Effects first, then a low-rank part of what they leave."""
    rows, cols, values = task.train
    began = time.process_time()
    effects = effects_only(rows, cols, values)
    spent = time.process_time() - began

    def base(rows, cols):
        return effects.mean + at(effects.rows, rows) + at(effects.cols, cols)

    with mock.patch.object(ball, "CompletionFit", make_fit):
        model = fitted((rows, cols, values - base(rows, cols)), effects=False, clip=False, **options)
    model.cpu_seconds += spent
    lowest, highest = values.min(), values.max()
    return Fit(model, lambda rows, cols: np.clip(base(rows, cols) + model.predict(rows, cols), lowest, highest))


def coupled(coupling):
    """Options for another weight of |X - V|^2, with a ridge that holds the effects as firmly as the default does.

    Without regularizer the upper level is the mean squared error over (1 + coupling)^2; the ridge is not divided by it.
    """
    return {"coupling": coupling, "ridge": 5.0 * (1.05 / (1 + coupling)) ** 2}


def robust(coupling, scale):
    """Options of the lower level with the pseudo-Huber data loss, also where `coupling` is below 1."""
    return {**coupled(coupling), "lower": {"data_loss": "pseudo-huber", "outlier": scale}}


SMALL = ("100k",)
DEFAULTS = "defaults"
EFFECTS_BEFORE = "effects fitted before"
PARTS = {
    DEFAULTS: Variant(plain),
    "no similarity (`similarity=0`)": Variant(partial(plain, similarity=0.0)),
    "plain nuclear norm (`weighted=False`)": Variant(partial(plain, weighted=False)),
    "neither": Variant(partial(plain, similarity=0.0, weighted=False)),
    "no effects (`effects=False`)": Variant(partial(plain, effects=False)),
    EFFECTS_BEFORE: Variant(after_effects),
}
NO_BOUND = "`max_rank=None`"
RANKS = {
    "`max_rank=10`": Variant(partial(plain, max_rank=10)),
    "`max_rank=20`": Variant(partial(plain, max_rank=20)),
    "`max_rank=50`": Variant(partial(plain, max_rank=50)),
    DEFAULTS: PARTS[DEFAULTS],
    "`max_rank=200`": Variant(partial(plain, max_rank=200)),
    NO_BOUND: Variant(partial(plain, max_rank=None), SMALL),
}
CHOSEN, OPTIMUM = "the chosen radius", "the same, `tol=1e-6`, `max_steps=500`"
TO_THE_END = {"tol": 1e-6, "max_steps": 500}
RADII = {
    DEFAULTS: PARTS[DEFAULTS],
    CHOSEN: Variant(partial(at_radius, factor=1.0)),
    OPTIMUM: Variant(partial(at_radius, factor=1.0, **TO_THE_END), SMALL),
    "half of it": Variant(partial(at_radius, factor=0.5)),
    "twice it": Variant(partial(at_radius, factor=2.0)),
}
OTHER_OPTIMUM = "λ₁ = 0, λ₂ = 1, the chosen radius, `tol=1e-6`, `max_steps=500`"
LEVELS = {
    DEFAULTS: PARTS[DEFAULTS],
    "λ₁ = 0, λ₂ = 1": Variant(partial(plain, **coupled(1.0))),
    OTHER_OPTIMUM: Variant(partial(at_radius, factor=1.0, **TO_THE_END, **coupled(1.0)), SMALL),
    "λ₁ = 0, λ₂ = 1, ridge 5": Variant(partial(plain, coupling=1.0)),
    "λ₁ = 0.05, λ₂ = 0.05 (printed)": Variant(partial(plain, denoise=0.05)),
    "λ₁ = 0.5, λ₂ = 0.05": Variant(partial(plain, denoise=0.5)),
    "λ₁ = 0.05, λ₂ = 1": Variant(partial(plain, denoise=0.05, **coupled(1.0))),
    "λ₁ = 0.5, λ₂ = 1": Variant(partial(plain, denoise=0.5, **coupled(1.0))),
}
_halves = partial(SplitFit, disjoint=True)
SPLITS = {
    EFFECTS_BEFORE: PARTS[EFFECTS_BEFORE],
    "Ω₁ a half, Ω₂ all": Variant(partial(after_effects, make_fit=partial(SplitFit, disjoint=False)), SMALL),
    "Ω₁ a half, Ω₂ the other": Variant(partial(after_effects, make_fit=_halves), SMALL),
    "the same, λ₁ = 0.05": Variant(partial(after_effects, make_fit=_halves, denoise=0.05), SMALL),
}
CLEAN = {**PARTS, **RANKS, **RADII, **LEVELS, **SPLITS}

# Options of `plain` on ratings of which some are random.
SQUARED, LEFT_OUT = "squared, λ₂ = 0.05", "squared, random ratings left out"
RANDOM_SHARES = (0.0, 0.05, 0.1)
LOSSES = {
    SQUARED: {},
    "squared, λ₂ = 1": coupled(1.0),
    "robust, λ₂ = 1, d = 1": robust(1.0, 1.0),
    "robust, λ₂ = 1, d = 2": robust(1.0, 2.0),
    "robust, λ₂ = 0.3, d = 1": robust(0.3, 1.0),
}

# Options of `plain` on the synthetic instance.
BEST_RADIUS = "squared, λ₂ = 1, radius in hindsight"
OUTLIER_SHARES = (0.0, 0.05)
SYNTHETIC = {
    "squared, λ₂ = 1": {"coupling": 1.0},
    BEST_RADIUS: {"coupling": 1.0},
    "robust, λ₂ = 1, d = 1": robust(1.0, 1.0),
    "robust, λ₂ = 1, d = 3": robust(1.0, 3.0),
    "robust, λ₂ = 1, d = 10": robust(1.0, 10.0),
}
LOW_RANK_ONLY = {"effects": False, "weighted": False, "similarity": 0.0, "clip": False, "max_rank": None}
