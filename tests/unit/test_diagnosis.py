"""`diagnose` on a healthy problem, and on broken ones whose fault it must name in words."""

import json
import re
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from zoo import SETS, every_second, known_problem

import bilevax as bx

X, Y = jnp.full(3, 0.3), jnp.zeros(3)


def upper(x, y, data):
    return 0.5 * jnp.sum((y - 1.0) ** 2) + 0.1 * jnp.sum(x**2)


def lower(x, y, data):
    return jnp.sum(jnp.sqrt(1 + (y - 0.2) ** 2)) + 0.5 * jnp.sum((y - x) ** 2)


def problem(**changes):
    return bx.BilevelProblem(**{"upper": upper, "lower": lower, "domain": bx.Box(-1.0, 1.0), **changes})


def kinked(x, y, data):
    return jnp.sum(jnp.abs(y - 0.123)) + 0.5 * jnp.sum((y - x) ** 2)


def flat_direction(x, y, data):
    return 0.5 * (y[0] - x[0]) ** 2 + 0.5 * (y[1] - y[2] - x[1]) ** 2


@jax.custom_jvp
def wrong_slope(x):
    return jnp.sum(x**2)


wrong_slope.defjvp(lambda primals, tangents: (wrong_slope(*primals), jnp.sum(primals[0] * tangents[0])))


def held_near_the_start(x):
    return jnp.where(jnp.abs(x - X) < 0.2, jax.lax.stop_gradient(x), x)


wrong_hessian = bx.LowerStructure(hvp=lambda x, y, w, data: 1.1 * w)

