"""A doctor for problems: checks the assumptions, estimates the constants, proposes steps, and says it in words."""

from __future__ import annotations

import functools
from dataclasses import asdict, dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PyTree

from bilevax import trees
from bilevax.estimation import (
    CLOSE_LOOK,
    estimate_constants,
    extreme_point,
    for_steps,
    lower_spectrum,
    sample_points,
    sampled_constants,
)
from bilevax.linalg.blas import one_blas_thread
from bilevax.linalg.brief import brief_jit
from bilevax.problem import BilevelProblem
from bilevax.runs import checks, oracle_checks
from bilevax.runs.stage import on_first_window
from bilevax.theory import Constants
from bilevax.verdict.assumptions import examine
from bilevax.verdict.bounded_gradient import BoundedGradient, bounded_gradient
from bilevax.verdict.precision import double, in_double, plain, works_in_less

OK, WARNING, FAULT = "ok", "warning", "fault"
Points = list[tuple[PyTree, PyTree]]
_POINTS = 4
_PRODUCTS = 48
"""Hessian products for the spectrum at each of them."""
_CUTS = 9
"""A line is cut into sixteen parts that often: to 1e-11 of its length, where rounding is still small."""
_SHARES = (0.1, 0.01, 0.001)
"""How much of a chord of the set ell is followed along."""
_RIDGE = "add a ridge term such as 0.5 * mu * jnp.sum(y**2), or remove directions of y that lower does not see"


@dataclass(frozen=True)
class Finding:
    """One check: its verdict, what it measured, and what to do about it."""

    check: str
    verdict: str
    found: str
    advice: str = ""


@dataclass(frozen=True)
class Diagnosis:
    """Everything `diagnose` found; print it for a table, or read its fields."""

    findings: list[Finding]
    constants: Constants | None = None
    steps: dict[str, str] | None = None

    @property
    def healthy(self) -> bool:
        """Whether no check found a fault."""
        return not self.faults

    @property
    def faults(self) -> list[Finding]:
        """The checks that failed."""
        return [finding for finding in self.findings if finding.verdict == FAULT]

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        constants = {} if self.constants is None else _numbers(self.constants)
        return {"findings": [asdict(f) for f in self.findings], "constants": constants, "steps": self.steps or {}}

    def __str__(self) -> str:
        width = max(len(f.check) for f in self.findings)
        lines = []
        for f in self.findings:
            lines.append(f"{f.verdict:<8} {f.check:<{width}}  {f.found}")
            if f.advice:
                lines.append(f"{'':<8} {'':<{width}}  -> {f.advice}")
        if self.constants is not None:
            values = ", ".join(f"{name} = {value:.4g}" for name, value in _numbers(self.constants).items())
            lines += ["", f"constants (estimated): {values}", f"kappa = {float(self.constants.kappa):.4g}"]
        if self.steps:
            lines.append("proposed: " + ", ".join(f"{name} = {value}" for name, value in self.steps.items()))
        return "\n".join(lines)


_NAMES = ("mu_g", "L_g", "C_yx_g", "L_yx_g", "L_yy_g", "L_xx_f", "L_xy_f", "L_yx_f", "L_yy_f", "C_y_f", "D_X")


def _numbers(constants: Constants) -> dict[str, float]:
    values = {name: float(getattr(constants, name)) for name in _NAMES}
    return {name: value for name, value in values.items() if not np.isnan(value)}


def diagnose(problem: BilevelProblem, x0: PyTree = None, y0: PyTree = None, *, key: Array | None = None) -> Diagnosis:
    """Examine a problem before solving it.

    Checks the start, the functions, the precision, the set's oracle, smoothness, strong convexity at several points,
    the lower solution and the hypergradient against finite differences; estimates the constants of the paper;
    proposes step sizes. Nothing is raised for a fault of the problem: it is a finding.

    >>> import jax.numpy as jnp, bilevax as bx
    >>> problem = bx.BilevelProblem(
    ...     lambda x, y, _: jnp.sum((y - 1) ** 2), lambda x, y, _: jnp.sum((y[0] - y[1] - x) ** 2), bx.Box(-1.0, 1.0)
    ... )
    >>> bx.diagnose(problem, jnp.zeros(1), jnp.zeros(2)).faults[0].check
    'strong convexity'
    """
    with one_blas_thread():  # estimates decompose small matrices
        return _diagnosis(problem, x0, y0, jax.random.key(0) if key is None else key)


