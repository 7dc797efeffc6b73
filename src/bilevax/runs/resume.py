"""`resume`: go on with a run that was saved, to the end that it would have had."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from bilevax import packed
from bilevax.problem import BilevelProblem
from bilevax.runs import checks
from bilevax.runs.checkpoint import Saved, newest
from bilevax.runs.checkpoint_options import Checkpoint
from bilevax.runs.clock import CompileTime
from bilevax.runs.described import restored
from bilevax.runs.plan import Metrics, make_plan
from bilevax.runs.result import Result
from bilevax.runs.solve import start
from bilevax.runs.stopping import Rule
from bilevax.solvers.protocol import Solver


def resume(
    path: str | Path,
    problem: BilevelProblem,
    solver: Solver | None = None,
    *,
    steps: int | None = None,
    tol: float | None = None,
    stop: Rule | Iterable[Rule] = (),
    time_limit: float | None = None,
    metrics: Metrics | Iterable[Metrics] | None = None,
    observers: Callable[..., Any] | Iterable[Callable[..., Any]] = (),
    progress: bool | str = False,
    seconds: float = 10.0,
    x0: PyTree = None,
    y0: PyTree = None,
) -> Result:
    """Go on with a run of `bx.solve(..., checkpoint=path)`, from its newest checkpoint.

    On the same machine, with the same versions and cores, it ends with the same bits as a run that was never stopped.
    A run that had ended gives its result again. Give `steps` or `time_limit` to go beyond the old ones.

    Args:
        path: the folder of the run.
        problem: the same problem. Other data, another set or other functions are noticed and refused.
        solver: needed only if the solver holds functions, such as a schedule of your own.
        steps, tol, time_limit: by default those of the run; its seconds count on.
        stop, metrics, observers: functions are not saved; give those of the run again.
        progress: draw a progress line; a string labels it.
        seconds: how often to save.
        x0, y0: the start, needed only if it consists of classes of your own.

    >>> import jax.numpy as jnp, bilevax as bx, tempfile
    >>> problem = bx.BilevelProblem(
    ...     lambda x, y, _: jnp.sum((y - 1) ** 2), lambda x, y, _: jnp.sum((y - 2 * x) ** 2), bx.Box(-1.0, 1.0)
    ... )
    >>> folder = tempfile.mkdtemp()
    >>> result = bx.solve(problem, bx.IBCG(), jnp.zeros(3), jnp.zeros(3), steps=100, checkpoint=folder)
    >>> bx.resume(folder, problem, steps=200).steps
    200
    """
    folder = Path(path)
    if not folder.is_dir():
        raise FileNotFoundError(f"resume: there is no folder {folder}.")
    saved = newest(folder)
    try:
        options = saved.header["options"]
        key = jax.random.wrap_key_data(jnp.asarray(np.array(saved.header["fingerprint"]["key"], np.uint32)))
        for name, given in (("stop", stop), ("metrics", metrics)):
            if options[name] and (given is None or given == ()):
                raise ValueError(f"resume: the run had {name}=; functions are not saved, so give them again.")
        if solver is None:
            if saved.header["solver"] is None:
                name = saved.header["method"]
                raise ValueError(f"resume: the run's {name} holds functions, which are not saved; give it as solver=.")
            solver = restored(saved.header["solver"])
        x = _start(saved, "x0", x0, problem.x_like)
        y = _start(saved, "y0", y0, problem.y_like)
        kept = {name: options[name] for name in ("steps", "tol", "time_limit", "every")}
    except (KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError) as error:
        raise packed.DamagedFile(f"{folder}: the checkpoint lacks {error} or has it in another form.") from None
    plan = make_plan(
        steps=kept["steps"] if steps is None else steps,
        tol=kept["tol"] if tol is None else tol,
        stop=stop,
        time_limit=kept["time_limit"] if time_limit is None else time_limit,
        key=key,
        metrics=metrics,
        observers=observers,
        every=kept["every"],
        checkpoint=Checkpoint(folder, seconds),
        progress=progress,
    )
    checks.check_solver(solver)
    checks.check_concrete(problem, x, y, solver)
    with CompileTime() as checking:
        x, y = checks.check_start(problem, x, y)
    x, y = (saved.fill(part, tree, shapes=True) for part, tree in (("x0", x), ("y0", y)))
    run = start(problem, solver, x, y, plan, saved)
    run.clock.compiling += checking.seconds
    return run.finish()


def _start(saved: Saved, part: str, given: PyTree, like: PyTree) -> PyTree:
    """A start of the same form; its numbers come from the checkpoint."""
    found = saved.tree(part) if given is None else given
    if found is None and like is None:
        raise ValueError(f"resume: {part} of the run is made of classes that are not saved; give it as {part}=.")
    return None if found is None else jax.tree.map(jnp.asarray, found)
