"""Whether the set has the oracle by which a solver moves x; refused in words before the first step."""

from __future__ import annotations

import inspect
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from bilevax import trees
from bilevax.problem import BilevelProblem
from bilevax.runs.checks import NUMPY_INSIDE
from bilevax.sets import ConvexSet, UserSet
from bilevax.solvers.pieces.x_step import moves_both_ways


def check_oracle(problem: BilevelProblem, x: PyTree, solver: Any) -> None:
    """Refuse sets that lack the oracle by which the solver moves x."""
    {"lmo": check_lmo, "project": check_projection, "low rank": check_low_rank}[solver.oracle](problem, x, solver)


def check_low_rank(problem: BilevelProblem, x: PyTree, solver: Any) -> None:
    """Refuse sets without low-rank steps."""
    try:
        problem.domain.low_rank_start(x)
    except NotImplementedError as error:
        raise ValueError(f"{type(solver).__name__} cannot move x: {error} Use bx.auto or another solver.") from None


def check_lmo(problem: BilevelProblem, x: PyTree, solver: Any) -> None:
    """Refuse sets whose oracle cannot serve a Frank-Wolfe step, before the first one."""
    name = solver if isinstance(solver, str) else type(solver).__name__
    width = problem.domain.diameter(x).value
    if np.isinf(float(width)):
        raise ValueError(
            f"{name} moves by linear minimization and {problem.domain!r} is unbounded; "
            f"bound it, or use {_instead(solver, 'project')}."
        )
    try:
        if isinstance(problem.domain, UserSet):
            _check_oracle(problem.domain)
            # What it answers is converted to the structure of x only if it has it.
            look = problem.domain.oracle
        else:
            look = lambda d: problem.domain.lmo(d, problem.domain.start(d))[0]  # noqa: E731
        s = look(trees.zeros_like(x)) if problem.domain.kernels.on_host else jax.eval_shape(look, x)
    except NUMPY_INSIDE as error:
        raise TypeError(
            f"the lmo of {problem.domain!r} uses its argument outside JAX, most likely through numpy. Write it with "
            f"jax.numpy, or wrap it as bx.UserSet(lmo, host=True) to run it on the host."
        ) from error
    if isinstance(s, ConvexSet):
        raise TypeError(
            f"domain returned a set, a {type(s).__name__}: the set of x cannot depend on y or x. {_NO_COUPLING}"
        )
    _check_answer("lmo", problem, s, x)


def check_projection(problem: BilevelProblem, x: PyTree, solver: Any) -> None:
    """Refuse sets whose projection cannot serve a projected step, before the first one."""
    project = problem.domain.project
    try:
        answer = project(x) if problem.domain.kernels.on_host else jax.eval_shape(project, x)
    except NotImplementedError:
        raise ValueError(
            f"{type(solver).__name__} projects onto the set and {problem.domain!r} has no projection; "
            f"use {_instead(solver, 'fw')}, or give bx.UserSet(lmo, project=...)."
        ) from None
    except NUMPY_INSIDE as error:
        raise TypeError(
            f"the projection of {problem.domain!r} uses its argument outside JAX, most likely through numpy. Write it "
            f"with jax.numpy, or wrap it as bx.UserSet(lmo, project=..., host=True) to run it on the host."
        ) from error
    _check_answer("projection", problem, answer, x)


def _instead(solver: Any, x_step: str) -> str:
    """What moves x the other way."""
    if moves_both_ways(solver):
        return f'bx.{type(solver).__name__}(x_step="{x_step}")'
    return "bx.ProjectedIBCG(), which projects" if x_step == "project" else "bx.PairwiseIBCG(), which asks the lmo"


def _check_answer(oracle: str, problem: BilevelProblem, answer: PyTree, x: PyTree) -> None:
    answer, x = trees.coordinates(answer), trees.coordinates(x)
    got, wanted = trees.shapes(answer), trees.shapes(x)
    if got.structure != wanted.structure or [v.shape for v in got.leaves] != [v.shape for v in wanted.leaves]:
        kinds = trees.describe(answer) if got.structure == wanted.structure else f"{got.structure}"
        asked = "direction" if oracle == "lmo" else "point"
        raise ValueError(
            f"the {oracle} of {problem.domain!r} returned {kinds} for a {asked} of {trees.describe(x)}; "
            f"it must match x."
        )


_NO_COUPLING = "Give one fixed set, and put what couples x and y into upper or lower."


def _check_oracle(domain: UserSet) -> None:
    try:
        inspect.signature(domain.oracle).bind(None)
    except TypeError:
        raise TypeError(
            f"the lmo of {domain!r} must take one argument, the direction; it takes "
            f"{inspect.signature(domain.oracle)}. {_NO_COUPLING}"
        ) from None
    except ValueError:  # builtins tell no signature
        return
