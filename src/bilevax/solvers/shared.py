"""Pieces that several methods share: how x moves, how y and w are advanced, and what is estimated before the start."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, PyTree, Scalar

from bilevax import control, trees
from bilevax.estimation import estimate_constants, estimate_smoothness, for_steps, lower_spectrum
from bilevax.hypergradient import adjoint_solution, adjoint_step
from bilevax.problem import BilevelProblem, LowerStructure
from bilevax.schedules import Constant, OpenLoop, Power, Schedule
from bilevax.sets import Memory
from bilevax.sets.contract import known
from bilevax.theory import Constants

X_STEPS = ("project", "fw")


def check_x_step(solver: Any) -> None:
    """Refuse an unknown way to move x by name."""
    if solver.x_step not in X_STEPS:
        raise ValueError(
            f"{type(solver).__name__}: x_step must be 'project' (a gradient step, projected onto the set) or 'fw' "
            f"(a Frank-Wolfe step), got {solver.x_step!r}."
        )


def check_counts(solver: Any, **counts: Any) -> None:
    """Refuse inner loops that are not a positive whole number of steps."""
    for name, value in counts.items():
        if value is None or not known(value):
            continue
        if isinstance(value, jax.Array) and not value.ndim and jnp.issubdtype(value.dtype, jnp.integer):
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
            raise ValueError(f"{type(solver).__name__}: {name} must be a whole number of at least 1, got {value!r}.")


def oracle(x_step: str) -> str:
    """Which oracle of the set a step of that kind calls."""
    return "lmo" if x_step == "fw" else "project"


class Moved(NamedTuple):
    """Where x went, and the vertex and memory if an lmo was asked."""

    x: PyTree
    s: PyTree
    memory: Memory
    calls: dict[str, int]


def move_x(problem: BilevelProblem, x: PyTree, d: PyTree, length: Scalar, memory: Memory, x_step: str) -> Moved:
    """`P(x - length d)`, or Frank-Wolfe towards the vertex against `d` with a step clipped to [0, 1]."""
    if x_step == "project":
        return Moved(problem.domain.project(trees.axpy(-length, d, x)), None, memory, {"projections": 1})
    s, memory = problem.domain.lmo(d, memory)
    return Moved(trees.move(x, s, jnp.clip(length, 0, 1)), s, memory, {"lmos": 1})


def constants_for(given: Constants | None, problem: BilevelProblem, x: PyTree, y: PyTree, key: Array) -> Constants:
    """The constants given, or estimated ones."""
    return estimate_constants(problem, x, y, key) if given is None else given


def outer_schedule(
    given: Schedule | None,
    x_step: str,
    problem: BilevelProblem,
    x: PyTree,
    y: PyTree,
    key: Array,
    decay: float = 0.0,
    share: Scalar | float = 1.0,
) -> Schedule:
    """The step of x if none was given: 2/(k+2) for Frank-Wolfe, otherwise a share of 1/(2 L_ell), perhaps decaying."""
    if given is not None:
        return given
    if x_step == "fw":
        return OpenLoop()
    # Half of 1/L_ell: the estimate is local, and a projected step must not be too long anywhere.
    length = share / (2 * estimate_smoothness(problem, x, y, key))
    return Power(length, decay) if decay else Constant(length)


def lower_steps(
    problem: BilevelProblem,
    x: PyTree,
    y: PyTree,
    alpha: Scalar | float,
    count: Int[Array, ""] | int,
    key: Array | None = None,
) -> PyTree:
    """`count` gradient steps on the lower level, each on a fresh sample if a key is given."""

    def step(carry: tuple[Array, PyTree]) -> tuple[Array, PyTree]:
        i, y = carry
        p = problem if key is None else problem.sample(jax.random.fold_in(key, i))
        return i + 1, trees.axpy(-alpha, p.lower_grad(x, y), y)

    return control.repeat(count, step, (jnp.zeros((), jnp.int32), y), host=problem.host)[1]


def accelerated_lower_steps(
    problem: BilevelProblem, x: PyTree, y: PyTree, constants: Constants, count: Int[Array, ""] | int
) -> PyTree:
    """Nesterov's method for strongly convex functions on the lower level."""
    root = jnp.sqrt(constants.kappa)
    momentum = ((root - 1) / (root + 1)).astype(trees.dtype(y))

    def step(carry: tuple[PyTree, PyTree]) -> tuple[PyTree, PyTree]:
        y, ahead = carry
        following = trees.axpy(-1 / constants.L_g, problem.lower_grad(x, ahead), ahead)
        return following, trees.axpy(momentum, trees.sub(following, y), following)

    return control.repeat(count, step, (y, y), host=problem.host)[0]


