"""The upper level of an estimator: one run of the loop of `solve`, with the limits and the checkpoint of the fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jaxtyping import PyTree

from bilevax.estimators.limits import Limits
from bilevax.problem import BilevelProblem
from bilevax.runs.checkpoint import states
from bilevax.runs.checkpoint_options import as_checkpoint
from bilevax.runs.result import Result
from bilevax.runs.resume import resume
from bilevax.runs.solve import solve
from bilevax.runs.stopping import Status


def solve_upper_level(
    problem: BilevelProblem,
    x0: PyTree,
    y0: PyTree,
    *,
    owner: str,
    tol: float,
    max_steps: int,
    limits: Limits,
    checkpoint: Any,
    verbose: int,
) -> Result:
    """Solve, or go on with the run that the folder of `checkpoint` holds.

    Args:
        owner: the name of the estimator, for messages and for the progress line.
        limits: those of the whole fit. If Ctrl-C ends the run, they know it afterwards.
    """
    folder = as_checkpoint(checkpoint, owner)

    options: dict[str, Any] = {
        "tol": tol,
        "steps": max_steps,
        "stop": lambda trace: limits.stop(),
        "progress": owner if verbose else False,
    }
    if folder is not None and states(Path(folder.path)):
        result = resume(folder.path, problem, seconds=folder.seconds, x0=x0, y0=y0, **options)
    else:
        result = solve(problem, x0=x0, y0=y0, checkpoint=folder, **options)
    if result.status is Status.STOPPED:  # while it runs, the loop receives Ctrl-C
        limits.interrupt.flag = True
    return result
