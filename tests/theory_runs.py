"""Runs of IBCG on problems whose constants are known exactly, with their true errors, for the paper's bounds."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from bilevax import theory
from bilevax.problem import BilevelProblem
from bilevax.problems import KnownProblem
from bilevax.problems.known import bent_and_coupled
from bilevax.runs.chunks import run
from bilevax.schedules import Schedule, as_schedule
from bilevax.sets import Box
from bilevax.solvers import IBCG


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
        solver = IBCG(gamma, alpha=as_schedule(alpha), eta=as_schedule(eta), w0=w0, warmup=0)
        last, collected = run(
            problem,
            solver,
            x0,
            y0,
            steps=steps,
            collect=lambda state, info: (state.x, state.y, state.w, info.direction),
        )
        return (last.x, last.y, last.w), collected

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
    last, collected = _runs(problems, jnp.asarray(x0), jnp.asarray(y0), schedule, alpha, etas, steps=steps, w0=w0)
    *paths, direction = (np.asarray(values) for values in collected)
    whole = [np.concatenate([path, np.asarray(end)[:, None]], 1) for path, end in zip(paths, last, strict=True)]
    return [Run(known, *(values[i] for values in (*whole, direction))) for i, known in enumerate(knowns)]


def lagging_adjoint(kappa: float, gamma: float = 1e-9, *, steps: int = 40) -> tuple[Run, theory.Setting]:
    """Where Lemma B.3 as printed fails: y starts off along the slowest eigenvector, w and x are (almost) at rest.

    v(x_0) = w_0 = 0, so that all of |w_k - v| comes from y lagging behind, and every inequality of the proof is an
    equality. The slope q is such that the lag turns the first step of x around, which shows Lemma B.4 as well.
    """
    x0, c = 0.5, np.array([0.5, 0.0])
    eta = 1 / (1 + kappa)  # half of its limit
    known = bent_and_coupled(
        Box(0.0, 1.0), A=np.diag([1.0, kappa]), B=[[1.0], [0.0]], b=np.zeros(2), c=c, P=[[0.0]], q=[0.95 * eta],
        E=np.zeros((1, 2)),
    )  # fmt: skip
    (made,) = measure([known], [[x0]], [c - [1.0, 0.0]], [gamma], [eta], steps=steps)
    return made, made.setting(gamma, eta)


def overshooting(gamma: float, *, steps: int = 1) -> tuple[Run, theory.Setting]:
    """Where Theorem 4.2 as printed fails: x_0 is all but optimal and the first step goes across the whole set."""
    slope, pull = 1e-6, 1e-3
    known = bent_and_coupled(
        Box(-1.0, 0.0), A=[[1.0]], B=[[pull]], b=[0.0], c=[0.0], P=[[1.0]], q=[slope], E=[[0.0]]
    )  # fmt: skip
    known = replace(known, x_star=np.array([-slope / (1 + pull**2)]))
    (made,) = measure([known], [[0.0]], [[0.0]], [gamma], [0.5], steps=steps)
    return made, made.setting(gamma, 0.5)


def misled_start(gamma: float, *, steps: int) -> tuple[Run, theory.Setting, float]:
    """Where Theorem 4.4 as printed fails: y_0 turns the first step around and y_1 is exact, as beta = 0.

    The print multiplies the price of a wrong y_0 by beta. Also returns ell(x_0) - ell*.
    """
    known = bent_and_coupled(
        Box(0.0, 1.0), A=[[1.0]], B=[[1e-3]], b=[1.0], c=[1.0], P=[[0.0]], q=[0.0], E=[[1.0]]
    )  # fmt: skip
    (made,) = measure([known], [[0.5]], [[-1.0]], [gamma], [0.5], steps=steps)
    # ell is increasing on the set: its slope is 1 + 2e-3 x up to 1e-6.
    return made, made.setting(gamma, 0.5), float(known.ell(np.array([0.5])) - known.ell(np.array([0.0])))
