"""Table 1 of the paper, transcribed, and the solver behind each of its rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from bilevax import solvers
from bilevax.solvers import Solver
from bilevax.solvers.pieces.x_step import moves_both_ways

DASH = "–"
MOVES = {"lmo": "lmo", "project": "projection", "low rank": "low-rank projection"}


class Printed(NamedTuple):
    """A line of the paper's Table 1."""

    oracle: str
    ell: str
    assumption: str
    complexity: str
    metric: str


_BOUNDED, _LIPSCHITZ = "bounded", "Lip. cont."
_SQUARED, _EXPECTED_SQUARED = "‖∇ℓ(x_k*)‖²", "E‖∇ℓ(x_k*)‖²"
_EXCESS, _EXPECTED_EXCESS = "ℓ(x_K) − ℓ(x*)", "E[ℓ(x_K) − ℓ(x*)]"


def _unconstrained(complexity: str, metric: str) -> tuple[Printed, ...]:
    return (Printed("none", "NC", _BOUNDED, complexity, metric),)


def _constrained(
    oracle: str, nonconvex: tuple[str, str], convex: tuple[str, str], assumption: str = _BOUNDED
) -> tuple[Printed, ...]:
    return Printed(oracle, "NC", assumption, *nonconvex), Printed(oracle, "C", assumption, *convex)


@dataclass(frozen=True)
class Method:
    """A solver, what Table 1 prints of it, and how we measure it."""

    solver: type[Any]
    printed: tuple[Printed, ...] = ()
    starred: bool = False
    """The paper's asterisk: a result of the stochastic setting."""
    mode: tuple[str, Callable[[], Solver]] | None = None
    """A second form to measure."""
    needs_sampler: bool = False
    remark: str = ""

    def forms(self, name: str) -> Iterator[tuple[str, Solver]]:
        """The default and the second form, each moved by every oracle it can use."""
        for label, solver in [(name, self.solver()), *([(self.mode[0], self.mode[1]())] if self.mode else [])]:
            for form in moved(solver):
                yield label, form


def moved(solver: Any) -> list[Any]:
    """The solver with each way it can move x."""
    return [replace(solver, x_step=way) for way in ("project", "fw")] if moves_both_ways(solver) else [solver]


