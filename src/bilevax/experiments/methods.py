"""`bilevax methods`: the paper's Table 1, alive, with what our code costs and how fast it gets there."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import bilevax as bx
from bilevax.loop import solve
from bilevax.problems import KnownQuadratic, random_quadratic
from bilevax.report.tables import markdown
from bilevax.sets import L2Ball
from bilevax.solvers import COUNTS, Solver
from bilevax.stopping import relative_gap

DIMENSION, KAPPA, RATIO, STEPS = 50, 10.0, 1e-3, 5000
BOUNDED, LIPSCHITZ = "bounded", "Lipschitz"
NOT_THERE = "–"


@dataclass(frozen=True)
class Printed:
    """A row of the paper's Table 1; methods that are not in it have dashes."""

    oracle: str = NOT_THERE
    ell: str = NOT_THERE
    assumption: str = NOT_THERE
    complexity: str = NOT_THERE
    metric: str = NOT_THERE


@dataclass(frozen=True)
class Method:
    """How to build a method, and what Table 1 says of it."""

    make: Callable[[], Solver]
    printed: Printed = Printed()


def _nonconvex(complexity: str, metric: str = "‖∇ℓ‖²") -> Printed:
    return Printed("none", "NC", BOUNDED, complexity, metric)


METHODS: dict[str, Method] = {
    "IBCG": Method(bx.IBCG, Printed("LMO", "NC / C", LIPSCHITZ, "κ⁵m²ε⁻² / κ⁵m²ε⁻¹", "gap / ℓ − ℓ*")),
    "SBFW": Method(bx.SBFW, Printed("LMO", "NC / C", BOUNDED, "poly(κ)m²ε⁻⁴ / poly(κ)m²ε⁻³", "E gap / E[ℓ − ℓ*]")),
    "TTSA": Method(
        lambda: bx.TTSA(deterministic=True),
        Printed("PO", "NC / C", BOUNDED, "poly(κ)m²ε⁻²·⁵ / poly(κ)m²ε⁻⁴", "E‖x − prox‖² / E[ℓ − ℓ*]"),
    ),
}


def common_problem() -> KnownQuadratic:
    """A random quadratic problem on the l2 ball, which projects and minimises linearly at the same price."""
    return random_quadratic(L2Ball(1.0), jnp.zeros(DIMENSION), DIMENSION, jax.random.key(0), kappa=KAPPA)


def measure(solver: Solver, known: KnownQuadratic) -> dict[str, Any]:
    """Cost per step from the counts of a run, and steps and seconds to a thousandth of the first true gap."""
    x0, y0 = jnp.zeros(DIMENSION), jnp.zeros(DIMENSION)
    result = solve(known.problem, solver, x0, y0, steps=STEPS, every=10, stop=relative_gap(RATIO))
    first, last = result.trace.first, result.trace.last
    steps = max(1, result.steps)
    per_step = {name: (last[name] - first[name]) / steps for name in COUNTS}
    reached = result.success
    return {
        "Gf": per_step["upper_grads"],
        "Gg": per_step["lower_grads"],
        "HVP": per_step["hvps"],
        "JVP": per_step["crosses"],
        "steps": result.steps if reached else math.nan,
        "seconds": result.seconds if reached else math.nan,
    }


def rows(measured: bool = True) -> list[dict[str, Any]]:
    """One row per method: what is printed of it, what our code says, and what was measured."""
    known = common_problem() if measured else None
    made = []
    for name, method in METHODS.items():
        solver, printed = method.make(), method.printed
        both = hasattr(solver, "x_step")
        row: dict[str, Any] = {
            "method": name,
            "oracle": printed.oracle,
            "ℓ": printed.ell,
            "∇_y f": printed.assumption,
            "printed complexity": printed.complexity,
            "metric": printed.metric,
            "our x-step": "project or fw" if both else {"lmo": "fw", "project": "project"}[solver.uses],
            "loops": getattr(solver, "loops", 1),
        }
        made.append(row | (measure(solver, known) if known is not None else {}))
    return made


def table(measured: bool = True) -> str:
    """The rows as markdown."""
    return markdown(rows(measured))


def best(made: list[dict[str, Any]]) -> str:
    """The method that needed the fewest seconds."""
    return str(min((row for row in made if np.isfinite(row["seconds"])), key=lambda row: row["seconds"])["method"])
