"""The paper's matrix completion (section 5.1, appendix C.3): synthetic, MovieLens 100K and 1M, and the two sweeps."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Scalar

from bilevax import datasets
from bilevax.experiments.paper.jobs import PRINTED, REPAIRED, Job, Options, Outcome
from bilevax.problem import BilevelProblem
from bilevax.problems import completion, matrix_completion, synthetic
from bilevax.runs.solve import solve
from bilevax.schedules import as_schedule
from bilevax.solvers import IBCG, SBFW, TTSA, Solver
from bilevax.theory import Constants

STEPS, SECONDS = 10_000, 200.0
METHODS = ("IBCG", "SBFW", "TTSA")
FACTORS = (0.75, 0.5, 0.25, 0.1)
GAMMA_SWEEP = [(c1, 0.5) for c1 in FACTORS]
ETA_SWEEP = [(0.1, c2) for c2 in FACTORS]
"""Pairs of c1 and c2 (appendix C.3.2); the runs with c1 = 0.1, c2 = 0.5 of both sweeps are one."""
HELD_OUT = 0.1


class Entries(NamedTuple):
    """Some entries of a matrix."""

    rows: np.ndarray
    cols: np.ndarray
    values: np.ndarray

    @classmethod
    def of(cls, matrix: np.ndarray, mask: np.ndarray) -> Entries:
        """Those where the mask holds."""
        rows, cols = np.nonzero(mask)
        return cls(rows, cols, matrix[rows, cols])


class Instance(NamedTuple):
    """Observations, the radius, the starts, and what the errors are measured against."""

    observed: Entries
    known: Entries
    """On the observed entries: the truth where there is one, otherwise the ratings themselves."""
    unseen: Entries
    shape: tuple[int, int]
    radius: float
    x0: np.ndarray
    y0: np.ndarray


@lru_cache(maxsize=1)
def instance(name: str, seed: int, quick: bool, size: int = 250) -> Instance:
    """The data of an experiment; the last one is kept, since all methods share it."""
    return _synthetic(seed, 60 if quick else size) if name == "synthetic" else _ratings(name, seed, quick)


def _synthetic(seed: int, n: int) -> Instance:
    made = synthetic(seed, n=n)
    return Instance(
        Entries.of(made.M, made.observed),
        Entries.of(made.truth, made.observed),
        Entries.of(made.truth, ~made.observed),
        (n, n),
        made.radius,
        made.x0,
        made.y0,
    )


def _ratings(name: str, seed: int, quick: bool) -> Instance:
    """Nine ratings out of ten; the paper gives neither radius nor starts nor what its error is measured against."""
    given = {"100k": datasets.movielens_100k, "1m": datasets.movielens_1m}[name]()
    rows, cols, values = given.rows, given.cols, given.values.astype(float)
    if quick:  # the most active users and the most rated movies
        size = {"100k": 120, "1m": 240}[name]
        rank = [np.argsort(np.argsort(-np.bincount(index), kind="stable")) for index in (rows, cols)]
        kept = (rank[0][rows] < size) & (rank[1][cols] < size)
        rows, cols, values = rank[0][rows][kept], rank[1][cols][kept], values[kept]
    shape = (int(rows.max()) + 1, int(cols.max()) + 1)
    rng = np.random.default_rng(seed)
    unseen = rng.random(len(values)) < HELD_OUT
    observed = Entries(rows[~unseen], cols[~unseen], values[~unseen])
    # Half as much again as the nuclear norm of the matrix of the mean rating, which any predictor must exceed.
    radius = 1.5 * float(np.mean(observed.values)) * float(np.sqrt(shape[0] * shape[1]))
    x0, y0 = rng.standard_normal(shape), rng.standard_normal(shape)
    x0 *= 0.999 * radius / np.sqrt(min(shape)) / np.linalg.norm(x0)  # inside the ball, whatever its singular values
    return Instance(observed, observed, Entries(rows[unseen], cols[unseen], values[unseen]), shape, radius, x0, y0)


def posed(data: Instance, variant: str) -> tuple[BilevelProblem, Constants]:
    """The problem: data term as a mean, as printed, or as a sum."""
    M, omega = np.zeros(data.shape), np.zeros(data.shape, bool)
    at = data.observed.rows, data.observed.cols
    M[at], omega[at] = data.observed.values, True
    return matrix_completion(M, omega, data.radius, data_term="mean" if variant == PRINTED else "sum")


def solver(method: str, variant: str, constants: Constants, steps: int) -> Solver:
    """Printed: the steps and factors of appendix C.3.1. Repaired: our defaults, TTSA without self-made noise."""
    solvers: dict[tuple[str, str], Callable[[], Solver]] = {
        (PRINTED, "IBCG"): lambda: IBCG.as_printed(1 / (4 * np.sqrt(steps)), constants),
        (PRINTED, "SBFW"): lambda: SBFW.as_printed(constants, eta=0.8),
        (PRINTED, "TTSA"): lambda: TTSA.as_printed(constants, steps, beta=0.25),
        (REPAIRED, "IBCG"): lambda: IBCG(constants=constants),
        (REPAIRED, "SBFW"): lambda: SBFW(constants=constants),
        (REPAIRED, "TTSA"): lambda: TTSA(deterministic=True, constants=constants),
    }
    return solvers[variant, method]()


def metrics(data: Instance, problem: BilevelProblem) -> Any:
    """Normalized errors on observed and unseen entries, and the true objective, from the entries alone."""
    known, unseen = (tuple(map(jnp.asarray, part)) for part in (data.known, data.unseen))
    values = jnp.asarray(data.observed.values)
    entries = {**problem.data, "M": values, "omega1": jnp.ones_like(values), "omega2": jnp.ones_like(values)}

    def measure(_: BilevelProblem, state: Any) -> dict[str, Scalar]:
        return _measure(state.x, known, unseen, entries)

    return measure


@jax.jit
def _measure(x: Array, known: Any, unseen: Any, entries: Any) -> dict[str, Scalar]:
    def error(part: Any) -> Scalar:
        rows, cols, values = part
        return jnp.sum((x[rows, cols] - values) ** 2) / jnp.sum(values**2)

    at = x[known[0], known[1]]
    y = completion.solve_lower(at, at, entries)
    return {"error": error(known), "error_unseen": error(unseen), "ell": jnp.mean((at - y) ** 2)}


def _run(name: str, variant: str, protocol: dict[str, Any], make: Any, label: str | bool) -> Outcome:
    data = instance(name, protocol["seed"], protocol["quick"], protocol.get("size", 250))
    problem, constants = posed(data, variant)
    result = solve(
        problem,
        make(constants),
        jnp.asarray(data.x0),
        jnp.asarray(data.y0),
        steps=protocol["steps"],
        time_limit=protocol["time_limit"],
        every=protocol["every"],
        key=jax.random.key(protocol["seed"]),
        metrics=metrics(data, problem),
        progress=label,
    )
    extras = {"shape": list(data.shape), "observed": len(data.observed.values), "radius": data.radius}
    if min(data.shape) < 2000:  # beyond, the full SVD behind the audit costs minutes
        extras["true_gap"] = float(result.audit().gap)
    return Outcome(result, extras)


def _protocol(name: str, options: Options, repeat: int, method: str) -> dict[str, Any]:
    every = {"synthetic": 25, "100k": 5, "1m": 1 if method == "TTSA" else 2}[name]
    steps, seconds = (200, 5.0) if options.quick else (STEPS, SECONDS)
    steps = options.steps or steps
    return {
        "steps": steps,
        "time_limit": options.seconds or seconds,
        "every": min(every, max(1, steps // 100)),
        "seed": options.seed + repeat,
        "quick": options.quick,
        **({"size": options.size} if options.size else {}),
    }


def jobs(name: str, options: Options) -> list[Job]:
    """Every method in both variants, one repeat each unless more are asked for."""
    made = []
    for repeat in range(options.repeats or 1):
        for variant in options.variants:
            for method in METHODS:
                if options.wants(variant, method):
                    protocol = _protocol(name, options, repeat, method)
                    make = partial(solver, method, variant, steps=protocol["steps"])
                    run = partial(_run, name, variant, protocol, make)
                    made.append(Job(f"completion-{name}", variant, method, repeat, protocol, run))
    return made


def sweep_jobs(settings: list[tuple[float, float]], options: Options) -> list[Job]:
    """IBCG as printed on MovieLens 100K, for pairs of factors (c1, c2) of gamma and eta."""
    made = []
    for repeat in range(options.repeats or 1):
        for c1, c2 in settings:
            if options.wants(PRINTED, "IBCG"):
                protocol = {**_protocol("100k", options, repeat, "IBCG"), "c1": c1, "c2": c2}
                run = partial(_run, "100k", PRINTED, protocol, partial(_swept, protocol))
                made.append(Job(f"sweep/gamma{c1:g}-eta{c2:g}", PRINTED, "IBCG", repeat, protocol, run))
    return made


def _swept(protocol: dict[str, Any], constants: Constants) -> Solver:
    gamma = protocol["c1"] / np.sqrt(protocol["steps"])
    eta = protocol["c2"] * constants.eta_limit
    alpha = as_schedule(constants.alpha)
    return IBCG(as_schedule(gamma), alpha=alpha, eta=as_schedule(eta), w0="y0", warmup=0, constants=constants)