METHODS: dict[str, Method] = {
    "IBCG": Method(
        solvers.IBCG,
        (
            *_constrained("LMO", ("O(κ^5 m^2 ε^-2)", "G(x_k*)"), ("Õ(κ^5 m^2 ε^-1)", _EXCESS), _LIPSCHITZ),
            *_constrained("LMO", ("O(κ^4 m^2 ε^-2)", "G(x_k*)"), ("Õ(κ^4 m^2 ε^-1)", _EXCESS)),
        ),
        remark="A step costs what one of SOBA with an lmo does. It saves steps by using the new adjoint and the new x "
        "at once, and by warming up y and the adjoint before the first step, which is in `calls` and `start ms`.",
    ),
    "SBFW": Method(
        solvers.SBFW,
        _constrained("LMO", ("Õ(poly(κ) m^2 ε^-4)", "E[G(x_k*)]"), ("Õ(poly(κ) m^2 ε^-3)", _EXPECTED_EXCESS)),
        starred=True,
        mode=("SBFW tracked", lambda: solvers.SBFW("tracked")),
        remark='Its randomly truncated product is noise even without sampling; `SBFW("tracked")` has none.',
    ),
    "TTSA": Method(
        solvers.TTSA,
        _constrained(
            "PO",
            ("Õ(poly(κ) m^2 ε^-2.5)", "E‖x_k* − prox_ρℓ(x_k*)‖²"),
            ("Õ(poly(κ) m^2 ε^-4)", _EXPECTED_EXCESS),
        ),
        starred=True,
        mode=("TTSA deterministic", lambda: solvers.TTSA(deterministic=True)),
        remark="Truncates at random too, and its steps shrink for that; `TTSA(deterministic=True)` does neither.",
    ),
    "ABA": Method(
        solvers.ABA,
        _constrained(
            "PO",
            ("O(κ^4.5 m^3 ε^-1 + κ^5 m ε^-1.25)", _SQUARED),
            ("O(κ^4.5 m^3 ε^-0.5 + κ^5 m ε^-0.75)", _EXCESS),
        ),
        remark="Solves for the adjoint to the precision of the numbers at every step; most of its calls go there.",
    ),
    "SUSTAIN": Method(
        solvers.SUSTAIN,
        _unconstrained("Õ(poly(κ) m^2 ε^-1.5)†", _EXPECTED_SQUARED),
        starred=True,
        remark="Sums its Neumann series at two points in every step.",
    ),
    "FSLA": Method(solvers.FSLA, _unconstrained("O(poly(κ) m^2 ε^-2)", _EXPECTED_SQUARED), starred=True),
    "AIDBiO": Method(solvers.AIDBiO, _unconstrained("O((κ^3.5 m^2 + m κ^4) ε^-1)", _SQUARED)),
    "F3SA": Method(
        solvers.F3SA,
        _unconstrained("Õ(poly(κ) m ε^-1.5)", _SQUARED),
        remark="As F2SA, with one lower step, and averages that cost every gradient twice.",
    ),
    "AmIGO": Method(solvers.AmIGO, _unconstrained("O((κ^4 m^2 + m κ^4) ε^-1)", _SQUARED)),
    "RAHGD": Method(solvers.RAHGD, _unconstrained("O(κ^3.25 m^2 ε^-0.875)", _SQUARED)),
    "BA": Method(solvers.BA, remark="Solves for the adjoint as ABA does."),
    "BSA": Method(solvers.BSA, remark="Truncates at random as SBFW does, and has no form without noise: that is BA."),
    "PBGD": Method(
        solvers.PBGD,
        mode=("PBGD gradient", lambda: solvers.PBGD(penalty="gradient")),
        remark="Projected steps shrink as the penalty grows, Frank–Wolfe steps do not.",
    ),
    "ITDBiO": Method(solvers.ITDBiO, remark="Every unrolled lower step costs a Hessian and a cross product."),
    "StocBiO": Method(solvers.StocBiO),
    "F2SA": Method(
        solvers.F2SA, remark="Projected steps shrink like k^(-1/3) as the penalty grows, also without noise."
    ),
    "SOBA": Method(solvers.SOBA),
    "SABA": Method(
        solvers.SABA,
        needs_sampler=True,
        remark="Needs a sampler, and got one batch of everything, `bx.Blocks(rows, rows)`; its steps are shorter than "
        "SOBA's because they are meant for many batches.",
    ),
    "MASOBA": Method(solvers.MASOBA, remark="Without sampling it is SOBA."),
    "SRBA": Method(solvers.SRBA, remark="Without sampling it is SOBA."),
    "StochasticIBCG": Method(
        solvers.StochasticIBCG, remark="Without sampling it is SOBA with an lmo, at twice the price of a step."
    ),
    "BlockIBCG": Method(
        solvers.BlockIBCG,
        remark="Steps on the host. It is measured with x as a matrix of one row, whose nuclear norm is its length.",
    ),
    "SampledIBCG": Method(solvers.SampledIBCG, remark="Without sampling it is ProjectedIBCG."),
}
OURS = {"AdaptiveIBCG", "BlockIBCG", "PairwiseIBCG", "ProjectedIBCG", "SampledIBCG"}
"""Methods that need no constants, and so make no estimate of them."""
METHODS |= {name: Method(getattr(solvers, name)) for name in solvers.methods() if name not in METHODS}


def chosen(names: str | None) -> list[str]:
    """The methods of a list separated by commas, all of them without one; unknown names are refused."""
    if names is None:
        return list(METHODS)
    wanted = [name.strip() for name in names.split(",")]
    for name in wanted:
        if name not in METHODS:
            raise ValueError(f"unknown method {name!r}; there are {', '.join(METHODS)}.")
    return list(dict.fromkeys(wanted))


def printed_rows(names: Iterable[str]) -> list[dict[str, Any]]:
    """A row for each line of Table 1, and one of dashes for a method that is not in it."""
    absent = (Printed(*[DASH] * len(Printed._fields)),)
    return [
        {
            "method": f"{name}*" if METHODS[name].starred else name,
            "oracle": line.oracle,
            "ℓ": line.ell,
            "∇_y f(x, ·)": line.assumption,
            "overall complexity": line.complexity,
            "convergence metric": line.metric,
        }
        for name in names
        for line in METHODS[name].printed or absent
    ]


def static_rows(names: Iterable[str]) -> list[dict[str, Any]]:
    """What is known of our methods without running them."""
    made = ((name, METHODS[name].solver()) for name in names)
    return [
        {"method": name, "x moves by": " or ".join(MOVES[form.oracle] for form in moved(solver)), "loops": solver.loops}
        for name, solver in made
    ]
