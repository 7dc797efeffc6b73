"""The paper's multi-task learning (section 5.2, appendix C.4): five LIBSVM tasks, and NLSY79 cut into tasks."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Scalar

from bilevax import datasets
from bilevax.experiments.paper.jobs import PRINTED, REPAIRED, Job, Options, Outcome
from bilevax.problem import BilevelProblem
from bilevax.problems import MultiTask, Task, multi_task, multitask
from bilevax.runs.solve import solve
from bilevax.solvers import IBCG, SBFW, TTSA, Solver
from bilevax.theory import Constants

STEPS, SECONDS, REPEATS = 10_000, 100.0, 10
DIVIDED = "SBFW (factors divide)"
METHODS = ("IBCG", "SBFW", DIVIDED, "TTSA")
LIBSVM = ("bodyfat", "housing", "mg", "mpg", "space_ga")
PAPER = ("libsvm", "nlsy-parts")
CUTS = ("nlsy-parts", "nlsy-typejob90", "nlsy-grade90")
SMALLEST = 60  # rows of a task


class Tuning(NamedTuple):
    """The printed numbers of one data set: gamma = 1/(divisor sqrt(K)), factors of SBFW's eta and rho, and of a_0."""

    divisor: float
    factor: float
    a_0: float


SETTINGS = {"libsvm": Tuning(1e4, 1e3, 100.0), "nlsy": Tuning(1e8, 100.0, 10.0)}
"""Appendix C.4."""


def _scaled(columns: np.ndarray) -> np.ndarray:
    """Each column to [-1, 1]; constant ones to 1."""
    low, high = columns.min(axis=0), columns.max(axis=0)
    width = np.where(high > low, high - low, 1.0)
    return np.where(high > low, 2 * (columns - low) / width - 1, 1.0)


def _libsvm(rng: np.random.Generator) -> tuple[Task, ...]:
    """Features and labels to [-1, 1], zero columns where a task has fewer features."""
    tasks = []
    for name in LIBSVM:
        table = datasets.libsvm_regression(name)
        tasks.append(multitask.split(name, _scaled(table.X), _scaled(table.y), rng))
    return multitask.pad(tasks)


_SCHOOL = re.compile(r"(\d+)\w* (GRADE|YR COL)")
_HEALTH = ("Poor", "Fair", "Good", "Very Good", "Excellent")
_NUMBERS = ("age", "height", "weight", "famsize", "illegalact", "charged", "jobsnum90", "afqt89")
_SIDES = {"gender": "Female", "partner": "Yes", "jobtrain90": "Yes"}


def _years(grade: str) -> float:
    """Years of school: grades count from one, years of college from thirteen."""
    match = _SCHOOL.match(grade)
    if match is None:
        raise ValueError(f"nlsy79: unknown grade {grade!r}.")
    return float(match[1]) + (12 if match[2] == "YR COL" else 0)


def _nlsy(cut: str, rng: np.random.Generator) -> tuple[Task, ...]:
    """Income in ten thousand dollars from thirteen attributes and a constant, cut at random or by a column."""
    frame = datasets.nlsy79()
    columns = {name: np.asarray(frame[name], float) for name in _NUMBERS}
    columns |= {name: (frame[name] == side).astype(float) for name, side in _SIDES.items()}
    columns["grade90"] = np.array([_years(grade) for grade in frame["grade90"]])
    columns["genhealth"] = np.array([float(_HEALTH.index(word)) for word in frame["genhealth"]])
    columns.pop(cut, None)
    A = np.column_stack([_scaled(np.column_stack(list(columns.values()))), np.ones(len(frame["income90"]))])
    b = np.asarray(frame["income90"], float)
    if cut == "parts":
        groups = {str(i + 1): part for i, part in enumerate(np.array_split(rng.permutation(len(b)), 10))}
    else:
        labels = frame[cut]
        names, sizes = np.unique(labels, return_counts=True)
        groups = {str(n): np.flatnonzero(labels == n) for n, size in zip(names, sizes, strict=True) if size >= SMALLEST}
    return tuple(multitask.split(name, A[rows], b[rows], rng) for name, rows in groups.items())


@lru_cache(maxsize=2)
def tasks(case: str, seed: int) -> tuple[Task, ...]:
    """The tasks of a case, split 60/20/20 at random."""
    rng = np.random.default_rng(seed)
    return _libsvm(rng) if case == "libsvm" else _nlsy(case.removeprefix("nlsy-"), rng)


