"""The paper's toy coreset problem (appendix C.2): IBCG as printed beside our defaults."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bilevax.loop import solve
from bilevax.metrics import exact_metrics
from bilevax.problems import Toy, toy_coreset
from bilevax.report import figures
from bilevax.result import Result
from bilevax.solvers import IBCG, Solver


@dataclass(frozen=True)
class ToyConfig:
    """One figure of the appendix."""

    mu_g: float
    steps: int


def solvers(config: ToyConfig, toy: Toy) -> dict[str, Solver]:
    """Corollary 4.3 gives the printed gamma = log(K)/K."""
    printed = IBCG.as_printed(np.log(config.steps) / config.steps, toy.constants)
    return {"IBCG as printed": printed, "IBCG, our defaults": IBCG()}


def run(config: ToyConfig, *, progress: bool = False) -> dict[str, Result]:
    """Every method from the same start, with the distance to the exact optimum in every row."""
    toy = toy_coreset(config.mu_g)

    def metrics(problem: Any, state: Any) -> dict[str, Any]:
        true = exact_metrics(problem, state)
        return {**true, "ell_error": true["ell"] - toy.ell_star, "theta_1": state.y[0], "theta_2": state.y[1]}

    results = {}
    for name, solver in solvers(config, toy).items():
        results[name] = solve(
            toy.problem,
            solver,
            toy.x0,
            toy.y0,
            steps=config.steps,
            every=max(1, config.steps // 200),
            metrics=metrics,
            progress=progress and f"toy {config.mu_g:g}: {name}",
        )
    return results


def rows(config: ToyConfig, results: dict[str, Result]) -> list[dict[str, Any]]:
    """One line of the result table for each method."""
    return [
        {
            "problem": f"toy, mu_g = {config.mu_g:g}",
            "method": name,
            "steps": result.steps,
            "seconds": result.seconds,
            "compile s": result.compile_seconds,
            "ell - ell*": result.trace.last["ell_error"],
            "true gap": result.trace.last["true_gap"],
        }
        for name, result in results.items()
    ]


def figure(config: ToyConfig, results: dict[str, Result], path: str | Path) -> Any:
    """The path of theta_k through the plane, and the distance of ell from its optimum."""
    toy = toy_coreset(config.mu_g)
    drawn, (plane, curve) = figures.new_figure(2)
    images = np.linalg.solve(np.asarray(toy.problem.data["A"]), np.asarray(toy.problem.data["X"]))
    hull = images[:, [0, 1, 2, 3, 0]]
    plane.fill(hull[0], hull[1], facecolor="#eeeeee", edgecolor="#999999", label="admissible θ")
    for i, (name, result) in enumerate(results.items()):
        trace = result.trace
        figures.draw_line(plane, trace["theta_1"], trace["theta_2"], i, name)
        figures.draw_line(curve, trace["step"], trace["ell_error"], i, name)
    plane.plot(*np.asarray(toy.problem.data["target"]), "k*", markersize=11, label="target (2, 2)")
    plane.plot(*toy.theta_star, "kx", markersize=8, markeredgewidth=2, label="optimum θ*")
    plane.margins(0.12)
    plane.set_aspect("equal", adjustable="datalim")
    plane.set_xlabel("θ₁")
    plane.set_ylabel("θ₂")
    curve.set_yscale("log")
    curve.set_xlabel("step")
    curve.set_ylabel(r"$\ell(\lambda_k) - \ell^*$")
    figures.legend_above(drawn, plane)
    return figures.save(drawn, path)