def adjoint_steps(
    hvp: Callable[[PyTree, Array], PyTree],
    f_y: PyTree,
    w: PyTree,
    eta: Scalar | float,
    count: Int[Array, ""] | int,
    key: Array,
    host: bool,
) -> PyTree:
    """`count` gradient steps on the quadratic (7), where `hvp(w, key_i)` may use a fresh sample for each."""

    def step(carry: tuple[Array, PyTree]) -> tuple[Array, PyTree]:
        i, w = carry
        return i + 1, adjoint_step(lambda w: hvp(w, jax.random.fold_in(key, i)), f_y, w, eta)[0]

    return control.repeat(count, step, (jnp.zeros((), jnp.int32), w), host=host)[1]


def conjugate_steps(
    hvp: Callable[[PyTree], PyTree], f_y: PyTree, w: PyTree, count: Int[Array, ""] | int, host: bool
) -> tuple[PyTree, Int[Array, ""] | int]:
    """`count` steps of conjugate gradients for `H w = f_y`, and the Hessian products spent, one more than steps.

    The last iterate is the answer. The one of least residual, as `conjugate_gradient` has it, may be the start again
    and again: few steps bring the error down long before the residual.
    """
    r = trees.sub(f_y, hvp(w))

    def step(carry: tuple[PyTree, PyTree, PyTree, Scalar]) -> tuple[PyTree, PyTree, PyTree, Scalar]:
        w, r, p, rr = carry
        Hp = hvp(p)
        curvature = trees.inner(p, Hp)
        length = jnp.where(curvature > 0, rr / jnp.where(curvature > 0, curvature, 1), 0)
        r_next = trees.axpy(-length, Hp, r)
        new = trees.inner(r_next, r_next)
        turn = jnp.where(rr > 0, new / jnp.where(rr > 0, rr, 1), 0)
        return trees.axpy(length, p, w), r_next, trees.axpy(turn, p, r_next), new

    return control.repeat(count, step, (w, r, r, trees.inner(r, r)), host=host)[0], count + 1


class Directions(NamedTuple):
    """What moves y, w and x at one point."""

    y: PyTree
    w: PyTree
    x: PyTree


def directions(p: BilevelProblem, x: PyTree, y: PyTree, w: PyTree) -> Directions:
    """`g_y`, `H w - f_y` and `f_x - J w`, from one linearisation of the lower gradient."""
    f_x, f_y = p.upper_grads(x, y)
    lower = p.linearize_lower(x, y)
    return Directions(p.lower_grad(x, y), trees.sub(lower.hvp(w), f_y), trees.sub(f_x, lower.cross(w)))


def storm(new: PyTree, old: PyTree, d: PyTree, theta: Scalar) -> PyTree:
    """`new + (1 - theta) (d - old)`, with `new` and `old` from one sample at the present and the previous point."""
    return trees.axpy(1 - theta, trees.sub(d, old), new)


def check_steps(solver: Any, limit: float = np.inf, **steps: Schedule | None) -> None:
    """Refuse constant steps and weights that are not positive, or beyond a limit."""
    for name, step in steps.items():
        if not isinstance(step, Constant) or not known(step):
            continue
        value = float(step.value)  # a comparison of arrays would be traced if a solver is rebuilt in compiled code
        if not (np.isfinite(value) and 0 < value <= limit):
            beyond = f" and at most {limit:g}" if np.isfinite(limit) else ""
            raise ValueError(f"{type(solver).__name__}: {name} must be positive{beyond}, got {step!r}.")


