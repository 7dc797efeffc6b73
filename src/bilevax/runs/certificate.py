"""The column `gap_bound`: computed at every row if all constants are given, otherwise when it is asked for."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import PyTree

from bilevax import trees
from bilevax.problem import BilevelProblem
from bilevax.runs.trace import Row, Trace
from bilevax.solvers.protocol import samples
from bilevax.theory import Constants
from bilevax.verdict.row_bound import RowResiduals, all_given, estimated_constants, gap_bound


class Certificate:
    """Collects what the rows measure and turns it into bounds on the true gap."""

    def __init__(self, problem: BilevelProblem, solver: Any, x: PyTree) -> None:
        self._problem = problem
        self._diameter = float(problem.domain.diameter(x).value)
        self._eps = float(np.finfo(trees.dtype(x)).eps)
        self.residuals: list[RowResiduals] = []
        self.constants: Constants | None = getattr(solver, "constants", None)
        self.source = "given" if all_given(self.constants) else "estimated"
        """"given" if the bound uses constants of the user only; "estimated"; or empty, where there is none."""
        self.reason = self._why_none(solver)
        """Why there is no bound; empty if there is one."""
        if self.reason:
            self.source = ""

    def _why_none(self, solver: Any) -> str:
        name = type(solver).__name__
        if self._problem.sampler is not None and samples(solver):
            return "the problem has a sampler: directions are noisy, and no residual bounds their error"
        if getattr(solver, "averages", False):
            return f"{name} moves along an average of directions"
        if not np.isfinite(self._diameter):
            return "the diameter of the set is not known, or not finite"
        if not hasattr(solver, "observe") and not hasattr(solver, "estimates"):
            return f"{name} keeps no adjoint"
        return ""

    def add(self, residuals: RowResiduals) -> None:
        """What a row measured."""
        self.residuals.append(residuals)

    def bound(self, row: Row) -> float:
        """The bound for the newest row, if all constants are given."""
        return self._bound(row, self.residuals[-1]) if self.source == "given" else np.nan

    def _bound(self, row: Row, residuals: RowResiduals) -> float:
        assert self.constants is not None
        gap, lmo_error, grad_norm = (float(row[name]) for name in ("gap", "lmo_error", "grad_norm"))
        return gap_bound(gap, lmo_error, grad_norm, residuals, self.constants, self._diameter, self._eps)

    def finish(self, trace: Trace, points: list[tuple[PyTree, PyTree]]) -> None:
        """Where constants have to be estimated, do so when somebody asks for the column."""
        if self.source != "estimated":
            return

        def late() -> list[float]:
            self.constants = estimated_constants(self._problem, points)
            return [self._bound(row, seen) for row, seen in zip(trace, self.residuals, strict=True)]

        trace.compute_late("gap_bound", late)
