"""What a method assumes where nothing was given, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree, Scalar

from bilevax import trees
from bilevax.estimation import estimate_constants, for_steps, lower_spectrum
from bilevax.problem import BilevelProblem
from bilevax.schedules import Constant, Cut, Estimated, OpenLoop, Power, Schedule, Travelled
from bilevax.solvers.pieces.smoothness import estimate_smoothness
from bilevax.solvers.pieces.travel import bounded, first_distance
from bilevax.theory import Constants
from bilevax.trees import is_concrete


def check_counts(solver: Any, **counts: Any) -> None:
    """Refuse inner loops and budgets that are not a positive whole number."""
    for name, value in counts.items():
        if value is None or not is_concrete(value):
            continue
        if isinstance(value, jax.Array) and not value.ndim and jnp.issubdtype(value.dtype, jnp.integer):
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
            raise ValueError(f"{type(solver).__name__}: {name} must be a whole number of at least 1, got {value!r}.")


def check_steps(solver: Any, limit: float = np.inf, **steps: Any) -> None:
    """Refuse steps, weights and penalties that are not positive, or beyond a limit, where they can be looked at."""
    for name, step in steps.items():
        value = step.value if isinstance(step, Constant) else step.scale if isinstance(step, Power) else step
        if value is None or isinstance(value, Schedule) or not is_concrete(value):
            continue
        value = float(value)  # a comparison of arrays would be traced if a solver is rebuilt in compiled code
        # A power may begin beyond the limit: it is clipped there.
        if not (np.isfinite(value) and 0 < value and (value <= limit or isinstance(step, Power))):
            wanted = f"lie in (0, {limit:g}]" if np.isfinite(limit) else "be positive and finite"
            raise ValueError(f"{type(solver).__name__}: {name} must {wanted}, got {value:g}.")


def batch_constants(given: Constants | None, problem: BilevelProblem, x: PyTree, y: PyTree, key: Array) -> Constants:
    """The constants given, or estimated ones, L_g then of the worst of many mini-batches: steps must suit them too."""
    if given is not None:
        return given
    constants = estimate_constants(problem, x, y, key)
    if problem.sampler is None:
        return constants
    products = 10
    # Two passes over the rows, as many rows as twenty products of the whole problem read. 256 batches are enough: a row
    # in a hundred far larger than the rest is missed by that many batches of two with probability below 1 %.
    tries = min(256, max(8, 2 * problem.sampler.batches))
    largest = lambda key: lower_spectrum(problem.sample(key), x, y, key, products).high  # noqa: E731
    highest = jnp.max(jax.lax.map(largest, jax.random.split(key, tries)))
    spent = constants.products + tries * products
    return replace(constants, L_g=jnp.maximum(constants.L_g, highest), products=spent)


def decaying(problem: BilevelProblem, length: Scalar | float, exponent: float) -> Schedule:
    """`length / (k+1)^exponent` on a sampled problem, constant on one without noise."""
    return Constant(length) if problem.sampler is None or exponent == 0 else Power(length, exponent)


def lower_schedule(problem: BilevelProblem, constants: Constants, share: float, exponent: float) -> Schedule:
    """Steps of y and w that begin at a share of 2/(mu_g + L_g).

    On a sampled problem they decay like `(k+s)^-exponent` where s is the number of steps in which y and w settle,
    1/(mu_g step). Steps that decay from the first one on would not let them: x then follows a direction that is wrong.
    """
    safe = for_steps(constants)
    length = share * safe.alpha
    if problem.sampler is None or exponent == 0:
        return Constant(length)
    settled = 1 / jnp.clip(length * safe.mu_g, 1e-4, 1)
    return Power(length * settled**exponent, exponent, settled)


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
    """The step of x if none was given: 2/(k+2) for Frank-Wolfe, otherwise a share of 1/(2 L_ell).

    The latter decays like (k+1)^-decay, if at all.
    """
    if given is not None:
        return given
    if x_step == "fw":
        return OpenLoop()
    # In an unbounded set noise may carry x to where the lower level curves far more than at the start.
    if problem.sampler is not None and bounded(problem, x):
        return Travelled(first_distance(problem, x))
    # Half of 1/L_ell: the estimate is local. Without noise the method shortens a step that turns out to be too long.
    length = share / (2 * estimate_smoothness(problem, x, y, key))
    if problem.sampler is not None:
        settled = 1 / jnp.asarray(share, trees.dtype(x))  # as in `lower_schedule`
        return Cut(length * settled**decay, decay, settled)
    return Power(length, decay) if decay else Estimated(length)


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
    rho = lower_schedule(problem, constants, share, decay) if rho is None else rho
    pace = jnp.clip(rho(jnp.zeros((), jnp.int32)) * safe.mu_g, 1e-3, 0.5)
    decay = 0.0 if problem.sampler is None else decay
    return constants, outer_schedule(solver.xi, solver.x_step, problem, x, y, key, decay, pace), rho
