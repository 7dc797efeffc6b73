"""What a family of benchmark problems is."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple


class Instance(NamedTuple):
    """A problem with a start."""

    problem: Any
    x0: Any
    y0: Any
    x_star: Any = None
    """The solution, where one is known."""
    diagonal: Callable[..., Any] | None = None
    """`diagonal(x, y, data)`, the diagonal of the lower Hessian, with which `exact.py` preconditions."""


@dataclass(frozen=True)
class Family:
    """Named problems that differ in a seed.

    The seed of a convex family draws the problem. The seed of a nonconvex one draws the start only, so that its three
    seeds are three starts on the same data. The relative gap of a run is its true gap over that at its start: the
    Frank-Wolfe gap, or where the set is unbounded the norm of the gradient mapping.
    """

    name: str
    kind: str
    """"convex" or "nonconvex"."""
    make: Callable[[int], Instance]
    baselines: tuple[str, ...] = ()
    """The names in `baselines.BASELINES` that apply to its set."""
    quick: bool = False
    """Whether `--quick` includes it."""

    @property
    def target(self) -> float:
        """The relative gap at which the clock stops."""
        return 1e-6 if self.kind == "convex" else 1e-3

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds to run by default."""
        return (0,) if self.kind == "convex" else (0, 1, 2)
