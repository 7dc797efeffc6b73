"""Figures, tables and claims of the matrix completion experiments, from their run directories."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from bilevax.drawing import figures
from bilevax.experiments.paper import completion, curves
from bilevax.experiments.paper.jobs import PRINTED, REPAIRED, Claim, Experiment, Figure, Report, Run, Runs, Table, judge

PANELS = [("error", "seconds"), ("lower_grad_norm", "seconds"), ("upper", "seconds")]
WORDS = {PRINTED: "as printed", REPAIRED: "repaired"}


def _rows(runs: Runs) -> list[dict[str, Any]]:
    return [
        {
            "variant": variant,
            "method": method,
            "status": ", ".join(own.values("status")),
            "steps": int(own.median(lambda run: run.steps)),
            "seconds": own.median(lambda run: run.seconds),
            "s / step": own.median(_step_seconds),
            "error on Ω": own.last("error"),
            "error outside Ω": own.last("error_unseen"),
            "‖∇_y g‖": own.last("lower_grad_norm"),
            "f(x, y)": own.last("upper"),
            "ℓ(x)": own.last("ell"),
            "true gap": own.median(lambda run: run.extras.get("true_gap", float("nan"))),
        }
        for variant in runs.values("variant")
        for method in runs.pick(variant=variant).values("method")
        for own in [runs.pick(variant=variant, method=method)]
    ]


def _step_seconds(run: Run) -> float:
    return float(run.seconds / max(run.steps, 1))


def _best(runs: Runs, variant: str, column: str, text: str, rivals: tuple[str, ...] = ("SBFW", "TTSA")) -> Claim:
    """IBCG ends lower than its rivals."""
    ends = {m: runs.pick(variant=variant, method=m).last(column) for m in ("IBCG", *rivals)}
    known = not any(np.isnan(v) for v in ends.values())
    holds = all(ends["IBCG"] < ends[m] for m in rivals) if known else None
    measured = ", ".join(f"{m} {v:.4g}" for m, v in ends.items())
    name = {"error": "error on Ω", "lower_grad_norm": "‖∇_y g‖", "upper": "f", "ell": "ℓ"}[column]
    return judge(text, f"last {name} of IBCG below that of {' and '.join(rivals)}", variant, measured, holds)


def _synthetic_claims(runs: Runs) -> list[Claim]:
    return [
        claim
        for variant in runs.values("variant")
        for claim in (
            _best(runs, variant, "error", "Synthetic: IBCG has the lowest normalized error."),
            _best(runs, variant, "lower_grad_norm", "Synthetic: IBCG attains lower ‖∇_y g‖ than TTSA.", ("TTSA",)),
        )
    ]


def _100k_claims(runs: Runs) -> list[Claim]:
    names = {"error": "normalized error", "lower_grad_norm": "‖∇_y g‖", "upper": "f"}
    return [
        _best(runs, variant, column, f"MovieLens 100K: IBCG is faster in {name}.")
        for variant in runs.values("variant")
        for column, name in names.items()
    ]


def _1m_claims(runs: Runs) -> list[Claim]:
    made = []
    for variant in runs.values("variant"):
        own = runs.pick(variant=variant)
        seconds = {m: own.pick(method=m).median(_step_seconds) for m in ("IBCG", "TTSA")}
        known = not any(np.isnan(v) for v in seconds.values())
        made.append(
            judge(
                "MovieLens 1M: projections make TTSA slow.",
                "a step of TTSA takes at least 5 times as long as one of IBCG",
                variant,
                ", ".join(f"{m} {v:.3g} s" for m, v in seconds.items()),
                seconds["TTSA"] >= 5 * seconds["IBCG"] if known else None,
            )
        )
        made.append(_best(own, variant, "error", "MovieLens 1M: SBFW is slower than IBCG.", ("SBFW",)))
        made.append(_best(own, variant, "ell", "MovieLens 1M: TTSA is behind IBCG when time is up.", ("TTSA",)))
    return made


CLAIMS = {"synthetic": _synthetic_claims, "100k": _100k_claims, "1m": _1m_claims}
TITLES = {"synthetic": "Synthetic completion", "100k": "MovieLens 100K", "1m": "MovieLens 1M"}


def report(name: str, runs: Runs) -> Report:
    """The three panels of the paper over time, once for each variant."""
    pictures = []
    for variant in runs.values("variant"):
        own = runs.pick(variant=variant)
        caption = f"{TITLES[name]}, {WORDS[variant]}: normalized error on Ω, lower gradient and f over time."
        pictures.append(Figure(f"completion-{name}-{variant}", caption, partial(curves.draw_panels, own, PANELS)))
    table = Table(f"completion-{name}", "Ends of the runs.", _rows(runs))
    return Report(pictures, [table], CLAIMS[name](runs))


def _swept(runs: Runs, factor: str) -> list[tuple[float, Runs]]:
    values = sorted({run.protocol[factor] for run in runs})
    return [(value, Runs([run for run in runs if run.protocol[factor] == value])) for value in values]


def _sweep_figure(runs: Runs, factor: str) -> Any:
    figure, axes = figures.new_figure(len(PANELS))
    for axis, (column, against) in zip(axes, PANELS, strict=True):
        for index, (value, own) in enumerate(_swept(runs, factor)):
            letter = "γ" if factor == "c1" else "η"
            curves.draw_band(axis, own, column, against, f"{letter}: {factor} = {value:g}", index)
        figures.finish_axis(axis, figures.LABELS[against], figures.LABELS[column])
    figures.legend_above(figure, axes[0])
    return figure


def _sweep_claim(runs: Runs, factor: str) -> Claim:
    ends = {value: own for value, own in _swept(runs, factor)}
    if factor == "c1":
        tracking = [own.last("lower_grad_norm") for own in ends.values()]
        measured = ", ".join(f"c1 = {v:g}: {e:.3g}" for v, e in zip(ends, tracking, strict=True))
        holds = all(a < b for a, b in zip(tracking, tracking[1:], strict=False)) if len(tracking) > 1 else None
        text = "Step-size sweep: a larger γ means a larger error of the lower level."
        return judge(text, "last ‖∇_y g‖ increases with c1", PRINTED, measured, holds)
    spread = {
        column: max(values) / min(values) - 1 if (values := [own.last(column) for own in ends.values()]) else np.nan
        for column in ("error", "upper")
    }
    names = {"error": "error", "upper": "f"}
    measured = ", ".join(f"{names[column]} differs by {value:.1%}" for column, value in spread.items())
    holds = all(value <= 0.05 for value in spread.values()) if len(ends) > 1 else None
    text = "Step-size sweep: IBCG is insensitive to η."
    return judge(text, "last error and f differ by at most 5 % over c2", PRINTED, measured, holds)


def _sweep_report(factor: str, runs: Runs) -> Report:
    names = {"c1": "gamma", "c2": "eta"}
    caption = f"MovieLens 100K, IBCG as printed, {factor} in {{0.75, 0.5, 0.25, 0.1}}."
    picture = Figure(f"sweep-{names[factor]}", caption, partial(_sweep_figure, runs, factor))
    rows = [
        {
            factor: value,
            "steps": int(own.median(lambda run: run.steps)),
            "error on Ω": own.last("error"),
            "error outside Ω": own.last("error_unseen"),
            "‖∇_y g‖": own.last("lower_grad_norm"),
            "f(x, y)": own.last("upper"),
            "ℓ(x)": own.last("ell"),
        }
        for value, own in _swept(runs, factor)
    ]
    table = Table(f"sweep-{names[factor]}", "Ends of the runs.", rows)
    return Report([picture], [table], [_sweep_claim(runs, factor)] if rows else [])


_LIMITS = f"{completion.STEPS:,} steps or {completion.SECONDS:g} s of steps, one run each. "
_STEPS = (
    "Printed: data term divided by the number of observations, w_0 = y_0, γ = 1/(4√K) and η = 0.9(1−β)/μ_g for "
    "IBCG; SBFW with the printed estimator and steps, η × 0.8; TTSA with the printed steps, β × 0.25. Repaired: "
    "data term as a sum; IBCG and SBFW (corrected estimator) with our defaults; TTSA without random truncation and "
    "with steps from estimated constants. "
)
_RATINGS = (
    "Nine ratings out of ten are Ω, the rest are unseen. The paper gives no radius, no starts and no error for real "
    "data: α is 1.5 times the nuclear norm of the constant matrix of the mean rating, x_0 is a scaled Gaussian "
    "matrix inside the ball, y_0 a Gaussian one, and errors are measured against the ratings. Matrices are dense, "
    "as in the paper."
)
_UNNAMED = "The limits are those of the other completion runs; the paper names none."
EXPERIMENTS = [
    Experiment(
        "completion-synthetic",
        "Matrix completion, synthetic",
        "Figure 1: normalized error, ‖∇_y g‖ and f over time.",
        "n = 250, rank 10, noise 0.5, 80 % observed, λ₁ = λ₂ = 0.05, δ = 0.9. " + _LIMITS + _STEPS,
        (),
        partial(completion.jobs, "synthetic"),
        partial(report, "synthetic"),
    ),
    Experiment(
        "completion-100k",
        "Matrix completion, MovieLens 100K",
        "Figure 2: normalized error, ‖∇_y g‖ and f over time.",
        "943 × 1,682 with 100,000 ratings. " + _LIMITS + _STEPS + _RATINGS,
        ("movielens-100k",),
        partial(completion.jobs, "100k"),
        partial(report, "100k"),
    ),
    Experiment(
        "completion-1m",
        "Matrix completion, MovieLens 1M",
        "Figure 8 (appendix C.3.2): normalized error, ‖∇_y g‖ and f over time.",
        "6,040 × 3,706 with 1,000,209 ratings. " + _LIMITS + _STEPS + _RATINGS,
        ("movielens-1m",),
        partial(completion.jobs, "1m"),
        partial(report, "1m"),
    ),
    Experiment(
        "sweep-gamma",
        "Step-size sweep, γ",
        "Figure 9 (appendix C.3.2): γ = c1/√K at η = 0.5(1−β)/μ_g.",
        "MovieLens 100K as printed, "
        + _LIMITS
        + "The limits are those of the other completion runs; the paper names none.",
        ("movielens-100k",),
        partial(completion.sweep_jobs, completion.GAMMA_SWEEP),
        partial(_sweep_report, "c1"),
    ),
    Experiment(
        "sweep-eta",
        "Step-size sweep, η",
        "Figure 10 (appendix C.3.2): η = c2(1−β)/μ_g at γ = 0.1/√K.",
        "MovieLens 100K as printed, "
        + _LIMITS
        + "The limits are those of the other completion runs; the paper names none.",
        ("movielens-100k",),
        partial(completion.sweep_jobs, completion.ETA_SWEEP),
        partial(_sweep_report, "c2"),
    ),
]
