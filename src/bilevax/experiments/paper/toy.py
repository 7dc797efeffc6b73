"""The paper's toy coreset problem (appendix C.2): three figures of theta's path and of the distance to the optimum."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bilevax.drawing import figures
from bilevax.experiments.paper import curves
from bilevax.experiments.paper.jobs import (
    PRINTED,
    Claim,
    Experiment,
    Figure,
    Job,
    Options,
    Outcome,
    Report,
    Runs,
    Table,
    judge,
)
from bilevax.problems import Toy, toy_coreset
from bilevax.runs.audit import exact_metrics
from bilevax.runs.solve import solve
from bilevax.solvers import IBCG, SBFW, Solver

INVERSE = "SBFW (Hessian inverse)"
METHODS = ("IBCG", "SBFW", INVERSE)
REPEATS = 10


class Case(NamedTuple):
    """One figure of the appendix: the factors are those of SBFW's delta and eta."""

    mu_g: float
    steps: int
    delta: float = 1.0
    eta: float = 1.0


CASES = {"mu1": Case(1.0, 100), "mu0.1": Case(0.1, 1000), "mu0.1-tuned": Case(0.1, 1000, 5.0, 0.1)}
TITLES = {"mu1": "mu_g = 1", "mu0.1": "mu_g = 0.1", "mu0.1-tuned": "mu_g = 0.1, SBFW tuned"}


def solver(method: str, variant: str, case: Case, toy: Toy) -> Solver:
    """Printed: the steps of either theory, gamma = log(K)/K for IBCG (Corollary 4.3). Repaired: our defaults."""
    estimator = "exact" if method == INVERSE else "printed" if variant == PRINTED else "corrected"
    if variant == PRINTED:
        if method == "IBCG":
            return IBCG.as_printed(np.log(case.steps) / case.steps, toy.constants)
        return SBFW.as_printed(toy.constants, estimator, eta=case.eta, delta=case.delta)
    return IBCG(constants=toy.constants) if method == "IBCG" else SBFW(estimator, constants=toy.constants)


