"""A doctor for problems: checks the assumptions, estimates the constants, proposes steps, and says it in words."""

from __future__ import annotations

import functools
from dataclasses import asdict, dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PyTree, Scalar

from bilevax import trees
from bilevax.estimation import estimate_constants, for_steps, lower_spectrum, sample_points, sampled_constants
from bilevax.hypergradient import exact_hypergradient, solve_lower
from bilevax.problem import BilevelProblem
from bilevax.runs import checks, oracle_checks
from bilevax.theory import Constants

OK, WARNING, FAULT = "ok", "warning", "fault"
_POINTS = 4


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
    key = jax.random.key(0) if key is None else key
    findings: list[Finding] = []
    try:
        x, y = checks.check_start(problem, x0, y0)
        problem = replace(problem, domain=trees.cast(problem.domain, trees.dtype(x)))
    except (TypeError, ValueError) as error:
        return Diagnosis([Finding("input", FAULT, str(error))])
    findings.append(Finding("input", OK, f"start, functions and data fit; precision {trees.dtype(x)}"))
    findings.append(_set(problem, x, key))
    if findings[-1].verdict == FAULT:
        return Diagnosis(findings)
    points = sample_points(problem, x, y, key, _POINTS)
    findings.append(_smoothness(problem, points, key))
    constants = (estimate_constants if problem.host else _constants)(problem, x, y, key)
    findings.append(_convexity(problem, points, constants, key))
    if findings[-1].verdict == FAULT:
        return Diagnosis(findings)
    findings.append(_conditioning(constants, trees.dtype(x)))
    findings.append(_lower_solution(problem, x, y, constants, key))
    if findings[-1].verdict == FAULT:
        return Diagnosis(findings, constants)
    true, finding = _hypergradient(problem, x, y, key)
    findings += [finding, _coupling(problem, points, key)]
    sampled = sampled_constants(problem, points, key)
    width = float(problem.domain.diameter(x).value)
    bound = max(float(trees.norm(problem.upper_grads(x_i, y_i)[1])) for x_i, y_i in [(x, true.y), *points[1:]])
    rest: Any = {**sampled, "C_y_f": bound, "D_X": width}
    constants = replace(constants, **rest)
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


_DERIVATIVES = {
    "the gradient of upper in y": lambda problem, x, y, d: problem.upper_grads(x, y)[1],
    "the gradient of lower in y": lambda problem, x, y, d: problem.lower_grad(x, y),
    "the Hessian of lower in y": lambda problem, x, y, d: problem.lower_hvp(x, y, d),
}


@functools.partial(jax.jit, static_argnames="name")
def _changes(problem: BilevelProblem, x: PyTree, y: PyTree, d: PyTree, t: Array, name: str) -> tuple[Array, Scalar]:
    """How much one derivative changes between neighbours of the points y + t d, and how large it is."""
    derivative = lambda t: ravel_pytree(_DERIVATIVES[name](problem, x, trees.axpy(t, d, y), d))[0]  # noqa: E731
    values = jax.lax.map(derivative, t)
    return jnp.linalg.norm(jnp.diff(values, axis=0), axis=1), jnp.max(jnp.linalg.norm(values, axis=1))


def _smoothness(problem: BilevelProblem, points: list[tuple[PyTree, PyTree]], key: Array) -> Finding:
    """A derivative that jumps keeps its jump however finely the line around it is cut."""
    if problem.structure.host:
        return Finding("smoothness", WARNING, "not checked: the lower structure runs on the host")
    dtype = trees.dtype(points[0][1])
    rounds = 3 if dtype == np.float32 else 6  # each cuts the interval into sixteen parts and keeps one
    for i, (x, y) in enumerate(points):
        d = trees.random_like(y, jax.random.fold_in(key, 100 + i))
        reach = 1 + float(trees.norm(y)) / trees.size(y) ** 0.5
        for name in _DERIVATIVES:
            low, high, jumps = -reach, reach, []
            for _ in range(rounds):
                t = np.linspace(low, high, 17)
                sizes, scale = _changes(problem, x, y, d, jnp.asarray(t, dtype), name)
                worst = int(jnp.argmax(sizes))
                low, high = t[worst], t[worst + 1]
                jumps.append(float(sizes[worst]))
            if jumps[-1] > 0.2 * jumps[0] and jumps[-1] > 1e-3 * float(scale):
                return Finding(
                    "smoothness",
                    WARNING if name.startswith("the Hessian") else FAULT,
                    f"{name} jumps (by {jumps[-1]:.2g}) on a line through the sampled points",
                    "smooth the kink (pseudo-Huber for |.|, softplus for a hinge), or expect no convergence theory",
                )
    return Finding("smoothness", OK, f"no jump in first or second derivatives on {len(points)} lines")


_spectrum = jax.jit(lower_spectrum, static_argnames="max_products")
_constants = jax.jit(estimate_constants)
_exact = jax.jit(exact_hypergradient)
_solve_lower = jax.jit(solve_lower)


