"""The gradient of ell at one point with a bound on its error, from final residuals divided by a lower bound on mu_g.

    delta = |g_y| / mu                          >= |y - y*|
    e_w   = (|f_y - H w| + |d phi| delta) / mu  >= |w - v|       phi = f_y - H w, as a function of y
    error = |d psi| delta + |J| e_w             >= |(f_x - J w) - grad ell|,   psi = f_x - J w

All of it in float64, with products from autodiff, in lower variables scaled to a Hessian with a unit diagonal, and with
the rounding of every residual added to it. docs/verdict.md has the proof and says what is measured and not proved.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree

from bilevax import trees
from bilevax.linalg.blas import one_blas_thread
from bilevax.problem import BilevelProblem
from bilevax.theory import Constants
from bilevax.verdict import dense, iterative, precision
from bilevax.verdict.dependence import quadratic_in_y
from bilevax.verdict.evaluation import Residuals, bends, residuals, slopes
from bilevax.verdict.scaled import scaled, unscaled
from bilevax.verdict.solution import PROBES, Solution

PROVED, ESTIMATED = "proved", "estimated"

ALWAYS_DENSE, MOST_DENSE = 500, 2000
"""Lower variables up to which the Hessian is always factorized, and up to which a caller may ask for it."""
_SURE = 10.0  # eight Gaussian probes underestimate a Frobenius norm ten times with probability below 1e-6
_SURE_OF_ONE = 30.0  # a single one thirty times with probability 3 %, if the matrix has rank one; an estimate


class BoundedGradient(NamedTuple):
    """The truth at x as far as it is known."""

    ell: float
    gradient: PyTree
    y: PyTree
    v: PyTree
    error: float
    """The gradient is this close to that of ell; infinite where nothing can be said."""
    lower_error: float
    """|y - y*(x)| is at most this."""
    certified: str
    """"proved", "estimated", or empty."""
    mu: float
    """What |g_y| was divided by: a lower bound on the curvature of lower, in the scaled variables unless given."""
    mu_source: str
    not_convex: str
    """What shows that lower is not strongly convex here; empty if nothing does."""
    refusal: str
    """Why nothing can be said; empty if something can."""
    products: int
    lowest: float
    """A curvature of lower that occurs at y, near the smallest where the Hessian was factorized."""


def bounded_gradient(
    problem: BilevelProblem,
    x: PyTree,
    y: PyTree,
    w: PyTree | None = None,
    *,
    constants: Constants | None = None,
    factorize: bool | None = None,
    seed: int = 0,
) -> BoundedGradient:
    """ell and its gradient at x, solved in float64 from `y` and `w`, with a bound on the error.

    `constants` count if they were given by the user, not if they are estimates. `factorize` asks for a proof by a
    factorization of the lower Hessian, up to 2,000 variables; by default up to 500.
    """
    y, w = _proposed(problem, x, y, w)
    with precision.double():
        base, x, y = precision.plain(problem), precision.in_double(x), precision.in_double(y)
        w = trees.zeros_like(y) if w is None else precision.in_double(w)
        m = trees.size(y)
        wanted = m <= ALWAYS_DENSE if factorize is None else factorize and m <= MOST_DENSE
        quadratic = quadratic_in_y(base, x, y)
        work = unscaled(base, y)
        with one_blas_thread(), np.errstate(all="ignore"):  # a start may be as far away as numbers reach
            solution = (dense if wanted else iterative).solution(work, x, y, w, quadratic, seed)
            return _bounded(base, x, solution, quadratic, constants, seed)


def _proposed(problem: BilevelProblem, x: PyTree, y: PyTree, w: PyTree | None) -> tuple[PyTree, PyTree | None]:
    """What the user's exact formulas say of y and w, to begin with: the residuals judge them."""
    given, at = problem.structure, trees.coordinates(x)
    if given.solve_lower is not None:
        y = given.solve_lower(at, y, problem.data)
    if given.solve_adjoint is not None:
        w = given.solve_adjoint(at, y, problem.upper_grads(x, y)[1], problem.data)
    return y, w


class _Measured(NamedTuple):
    """Residuals with their rounding added, and the norms of what they depend on."""

    at: Residuals
    g_y: float
    phi: float
    rounding: float
    """That of psi, the gradient itself."""
    d_psi: float
    d_phi: float
    J: float

    def error(self, mu: float) -> tuple[float, float]:
        """Bounds on the error of the gradient and on |z - z*|, if the curvature is at least mu."""
        if not mu > 0:
            return np.inf, np.inf
        delta = self.g_y / mu
        return self.d_psi * delta + self.J * (self.phi + self.d_phi * delta) / mu + self.rounding, delta


def _measured(work: BilevelProblem, x: PyTree, z: PyTree, w: PyTree, less: bool, seed: int) -> _Measured:
    at = residuals(work, x, z, w)
    again = residuals(*precision.shaken((work, x, z, w), seed))
    noise = lambda a, b: precision.rounding(_norm(a - b), less)  # noqa: E731
    return _Measured(
        at,
        _norm(at.g_y) + noise(at.g_y, again.g_y),
        _norm(at.phi) + noise(at.phi, again.phi),
        noise(at.psi, again.psi),
        *slope_norms(work, x, z, w, np.random.default_rng(seed).standard_normal((PROBES, trees.size(z)))),
    )