def _run(name: str, variant: str, method: str, protocol: dict[str, Any], label: str | bool) -> Outcome:
    case = CASES[name]._replace(steps=protocol["steps"])
    toy = toy_coreset(case.mu_g)

    def metrics(problem: Any, state: Any) -> dict[str, Any]:
        true = exact_metrics(problem, state)
        f_error = jnp.abs(problem.upper_value(state.x, state.y) - toy.ell_star)
        theta = {"theta_1": state.y[0], "theta_2": state.y[1]}
        return {"ell": true["ell"], "ell_error": true["ell"] - toy.ell_star, "true_gap": true["true_gap"]} | {
            "f_error": f_error,
            **theta,
        }

    result = solve(
        toy.problem,
        solver(method, variant, case, toy),
        toy.x0,
        toy.y0,
        steps=case.steps,
        every=max(1, case.steps // 200),
        key=jax.random.key(protocol["seed"]),
        metrics=metrics,
        progress=label,
    )
    hull = np.linalg.solve(np.asarray(toy.problem.data["A"]), np.asarray(toy.problem.data["X"]))
    target = np.asarray(toy.problem.data["target"])
    extras = {"hull": hull.tolist(), "target": target.tolist(), "theta_star": toy.theta_star.tolist()}
    return Outcome(result, {**extras, "ell_star": toy.ell_star})


def jobs(options: Options) -> list[Job]:
    """Ten repeats of the random method; the others do not depend on the key."""
    made = []
    for name, case in CASES.items():
        for variant in options.variants:
            if variant != PRINTED and name == "mu0.1-tuned":
                continue  # tuning concerns the printed steps
            for method in METHODS:
                repeats = (options.repeats or (2 if options.quick else REPEATS)) if method == "SBFW" else 1
                for repeat in range(repeats if options.wants(variant, method) else 0):
                    protocol = {"steps": case.steps, "seed": options.seed + repeat}
                    run = partial(_run, name, variant, method, protocol)
                    made.append(Job(f"toy/{name}", variant, method, repeat, protocol, run))
    return made


def figure(runs: Runs) -> Any:
    """The path of theta_k through the plane, and the distance of f and of ell from the optimum."""
    drawn, (plane, tracked, true) = figures.new_figure(3)
    extras = next(iter(runs)).extras
    hull = np.asarray(extras["hull"])[:, [0, 1, 2, 3, 0]]
    plane.fill(hull[0], hull[1], facecolor="#eeeeee", edgecolor="#999999", label="admissible θ")
    for i, method in enumerate(runs.values("method")):
        own = runs.pick(method=method)
        path = next(iter(own)).trace
        figures.draw_line(plane, path["theta_1"], path["theta_2"], i, method)
        curves.draw_band(tracked, own, "f_error", "step", method, i)
        curves.draw_band(true, own, "ell_error", "step", method, i)
    plane.plot(*extras["target"], "k*", markersize=11, label="target (2, 2)")
    plane.plot(*extras["theta_star"], "kx", markersize=8, markeredgewidth=2, label="optimum θ*")
    plane.margins(0.12)
    plane.set_aspect("equal", adjustable="datalim")
    plane.set_xlabel("θ₁")
    plane.set_ylabel("θ₂")
    for axis, label in ((tracked, r"$|f(\lambda_k, \theta_k) - f^*|$"), (true, r"$\ell(\lambda_k) - \ell^*$")):
        axis.set_yscale("log")
        axis.set_xlabel("step")
        axis.set_ylabel(label)
    figures.legend_above(drawn, plane)
    return drawn


def rows(runs: Runs) -> list[dict[str, Any]]:
    """The end of every method, medians over repeats."""
    made = []
    for folder in runs.values("folder"):
        for variant in runs.pick(folder=folder).values("variant"):
            for method in runs.pick(folder=folder, variant=variant).values("method"):
                own = runs.pick(folder=folder, variant=variant, method=method)
                made.append(
                    {
                        "problem": f"toy, {TITLES[folder.split('/')[1]]}",
                        "variant": variant,
                        "method": method,
                        "runs": len(own),
                        "steps": int(own.median(lambda run: run.steps)),
                        "f - f*": own.last("f_error"),
                        "ell - ell*": own.last("ell_error"),
                        "true gap": own.last("true_gap"),
                        "Hessian products": int(own.last("hvps")),
                    }
                )
    return made


def _share(runs: Runs) -> float:
    """How much of the first distance of f from f* is left at the end; medians over the last rows and repeats."""
    return runs.median(lambda run: float(np.median(run.trace["f_error"][-20:]) / run.trace["f_error"][0]))


def claims(runs: Runs) -> list[Claim]:
    """What the text says of the three figures: who converges and who does not."""
    texts = {
        "mu1": ("mu_g = 1, K = 100: IBCG converges, SBFW fails to", {"IBCG": True, "SBFW": False}),
        "mu0.1": (
            "mu_g = 0.1, K = 1000: IBCG converges, SBFW fails with and without the Hessian inverse",
            {"IBCG": True, "SBFW": False, INVERSE: False},
        ),
        "mu0.1-tuned": (
            "mu_g = 0.1, SBFW tuned: with the Hessian inverse it converges too, without it does not",
            {"IBCG": True, INVERSE: True, "SBFW": False},
        ),
    }
    made = []
    for name, (text, expected) in texts.items():
        own = runs.pick(folder=f"toy/{name}", variant=PRINTED)
        left = {method: _share(own.pick(method=method)) for method in expected}
        known = not any(np.isnan(v) for v in left.values())
        holds = all((left[m] <= 0.05) == wanted for m, wanted in expected.items()) if known else None
        measured = ", ".join(f"{m} {v:.1%}" for m, v in left.items())
        rule = "converges: at most 5 % of the first |f − f*| is left (medians of the last 20 rows and of repeats)"
        made.append(judge(f"Toy, {text}.", rule, PRINTED, f"left: {measured}", holds))
    return made


def report(runs: Runs) -> Report:
    """A figure per case and variant, one table, three claims."""
    pictures = []
    for folder in runs.values("folder"):
        name = folder.split("/")[1]
        for variant in runs.pick(folder=folder).values("variant"):
            own = runs.pick(folder=folder, variant=variant)
            caption = f"Toy, {TITLES[name]}, {variant}: path of θ, distance of f and of ℓ from the optimum."
            pictures.append(Figure(f"toy-{name}-{variant}", caption, partial(figure, own)))
    table = Table("toy", "Ends of the runs; medians over repeats.", rows(runs))
    return Report(pictures, [table], claims(runs))


EXPERIMENT = Experiment(
    "toy",
    "Toy coreset problem",
    "Figures 5 to 7 (appendix C.2): the path of θ_k and f − f*.",
    "K = 100 for mu_g = 1 and K = 1000 for mu_g = 0.1 from θ = 0 and equal weights; printed: γ = log(K)/K for IBCG "
    "and the printed schedules and estimator for SBFW, in the third figure with δ × 5 and η × 0.1. Ten keys for "
    "SBFW with its random estimator; the other methods are deterministic. A and the four points are not in the "
    "paper; ours are in `problems/coreset.py`. Repaired: our default steps, the corrected estimator.",
    (),
    jobs,
    report,
)