def _diagnosis(problem: BilevelProblem, x0: PyTree, y0: PyTree, key: Array) -> Diagnosis:
    findings: list[Finding] = []
    try:
        x, y = checks.check_start(problem, x0, y0)
        problem = on_first_window(replace(problem, domain=trees.cast(problem.domain, trees.dtype(x))))
    except (TypeError, ValueError) as error:
        return Diagnosis([Finding("input", FAULT, str(error))])
    findings.append(Finding("input", OK, f"start, functions and data fit; precision {trees.dtype(x)}"))
    findings.append(_set(problem, x, key))
    if findings[-1].verdict == FAULT:
        return Diagnosis(findings)
    points = sample_points(problem, x, y, key, _POINTS)
    eps = _rounding(problem, x, y)
    findings.append(_smoothness(problem, points))
    constants = (_all_constants if problem.host else _constants)(problem, x, y, key)
    spectra = [_spectrum(problem, *point, key) for point in points]
    findings.append(_convexity([*spectra, (float(constants.mu_g), float(constants.L_g))], eps))
    if findings[-1].verdict == FAULT:
        return Diagnosis(findings)
    true = bounded_gradient(problem, x, y, factorize=True)
    elsewhere = examine(problem, x, true.y, x, y)
    not_convex = true.not_convex or elsewhere.not_convex
    if not_convex:
        findings[-1] = Finding("strong convexity", FAULT, not_convex, _RIDGE)
        return Diagnosis(findings)
    if true.lowest < 0.9 * float(constants.mu_g):  # no few products see the low end of an ill-conditioned Hessian
        constants = replace(constants, mu_g=jnp.asarray(true.lowest, trees.dtype(y)))
    findings.append(_conditioning(constants, trees.dtype(x)))
    if elsewhere.refusal:
        findings.append(Finding("hypergradient", FAULT, elsewhere.refusal, "remove it, or correct the derivative"))
        return Diagnosis(findings, constants)
    at_solution = _spectrum(problem, x, true.y, key)
    findings.append(_lower_solution(true, y, at_solution, max(high for _, high in [*spectra, at_solution])))
    if findings[-1].verdict == FAULT:
        return Diagnosis(findings, constants)
    findings.append(_hypergradient(problem, x, true, key, eps))
    points[0] = (x, trees.cast(true.y, trees.dtype(y)))
    rest: Any = {
        **sampled_constants(problem, points, key),
        "C_y_f": max(_upper_slope(problem, *point) for point in points),
        "D_X": float(problem.domain.diameter(x).value),
    }
    constants = replace(constants, **rest)
    findings.append(_coupling(constants))
    safe = for_steps(constants)
    steps = {
        "alpha": f"{float(safe.alpha):.4g}",
        "eta": f"{0.9 * float(safe.alpha):.4g}",
        "gamma": "2/(k+2)",
        "warmup": f"{int(np.clip(np.ceil(float(safe.kappa)), 0, 50))}",
    }
    return Diagnosis(findings, constants, steps)


def _set(problem: BilevelProblem, x: PyTree, key: Array) -> Finding:
    """The oracle answers in kind, inside the set, and no worse than the answers to other directions."""
    name = "set"
    try:
        oracle_checks.check_lmo(problem, x, "an lmo method")
    except (TypeError, ValueError) as error:
        return Finding(name, FAULT, str(error))
    domain = problem.domain
    directions = [trees.random_like(x, jax.random.fold_in(key, i)) for i in range(6)]
    answers = [domain.lmo(d, domain.start(x))[0] for d in directions]
    for d, s in zip(directions, answers, strict=True):
        outside = domain.violations(s)
        if outside:
            return Finding(name, FAULT, f"the lmo of {domain!r} returns points outside the set: {outside}")
        for j, other in enumerate([*answers, x]):
            gain = float(trees.gap(d, s, other))
            if gain > 1e-4 * (1 + float(trees.norm(d)) * float(trees.norm(trees.sub(s, other)))):
                what = "x0" if j == len(answers) else "another of its own answers"
                return Finding(
                    name,
                    FAULT,
                    f"the lmo of {domain!r} does not minimise: {what} has a smaller product",
                    "lmo(direction) must return argmin over s in the set of <direction, s>; check its sign",
                )
    width, exact = domain.diameter(x)
    return Finding(name, OK, f"{domain!r}, diameter {float(width):.4g}{'' if exact else ' at most'}")


_DERIVATIVES = ("the gradient of upper in y", "the gradient of lower in y", "the Hessian of lower in y")


