"""The remark after Corollary 4.5: how well IBCG's tracked adjoint and SBFW's Neumann products estimate H^-1 f_y."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree, Scalar

from bilevax import hypergradient, trees
from bilevax.experiments.paper import curves
from bilevax.experiments.paper.jobs import (
    PRINTED,
    REPAIRED,
    Experiment,
    Figure,
    Job,
    Options,
    Outcome,
    Report,
    Runs,
    Table,
)
from bilevax.experiments.paper.jobs import judge as judged
from bilevax.problem import BilevelProblem
from bilevax.problems import random_quadratic
from bilevax.runs.solve import solve
from bilevax.sets import Simplex
from bilevax.solvers import IBCG, SBFW, Solver
from bilevax.theory import Constants

DIMENSION, KAPPA, STEPS, REPEATS = 50, 20.0, 1000, 10
METHODS = ("IBCG", "SBFW")


def solver(method: str, variant: str, constants: Constants, steps: int) -> Solver:
    """Nonconvex steps gamma = 1/sqrt(K) for IBCG; SBFW with the printed or the corrected estimator."""
    if method == "IBCG":
        return IBCG.as_printed(steps**-0.5, constants) if variant == PRINTED else IBCG(constants=constants)
    return SBFW.as_printed(constants) if variant == PRINTED else SBFW(constants=constants)


@partial(jax.jit, static_argnames="printed")
def _estimate_error(
    problem: BilevelProblem, x: PyTree, y: PyTree, k: Array, key: Array, constants: Constants, printed: bool
) -> Scalar:
    """|H_k f_y - v(x_k)| / |v(x_k)| for a fresh draw of SBFW's estimator at (x_k, y_k)."""
    v = hypergradient.exact_hypergradient(problem, x, y).v
    lower = problem.linearize_lower(x, y)
    _, f_y = problem.upper_grads(x, y)
    budget = k + 1 if printed else hypergradient.neumann_budget(constants.kappa, k)
    estimate, _ = hypergradient.random_neumann(
        lambda w, _: lower.hvp(w), f_y, jax.random.fold_in(key, k), budget=budget, L_g=constants.L_g, first=int(printed)
    )
    return trees.norm(trees.sub(estimate, v)) / trees.norm(v)


@jax.jit
def _tracked_error(problem: BilevelProblem, x: PyTree, y: PyTree, w: PyTree) -> Scalar:
    v = hypergradient.exact_hypergradient(problem, x, y, w).v
    return trees.norm(trees.sub(w, v)) / trees.norm(v)


@jax.jit
def _bias(problem: BilevelProblem, x: PyTree, y: PyTree, budget: Array, constants: Constants) -> tuple[Scalar, Scalar]:
    """How far the means of the two Neumann estimators are from v, relative to it; the means are exact sums."""
    exact = hypergradient.exact_hypergradient(problem, x, y)
    hvp, f_y = problem.linearize_lower(x, exact.y).hvp, problem.upper_grads(x, exact.y)[1]
    corrected = hypergradient.neumann(hvp, f_y, 1 / constants.L_g, budget)
    longer = hypergradient.neumann(hvp, f_y, 1 / constants.L_g, budget + 1)
    printed = trees.axpy(-1 / constants.L_g, f_y, longer)  # powers 1 to k: the identity term is missing
    size = trees.norm(exact.v)
    return trees.norm(trees.sub(printed, exact.v)) / size, trees.norm(trees.sub(corrected, exact.v)) / size


