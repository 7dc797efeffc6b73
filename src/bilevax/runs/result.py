"""What `solve` returns, and how it reads on a screen."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
from jaxtyping import PyTree

from bilevax import trees
from bilevax.problem import BilevelProblem
from bilevax.runs import run_directory
from bilevax.runs.audit import Audit, audit
from bilevax.runs.certificate import Certificate
from bilevax.runs.clock import CompileTime
from bilevax.runs.stopping import Status
from bilevax.runs.trace import Trace
from bilevax.solvers.auto import choose
from bilevax.solvers.protocol import COUNTS, Solver, takes_few_steps


class SolveFailed(RuntimeError):
    """Raised by `Result.check()` for a run that did not converge."""


@dataclass(frozen=True)
class Outcome:
    """How a run ended: where it stopped, why, and its trace."""

    x: PyTree
    y: PyTree
    """y*(x) as solved in the audit if the run converged; otherwise the y that the method tracked."""
    status: Status
    message: str
    steps: int
    seconds: float
    """Time spent in steps; compilation and the making of rows are not in it."""
    compile_seconds: float
    """Time that JAX spent on compiling, for checks and rows too; `print(result)` adds that of its own summary."""
    trace: Trace

    @property
    def success(self) -> bool:
        """Whether the run converged, that is, reached a verified gap."""
        return self.status is Status.CONVERGED

    def check(self) -> Self:
        """This result if it converged; otherwise raise `SolveFailed` with the reason."""
        if not self.success:
            raise SolveFailed(f"{self.status.name}: {self.message}")
        return self


@dataclass(frozen=True)
class Result(Outcome):
    """What `bx.solve` returns: how the run ended, the problem and the solver, and what can be computed from them."""

    state: Any = field(repr=False)
    problem: BilevelProblem = field(repr=False)
    solver: Solver = field(repr=False)
    """The solver with every estimated constant filled in."""
    verified: Audit | None = field(default=None, repr=False)
    """The audit on which CONVERGED rests; None for any other status."""
    certificate: Certificate | None = field(default=None, repr=False)
    """What the column `gap_bound` of the trace rests on."""
    chosen: str = ""
    """Why `bx.auto` chose the solver; empty if it was named."""

    @cached_property
    def _audited(self) -> tuple[Audit, float]:
        """The audit, and the seconds that its compilation took."""
        if self.verified is not None:
            return self.verified, 0.0
        with CompileTime() as compilation:
            w, constants = getattr(self.state, "w", None), getattr(self.solver, "constants", None)
            true = audit(self.problem, self.x, self.y, w, constants=constants)
        return true, compilation.seconds

    def audit(self) -> Audit:
        """The true objective, gap and gradient at x, with both inner problems solved again (computed once).

        Print it to read what was checked, how, and what was assumed.
        """
        return self._audited[0]

    def solve_lower(self) -> PyTree:
        """y*(x) at the last x, solved as accurately as the audit can; what you should deploy."""
        return self.audit().y

    @property
    def certified(self) -> str:
        """How the true gap at x is known: "proved", "estimated", or empty where nothing can be said."""
        return self.audit().certified

    def constants(self) -> dict[str, tuple[float, str]]:
        """The constants the run used, each with where it came from."""
        used: dict[str, tuple[float, str]] = {}
        constants = getattr(self.solver, "constants", None)
        if constants is not None:
            source = "estimated" if constants.estimated else "given"
            used["mu_g"] = (float(constants.mu_g), source)
            used["L_g"] = (float(constants.L_g), source)
        width, exact = self.problem.domain.diameter(self.x)
        if not np.isnan(float(width)):
            used["D_X"] = (float(width), "exact" if exact else "upper bound")
        return used

    def save(self, path: str | Path, notes: dict[str, Any] | None = None) -> Path:
        """Write a run directory: `config.json`, with `notes` of the caller in it, `trace.csv`, and x and y in
        `result.npz`. `bx.load` reads it again."""
        return run_directory.save(
            path,
            {
                **(notes or {}),
                "status": self.status.name,
                "message": self.message,
                "steps": self.steps,
                "seconds": self.seconds,
                "compile_seconds": self.compile_seconds,
                "solver": type(self.solver).__name__,
                "domain": repr(self.problem.domain),
                "x": trees.describe(self.x),
                "y": trees.describe(self.y),
                "constants": {name: {"value": v, "source": s} for name, (v, s) in self.constants().items()},
            },
            self.trace,
            {"x": self.x, "y": self.y},
        )

    def __str__(self) -> str:
        true, compiling = self._audited
        lines = [
            f"{self.status.name}  {type(self.solver).__name__}, {self.steps} steps in {self.seconds:.3g} s "
            f"(compilation {self.compile_seconds + compiling:.2g} s)",
            f"  why          {self.message}",
            *([f"  method       {type(self.solver).__name__}, since {self.chosen}"] if self.chosen else []),
            f"  problem      x {trees.describe(self.x)} in {self.problem.domain!r}, y {trees.describe(self.y)}",
            f"  true value   ell(x) = {float(true.ell):.8g}; tracked f(x, y) = {self.trace.last['upper']:.8g}",
            f"  true gap     {_gap_words(true, self.trace)}",
            f"  lower level  {self._lower_words(true)}{self._adjoint_words(true)}",
            f"  feasibility  {self.problem.domain.violations(self.x) or 'x is in the set'}",
            "  constants    " + ", ".join(f"{n} = {v:.4g} ({s})" for n, (v, s) in self.constants().items()),
            "  oracle calls " + ", ".join(f"{n} {self.trace.last[n]}" for n in COUNTS if self.trace.last[n]),
            f"  next         {self._advice(true)}",
        ]
        return "\n".join(lines)

    def _lower_words(self, true: Audit) -> str:
        distance = float(trees.norm(trees.sub(self.state.y, true.y)))
        if self.verified is not None:
            return f"y is y*(x), solved in the audit; the tracked one is {distance:.2e} away"
        return f"|y - y*| = {distance:.2e}; result.solve_lower() gives y*"

    def _adjoint_words(self, true: Audit) -> str:
        w = getattr(self.state, "w", None)
        return "" if w is None else f", |w - v| = {float(trees.norm(trees.sub(w, true.v))):.2e}"

    def _advice(self, true: Audit) -> str:
        if self.status is Status.CONVERGED:
            return "nothing: the gap was verified with both inner problems solved."
        if self.status is Status.NOT_STRONGLY_CONVEX:
            return "a lower level that is strongly convex in y; bx.diagnose(problem, x0, y0) looks at it more closely."
        if self.status is Status.NONFINITE:
            return "smaller step sizes, or check that lower is strongly convex in y and smooth everywhere x may go."
        better = choose(self.problem, self.x, self.y)
        if type(better.solver) is not type(self.solver):
            return f"bx.{type(better.solver).__name__}(), which bx.auto would choose: {better.why}."
        if self.status is Status.STALLED:
            return "another solver, or a smaller step: the present one no longer makes progress."
        gaps, steps = self.trace["gap"], self.trace["step"]
        if len(gaps) < 4 or np.isnan(gaps[-1]):
            return "more steps."
        half = len(gaps) // 2
        if not gaps[half:].min() < 0.9 * gaps[:half].min():
            if takes_few_steps(self.solver):
                return "the gap has stopped falling: float64 if x is float32, or a larger tol."
            return "the gap has stopped falling: smaller or faster decaying steps, or a better tracked y and w."
        slope = -np.log(gaps[half:].min() / gaps[1 : half + 1].min()) / np.log(
            max(2, steps[-1] / max(1, steps[half // 2]))
        )
        return f"more steps: over the last half the gap fell about like k^-{max(slope, 0.01):.2g}."


def _gap_words(true: Audit, trace: Trace) -> str:
    name, value, error = true.measure
    why = true.not_convex or true.refusal
    known = f"no bound: {why}" if why else f"+- {error:.0e}, {true.certified}"
    if np.isnan(true.gap):
        return f"none (unbounded set); {name} = {value:.3e} ({known})"
    return f"{value:.3e} ({known}); tracked {trace.last['gap']:.3e}"
