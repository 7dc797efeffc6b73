"""Chapter 1: complete a table of temperatures of which some are missing and some are wrong."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import numpy as np

from bilevax.drawing.figures import new_figure
from bilevax.experiments.story.chapter import Chapter, Outcome, Report, compare_errors, table_row

SENSORS, HOURS, PATTERNS = 150, 100, 3
MEAN, SPREAD, NOISE = 20.0, 5.0, 0.5
"""Of the temperatures, in degrees."""
OBSERVED, WRONG = 0.4, 0.1
"""The share of readings that arrive, and the share of these that are wrong."""
SMALLEST_FAULT, LARGEST_FAULT = 15.0, 40.0
DOUBT = 2.5
"""The `outlier` of the fit: well above the noise, well below the faults."""
MAX_STEPS, TOL = 200, 1e-4


class Readings(NamedTuple):
    """The true temperatures, what the sensors sent, and two masks: what arrived, and what of that is wrong."""

    truth: np.ndarray
    sent: np.ndarray
    arrived: np.ndarray
    wrong: np.ndarray


class Fit(NamedTuple):
    """A completed table and how the fit ended."""

    table: np.ndarray
    status: str
    message: str


def make_readings(seed: int) -> Readings:
    """Temperatures that are a mean plus three patterns, each a wave over the sensors times a wave over the hours."""
    rng = np.random.default_rng(seed)

    def wave(count: int, cycles: float) -> np.ndarray:
        return np.sin(2 * np.pi * (cycles * np.linspace(0, 1, count) + rng.random()))

    pairs = zip((1.0, 2.0, 3.0), rng.permutation((1.5, 2.5, 4.0)), strict=True)
    patterns = np.sum([np.outer(wave(SENSORS, i), wave(HOURS, j)) for i, j in pairs], axis=0)
    truth: np.ndarray = MEAN + SPREAD * patterns / np.std(patterns)
    arrived = rng.random(truth.shape) < OBSERVED
    wrong = arrived & (rng.random(truth.shape) < WRONG)
    faults = rng.choice((-1, 1), truth.shape) * rng.uniform(SMALLEST_FAULT, LARGEST_FAULT, truth.shape)
    sent = truth + NOISE * rng.normal(size=truth.shape) + wrong * faults
    return Readings(truth, sent, arrived, wrong)


def chapter(seed: int) -> Chapter:
    """The chapter for one seed."""
    readings = make_readings(seed)
    return Chapter(
        "A matrix with wrong entries",
        (
            f"{SENSORS} sensors measure a temperature once an hour, for {HOURS} hours. Only "
            f"{readings.arrived.mean():.0%} of the readings arrive. Of these {readings.arrived.sum()} readings, "
            f"{readings.wrong.sum()} are wrong by {SMALLEST_FAULT:g} to {LARGEST_FAULT:g} degrees, and nobody knows "
            "which. The task is to fill in the readings that did not arrive.",
            f"The true table is simple: a mean and {PATTERNS} patterns describe all of it. Least squares looks for a "
            "simple table that is close to all readings, the wrong ones included. bilevax solves one problem inside "
            f"another. The inner problem corrects readings that are far from the table (more than about {DOUBT:g} "
            "degrees). The outer problem fits the table to the corrected readings.",
        ),
        "readings.png",
        lambda report: _solve(readings, report),
    )


def _solve(readings: Readings, report: Report) -> Outcome:
    least_squares = _complete(readings, None, "least squares", report)
    robust = _complete(readings, DOUBT, "bilevax", report)
    missing = ~readings.arrived
    mean = float(readings.sent[readings.arrived].mean())
    guess, plain, ours = (
        float(np.sqrt(np.mean((table - readings.truth)[missing] ** 2)))
        for table in (mean, least_squares.table, robust.table)
    )
    recognised = _recognised(readings, robust.table)
    return Outcome(
        (
            f"On the {missing.sum()} readings that did not arrive, least squares is wrong by {plain:.2f} degrees "
            f"(root mean square); guessing the mean everywhere gives {guess:.2f}. bilevax is wrong by {ours:.2f} "
            f"degrees: its error is {compare_errors(plain, ours)}. Nobody told it which readings are wrong, but of the "
            f"{readings.wrong.sum()} readings that lie farthest from its table, {recognised} are wrong ones.",
            f'The fit by bilevax ended with the status {robust.status}. Its message: "{robust.message}". '
            f"{_meaning(robust.status)} What was verified is the error itself, on true temperatures that neither fit "
            "was given.",
        ),
        table_row(
            "complete a matrix with wrong entries",
            f"error {plain:.2f} degrees (least squares)",
            f"error {ours:.2f} degrees",
            _ENDINGS.get(robust.status, robust.status),
        ),
        _draw(readings, least_squares.table, robust.table, plain, ours),
        "The true temperatures; what arrived (white: nothing); the table by least squares; the table by bilevax. All "
        "four have the same colours, and the errors are those on readings that did not arrive.",
    )


_ENDINGS = {"STALLED": "settled", "MAX_STEPS": "steps used up"}


def _meaning(status: str) -> str:
    if status == "STALLED":
        return "This is the usual end of such a fit. It is not a proof that no better table exists."
    return "The fit ended before it settled, so more steps may give a better table."


def _complete(readings: Readings, outlier: float | None, name: str, report: Report) -> Fit:
    from bilevax.estimators import MatrixCompletion  # needs scikit-learn, an extra

    began = time.perf_counter()
    rows, cols = np.nonzero(readings.arrived)
    # Readings go missing at random, so which ones arrived tells nothing about the similarity of sensors. The fit with
    # `outlier` moves slowly at first, which the default `tol` may take for the end. The chapter is about the two
    # levels, so that neither fit gets the factors that `refit` would add.
    model = MatrixCompletion(outlier=outlier, similarity=0, tol=TOL, max_steps=MAX_STEPS, refit=False)
    model.fit((rows, cols, readings.sent[rows, cols]))
    report(f"{name}: {model.n_steps_} steps, {time.perf_counter() - began:.1f} s")
    return Fit(model.complete(), model.status_, model.message_)


def _recognised(readings: Readings, table: np.ndarray) -> int:
    """How many of the readings that lie farthest from the table are wrong ones."""
    distance = np.where(readings.arrived, np.abs(readings.sent - table), -1.0).ravel()
    farthest = np.argsort(-distance)[: readings.wrong.sum()]
    return int(readings.wrong.ravel()[farthest].sum())


def _draw(readings: Readings, plain: np.ndarray, ours: np.ndarray, plain_error: float, our_error: float) -> Any:
    figure, axes = new_figure(4)
    panels = (
        ("the truth", readings.truth),
        (
            f"what arrived ({readings.wrong.sum() / readings.arrived.sum():.0%} of it is wrong)",
            np.where(readings.arrived, readings.sent, np.nan),
        ),
        (f"least squares: error {plain_error:.2f}°", plain),
        (f"bilevax: error {our_error:.2f}°", ours),
    )
    low, high = readings.truth.min(), readings.truth.max()
    for axis, (title, table) in zip(axes, panels, strict=True):
        axis.grid(False)
        axis.spines[:].set_visible(False)
        image = axis.imshow(table, cmap="viridis", vmin=low, vmax=high, aspect="auto", interpolation="nearest")
        axis.set_title(title, fontsize=13)
        axis.set_xticks(range(0, HOURS + 1, 25))
        axis.set_yticks(range(0, SENSORS + 1, 50))
    for axis in axes[::2]:
        axis.set_ylabel("sensor")
    for axis in axes[2:]:
        axis.set_xlabel("hour")
    figure.colorbar(image, ax=axes, label="temperature in degrees", extend="both", shrink=0.6, aspect=30)
    return figure