@brief_jit
def _changes(problem: BilevelProblem, x: PyTree, y: PyTree, d: PyTree, t: Array) -> tuple[Array, Array]:
    """How much each derivative changes between neighbours of the points y + t d, and how large it is."""

    def derivatives(t: Array) -> list[Array]:
        at = trees.axpy(t, d, y)
        parts = (problem.upper_grads(x, at)[1], problem.lower_grad(x, at), problem.lower_hvp(x, at, d))
        return [ravel_pytree(part)[0] for part in parts]

    values = jnp.stack(jax.lax.map(derivatives, t))
    return jnp.linalg.norm(jnp.diff(values, axis=1), axis=2), jnp.max(jnp.linalg.norm(values, axis=2), axis=1)


def _rounding(problem: BilevelProblem, x: PyTree, y: PyTree) -> float:
    """The rounding of the run, or of the functions where they compute in less."""
    with double():
        less = works_in_less(plain(problem), in_double(x), in_double(y))
    return float(np.finfo(np.float32 if less else trees.dtype(y)).eps)


def _smoothness(problem: BilevelProblem, points: Points) -> Finding:
    """A derivative that jumps keeps its jump however finely the line around it is cut."""
    with double():
        base = plain(problem)
        for i, (x, y) in enumerate(in_double(points)):
            d = trees.drawn_like(y, np.random.default_rng(100 + i))
            reach = 1 + float(trees.norm(y)) / trees.size(y) ** 0.5
            for which, name in enumerate(_DERIVATIVES):
                low, high, jumps = -reach, reach, []
                for _ in range(_CUTS):
                    t = np.linspace(low, high, 17)
                    sizes, scale = (np.asarray(v)[which] for v in _changes(base, x, y, d, t))
                    worst = int(np.argmax(sizes))
                    low, high = t[worst], t[worst + 1]
                    jumps.append(float(sizes[worst]))
                if jumps[-1] > 0.2 * jumps[-3] and jumps[-1] > 1e-3 * float(scale):
                    return Finding(
                        "smoothness",
                        WARNING if name.startswith("the Hessian") else FAULT,
                        f"{name} jumps (by {jumps[-1]:.2g}) on a line through the sampled points",
                        "smooth the kink (pseudo-Huber for |.|, softplus for a hinge), or expect no convergence theory",
                    )
    return Finding("smoothness", OK, f"no jump in first or second derivatives on {len(points)} lines")


_all_constants = functools.partial(estimate_constants, products=CLOSE_LOOK)
_constants = brief_jit(_all_constants)
_ends = brief_jit(functools.partial(lower_spectrum, max_products=_PRODUCTS))
_f_y = brief_jit(lambda problem, x, y: trees.norm(problem.upper_grads(x, y)[1]))


def _spectrum(problem: BilevelProblem, x: PyTree, y: PyTree, key: Array) -> tuple[float, float]:
    """Curvatures of lower that occur: as far apart as a few Hessian products see."""
    with double():
        seen = _ends(plain(problem), in_double(x), in_double(y), key)
    return float(seen.low), float(seen.high)


def _upper_slope(problem: BilevelProblem, x: PyTree, y: PyTree) -> float:
    """|grad_y f|"""
    with double():
        return float(_f_y(plain(problem), in_double(x), in_double(y)))


def _convexity(spectra: list[tuple[float, float]], eps: float) -> Finding:
    """Curvature that is not positive proves a fault; how small the smallest one is, few products do not show."""
    name, low, high = "strong convexity", float(np.min(spectra)), float(np.max(spectra))
    if not (np.isfinite(low) and np.isfinite(high)):
        advice = "check lower for overflow, logarithms or square roots at the border of the set"
        return Finding(name, FAULT, "the lower Hessian is not finite at a sampled point", advice)
    met = f"curvature between {low:.4g} and {high:.4g} at the sampled points"
    if high <= 0 and low < 0:
        return Finding(name, FAULT, f"lower is concave in y: {met}", "lower is minimised over y; change its sign")
    if high <= 0 or low < -100 * eps * high:
        return Finding(name, FAULT, f"lower is not {'strongly ' if low == 0 else ''}convex in y: {met}", _RIDGE)
    return Finding(name, OK, f"nothing speaks against it: {met}")


