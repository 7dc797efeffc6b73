"""The paper's synthetic matrix completion (section 5.1): as printed, repaired, and with our defaults."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from bilevax.loop import solve
from bilevax.problems import Synthetic, matrix_completion, synthetic
from bilevax.report import figures
from bilevax.result import Result
from bilevax.solvers import IBCG, Solver


@dataclass(frozen=True)
class CompletionConfig:
    """The instance and the budget."""

    seed: int = 0
    steps: int = 1000
    n: int = 250


PRINTED = "as printed"
REPAIRED = "sum data term, printed steps"
OURS = "sum data term, our defaults"


def runs(config: CompletionConfig, instance: Synthetic) -> dict[str, tuple[Any, Solver]]:
    """Problem and solver of each line: the printed data term and steps, then one repair after the other."""

    def posed(data_term: str) -> tuple[Any, Any]:
        return matrix_completion(instance.M, instance.observed, instance.radius, data_term=data_term)

    gamma = 1 / (4 * np.sqrt(config.steps))  # appendix C.3.1
    (mean, mean_constants), (total, sum_constants) = posed("mean"), posed("sum")
    return {
        PRINTED: (mean, IBCG.as_printed(gamma, mean_constants)),
        REPAIRED: (total, IBCG.as_printed(gamma, sum_constants)),
        OURS: (total, IBCG()),
    }


def run(config: CompletionConfig, *, progress: bool = False) -> dict[str, Result]:
    """Every line from the same random start, with the paper's normalized error in every row."""
    instance = synthetic(config.seed, n=config.n)
    metrics = {
        "error_observed": lambda x, y, data: instance.normalized_error(x),
        "error_unobserved": lambda x, y, data: instance.normalized_error(x, unobserved=True),
    }
    x0, y0 = jnp.asarray(instance.x0), jnp.asarray(instance.y0)
    return {
        name: solve(
            problem, solver, x0, y0, steps=config.steps, metrics=metrics, progress=progress and f"completion: {name}"
        )
        for name, (problem, solver) in runs(config, instance).items()
    }


def rows(config: CompletionConfig, results: dict[str, Result]) -> list[dict[str, Any]]:
    """One line of the result table for each method."""
    return [
        {
            "problem": f"completion {config.n} x {config.n}",
            "method": name,
            "steps": result.steps,
            "seconds": result.seconds,
            "compile s": result.compile_seconds,
            "error observed": result.trace.last["error_observed"],
            "error unobserved": result.trace.last["error_unobserved"],
            "ell": float(result.audit().ell),
            "true gap": float(result.audit().gap),
        }
        for name, result in results.items()
    ]


def figure(results: dict[str, Result], path: str | Path) -> Any:
    """The paper's three panels over time."""
    return figures.plot(results, ["error_observed", "lower_grad_norm", "upper"], path=path)
