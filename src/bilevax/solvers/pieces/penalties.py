"""What the methods share that replace the lower level by a penalty."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree, Scalar

from bilevax import trees
from bilevax.estimation import for_steps
from bilevax.hypergradient import adjoint_solution
from bilevax.problem import BilevelProblem, LowerStructure
from bilevax.schedules import Constant, Power
from bilevax.solvers.pieces.defaults import batch_constants, outer_schedule
from bilevax.theory import Constants


def check_noise(solver: Any) -> None:
    """Refuse a word for the noisy levels that is none."""
    if solver.noise not in (None, "none", "upper", "both"):
        raise ValueError(f"{type(solver).__name__}: noise must be 'none', 'upper' or 'both', got {solver.noise!r}.")


def noisy(noise: str | None, problem: BilevelProblem) -> str:
    """Which levels are noisy if nothing was said: both on a sampled problem, otherwise none."""
    return noise if noise is not None else "none" if problem.sampler is None else "both"


def largest_curvature(product: Callable[[PyTree], PyTree], like: PyTree, key: Array, steps: int = 20) -> Scalar:
    """The norm of a symmetric linear map by power steps, a lower bound that is good to a few per cent."""
    unit = lambda v: trees.scale(1 / jnp.where(trees.norm(v) > 0, trees.norm(v), 1), v)  # noqa: E731
    v = jax.lax.fori_loop(0, steps - 1, lambda _, v: unit(product(v)), unit(trees.random_like(like, key)))
    return trees.norm(product(v))


def with_upper_curvature(constants: Constants, problem: BilevelProblem, x: PyTree, y: PyTree, key: Array) -> Constants:
    """The constants with L_yy_f, estimated at the start if it was not given."""
    f_yy = lambda v: jax.jvp(lambda y: problem.upper_grads(x, y)[1], (y,), (v,))[1]  # noqa: E731
    given = jnp.asarray(constants.L_yy_f, trees.dtype(y))
    return replace(constants, L_yy_f=jnp.where(jnp.isnan(given), largest_curvature(f_yy, y, key), given))


def first_penalty(constants: Constants, problem: BilevelProblem, x: PyTree, y: PyTree, order: int = 1) -> Scalar:
    """`2 L_yy_f / mu_g`, from which on f + lambda g is strongly convex in y; over mu_g^2 for f + lambda |g_y|^2 / 2.

    Where f is almost linear in y, the penalty that moves y by at most half of 1 + |y|. An estimate of mu_g may be
    zero, so it counts as at least a thousandth of L_g.
    """
    slope = trees.norm(problem.upper_grads(x, y)[1]) / (1 + trees.norm(y))
    steep = jnp.maximum(constants.L_yy_f, slope)
    return 2 * jnp.where(steep > 0, steep, 1) / jnp.maximum(constants.mu_g, constants.L_g / 1000) ** order


def penalty_direction(p: BilevelProblem, x: PyTree, y: PyTree, z: PyTree) -> tuple[PyTree, PyTree]:
    """`f_x(x, y)` and `g_x(x, y) - g_x(x, z)`, the two parts of the gradient of f + lambda (g - min g) in x."""
    return p.upper_grads(x, y)[0], trees.sub(p.lower_grads(x, y)[0], p.lower_grads(x, z)[0])


def penalty_smoothness(
    problem: BilevelProblem, x: PyTree, y: PyTree, key: Array, sigma: Scalar | float, penalty: str
) -> Scalar:
    """The curvature in x of f + sigma p at the start, for p = g - min g ("value") or p = |g_y|^2 / 2 ("gradient").

    That of p is J H^-1 J^T or J J^T, up to terms that vanish where y is optimal for the lower level.
    """
    structure = LowerStructure() if problem.structure.host else problem.structure  # a host formula cannot be traced
    problem = replace(problem, structure=structure)
    f_xx = lambda v: jax.jvp(lambda x: problem.upper_grads(x, y)[0], (x,), (v,))[1]  # noqa: E731

    def p_xx(v: PyTree) -> PyTree:
        w = jax.jvp(lambda x: problem.lower_grad(x, y), (x,), (v,))[1]
        if penalty == "value":
            w = adjoint_solution(problem, x, y, w, trees.zeros_like(w)).w
        return problem.lower_cross(x, y, w)

    curvature = largest_curvature(f_xx, x, key) + sigma * largest_curvature(p_xx, x, key)
    return jnp.where(curvature > 0, curvature, 1)


def penalised_steps(
    solver: Any, exponents: dict[str, Any], lower: Any, problem: BilevelProblem, x: PyTree, y: PyTree, key: Array
) -> dict[str, Any]:
    """The schedules xi, gamma and lam of F2SA and F3SA where they were not given, and the constants behind them.

    As in `single_loop`, xi is shorter than 1/(4 L_ell) where y and z need longer than one step to follow x.
    """
    constants = with_upper_curvature(batch_constants(solver.constants, problem, x, y, key), problem, x, y, key)
    safe = for_steps(constants)
    a, c = exponents[noisy(solver.noise, problem)]
    a = a if solver.lam is None else c  # lambda grows like k^(a-c)
    lam = Power(5 * first_penalty(constants, problem, x, y), c - a) if solver.lam is None else solver.lam
    dtype = trees.dtype(x)
    first = lambda schedule: trees.cast(schedule, dtype)(jnp.zeros((), jnp.int32)).astype(dtype)  # noqa: E731
    length = 1 / (safe.L_g + constants.L_yy_f / first(lam))
    gamma = solver.gamma if solver.gamma is not None else Power(length, c) if c else Constant(length)
    pace = jnp.clip(jnp.asarray(lower, dtype) * first(gamma) * safe.mu_g, 1e-3, 0.5)
    xi = outer_schedule(solver.xi, solver.x_step, problem, x, y, key, a, pace)
    return {"constants": constants, "xi": xi, "gamma": gamma, "lam": lam}
