"""`load`: a result from its files, without the functions of its problem."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bilevax import packed, trees
from bilevax.runs import run_directory
from bilevax.runs.result import Outcome
from bilevax.runs.stopping import Status


@dataclass(frozen=True)
class LoadedResult(Outcome):
    """A result that `result.save` wrote: everything but the problem, so that nothing can be computed anew."""

    config: dict[str, Any] = field(repr=False)
    """All that `config.json` holds: versions, machine, options, constants, notes."""

    def constants(self) -> dict[str, tuple[float, str]]:
        """The constants the run used, each with where it came from."""
        return {name: (told["value"], told["source"]) for name, told in self.config["constants"].items()}

    def __str__(self) -> str:
        return "\n".join(
            [
                f"{self.status.name}  {self.config.get('solver')}, {self.steps} steps in {self.seconds:.3g} s",
                f"  why          {self.message}",
                f"  problem      x {trees.describe(self.x)} in {self.config.get('domain')}, y {trees.describe(self.y)}",
                f"  trace        {len(self.trace)} rows: {', '.join(self.trace.columns)}",
            ]
        )


def load(path: str | Path) -> LoadedResult:
    """Read what `result.save(path)` wrote.

    x and y are numpy arrays in the containers that they had. Those of sparse completion, whose x is a class of its own,
    are a table of arrays.

    >>> import jax.numpy as jnp, bilevax as bx, tempfile
    >>> problem = bx.BilevelProblem(
    ...     lambda x, y, _: jnp.sum((y - 1) ** 2), lambda x, y, _: jnp.sum((y - 2 * x) ** 2), bx.Box(-1.0, 1.0)
    ... )
    >>> folder = bx.solve(problem, None, jnp.zeros(3), jnp.zeros(3), tol=1e-3).save(tempfile.mkdtemp())
    >>> bx.load(folder).status.name
    'CONVERGED'
    """
    config, trace = run_directory.load(path)
    points = run_directory.load_points(path)
    try:
        constants = {name: dict(told) for name, told in config.get("constants", {}).items()}
        if not all({"value", "source"} <= told.keys() for told in constants.values()):
            raise TypeError("a constant with value and source")
        return LoadedResult(
            x=points["x"],
            y=points["y"],
            status=Status[config["status"]],
            message=str(config["message"]),
            steps=int(config["steps"]),
            seconds=float(config["seconds"]),
            compile_seconds=float(config["compile_seconds"]),
            trace=trace,
            config={**config, "constants": constants},
        )
    except packed.UNEXPECTED as error:
        raise packed.DamagedFile(
            f"{path}: config.json or result.npz lacks {error} or has it in another form."
        ) from None
