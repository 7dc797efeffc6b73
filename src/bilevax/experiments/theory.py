"""The paper's bounds beside what IBCG does, on problems whose constants are known exactly."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from bilevax import theory
from bilevax.problem import BilevelProblem
from bilevax.problems import (
    KnownProblem,
    known_nonconvex,
    known_quadratic,
    known_robust_lower,
    known_robust_upper,
)
from bilevax.problems.known import bent_and_coupled
from bilevax.report import figures
from bilevax.schedules import Schedule, as_schedule
from bilevax.sets import Box, Simplex
from bilevax.solvers import IBCG
from bilevax.stepping import run


@dataclass(frozen=True)
class Run:
    """One run of IBCG and its true errors, by the closed forms of the problem."""

    known: KnownProblem
    x: np.ndarray
    """x_0, ..., x_K; y and w likewise."""
    y: np.ndarray
    w: np.ndarray
    direction: np.ndarray
    """F_0, ..., F_(K-1)."""

    @functools.cached_property
    def y_error(self) -> np.ndarray:
        """|y_k - y*(x_k)| for k = 0, ..., K."""
        return np.linalg.norm(self.y - self.known.lower_solution(self.x), axis=-1)

    @functools.cached_property
    def w_error(self) -> np.ndarray:
        """|w_k - v(x_(k-1))| for k = 0, ..., K, with x_(-1) = x_0 as in Lemma B.3."""
        before = np.concatenate([self.x[:1], self.x[:-1]])
        return np.linalg.norm(self.w - self.known.adjoint(before), axis=-1)

    @functools.cached_property
    def direction_error(self) -> np.ndarray:
        """|grad ell(x_k) - F_k| for k = 0, ..., K-1."""
        return np.linalg.norm(self.known.gradient(self.x[:-1]) - self.direction, axis=-1)

    @functools.cached_property
    def ell(self) -> np.ndarray:
        """ell(x_k) for k = 0, ..., K."""
        return self.known.ell(self.x)

    @functools.cached_property
    def gap(self) -> np.ndarray:
        """The Frank-Wolfe gap of ell at x_0, ..., x_K."""
        return self.known.gap(self.x)

    def setting(self, gamma: float, eta: float) -> theory.Setting:
        """What the bounds need to know of this run."""
        return theory.Setting(self.known.constants, gamma, eta, float(self.y_error[0]), float(self.w_error[0]))


@functools.partial(jax.jit, static_argnames=("steps", "w0"))
def _runs(
    problems: BilevelProblem, x0: Array, y0: Array, gamma: Schedule, alpha: Array, eta: Array, *, steps: int, w0: str
) -> PyTree:
    def one(problem: BilevelProblem, x0: Array, y0: Array, gamma: Schedule, alpha: Array, eta: Array) -> PyTree:
        solver = IBCG(gamma, alpha=alpha, eta=eta, w0=w0, warmup=0)
        last, seen = run(
            problem,
            solver,
            x0,
            y0,
            steps=steps,
            collect=lambda state, info: (state.x, state.y, state.w, info.direction),
        )
        return (last.x, last.y, last.w), seen

    return jax.vmap(one)(problems, x0, y0, gamma, alpha, eta)


def measure(
    knowns: Sequence[KnownProblem], x0: Any, y0: Any, gamma: Any, eta: Any, *, steps: int, w0: str = "zero"
) -> list[Run]:
    """One run of each problem, all compiled together; `gamma` and `eta` are numbers per problem, or one schedule."""

    def together(*leaves: Any) -> Array:
        return jnp.stack([jnp.asarray(leaf) for leaf in leaves])

    problems = jax.tree.map(together, *(known.problem for known in knowns))
    count = len(knowns)
    schedule = jax.tree.map(together, *[gamma] * count) if isinstance(gamma, Schedule) else as_schedule(0.0)
    if not isinstance(gamma, Schedule):
        schedule = jax.tree.map(lambda _: jnp.broadcast_to(jnp.asarray(gamma, float), count), schedule)
    alpha = together(*(known.constants.alpha for known in knowns))
    etas = jnp.broadcast_to(jnp.asarray(eta, float), count)
    last, seen = _runs(problems, jnp.asarray(x0), jnp.asarray(y0), schedule, alpha, etas, steps=steps, w0=w0)
    *paths, direction = (np.asarray(values) for values in seen)
    whole = [np.concatenate([path, np.asarray(end)[:, None]], 1) for path, end in zip(paths, last, strict=True)]
    return [Run(known, *(values[i] for values in (*whole, direction))) for i, known in enumerate(knowns)]
