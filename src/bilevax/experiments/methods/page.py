"""The words and tables of `bilevax methods`: Table 1 as printed, what was measured, what it shows."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterable, Sequence

from bilevax.drawing.tables import markdown
from bilevax.experiments.methods.measure import (
    KAPPA,
    LIMITS,
    RATIO,
    REPEATS,
    SECONDS,
    SIZE,
    SLOPE,
    Measured,
    elsewhere_rows,
    measured_rows,
)
from bilevax.experiments.methods.table1 import METHODS, printed_rows, static_rows
from bilevax.runs import run_directory


def findings(measured: Sequence[Measured]) -> list[str]:
    """Sentences about the measurements; they only say what the rows show."""
    converged = [one for one in measured if one.converged]
    first_order = [one for one in converged if one.products == 0]
    sentences = []
    if len(converged) > 3:
        priced = lambda one: f"{one.steps}, each with {one.products:.3g} products"  # noqa: E731
        sentences.append(f"Fewest steps: {_three(converged, lambda one: one.steps, priced)}.")
        sentences.append(f"Fewest calls: {_three(converged, lambda one: one.calls, lambda one: str(one.calls))}.")
        sentences.append(
            f"Least time in steps: {_three(converged, lambda one: one.run, lambda one: f'{1e3 * one.run:.2g} ms')}."
        )
    if len(first_order) > 1:
        best = _three(first_order, lambda one: one.steps, lambda one: f"{one.steps} steps")
        sentences.append(f"Without second derivatives: {best}.")
    sentences += _both_ways(converged)
    late = [f"{one.label} {one.left:.2g}" for one in measured if not one.converged]
    return sentences + ([f"Not converged, with the smallest relative gap reached: {'; '.join(late)}."] if late else [])


def _three(measured: list[Measured], key: Callable[[Measured], float], words: Callable[[Measured], str]) -> str:
    return "; ".join(f"{one.label} {words(one)}" for one in sorted(measured, key=key)[:3])


def _both_ways(converged: Sequence[Measured]) -> list[str]:
    steps: dict[str, dict[str, int]] = {}
    for one in converged:
        steps.setdefault(one.method, {})[one.moves] = one.steps
    pairs = {name: ways for name, ways in steps.items() if len(ways) == 2}
    if len(pairs) < 2:
        return []
    fewer = [name for name, ways in pairs.items() if ways["lmo"] < ways["projection"]]
    names = f": {', '.join(fewer)}" if fewer else ""
    return [f"Of {len(pairs)} methods that converged both ways, {len(fewer)} took fewer steps with an lmo{names}."]


_INTRODUCTION = """
This page is written by `bilevax methods --out docs/methods.md`. The first table is Table 1 of the IBCG paper,
transcribed, with a row of dashes for each of our methods that is not in it. The second says what our code does: what
a step costs, counted while it runs, and how fast the method converges. The third has three other problems.
"""
_PAPER = """
NC and C: ℓ nonconvex or convex. PO and LMO: projection or linear minimization oracle; none: a result for problems
without constraints. G is the Frank–Wolfe gap, κ = L_g/μ_g, m the number of lower variables. An asterisk marks
results of the stochastic setting. The dagger says that the dependency on κ is not reported; the paper prints it once
and means every poly(κ). A dash: not in Table 1.
"""
_PROBLEM = f"""
The common problem is a random quadratic on the l2 ball with {{size}} variables at each level, κ = {KAPPA:g} and a
solution on the sphere (`bx.problems.random_quadratic`, key 0, slope {SLOPE:g}), from x = 0 and y = 0, without sampling
and with default settings. A method has converged when the true Frank–Wolfe gap, computed with the exact y and adjoint,
is at most {RATIO:g} of its first value. Otherwise, after {SECONDS:g} s or {LIMITS[-1]:,} steps, the table shows the
smallest relative gap it reached. Methods that can move x in two ways are measured both ways; projection is their
default.
"""
_COLUMNS = f"""
∇f, ∇g, H, J: gradients of f (both partial ones count) and of g, Hessian products and cross products per step,
averaged over the run without its start. loops: 2 if y or the adjoint have a loop of their own within a step. calls:
all of these in the whole run, warm-ups included, estimates excluded. start ms: before the first step, that is
warm-ups and, for projected steps, an estimate of the smoothness of ℓ. steps ms: all steps. Both are run time,
compilation apart, the shortest of {REPEATS} runs. μ_g and L_g are estimated once, as each method would, and given to
all. Steps are exact up to 200, and rounded up to tens up to 2000, to hundreds up to 20000, to thousands beyond.
"""
_ELSEWHERE = f"""
The same random quadratic on a polytope (the simplex), on a nuclear ball (x is a matrix with five columns) and, on the
l2 ball, with κ = 10^4. Milliseconds of all steps until the true gap is at most {RATIO:g} of its first value; "no" with
the smallest relative gap that was reached in {SECONDS:g} s or {LIMITS[-1]:,} steps.
"""
_NOTES = """
The ball is kind to Frank–Wolfe, being strongly convex. On a polytope an lmo needs more steps. On a large nuclear ball a
projection costs far more than an lmo; here both cost the same.