def posed(case: str, variant: str, seed: int) -> MultiTask:
    """Omega >= 0 as printed, or floored at a twentieth of its start; Tr Omega <= T, so that it starts at I."""
    own = tasks(case, seed)
    return multi_task(own, float(len(own)), eps=0.0 if variant == PRINTED else 0.05)


def solver(method: str, variant: str, case: str, constants: Constants, steps: int) -> Solver:
    """Printed: the steps and factors of appendix C.4. Repaired: our defaults, exact adjoints for SBFW."""
    tuning = SETTINGS[case.split("-")[0]]
    factor, a_0 = tuning.factor, tuning.a_0
    solvers: dict[tuple[str, str], Callable[[], Solver]] = {
        (PRINTED, "IBCG"): lambda: IBCG.as_printed(1 / (tuning.divisor * np.sqrt(steps)), constants),
        (PRINTED, "SBFW"): lambda: SBFW.as_printed(constants, rho=factor, eta=factor, delta=a_0),
        (PRINTED, DIVIDED): lambda: SBFW.as_printed(constants, rho=1 / factor, eta=1 / factor, delta=a_0),
        (PRINTED, "TTSA"): lambda: TTSA.as_printed(constants, steps),
        (REPAIRED, "IBCG"): lambda: IBCG(constants=constants),
        (REPAIRED, "SBFW"): lambda: SBFW("exact", constants=constants),
        (REPAIRED, "TTSA"): lambda: TTSA(deterministic=True, constants=constants),
    }
    return solvers[variant, method]()


@jax.jit
def _ell(problem: BilevelProblem, omega: Any, W: Any) -> Scalar:
    return problem.upper_value(omega, multitask.solve_lower(omega, W, problem.data))


def _projection_seconds(problem: BilevelProblem, omega: Any) -> float:
    """What one projection takes, median of many, to compare with a step of TTSA."""
    project = jax.jit(lambda domain, omega: domain.project(omega))
    jax.block_until_ready(project(problem.domain, omega))
    times = []
    for _ in range(200):
        began = time.perf_counter()
        jax.block_until_ready(project(problem.domain, omega))
        times.append(time.perf_counter() - began)
    return float(np.median(times))


def _run(case: str, variant: str, method: str, protocol: dict[str, Any], label: str | bool) -> Outcome:
    made = posed(case, variant, protocol["seed"])
    result = solve(
        made.problem,
        solver(method, variant, case, made.constants, protocol["steps"]),
        jnp.asarray(made.omega0),
        jnp.asarray(made.w0),
        steps=protocol["steps"],
        time_limit=protocol["time_limit"],
        every=max(1, protocol["steps"] // 200),
        key=jax.random.key(protocol["seed"]),
        metrics=lambda problem, state: {"ell": _ell(problem, state.x, state.y)},
        progress=label,
    )
    solved = multitask.solve_lower(result.x, result.y, made.problem.data)
    tuned, _ = multitask.ridge_tuned(made.tasks)
    moved = np.linalg.norm(np.asarray(result.x) - np.asarray(made.omega0)) / np.linalg.norm(np.asarray(made.omega0))
    errors = {
        "test": multitask.task_errors(result.y, made.tasks),
        "test_solved": multitask.task_errors(solved, made.tasks),
        "test_ridge": multitask.task_errors(multitask.ridge(made.tasks), made.tasks),
        "test_ridge_tuned": multitask.task_errors(tuned, made.tasks),
    }
    names = [task.name for task in made.tasks]
    seconds = _projection_seconds(made.problem, result.x)
    return Outcome(
        result,
        {
            "tasks": names,
            "moved": float(moved),
            "projection_seconds": seconds,
            **{n: e.tolist() for n, e in errors.items()},
        },
    )


def jobs(cases: tuple[str, ...], options: Options) -> list[Job]:
    """Every method in both variants, ten splits; three for what the paper did not run, which takes longest."""
    steps, seconds, usual = (300, 2.0, 2) if options.quick else (STEPS, SECONDS, REPEATS)
    made = []
    for case in cases:
        if options.quick and case not in PAPER:
            continue  # other shapes: minutes of compilation
        for variant in options.variants:
            for method in METHODS:
                ours = method == DIVIDED
                if not options.wants(variant, method) or (ours and (variant != PRINTED or case not in PAPER)):
                    continue
                for repeat in range(options.repeats or min(usual, 3 if ours or method == "TTSA" else usual)):
                    protocol = {"steps": steps, "time_limit": seconds, "seed": options.seed + repeat}
                    run = partial(_run, case, variant, method, protocol)
                    made.append(Job(f"multitask/{case}", variant, method, repeat, protocol, run))
    return made