def slope_norms(work: BilevelProblem, x: PyTree, z: PyTree, w: PyTree, along: np.ndarray) -> list[float]:
    """Frobenius norms of d psi, d phi and J from random rows, or of their products with what the rows went through."""
    sure = _SURE if len(along) == PROBES else _SURE_OF_ONE
    return [sure * float(np.sqrt(np.mean(v))) for v in slopes(work, x, z, w, along)]


class _Bound(NamedTuple):
    error: float
    lower_error: float
    certified: str
    mu: float
    mu_source: str
    refusal: str = ""


def _bounded(
    base: BilevelProblem, x: PyTree, solution: Solution, quadratic: bool, constants: Constants | None, seed: int
) -> BoundedGradient:
    stretch = lambda v: jax.tree.map(np.multiply, solution.scale, v)  # noqa: E731
    work, y, w = scaled(base, solution.scale), stretch(solution.z), stretch(solution.w)
    less = precision.works_in_less(base, x, y)
    measured = _measured(work, x, solution.z, solution.w, less, seed)
    bound = _bound(work, x, solution, measured, quadratic, seed)
    if constants is not None and not constants.estimated:
        given = _bound_given(
            _measured(unscaled(base, y), x, y, w, less, seed), constants, float(trees.norm(w)), solution.lowest
        )
        if given.refusal or given.error <= bound.error or bound.certified != PROVED:
            bound = given
    at, not_convex, refusal = measured.at, solution.not_convex, bound.refusal
    if not refusal and not (np.isfinite(bound.error) and bool(trees.all_finite((at.upper, at.psi)))):
        refusal = "a quantity of the audit is not finite"
    if refusal or not_convex:
        bound = bound._replace(error=np.inf, lower_error=np.inf, certified="")
    return BoundedGradient(
        float(at.upper[0]), trees.ravel_on_host(x)[1](at.psi), y, w, bound.error, bound.lower_error, bound.certified,
        bound.mu, bound.mu_source, not_convex, "" if not_convex else refusal, solution.products, solution.lowest,
    )  # fmt: skip


def _bound(
    work: BilevelProblem, x: PyTree, solution: Solution, measured: _Measured, quadratic: bool, seed: int
) -> _Bound:
    """The bound in scaled variables, with what the solution shows about the curvature."""
    error, delta = measured.error(solution.mu)
    if solution.solved is not None:
        # Sharper: what the residuals do to the gradient through H^-1, instead of its largest value everywhere.
        d_psi, d_phi, J = slope_norms(work, x, solution.z, solution.w, solution.solved)
        through = d_psi * measured.g_y + J * (measured.phi + d_phi * measured.g_y) + measured.rounding
        error = min(error, through)
    lower_error = delta * max(float(np.max(s)) for s in jax.tree.leaves(solution.scale))
    if solution.refusal or solution.not_convex or quadratic:
        certified = PROVED if solution.proved else ESTIMATED
        return _Bound(error, lower_error, certified, solution.mu, solution.mu_source, solution.refusal)
    # Newton and Kantorovich: the curvature within 2 delta, where the solution is, is nearly the one here.
    refusal = ""
    if not _bend(work, x, solution, seed) * delta <= 0.25 * solution.mu:
        refusal = (
            f"y was not solved accurately enough: |y - y*| may be {delta:.1e} in scaled variables, and that far away "
            f"the curvature of lower may be quite another"
        )
    # Twice: what was measured here holds at the solution up to a quarter.
    return _Bound(2 * error, 2 * lower_error, ESTIMATED, solution.mu, solution.mu_source, refusal)


def _bound_given(measured: _Measured, constants: Constants, w_size: float, lowest: float) -> _Bound:
    """The bound in the user's own variables, with the user's constants where they are given."""
    mu = float(constants.mu_g)
    given = lambda value, otherwise: otherwise if np.isnan(value) else value  # noqa: E731
    measured = measured._replace(
        d_psi=given(float(constants.L_xy_f) + float(constants.L_yx_g) * w_size, measured.d_psi),
        d_phi=given(float(constants.L_yy_f) + float(constants.L_yy_g) * w_size, measured.d_phi),
        J=given(float(constants.C_yx_g), measured.J),
    )
    wrong = lowest < 0.99 * mu
    words = f"the given mu_g = {mu:.4g} is wrong: lower has curvature {lowest:.4g} here" if wrong else ""
    return _Bound(*measured.error(mu), PROVED, mu, "given", words)


def _bend(work: BilevelProblem, x: PyTree, solution: Solution, seed: int) -> float:
    """How fast the Hessian changes with z: measured in random directions, as a norm over all of them."""
    rng, m = np.random.default_rng(seed + 1), trees.size(solution.z)
    v = trees.drawn_like(solution.z, rng)
    _, changes = bends(work, x, solution.z, v, rng.standard_normal((PROBES, m)))
    return float(np.sqrt(np.max(changes)))


def _norm(v: Any) -> float:
    return float(np.linalg.norm(np.asarray(v)))