def _convexity(problem: BilevelProblem, points: Any, constants: Constants, key: Array) -> Finding:
    spectra = [_spectrum(problem, x, y, key, max_products=48) for x, y in points]
    low = min(float(constants.mu_g), *(float(s.low) for s in spectra))
    high = max(float(constants.L_g), *(float(s.high) for s in spectra))
    eps = float(jnp.finfo(trees.dtype(points[0][1])).eps)
    if not (np.isfinite(low) and np.isfinite(high)):
        return Finding(
            "strong convexity",
            FAULT,
            "the lower Hessian is not finite at a sampled point",
            "check lower for overflow, logarithms or square roots at the border of the set",
        )
    if high <= 0:
        return Finding(
            "strong convexity",
            FAULT,
            f"lower is concave in y, with curvature in [{low:.3g}, {high:.3g}]",
            "lower is minimised over y; change its sign",
        )
    if low <= 100 * eps * high:
        return Finding(
            "strong convexity",
            FAULT,
            f"lower is not strongly convex in y: its smallest curvature is {low:.3g}, its largest {high:.3g}",
            "add a ridge term such as 0.5 * mu * jnp.sum(y**2), or remove directions of y that lower does not see",
        )
    return Finding("strong convexity", OK, f"curvature of lower in [{low:.4g}, {high:.4g}] at {len(points)} points")


def _conditioning(constants: Constants, dtype: Any) -> Finding:
    kappa = float(constants.kappa)
    digits = max(0.0, 7 - np.log10(max(kappa, 1.0)))
    if dtype == np.float32 and kappa > 1e3:
        return Finding(
            "conditioning",
            WARNING,
            f"kappa = {kappa:.3g} in float32 leaves about {digits:.0f} digits in the adjoint",
            "use float64 starts and data",
        )
    if kappa > 1e5:
        return Finding(
            "conditioning",
            WARNING,
            f"kappa = {kappa:.3g}: y and w follow x slowly",
            "rescale y, strengthen the regularizer, or give structure.solve_lower and solve_adjoint",
        )
    return Finding("conditioning", OK, f"kappa = {kappa:.4g}")


def _lower_solution(problem: BilevelProblem, x: PyTree, y: PyTree, constants: Constants, key: Array) -> Finding:
    star = (solve_lower if problem.structure.host else _solve_lower)(problem, x, y)
    left, begun = (float(trees.norm(problem.lower_grad(x, v))) for v in (star, y))
    scale = max(begun, float(trees.norm(problem.lower_hvp(x, star, star))))
    limit = 1e-3 if trees.dtype(y) == np.float32 else 1e-6
    if not left <= limit * max(scale, np.finfo(float).tiny):
        return Finding(
            "lower solution",
            FAULT,
            f"no minimiser of lower was found: |grad_y g| went from {begun:.2g} to {left:.2g}",
            "check that lower is smooth and bounded below in y",
        )
    curvature = float(_spectrum(problem, x, star, key, max_products=24).low)
    if curvature < 1e-8 * float(constants.L_g):
        return Finding(
            "lower solution",
            FAULT,
            f"no minimiser of lower was found: its curvature falls to {curvature:.2g} where its gradient vanishes",
            "lower is not strongly convex far from y0; add a ridge term such as 0.5 * mu * jnp.sum(y**2)",
        )
    return Finding(
        "lower solution", OK, f"|grad_y g| = {left:.1e} at y*(x0), {float(trees.norm(trees.sub(star, y))):.3g} away"
    )


def _hypergradient(problem: BilevelProblem, x: PyTree, y: PyTree, key: Array) -> tuple[Any, Finding]:
    """Along a chord of the set, ell must change as its gradient says."""
    exact = exact_hypergradient if problem.structure.host else _exact
    true = exact(problem, x, y)
    s, _ = problem.domain.lmo(trees.random_like(x, key), problem.domain.start(x))
    d = trees.sub(s, x)
    length = float(trees.norm(d))
    h = float(jnp.finfo(trees.dtype(x)).eps) ** (1 / 3) * (1 + float(trees.norm(x))) / max(length, 1e-12)
    ells = [float(exact(problem, trees.axpy(t, d, x), true.y).ell) for t in (-h, h)]
    slope, predicted = (ells[1] - ells[0]) / (2 * h), float(trees.inner(true.gradient, d))
    noise = float(jnp.finfo(trees.dtype(x)).eps) * (abs(ells[0]) + 1e-300) / h
    error = abs(slope - predicted) / max(abs(slope), 1e-3 * float(trees.norm(true.gradient)) * length, 1e-300)
    limit = 1e-2 if trees.dtype(x) == np.float32 else 1e-4
    if error > limit and abs(slope - predicted) > 100 * noise:
        return true, Finding(
            "hypergradient",
            FAULT,
            f"along a chord ell changes by {slope:.4g}, its gradient predicts {predicted:.4g}",
            "a kink, a stop_gradient, a random or a custom derivative in upper or lower is the usual cause",
        )
    return true, Finding("hypergradient", OK, f"agrees with finite differences to {error:.1e}")


def _coupling(problem: BilevelProblem, points: list[tuple[PyTree, PyTree]], key: Array) -> Finding:
    """Whether the two levels depend on each other at all."""
    v = trees.random_like(points[0][1], key)
    if all(float(trees.norm(problem.lower_cross(x, y, v))) == 0 for x, y in points):
        return Finding(
            "coupling",
            WARNING,
            "lower does not couple x and y: y*(x) is the same for every x",
            "the problem has one level; minimise upper(x, y*) over x alone",
        )
    if all(float(trees.norm(problem.upper_grads(x, y)[1])) == 0 for x, y in points):
        return Finding(
            "coupling", WARNING, "upper does not depend on y", "the problem has one level; lower is not needed"
        )
    return Finding("coupling", OK, "upper sees y and lower sees x")