Steps, calls and time rank the methods differently. An exact adjoint or a long inner loop buys few steps of x at the
price of many products; single-loop methods take many cheap steps.

Most papers give steps up to a constant. The constants are ours, each docstring says which, and a tuned method may be
faster than its row.
"""


def _machine_words() -> str:
    here = run_directory.machine()
    cores, versions = ("one core" if here["cores"] == 1 else f"{here['cores']} cores"), here["versions"]
    return f"Measured on {cores} of a {here['system']} machine; bilevax {versions['bilevax']}, jax {versions['jax']}."


def _paragraph(words: str, bullet: str = "") -> str:
    indent = " " * len(bullet)
    flowing = textwrap.TextWrapper(120, bullet, indent, break_long_words=False, break_on_hyphens=False)
    return flowing.fill(words.strip())


def _listed(sentences: Iterable[str]) -> str:
    return "\n".join(_paragraph(sentence, "- ") for sentence in sentences)


def _tables(names: Sequence[str], measured: Sequence[Measured] | None) -> tuple[str, str]:
    return markdown(printed_rows(names)), markdown(static_rows(names) if measured is None else measured_rows(measured))


def text(
    names: Sequence[str],
    measured: Sequence[Measured] | None,
    elsewhere: dict[str, list[Measured]] | None = None,
    size: int = SIZE,
) -> str:
    """What the terminal shows: the tables and what their columns mean."""
    paper, code = _tables(names, measured)
    parts = ["What the paper prints (Table 1)", paper, _paragraph(_PAPER), "What our code does", code]
    if measured is None:
        parts += ["Nothing was run; costs, steps and time take about five minutes, without --no-measure."]
    else:
        parts += [_paragraph(_PROBLEM.format(size=size)), _paragraph(_COLUMNS)]
        parts += [_listed(findings(measured))] if findings(measured) else []
    if measured and elsewhere:
        parts += ["On other problems", markdown(elsewhere_rows(measured, elsewhere)), _paragraph(_ELSEWHERE)]
    return "\n\n".join(parts)


def page(
    names: Sequence[str],
    measured: Sequence[Measured] | None,
    elsewhere: dict[str, list[Measured]] | None = None,
    size: int = SIZE,
) -> str:
    """The same as markdown, with notes and the reference of each method."""
    paper, code = _tables(names, measured)
    parts = ["# Methods", _paragraph(_INTRODUCTION)]
    parts += ["## What the paper prints", paper, _paragraph(_PAPER), "## What our code does"]
    if measured is None:
        parts += [code]
    else:
        parts += [_paragraph(_PROBLEM.format(size=size) + _machine_words()), code, _paragraph(_COLUMNS)]
    if measured and elsewhere:
        parts += ["## On other problems", _paragraph(_ELSEWHERE), markdown(elsewhere_rows(measured, elsewhere))]
    notes = [*_NOTES.split("\n\n"), *findings(measured or [])]
    notes += [f"`{name}`: {METHODS[name].remark}" for name in names if METHODS[name].remark]
    parts += ["## Notes", _listed(notes), "## The methods", _listed(f"`{name}`: {about(name)}" for name in names)]
    return "\n\n".join(parts) + "\n"


def about(name: str) -> str:
    """The first sentence of a method's documentation, and where the method is from."""
    paragraphs = (inspect.getdoc(METHODS[name].solver) or "").split("\n\n")
    kept = [part for i, part in enumerate(paragraphs) if i == 0 or part.startswith("Reference")]
    if len(kept) == 1:
        kept.append("Reference: none; the method is ours.")
    return " ".join(" ".join(kept).split())
