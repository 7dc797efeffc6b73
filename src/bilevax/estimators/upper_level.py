"""The upper level of an estimator: one run of the loop of `solve`, with the limits and the checkpoint of the fit."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from jaxtyping import PyTree

from bilevax.problem import BilevelProblem
from bilevax.runs.checkpoint import states
from bilevax.runs.checkpoint_options import as_checkpoint
from bilevax.runs.result import Result
from bilevax.runs.resume import resume
from bilevax.runs.solve import solve
from bilevax.runs.stopping import Status, Stop
from bilevax.runs.trace import Trace


def solve_upper_level(
    problem: BilevelProblem,
    x0: PyTree,
    y0: PyTree,
    *,
    owner: str,
    tol: float,
    max_steps: int,
    began: float,
    time_limit: float | None,
    checkpoint: Any,
    verbose: int,
) -> Result:
    """Solve, or go on with the run that the folder of `checkpoint` holds.

    Args:
        owner: the name of the estimator, for messages and for the progress line.
        began: `time.perf_counter()` at the beginning of the fit; the seconds of `time_limit` count from there, with
            those of compilation.
    """
    folder = as_checkpoint(checkpoint, owner)

    def out_of_time(trace: Trace) -> Stop | None:
        if time_limit is None or time.perf_counter() - began < time_limit:
            return None
        return Stop(Status.TIME_LIMIT, f"the time limit of {time_limit:g} s was reached")

    options: dict[str, Any] = {
        "tol": tol,
        "steps": max_steps,
        "stop": out_of_time,
        "progress": owner if verbose else False,
    }
    if folder is not None and states(Path(folder.path)):
        return resume(folder.path, problem, seconds=folder.seconds, x0=x0, y0=y0, **options)
    return solve(problem, x0=x0, y0=y0, checkpoint=folder, **options)
