"""y, the adjoint and the direction at one x: solved where the problem has formulas for them, otherwise tracked."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree, Scalar

from bilevax import trees
from bilevax.estimation import for_steps
from bilevax.hypergradient import adjoint_step, solve_adjoint, solve_lower
from bilevax.linalg import host_loops
from bilevax.problem import BilevelProblem
from bilevax.theory import Constants


class LowerEstimate(eqx.Module):
    """y, the adjoint and the direction at one x."""

    y: PyTree
    w: PyTree
    """The adjoint; None where it is solved, since it is then not needed again."""
    F: PyTree


def has_solutions(problem: BilevelProblem) -> bool:
    """Whether formulas solve the lower level and the adjoint."""
    return problem.structure.solve_lower is not None and problem.structure.solve_adjoint is not None


def evaluate(
    problem: BilevelProblem, x: PyTree, y: PyTree, w: PyTree, constants: Constants | None, steps: Array | int
) -> LowerEstimate:
    """The estimate at x from y and w nearby: solved where the problem has formulas, otherwise by gradient steps."""
    if has_solutions(problem):
        return solved(problem, x, y)
    assert constants is not None
    return tracked(problem, x, y, w, jnp.asarray(for_steps(constants).alpha), jnp.asarray(steps))


def solved(problem: BilevelProblem, x: PyTree, y: PyTree) -> LowerEstimate:
    """By the formulas, as one compiled function unless they are host kernels."""
    return (_solved if problem.structure.kernels.on_host else _compiled_solved)(problem, trees.coordinates(x), y)


def _solved(problem: BilevelProblem, x: PyTree, y: PyTree) -> LowerEstimate:
    y = solve_lower(problem, x, y)
    f_x, f_y = problem.upper_grads(x, y)
    w = solve_adjoint(problem, x, y, f_y, f_y)
    return LowerEstimate(y, None, trees.sub(f_x, problem.lower_cross(x, y, w)))


_compiled_solved = jax.jit(_solved)


def tracked(problem: BilevelProblem, x: PyTree, y: PyTree, w: PyTree, alpha: Scalar, steps: Array) -> LowerEstimate:
    """By so many gradient steps on each, as one compiled function unless the formulas are host kernels."""
    track = _tracked if problem.structure.kernels.on_host else _compiled_tracked
    return track(problem, trees.coordinates(x), y, w, alpha, steps)


def _tracked(problem: BilevelProblem, x: PyTree, y: PyTree, w: PyTree, alpha: Scalar, steps: Array) -> LowerEstimate:
    alpha = alpha.astype(trees.dtype(x))
    host = problem.structure.kernels.on_host
    y = host_loops.repeat(steps, lambda y: trees.axpy(-alpha, problem.lower_grad(x, y), y), y, host=host)
    f_x, f_y = problem.upper_grads(x, y)
    lower = problem.linearize_lower(x, y)
    w = host_loops.repeat(steps, lambda w: adjoint_step(lower.hvp, f_y, w, alpha), w, host=host)
    return LowerEstimate(y, w, trees.sub(f_x, lower.cross(w)))


_compiled_tracked = jax.jit(_tracked)


def inner_of_differences(a: PyTree, b: PyTree, c: PyTree, d: PyTree) -> float:
    """`<a - b, c - d>` in one pass."""
    return float(_compiled_inner(*map(trees.coordinates, (a, b, c, d))))


_compiled_inner = jax.jit(lambda a, b, c, d: trees.gap(trees.sub(a, b), c, d))
