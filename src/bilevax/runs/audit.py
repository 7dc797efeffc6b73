"""The audit: the true gap at one point with a bound on its error, and words for what it rests on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, PyTree, Scalar

from bilevax import trees
from bilevax.problem import BilevelProblem
from bilevax.sets import ConvexSet, gradient_mapping, vertex_gap
from bilevax.streaming.blocks import in_memory
from bilevax.theory import Constants
from bilevax.verdict.bounded_gradient import PROVED, bounded_gradient
from bilevax.verdict.precision import double, in_double

_SEED = 1
"""Not the run's: where an oracle is random, the audit is a second opinion."""


class Audit(NamedTuple):
    """The true problem at x, with y and the adjoint solved again in float64. Print it to read what was checked."""

    ell: float
    """f(x, y*(x))"""
    gap: float
    """The Frank-Wolfe gap of ell, eq. (4); NaN on an unbounded set."""
    gap_error: float
    """How far the gap may be off: the error of the oracle plus the diameter times that of the gradient."""
    grad_norm: float
    grad_error: float
    """|gradient - grad ell| is at most this; infinite where nothing can be said."""
    gradient: PyTree
    y: PyTree
    """y*(x)"""
    v: PyTree
    """The adjoint at x."""
    lower_error: float
    """|y - y*(x)| is at most this."""
    certified: str
    """"proved", "estimated", or empty where no bound is known."""
    mu: float
    mu_source: str
    not_convex: str
    """What shows that lower is not strongly convex at x; empty if nothing does."""
    refusal: str
    """Why no bound is known; empty if one is."""
    products: int
    """Hessian products spent."""
    domain: ConvexSet
    x: PyTree

    @property
    def gradient_mapping(self) -> float:
        """|x - P(x - grad ell)|, the measure on unbounded sets; NaN if the set has no projection."""
        with double():
            return gradient_mapping(self.domain, self.x, in_double(self.gradient))

    @property
    def measure(self) -> tuple[str, float, float]:
        """What `tol` is compared with, by name: its value and error."""
        if not np.isnan(self.gap):
            return "true gap", self.gap, self.gap_error
        mapping = self.gradient_mapping
        if not np.isnan(mapping):
            return "gradient mapping", mapping, self.grad_error
        return "|grad ell|", self.grad_norm, self.grad_error

    def __str__(self) -> str:
        name, value, error = self.measure
        lines = [f"{name} {value:.3e}, at most {error:.1e} off ({self.certified or 'no bound is known'})"]
        if self.not_convex or self.refusal:
            lines.append(f"  no verdict   {self.not_convex or self.refusal}")
        lines += [
            f"  checked      y and the adjoint solved again in float64, {self.products} Hessian products from autodiff",
            f"  y            within {self.lower_error:.1e} of y*(x)",
            f"  gradient     within {self.grad_error:.1e} of that of ell, which has norm {self.grad_norm:.3e}",
            f"  curvature    of lower at least {self.mu:.3g} ({self.mu_source or 'unknown'})",
            f"  assumed      {self._assumed()}",
        ]
        return "\n".join(lines)

    def _assumed(self) -> str:
        if self.certified == PROVED:
            return "rounding as measured; lower convex in y also where it was not looked at, unless it is quadratic"
        return "lower convex in y also where it was not looked at, and no more curved between than at the points seen"


def audit(
    problem: BilevelProblem,
    x: PyTree,
    y: PyTree,
    w: PyTree | None = None,
    *,
    constants: Constants | None = None,
    factorize: bool | None = None,
) -> Audit:
    """Measure the true problem at x; `y` and `w` are starts for the inner solvers.

    With `constants` that you know, the bound uses them. `factorize=True` proves a lower bound on the curvature for up
    to 2,000 lower variables, `False` never does; by default it is done up to 500.

    >>> import jax.numpy as jnp, bilevax as bx
    >>> problem = bx.BilevelProblem(
    ...     lambda x, y, _: jnp.sum((y - 1) ** 2), lambda x, y, _: jnp.sum((y - 2 * x) ** 2), bx.Box(-1.0, 1.0)
    ... )
    >>> seen = bx.audit(problem, jnp.array([0.0]), jnp.zeros(1))
    >>> round(seen.gap, 6), seen.certified
    (4.0, 'proved')
    """
    kind = trees.dtype(y)
    problem = replace(problem, data=in_memory(problem.data))
    true = bounded_gradient(problem, x, y, w, constants=constants, factorize=factorize, seed=_SEED)
    with double():
        domain, at = trees.cast(problem.domain, np.float64), in_double(x)
        gap, gap_error, certain = _gap(domain, x, at, true.gradient, true.error)
        size = float(trees.norm(true.gradient))
        certified = true.certified if certain or not true.certified else "estimated"
        # What is handed out is rounded to the precision of the run.
        lower_error = true.lower_error + float(np.finfo(kind).eps) * float(trees.norm(true.y))
        gradient, y, v = trees.cast((true.gradient, true.y, true.v), kind)
    return Audit(
        true.ell, gap, gap_error, size, true.error, gradient, y, v, lower_error, certified,
        true.mu, true.mu_source, true.not_convex, true.refusal, true.products, domain, at,
    )  # fmt: skip


def _gap(domain: Any, x: PyTree, at: PyTree, gradient: PyTree, error: float) -> tuple[float, float, bool]:
    """The gap, its error, and whether the diameter in it is certain."""
    diameter = float(domain.diameter(x).value)
    if np.isinf(diameter):
        return np.nan, np.nan, True
    exact = domain.at_full_precision()
    memory = exact.second_start(at, jax.random.key(_SEED))
    found = vertex_gap(exact, at, gradient, memory)
    gap, lmo_error, distance = float(found.gap), float(found.error), float(found.distance)
    known = not np.isnan(diameter)
    if not known:
        # A set of unknown diameter: twice the distance to the farthest of a few extreme points stands in for it.
        rng = np.random.default_rng(_SEED)
        others = [vertex_gap(exact, at, trees.drawn_like(at, rng), memory) for _ in range(4)]
        diameter = 2 * max(distance, *(float(other.distance) for other in others))
    rounding = 8 * np.finfo(float).eps * float(trees.norm(gradient)) * max(distance, float(trees.norm(at)))
    return gap, lmo_error + diameter * error + rounding, known


def exact_metrics(problem: BilevelProblem, state: Any) -> dict[str, Scalar | float | Array]:
    """The truth at a row, at the price of solving both inner problems: `solve(..., metrics=bx.exact_metrics)`."""
    w = getattr(state, "w", None)
    true = audit(problem, state.x, state.y, w)
    return {
        "ell": true.ell,
        "true_gap": true.gap,
        "true_gap_error": true.gap_error,
        "true_grad_norm": true.grad_norm,
        "gradient_mapping": true.gradient_mapping,
        "y_error": trees.norm(trees.sub(state.y, true.y)),
        "w_error": np.nan if w is None else trees.norm(trees.sub(w, true.v)),
    }