# name: (problem, x0, y0, the check that must fail, words that must be said)
BROKEN = {
    "not strongly convex": (problem(lower=flat_direction), X, Y, "strong convexity", "not strongly convex.*ridge"),
    "concave": (problem(lower=lambda x, y, d: -lower(x, y, d)), X, Y, "strong convexity", "concave.*change its sign"),
    "wrong user Hessian": (problem(structure=wrong_hessian), X, Y, "input", r"structure\.hvp disagrees with autodiff"),
    "nonsmooth lower": (problem(lower=kinked), X, Y, "smoothness", "gradient of lower in y jumps.*pseudo-Huber"),
    "nonsmooth upper": (
        problem(upper=lambda x, y, d: jnp.sum(jnp.maximum(y - 0.05, 0))), X, Y,
        "smoothness", "gradient of upper in y jumps",
    ),
    "start outside": (problem(), X + 2, Y, "input", r"x0 is not in Box.*above its upper bound"),
    "mixed precision": (problem(), X.astype("float32"), Y, "input", "must share one precision"),
    "set depends on y": (problem(domain=lambda direction, y: -jnp.sign(direction)), X, Y, "set", "one fixed set"),
    "set made from y": (problem(domain=lambda y: bx.L2Ball(2.0)), X, Y, "set", "returned a set.*one fixed set"),
    "maximising oracle": (
        problem(domain=bx.UserSet(jnp.sign, contains=lambda x: jnp.all(jnp.abs(x) <= 1))), X, Y,
        "set", "does not minimise.*check its sign",
    ),
    "oracle outside its set": (
        problem(domain=bx.UserSet(lambda d: -2 * jnp.sign(d), contains=lambda x: jnp.all(jnp.abs(x) <= 1))), X, Y,
        "set", "points outside the set",
    ),
    "unbounded set": (problem(domain=bx.WholeSpace()), X, Y, "set", "unbounded"),
    "numpy inside": (problem(upper=lambda x, y, d: np.sum(np.asarray(y))), X, Y, "input", "Write it with jax.numpy"),
    "wrong derivative": (
        problem(upper=lambda x, y, d: 0.5 * jnp.sum(y**2) + wrong_slope(x)), X, Y,
        "hypergradient", "disagrees with finite differences.*custom derivative",
    ),
    "wrong derivative around the start only": (
        problem(upper=lambda x, y, d: 0.5 * jnp.sum(y**2) + jnp.sum(held_near_the_start(x) ** 2)), X, Y,
        "hypergradient", "its gradient predicts",
    ),
    "infinite curvature": (
        problem(lower=lambda x, y, d: jnp.sum(jnp.abs(y) ** 1.5) + 0.5 * jnp.sum((y - x) ** 2)), X, Y,
        "strong convexity", "not finite.*overflow",
    ),
    "no minimiser": (
        problem(lower=lambda x, y, d: jnp.sum(jnp.exp(-y)) + 0.0 * jnp.sum(x * y)), X, Y,
        "strong convexity|lower solution", "not strongly convex|no minimiser",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", every_second(BROKEN, of=4))
def test_the_fault_is_named(name):
    broken, x, y, check, words = BROKEN[name]
    found = bx.diagnose(broken, x, y)
    assert not found.healthy
    fault = found.faults[0]
    assert re.fullmatch(check, fault.check), str(found)
    assert re.search(words, f"{fault.found} {fault.advice}", re.S), str(found)
    assert fault.found in str(found)


WEAK = {
    "one level below": (problem(lower=lambda x, y, d: jnp.sum((y - 1) ** 2) + jnp.sum(x**2)), "lower does not couple"),
    "one level above": (problem(upper=lambda x, y, d: jnp.sum(x**2)), "upper does not depend on y"),
    "ill conditioned": (
        problem(lower=lambda x, y, d: 0.5 * jnp.sum(jnp.array([1e-6, 1.0, 1.0]) * (y - x) ** 2)),
        "y and w follow x slowly",
    ),
    "a Hessian that jumps": (
        problem(lower=lambda x, y, d: jnp.sum(jnp.maximum(y - 0.1, 0) ** 2) + 0.5 * jnp.sum((y - x) ** 2)),
        "Hessian of lower in y jumps",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", every_second(WEAK))
def test_weaknesses_are_warnings(name):
    weak, words = WEAK[name]
    found = bx.diagnose(weak, X, Y)
    assert found.healthy, str(found)
    assert any(f.verdict == "warning" and words in f.found for f in found.findings), str(found)


def test_single_precision_with_bad_conditioning_is_a_warning():
    stiff = lambda x, y, d: 0.5 * jnp.sum(jnp.array([1e-4, 1.0, 1.0], "float32") * (y - x) ** 2)  # noqa: E731
    found = bx.diagnose(problem(lower=stiff), X.astype("float32"), Y.astype("float32"))
    assert any(f.verdict == "warning" and "digits in the adjoint" in f.found for f in found.findings), str(found)


SPREAD = jnp.full((2, 3), 1 / 6)  # in every set below
RNG = np.random.default_rng(0)
TILT = {m: RNG.standard_normal((m, 6)) for m in (6, 20, 300, 400)}
ROTATION = {m: np.linalg.qr(RNG.standard_normal((m, m)))[0] for m in (6, 400)}
FEATURES = {m: RNG.standard_normal((2 * m, m)) for m in (20, 300)}


def distance(x, y, d):
    return 0.5 * d["seen"] * jnp.sum((y - 1.0) ** 2) + 0.05 * jnp.sum(x**2)


def form(x, y, d):
    return 0.5 * y @ (d["A"] @ y) - y @ (d["B"] @ x.ravel() + d["b"])


def regression(x, y, d):
    return 0.5 * jnp.sum((d["A"] @ y - d["b"] - d["B"] @ x.ravel()) ** 2) + 0.5 * d["mu"] * jnp.sum(y**2)


def classification(x, y, d):
    return jnp.mean(jax.nn.softplus(-d["b"] * (d["A"] @ y + d["B"] @ x.ravel()))) + 0.5 * d["mu"] * jnp.sum(y**2)


def robust(x, y, d):
    return jnp.sum(jnp.sqrt(1 + (y - d["B"] @ x.ravel()) ** 2)) + 0.5 * d["mu"] * jnp.sum(y**2)


def double_well(x, y, d):
    return 0.25 * jnp.sum((y**2 - 1) ** 2) - 0.01 * y @ x.ravel()


def absolute(x, y, d):
    return jnp.sum(jnp.abs(y)) + 0.5 * jnp.sum((y - x.ravel()) ** 2)


def turning(x, y, d):
    return 0.5 * x[0, 0] * jnp.sum(y**2) - y @ x.ravel()


def cut_off(x, y, d):
    return distance(x, jax.lax.stop_gradient(y), d) + 0.1 * jnp.sum(y)


def half_a_slope(x, y, d):
    return form(x, y, d) + wrong_slope(y)


def case(lower=form, y0=0.0, x0=SPREAD, upper=distance, domain=bx.Box(-1.0, 1.0), structure=None, **data):  # noqa: B008
    m = data.pop("m", 6)
    kind = x0.dtype
    data = {"B": TILT[m], "b": np.ones(m), "seen": 1.0, **data}
    data = {name: jnp.asarray(np.asarray(v, kind)) for name, v in data.items()}
    given = bx.LowerStructure() if structure is None else structure
    return bx.BilevelProblem(upper, lower, domain, data, structure=given), x0, jnp.full(m, y0, kind)


def hessian(m, values, rotated=True):
    A = (ROTATION[m] * values) @ ROTATION[m].T if rotated else np.diag(values)
    return {"m": m, "A": 0.5 * (A + A.T)}


def fit(m, mu, units=1.0):
    A = FEATURES[m] * units / np.sqrt(m)
    return {"m": m, "A": A, "b": np.sign(A[:, 0] + 0.1), "B": np.tile(TILT[m], (2, 1)), "mu": mu}


TENFOLD = hessian(6, np.geomspace(0.1, 1, 6))
HUNDREDFOLD = hessian(6, np.geomspace(0.01, 1, 6))

FLAT = np.outer(*[[1, 1, 0, 0, 0, 0]] * 2)
IN_BOX = {"contains": lambda x: jnp.all(jnp.abs(x) <= 1)}

# name: (problem, x0, y0) and the check with the fault, none if the problem is healthy. Neighbours share compiled code.
SPECTRA = {
    m: {
        f"kappa 1e{power}, {m} variables, {'rotated' if rotated else 'diagonal'}": (
            case(**hessian(m, np.geomspace(10.0**-power, 1, m), rotated)), None,
        )
        for power in (0, 2, 4, 6, 8) for rotated in (True, False)
    }
    for m in (6, 400)
}  # fmt: skip
JUDGED = {
    **SPECTRA[400],
    "one small curvature of 400": (case(**hessian(400, np.r_[1e-8, np.linspace(0.5, 1, 399)])), None),
    "far start, kappa 1e6": (case(y0=1e3, **hessian(400, np.geomspace(1e-6, 1, 400))), None),
    "one negative curvature of 400": (
        case(**hessian(400, np.r_[-1e-3, np.linspace(0.1, 1, 399)])), "strong convexity",
    ),
    "one negative curvature on the diagonal": (
        case(**hessian(400, np.r_[-1e-3, np.geomspace(1e-4, 1, 399)], rotated=False)), "strong convexity",
    ),
    "one vanishing curvature of 400": (case(**hessian(400, np.r_[0, np.linspace(0.1, 1, 399)])), "strong convexity"),
    **SPECTRA[6],
    "far start": (case(y0=1e3, **HUNDREDFOLD), None),
    "start in a corner": (case(x0=jnp.ones((2, 3)), **HUNDREDFOLD), None),
    "simplex": (case(domain=bx.Simplex(), **HUNDREDFOLD), None),
    "ball": (case(domain=bx.L2Ball(1.0), **HUNDREDFOLD), None),
    "nuclear ball": (case(domain=bx.NuclearBall(2.0), **HUNDREDFOLD), None),
    "concave": (case(**hessian(6, -np.geomspace(0.1, 1, 6))), "strong convexity"),
    "linear": (case(**hessian(6, np.zeros(6))), "strong convexity"),
    "rank one": (case(A=FLAT), "strong convexity"),
    "one negative curvature of six": (case(**hessian(6, np.r_[-1e-3, np.ones(5)])), "strong convexity"),
    "NaN in data": (case(**TENFOLD, b=np.array([1, 1, np.nan, 1, 1, 1])), "input"),
    "wrong Hessian": (case(structure=bx.LowerStructure(hvp=lambda x, y, w, d: 2 * d["A"] @ w), **TENFOLD), "input"),
    "wrong cross": (
        case(structure=bx.LowerStructure(cross=lambda x, y, w, d: (w @ d["B"]).reshape(x.shape)), **TENFOLD), "input",
    ),
    "wrong sign of the oracle": (case(domain=bx.UserSet(jnp.sign, **IN_BOX), **TENFOLD), "set"),
    "float32": (case(x0=SPREAD.astype("float32"), **TENFOLD), None),
    "stop_gradient in upper": (case(upper=cut_off, **TENFOLD), "hypergradient"),
    "wrong derivative in lower": (case(half_a_slope, **TENFOLD), "hypergradient"),
    "features in their own units": (case(regression, **fit(300, 1e-6, np.geomspace(1e-3, 1, 300))), None),
    "logistic": (case(classification, **fit(20, 1e-2)), None),
    "logistic, small ridge": (case(classification, **fit(20, 1e-6)), None),
    "logistic, far start": (case(classification, y0=1e3, **fit(20, 1e-2)), None),
    "pseudo-Huber": (case(robust, mu=1e-1), None),
    "pseudo-Huber, small ridge": (case(robust, mu=1e-6), None),
    "pseudo-Huber, far start": (case(robust, y0=1e3, mu=1e-1), None),
    "pseudo-Huber, tiny ridge, far start": (case(robust, y0=1e3, mu=1e-8), None),
    "double well from its hill": (case(double_well), "strong convexity"),
    "double well from a slope": (case(double_well, y0=2.0), "strong convexity"),
    "concave where x is negative": (case(turning), "strong convexity"),
    "kink": (case(absolute, y0=0.5), "smoothness"),
    "kink far away": (case(absolute, y0=100.0), "smoothness"),
}  # fmt: skip


LATER = {name for m in SPECTRA for name in SPECTRA[m] if "1e2" in name or "1e6" in name or f"{m} variables, d" in name}
"""Twelve that other condition numbers stand for."""


EARLY = [name for name in JUDGED if name not in LATER]


@pytest.mark.parametrize(
    "name", [*every_second(EARLY, of=8), *(pytest.param(n, marks=pytest.mark.slow) for n in LATER)]
)
def test_healthy_problems_pass_and_broken_ones_fail_where_they_are_broken(name):
    (judged, x, y), fault = JUDGED[name]
    found = bx.diagnose(judged, x, y)
    assert [f.check for f in found.faults] == ([] if fault is None else [fault]), str(found)
    if fault is not None:
        return
    assert {f.check for f in found.findings if f.verdict == "warning"} <= {"conditioning"}, str(found)
    if judged.lower is form:
        kappa = np.linalg.cond(judged.data["A"])
        assert 0.3 * kappa < found.constants.kappa < 1.1 * kappa


def test_a_minimiser_that_was_not_found_is_a_warning():
    """Newton's method needs more steps than it is given, which speaks against the start and not against the problem."""
    far = case(classification, y0=1e6, **fit(20, 1e-8, np.geomspace(1e-4, 10, 20)))
    found = bx.diagnose(*far)
    assert [f.check for f in found.findings if f.verdict != "ok"] == ["lower solution"], str(found)
    assert found.healthy and "ell itself is not known" in str(found)


def test_points_that_keep_their_own_representation_are_examined_too():
    domain, like = SETS["SampledNuclearBall"]
    near = lambda x, y, d: 0.5 * jnp.sum((y - x) ** 2)  # noqa: E731
    found = bx.diagnose(bx.BilevelProblem(lambda x, y, d: jnp.sum(y**3), near, domain), domain.vertex(like), like)
    assert all(f.verdict == "ok" for f in found.findings), str(found)


@pytest.mark.parametrize("missing", ["B", "seen"])
def test_levels_that_do_not_see_each_other_are_a_warning(missing):
    loose, x, y = case(**TENFOLD)
    loose = replace(loose, data=loose.data | {missing: 0 * loose.data[missing]})
    found = bx.diagnose(loose, x, y)
    assert [f.check for f in found.findings if f.verdict != "ok"] == ["coupling"], str(found)


@pytest.mark.parametrize("name", every_second(["Simplex", "NuclearBall"]))
def test_a_healthy_problem_gets_its_constants_and_steps(name):
    known = known_problem(name, kappa=30.0)
    x, y = known.problem.domain.vertex(known.problem.x_like), jnp.ones(6)
    found = bx.diagnose(known.problem, x, y)
    assert found.healthy and all(f.verdict == "ok" for f in found.findings), str(found)
    data, constants = known.problem.data, found.constants
    np.testing.assert_allclose(float(constants.L_g), 30.0, rtol=0.02)
    np.testing.assert_allclose(float(constants.mu_g), 1.0, rtol=0.05)
    np.testing.assert_allclose(float(constants.C_yx_g), np.linalg.norm(data["B"], 2), rtol=0.05)
    np.testing.assert_allclose(float(constants.L_yy_f), 1.0, rtol=1e-6)
    np.testing.assert_allclose(float(constants.L_xx_f), 0.1, rtol=1e-6)
    assert float(constants.L_yy_g) < 1e-6 and float(constants.L_yx_g) < 1e-6
    assert abs(float(found.steps["alpha"]) - 2 / (1 + 1.1 * 30)) < 2e-3
    text = str(found)
    assert "constants (estimated): mu_g = " in text and "proposed: alpha = " in text
    assert json.loads(json.dumps(found.to_dict()))["steps"] == found.steps


def test_solve_uses_the_same_estimates():
    known = known_problem("Simplex", kappa=30.0)
    x, y = jnp.full(5, 0.4), jnp.ones(6)
    found = bx.diagnose(known.problem, x, y)
    result = bx.solve(known.problem, bx.IBCG(), x0=x, y0=y, steps=1)
    np.testing.assert_allclose(float(result.solver.constants.L_g), float(found.constants.L_g), rtol=1e-9)
    np.testing.assert_allclose(float(result.solver.constants.mu_g), float(found.constants.mu_g), rtol=1e-9)
    np.testing.assert_allclose(float(result.solver.alpha.value), float(found.steps["alpha"]), rtol=1e-3)


def test_minimax_has_a_vanishing_adjoint_and_finds_the_saddle_point():
    """min over x in the l2 ball, max over y, of y^T (A x - b) - |y|^2/2: the maximum is |A x - b|^2 / 2."""
    rng = np.random.default_rng(0)
    A, x_star = jnp.asarray(rng.standard_normal((6, 3))), jnp.array([0.2, -0.3, 0.1])
    payoff = lambda x, y, data: y @ (data["A"] @ x - data["b"]) - 0.5 * jnp.sum(y**2)  # noqa: E731
    game = bx.minimax(payoff, bx.L2Ball(1.0), {"A": A, "b": A @ x_star})
    result = bx.solve(game, bx.IBCG(bx.OpenLoop(6)), jnp.array([0.0, 1.0, 0.0]), jnp.zeros(6), steps=300_000, tol=1e-7)
    np.testing.assert_allclose(result.x, x_star, atol=1e-3)
    assert float(result.audit().ell) < 1e-6
    truth = bx.exact_hypergradient(game, result.x, result.y)
    np.testing.assert_allclose(truth.v, 0, atol=1e-10)
    np.testing.assert_allclose(truth.gradient, game.upper_grads(result.x, truth.y)[0], atol=1e-10)  # Danskin
    np.testing.assert_allclose(result.state.w, 0, atol=1e-3)


def test_the_saddle_point_of_a_bilinear_quadratic_game_on_the_simplex():
    """A strictly dominant vertex: Frank-Wolfe reaches it exactly, y and w then converge linearly to 1e-6."""
    payoff = lambda x, y, c: x @ y + c @ x - 0.5 * jnp.sum(y**2)  # noqa: E731
    c = jnp.array([3.0, 0.0, 2.5])
    game = bx.minimax(payoff, bx.Simplex(), c)
    result = bx.solve(game, x0=jnp.full(3, 1 / 3), y0=jnp.zeros(3), steps=20_000, tol=1e-7)
    assert result.success
    np.testing.assert_allclose(result.x, [0, 1, 0], atol=1e-6)
    np.testing.assert_allclose(result.y, result.x, atol=1e-6)
    assert bx.minimax(payoff, bx.Simplex(), c).lower == replace(game).lower
