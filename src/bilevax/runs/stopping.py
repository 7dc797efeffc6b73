"""When a run ends and what that is called; a rule looks at the trace and nothing else."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from bilevax.runs.trace import Trace


class Status(enum.Enum):
    """How a run ended. Only `CONVERGED` is success, and it is never given without a verified gap."""

    CONVERGED = "converged"
    MAX_STEPS = "max_steps"
    TIME_LIMIT = "time_limit"
    STALLED = "stalled"
    STOPPED = "stopped"
    NONFINITE = "nonfinite"
    NOT_STRONGLY_CONVEX = "not_strongly_convex"


class Stop(NamedTuple):
    """A rule's verdict. One that says `CONVERGED` gives the true gap it asks for, and the loop verifies it."""

    status: Status
    message: str
    limit: float = np.nan


Rule = Callable[[Trace], Stop | Status | bool | None]


def _measure(trace: Trace) -> str:
    """On an unbounded set there is no gap, and the gradient mapping takes its place, or the gradient itself."""
    names = [name for name in ("gap", "gradient_mapping") if name in trace]
    known = lambda name: not (np.isnan(trace.first[name]) and np.isnan(trace.last[name]))  # noqa: E731
    return next((name for name in names if known(name)), "grad_norm")


def _first(trace: Trace, name: str) -> float:
    """The first value that is known: a method on mini-batches has none at its start."""
    values = (trace.row(i)[name] for i in range(len(trace)))
    return next((value for value in values if not np.isnan(value)), np.nan)


def gap_below(tol: float) -> Rule:
    """Converged when the true Frank-Wolfe gap is at most `tol` (the gradient mapping if the set is unbounded)."""
    if not (np.isfinite(tol) and tol > 0):
        raise ValueError(f"gap_below: the tolerance must be a positive number, got {tol!r}.")

    def rule(trace: Trace) -> Stop | None:
        name = _measure(trace)
        return Stop(Status.CONVERGED, f"{name} <= {tol:g}", tol) if trace.last[name] <= tol else None

    return rule


def relative_gap(ratio: float) -> Rule:
    """Converged when the true gap is at most `ratio` times the first one reported."""
    if not 0 < ratio < 1:
        raise ValueError(f"relative_gap: the ratio must lie between 0 and 1, got {ratio!r}.")

    def rule(trace: Trace) -> Stop | None:
        name = _measure(trace)
        limit = ratio * abs(_first(trace, name))
        return (
            Stop(Status.CONVERGED, f"{name} <= {ratio:g} of its first value", limit)
            if trace.last[name] <= limit
            else None
        )

    return rule


def plateau(column: str = "gap", *, rows: int = 20, ratio: float = 1e-3) -> Rule:
    """Stalled when the best value of a column improved by less than `ratio` over the last `rows` rows."""
    if rows < 1 or not 0 <= ratio < 1:
        raise ValueError(f"plateau: need rows >= 1 and 0 <= ratio < 1, got rows={rows!r}, ratio={ratio!r}.")

    def rule(trace: Trace) -> Stop | None:
        values = trace[column]
        if len(values) <= rows:
            return None
        if column == "gap" and np.isnan(values).all():
            values = trace[_measure(trace)]
        before, now = (part[~np.isnan(part)] for part in (values[:-rows], values[-rows:]))
        # NaN says nothing about progress, and must not stop a run.
        if not (len(before) and len(now)) or before.min() - now.min() >= ratio * abs(before.min()):
            return None
        return Stop(Status.STALLED, f"{column} improved by less than {ratio:g} of itself over {rows} rows")

    return rule


def as_stop(verdict: Any, rule: Any) -> Stop | None:
    """A user's rule may also answer True, which stops, or a status."""
    if verdict is None or (isinstance(verdict, (bool, np.bool_)) and not verdict):
        return None
    name = getattr(rule, "__name__", type(rule).__name__)
    claimed = verdict.status if isinstance(verdict, Stop) else verdict
    if claimed is Status.CONVERGED and not (isinstance(verdict, Stop) and np.isfinite(verdict.limit)):
        raise ValueError(
            f"the stopping rule {name} must return bx.Stop(CONVERGED, message, limit) with a gap to verify."
        )
    if isinstance(verdict, Stop):
        return verdict
    if isinstance(verdict, Status):
        return Stop(verdict, f"the rule {name} said so")
    if isinstance(verdict, (bool, np.bool_)):
        return Stop(Status.STOPPED, f"the rule {name} said so")
    raise TypeError(f"the stopping rule {name} returned {verdict!r}; return None, True, a Status or a bx.Stop.")
