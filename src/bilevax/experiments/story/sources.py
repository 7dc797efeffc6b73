"""Chapter 2: learn how far to trust each of several sources of training data."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from bilevax.drawing.figures import PALETTE, finish_axis, new_figure
from bilevax.experiments.story.chapter import Chapter, Outcome, Report, compare_errors, table_row
from bilevax.hypergradient import exact_hypergradient
from bilevax.problem import BilevelProblem
from bilevax.runs.audit import exact_metrics
from bilevax.runs.result import Result
from bilevax.runs.solve import solve
from bilevax.runs.stopping import Status
from bilevax.sets import Simplex

LABORATORIES, BAD = 8, 3
MEASUREMENTS, CLEAN, NEW = 30, 60, 2000
"""Measurements of each laboratory, clean ones to validate with, and new ones to test on."""
INPUTS, NOISE, RIDGE = 20, 0.5, 0.01
STEPS, TOL = 2000, 5e-3
GOOD_COLOUR, BAD_COLOUR = PALETTE[0], PALETTE[1]


class Sources(NamedTuple):
    """What the laboratories sent, clean measurements, which laboratories are bad, and new measurements to test on."""

    data: dict[str, Array]
    bad: np.ndarray
    new_inputs: np.ndarray
    new_values: np.ndarray


def make_sources(seed: int) -> Sources:
    """Linear measurements with a little noise; bad laboratories send random numbers of the same size."""
    rng = np.random.default_rng(seed)
    model = rng.normal(size=INPUTS)
    A = rng.normal(size=(LABORATORIES, MEASUREMENTS, INPUTS))
    a = A @ model + NOISE * rng.normal(size=A.shape[:2])
    bad = np.sort(rng.permutation(LABORATORIES)[:BAD])
    a[bad] = np.linalg.norm(model) * rng.normal(size=(BAD, MEASUREMENTS))
    V = rng.normal(size=(CLEAN, INPUTS))
    v = V @ model + NOISE * rng.normal(size=CLEAN)
    new = rng.normal(size=(NEW, INPUTS))
    data = {name: jnp.asarray(array) for name, array in {"A": A, "a": a, "V": V, "v": v}.items()}
    return Sources(data, bad, new, new @ model)


def validation(x: Any, y: Any, data: Any) -> Any:
    """Upper level: the squared error of model y on the clean measurements."""
    return jnp.mean((data["V"] @ y - data["v"]) ** 2)


def training(x: Any, y: Any, data: Any) -> Any:
    """Lower level: model y is fitted to the laboratories, weighted by x."""
    return x @ jnp.mean((data["A"] @ y - data["a"]) ** 2, axis=1) + RIDGE * jnp.sum(y**2)


def chapter(seed: int) -> Chapter:
    """The chapter for one seed."""
    sources = make_sources(seed)
    return Chapter(
        "Which data sources can be trusted",
        (
            f"{LABORATORIES} laboratories send {MEASUREMENTS} measurements each, from which you train a model. "
            f"{BAD} of them send random numbers, and nobody knows which. You also have {CLEAN} measurements of your "
            "own that you trust.",
            "bilevax learns one weight for each laboratory, again with one problem inside another. The inner problem "
            "trains the model on the weighted measurements. The outer problem looks for the weights (at least 0, "
            "adding up to 1) whose model has the smallest error on your own measurements.",
        ),
        "sources.png",
        lambda report: _solve(sources, report),
    )


class Errors(NamedTuple):
    """Root mean squared errors of one model."""

    clean: float
    new: float


def _solve(sources: Sources, report: Report) -> Outcome:
    problem = BilevelProblem(validation, training, Simplex(), sources.data)
    equal = jnp.full(LABORATORIES, 1 / LABORATORIES)
    began = time.perf_counter()
    y0 = jnp.zeros(INPUTS)
    result = solve(problem, x0=equal, y0=y0, steps=STEPS, tol=TOL, metrics=exact_metrics, every=1)
    report(f"bilevax: {result.steps} steps, {time.perf_counter() - began:.1f} s with compilation")
    errors = {
        "equal weights": _errors(sources, exact_hypergradient(problem, equal, y0).y),
        "own data only": _errors(sources, _own_model(sources)),
        "learned weights": _errors(sources, result.audit().y),
    }
    before, alone, learned = errors.values()
    trusted = float(np.asarray(result.x)[sources.bad].sum())
    return Outcome(
        (
            f"The {BAD} bad laboratories together get the weight {trusted:.3f}; with equal weights they would have "
            f"{BAD / LABORATORIES:.3f}. The error on your own measurements (root mean square) is {before.clean:.2f} "
            f"with equal weights and {learned.clean:.2f} with the learned ones, that is, "
            f"{compare_errors(before.clean, learned.clean)}.",
            f"The weights were chosen to suit your own measurements, so the fair test is on {NEW} new ones. There the "
            f"error is {before.new:.2f} with equal weights, {alone.new:.2f} with a model trained on your own "
            f"measurements alone, and {learned.new:.2f} with the learned weights. Compared with the better of the "
            f"other two that is {compare_errors(min(before.new, alone.new), learned.new)}.",
            _ending(result),
        ),
        table_row(
            "weigh data sources",
            f"error {before.new:.2f} (equal weights) or {alone.new:.2f} (own data only)",
            f"error {learned.new:.2f}",
            "verified" if result.status is Status.CONVERGED else "not verified",
        ),
        _draw(sources, result, errors),
        "Left: the learned weight of each laboratory; the pale bars are equal weights. Middle: the error of three "
        "models on new measurements. Right: how the gap falls; the dashed line is the gap that was asked for.",
    )


def _ending(result: Result) -> str:
    gap = f"{float(result.audit().gap):.2g}"
    if result.status is Status.CONVERGED:
        return (
            f"The run ended with the status CONVERGED after {result.steps} steps. bilevax gives this status only after "
            "a check: it solved the inner problem once more, accurately, and computed the gap from that. The gap is "
            f"{gap}, and {TOL:g} was asked for. To first order, no other weights lower the mean squared error on "
            "your own measurements by more than the gap."
        )
    return (
        f'The run ended with the status {result.status.name}. Its message: "{result.message}". The gap is {gap}, and '
        f"{TOL:g} was asked for, so bilevax does not call this a success."
    )


def _own_model(sources: Sources) -> Array:
    """The model trained on the clean measurements alone, with the same ridge."""
    V, v = sources.data["V"], sources.data["v"]
    return jnp.linalg.solve(V.T @ V / CLEAN + RIDGE * jnp.eye(INPUTS), V.T @ v / CLEAN)


def _errors(sources: Sources, y: Array) -> Errors:
    clean = float(jnp.sqrt(validation(None, y, sources.data)))
    return Errors(clean, float(np.sqrt(np.mean((sources.new_inputs @ np.asarray(y) - sources.new_values) ** 2))))


def _draw(sources: Sources, result: Result, errors: dict[str, Errors]) -> Any:
    figure, (weights, tests, convergence) = new_figure(3)
    is_bad = np.isin(np.arange(LABORATORIES), sources.bad)
    for chosen, colour, label in ((~is_bad, GOOD_COLOUR, "good laboratory"), (is_bad, BAD_COLOUR, "bad laboratory")):
        places = np.flatnonzero(chosen)
        weights.bar(places, 1 / LABORATORIES, color=colour, alpha=0.2)
        bars = weights.bar(places, np.asarray(result.x)[chosen], color=colour, label=label)
        weights.bar_label(bars, fmt="%.2f", fontsize=9)
    weights.set_xticks(range(LABORATORIES), [chr(ord("A") + i) for i in range(LABORATORIES)])
    weights.set_xlabel("laboratory")
    weights.set_title("learned weights (pale: equal weights)")
    weights.margins(y=0.3)  # room for the legend
    weights.legend(frameon=False, loc="upper center", ncols=2, columnspacing=1, handlelength=1)

    heights = [error.new for error in errors.values()]
    bars = tests.bar(
        [name.replace(" ", "\n", 1) for name in errors], heights, color=["#999999", "#999999", GOOD_COLOUR]
    )
    tests.bar_label(bars, fmt="%.2f")
    tests.set_title("error on new measurements")
    tests.margins(y=0.12)
    for axis in (weights, tests):
        axis.grid(False, axis="x")

    steps, gaps = result.trace["step"], result.trace["true_gap"]
    convergence.plot(steps, gaps, color=GOOD_COLOUR, linewidth=1.6)
    convergence.plot(steps[-1], gaps[-1], color=GOOD_COLOUR, marker="o")
    convergence.axhline(TOL, color="#555555", linestyle="--", linewidth=1)
    convergence.annotate(f"asked for: {TOL:g}", (0.02, TOL), xycoords=("axes fraction", "data"), va="bottom")
    finish_axis(convergence, "step", "true gap")
    convergence.set_title(f"{result.status.name} after {result.steps} steps")
    return figure