def _run(variant: str, method: str, protocol: dict[str, Any], label: str | bool) -> Outcome:
    key = jax.random.key(protocol["seed"])
    known = random_quadratic(Simplex(), jnp.zeros(DIMENSION), DIMENSION, key, kappa=KAPPA)
    constants = known.constants

    def metrics(problem: BilevelProblem, state: Any) -> dict[str, Scalar]:
        if method == "IBCG":
            return {"adjoint_error": _tracked_error(problem, state.x, state.y, state.w)}
        printed = variant == PRINTED
        return {"adjoint_error": _estimate_error(problem, state.x, state.y, state.k, key, constants, printed)}

    result = solve(
        known.problem,
        solver(method, variant, constants, protocol["steps"]),
        jnp.full(DIMENSION, 1 / DIMENSION),
        jnp.zeros(DIMENSION),
        steps=protocol["steps"],
        every=max(1, protocol["steps"] // 100),
        key=key,
        metrics=metrics,
        progress=label,
    )
    budget = jnp.asarray(protocol["steps"], jnp.int32)
    printed, corrected = _bias(result.problem, result.x, result.y, budget, constants)
    return Outcome(result, {"bias_printed": float(printed), "bias_corrected": float(corrected)})


def jobs(options: Options) -> list[Job]:
    """Ten random problems and keys."""
    made = []
    for variant in options.variants:
        for method in METHODS:
            for repeat in range(
                (options.repeats or (2 if options.quick else REPEATS)) * options.wants(variant, method)
            ):
                protocol = {"steps": 200 if options.quick else STEPS, "seed": options.seed + repeat}
                run = partial(_run, variant, method, protocol)
                made.append(Job("adjoint", variant, method, repeat, protocol, run))
    return made


def report(runs: Runs) -> Report:
    """Errors against steps and against Hessian products; bias and cost as claims."""
    pictures, rows = [], []
    for variant in runs.values("variant"):
        own = runs.pick(variant=variant)
        panels = [("adjoint_error", "step"), ("adjoint_error", "hvps")]
        caption = f"Relative error of the adjoint, {variant}: IBCG's tracked w, and one draw of SBFW's estimator."
        pictures.append(Figure(f"adjoint-{variant}", caption, partial(curves.draw_panels, own, panels)))
        for method in own.values("method"):
            mine = own.pick(method=method)
            rows.append(
                {
                    "variant": variant,
                    "method": method,
                    "relative error of the adjoint": mine.last("adjoint_error"),
                    "Hessian products per step": mine.median(lambda r: r.trace.last["hvps"] / r.steps),
                    "cross products per step": mine.median(lambda r: r.trace.last["crosses"] / r.steps),
                    "bias of the printed mean": mine.median(lambda r: r.extras["bias_printed"]),
                    "bias of the corrected mean": mine.median(lambda r: r.extras["bias_corrected"]),
                }
            )
    return Report(pictures, [Table("adjoint", "Ends of the runs; medians over problems.", rows)], _claims(runs))


def _claims(runs: Runs) -> list[Any]:
    made = []
    sbfw, ibcg = (runs.pick(variant=PRINTED, method=method) for method in ("SBFW", "IBCG"))
    if len(sbfw):
        bias = sbfw.median(lambda r: r.extras["bias_printed"])
        made.append(
            judged(
                "SBFW's estimate of the adjoint is biased.",
                "as printed: the exact mean of its estimator is off by more than 10 % of ‖v‖",
                PRINTED,
                f"{bias:.1%} (with powers from 0: {sbfw.median(lambda r: r.extras['bias_corrected']):.1e})",
                bias > 0.1,
            )
        )
    if len(ibcg):
        products = ibcg.median(lambda r: (r.trace.last["hvps"] + r.trace.last["crosses"]) / r.steps)
        made.append(
            judged(
                "IBCG needs two matrix-vector products per step.",
                "Hessian and cross products counted in the run, over its steps, equal 2",
                PRINTED,
                f"{products:g}",
                products == 2,
            )
        )
    for variant in (PRINTED, REPAIRED):
        errors = {m: runs.pick(variant=variant, method=m).last("adjoint_error") for m in METHODS}
        known = all(e == e for e in errors.values())
        made.append(
            judged(
                "IBCG tracks the adjoint better than SBFW estimates it.",
                "last relative error of IBCG below that of SBFW",
                variant,
                ", ".join(f"{m} {e:.2g}" for m, e in errors.items()),
                errors["IBCG"] < errors["SBFW"] if known else None,
            )
        )
    return made


EXPERIMENT = Experiment(
    "adjoint",
    "How well the adjoint is known",
    "The remark after Corollary 4.5: ‖w_k − v(x_k)‖ and SBFW's bias; the paper gives rates, no figure.",
    f"Ten random quadratic problems on the simplex, n = m = {DIMENSION}, κ = {KAPPA:g}, K = {STEPS}. Printed: γ = "
    "1/√K, SBFW with its printed steps and estimator; repaired: our defaults and the corrected estimator. At each "
    "row SBFW's estimator is drawn once more at (x_k, y_k).",
    (),
    jobs,
    report,
)