def _conditioning(constants: Constants, dtype: Any) -> Finding:
    kappa = float(constants.L_g) / max(float(constants.mu_g), np.finfo(float).tiny)
    if dtype == np.float32 and kappa > 1e3:
        digits = max(0.0, 7 - np.log10(kappa))
        words = f"kappa = {kappa:.3g} in float32 leaves about {digits:.0f} digits in the adjoint"
        return Finding("conditioning", WARNING, words, "use float64 starts and data")
    if kappa > 1e5:
        advice = "rescale y, strengthen the regularizer, or give structure.solve_lower and solve_adjoint"
        return Finding("conditioning", WARNING, f"kappa = {kappa:.3g}: y and w follow x slowly", advice)
    return Finding("conditioning", OK, f"kappa = {kappa:.4g}")


def _lower_solution(true: BoundedGradient, y: PyTree, ends: tuple[float, float], highest: float) -> Finding:
    """Where the search for y*(x0) ended; that it did not arrive is a fault only if curvature vanished on the way."""
    name, missing = "lower solution", "no minimiser of lower was found"
    if not (np.all(np.isfinite(ends)) and bool(trees.all_finite((true.y, true.ell, true.gradient)))):
        words = f"{missing}: upper or lower is not finite where the search for it ended"
        return Finding(name, FAULT, words, "check that lower is smooth and bounded below in y")
    if true.refusal and ends[0] <= 100 * np.finfo(float).eps * highest:
        words = f"{missing}: its curvature is {highest:.2g} elsewhere and {ends[0]:.2g} where the search for it ended"
        return Finding(name, FAULT, words, f"lower is not strongly convex far from y0; {_RIDGE}")
    if true.refusal:
        return Finding(name, WARNING, f"not known: {true.refusal}", "start closer to it, or improve the conditioning")
    with double():
        away = float(trees.norm(trees.sub(true.y, in_double(y))))
    return Finding(name, OK, f"y*(x0) is known within {true.lower_error:.1e} ({true.certified}), {away:.3g} from y0")


def _hypergradient(problem: BilevelProblem, x: PyTree, true: BoundedGradient, key: Array, eps: float) -> Finding:
    """Along a chord of the set ell must change as its gradient says, by Simpson's rule; the best of a few decides."""
    name, aim = "hypergradient", trees.random_like(x, key)
    if true.refusal:
        return Finding(name, OK, "the derivatives behind it agree with finite differences; ell itself is not known")
    chords = [trees.sub(extreme_point(problem.domain, x, trees.scale(sign, aim)), x) for sign in (1, -1)]
    d = max(chords, key=lambda chord: float(trees.norm(chord)))
    y, v = trees.cast((true.y, true.v), trees.dtype(x))
    for share in _SHARES:
        at = [trees.axpy(t * share, d, x) for t in (0.5, 1.0)]
        middle, end = (bounded_gradient(problem, point, y, v, factorize=True) for point in at)
        not_convex = middle.not_convex or end.not_convex
        if not_convex:
            return Finding("strong convexity", FAULT, f"{not_convex}, near x0", _RIDGE)
        slopes = [_upper_slope(problem, point, z.y) for point, z in ((x, true), (at[1], end))]
        with double():
            step = trees.sub(in_double(at[1]), in_double(x))
            mean = trees.add(trees.add(true.gradient, end.gradient), trees.scale(4, middle.gradient))
            change, predicted = end.ell - true.ell, float(trees.inner(mean, step)) / 6
            length = float(trees.norm(step))
            usual = 1e-3 * float(trees.norm(true.gradient)) * length
        # What is not known of ell at both ends and of the gradient between.
        doubt = slopes[0] * true.lower_error + slopes[1] * end.lower_error + 8 * eps * (abs(true.ell) + abs(end.ell))
        doubt += max(true.error, middle.error, end.error) * length
        off, size = abs(change - predicted), max(abs(change), abs(predicted), usual, np.finfo(float).tiny)
        if not off > 1e-4 * size + doubt:
            words = (
                f"agrees with finite differences of ell to {off / size:.1e}; they are known within {doubt / size:.1e}"
            )
            return Finding(name, OK, words)
    words = f"along a chord ell changes by {change:.4g}, its gradient predicts {predicted:.4g}"
    return Finding(name, FAULT, words, "a kink or a random function in upper or lower is the usual cause")


def _coupling(constants: Constants) -> Finding:
    """Whether the two levels depend on each other at all."""
    if float(constants.C_yx_g) == 0:
        words = "lower does not couple x and y: y*(x) is the same for every x"
        return Finding("coupling", WARNING, words, "the problem has one level; minimise upper(x, y*) over x alone")
    if float(constants.C_y_f) == 0:
        advice = "the problem has one level; lower is not needed"
        return Finding("coupling", WARNING, "upper does not depend on y", advice)
    return Finding("coupling", OK, "upper sees y and lower sees x")