def batch_constants(given: Constants | None, problem: BilevelProblem, x: PyTree, y: PyTree, key: Array) -> Constants:
    """The constants given, or estimated ones, L_g then of the worst of eight mini-batches: steps must suit them too."""
    constants = constants_for(given, problem, x, y, key)
    if given is not None or problem.sampler is None:
        return constants
    tries, products = 8, 10
    largest = lambda key: lower_spectrum(problem.sample(key), x, y, key, products).high  # noqa: E731
    highest = jnp.max(jax.lax.map(largest, jax.random.split(key, tries)))
    spent = constants.products + tries * products
    return replace(constants, L_g=jnp.maximum(constants.L_g, highest), products=spent)


def decaying(problem: BilevelProblem, length: Scalar | float, exponent: float) -> Schedule:
    """`length / (k+1)^exponent` on a sampled problem, constant on one without noise."""
    return Constant(length) if problem.sampler is None or exponent == 0 else Power(length, exponent)


def single_loop(
    solver: Any,
    rho: Schedule | None,
    problem: BilevelProblem,
    x: PyTree,
    y: PyTree,
    key: Array,
    decay: float,
    share: float,
) -> tuple[Constants, Schedule, Schedule]:
    """Constants, the step xi of x and the step rho of y and w, where they were not given.

    rho is a share of 2/(mu_g + L_g). y and w lag by 1/(rho mu_g) steps, and an x that moves faster than they follow
    circles around the solution; so xi is rho mu_g / (2 L_ell), at most 1/(4 L_ell).
    """
    constants = batch_constants(solver.constants, problem, x, y, key)
    safe = for_steps(constants)
    rho = decaying(problem, share * safe.alpha, decay) if rho is None else rho
    pace = jnp.clip(rho(jnp.zeros((), jnp.int32)) * safe.mu_g, 1e-3, 0.5)
    decay = 0.0 if problem.sampler is None else decay
    return constants, outer_schedule(solver.xi, solver.x_step, problem, x, y, key, decay, pace), rho


def weight(theta: Schedule, k: Int[Array, ""], like: PyTree) -> Scalar:
    """The weight of a new direction in an average: all of it at the first step, which has none to average with."""
    return jnp.where(k == 0, 1, jnp.clip(theta(k).astype(trees.dtype(like)), 0, 1))


def into_ball(w: PyTree, radius: Scalar | float) -> PyTree:
    """`w` clipped to a norm of at most `radius`; a radius that is not known (NaN) clips nothing."""
    size = trees.norm(w)
    return trees.scale(jnp.where(size > radius, radius / jnp.where(size > 0, size, 1), 1), w)


Chosen = TypeVar("Chosen")


def either(first: Bool[Array, ""], a: Callable[[], Chosen], b: Callable[[], Chosen], *, host: bool) -> Chosen:
    """`a()` or else `b()`; in Python where a kernel lives on the host."""
    if host and not isinstance(first, jax.core.Tracer):
        return a() if bool(first) else b()
    return jax.lax.cond(first, a, b)


def check_penalties(solver: Any, **penalties: Any) -> None:
    """Refuse penalty constants that are not positive, where they can be looked at."""
    for name, given in penalties.items():
        value = given.value if isinstance(given, Constant) else given.scale if isinstance(given, Power) else given
        if value is None or callable(value) or not known(value):
            continue
        if not 0 < float(value) < np.inf:
            raise ValueError(f"{type(solver).__name__}: {name} must be positive and finite, got {float(value):g}.")


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

    found = largest_curvature(f_xx, x, key) + sigma * largest_curvature(p_xx, x, key)
    return jnp.where(found > 0, found, 1)


def check_noise(solver: Any) -> None:
    """Refuse a word for the noisy levels that is none."""
    if solver.noise not in (None, "none", "upper", "both"):
        raise ValueError(f"{type(solver).__name__}: noise must be 'none', 'upper' or 'both', got {solver.noise!r}.")


def noisy(noise: str | None, problem: BilevelProblem) -> str:
    """Which levels are noisy if nothing was said: both on a sampled problem, otherwise none."""
    return noise if noise is not None else "none" if problem.sampler is None else "both"


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
