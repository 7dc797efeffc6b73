"""TTSA against its pseudo-code in numpy, the printed steps computed by hand, known solutions and its cost claim."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
from zoo import finite_sum, known_problem

import bilevax as bx
from bilevax.randomness import at_step
from bilevax.runs import chunks
from bilevax.solvers.pieces.smoothness import estimate_smoothness

KEY = jax.random.key(4)
X0, Y0 = np.full(5, 0.4), np.linspace(-1, 1, 6)


def numbers(known):
    return {name: np.asarray(value) for name, value in known.problem.data.items()}


def onto_simplex(x, radius=2.0):
    """The projection by bisection on the shift, in numpy."""
    x = np.asarray(x, float)
    shift = scipy.optimize.brentq(lambda t: np.maximum(x - t, 0).sum() - radius, x.min() - radius, x.max(), xtol=1e-15)
    return np.maximum(x - shift, 0)


def budget(k, c_h=1.0, kappa=10.0):
    """kappa log(k+1) / c_h rounded up, for k counted from 1."""
    return int(np.ceil(kappa / c_h * np.log(k + 1)))


def truncation(k, c_h=1.0):
    """The random length of step k (counted from 1), drawn as the solver draws it."""
    _, _, own = jax.random.split(at_step(KEY, k - 1), 3)
    return int(jax.random.randint(jax.random.split(own)[0], (), 0, budget(k, c_h), jnp.int32))


def two_lines(known, alpha, beta, steps, c_h, fresh, deterministic):
    """The two steps of appendix C.1 in numpy, on the simplex, for mu_g = 1 and L_g = 10."""
    d, x, y = numbers(known), X0, Y0
    factor = np.eye(6) - c_h / 10 * d["A"]
    for k in range(1, steps + 1):
        y_next = y - beta(k) * (d["A"] @ y - d["B"] @ x - d["b"])
        f_y = (y_next if fresh else y) - d["c"]
        if deterministic:
            v = c_h / 10 * sum(np.linalg.matrix_power(factor, j) @ f_y for j in range(budget(k, c_h)))
        else:
            v = budget(k, c_h) * c_h / 10 * np.linalg.matrix_power(factor, truncation(k, c_h)) @ f_y
        x = onto_simplex(x - alpha(k) * (d["rho"] * x + d["q"] + d["B"].T @ v))
        y = y_next
    return x, y


@pytest.mark.parametrize(
    ("deterministic", "fresh", "c_h"), [(True, True, 1.0), (True, False, 0.7), (False, True, 0.5), (False, False, 1.0)]
)
def test_it_is_the_pseudo_code_line_by_line(deterministic, fresh, c_h):
    known = known_problem("Simplex")
    options = {"c_h": c_h, "fresh": fresh, "deterministic": deterministic}
    solver = bx.TTSA(bx.Power(0.02, 0.6), constants=bx.Constants(1.0, 10.0), **options)
    state, _ = jax.jit(lambda x, y: bx.run(known.problem, solver, x, y, steps=30, key=KEY))(X0, Y0)
    beta = (lambda k: 2 / 11) if deterministic else (lambda k: 2 / 11 / k**0.4)
    expected = two_lines(known, lambda k: 0.02 / k**0.6, beta, 30, **options)
    for found, wanted in zip((state.x, state.y), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-10, atol=1e-10)


CONSTANTS = bx.Constants(
    0.5, 2.0, L_xy_f=0.3, L_yy_f=0.7, C_yx_g=1.5, C_y_f=4.0, L_yx_g=0.2, L_yy_g=0.1
)  # L_y = 3, L = 0.3 + 0.7 * 3 + 4 * (0.4 + 0.6) = 6.4


@pytest.mark.parametrize(
    ("steps", "alpha", "beta"),
    [
        (100, 0.25 / (8 * 3 * 6.4 * 4), 0.125),  # both theoretical limits
        (1000, 0.015848931924611134 / 76.8, 0.125),  # K^(-3/5) / (4 L_y L)
        (10**6, 2.5118864315095795e-4 / 76.8, 4 * 3.9810717055349725e-3),  # and 2 / mu_g K^(-2/5)
    ],
)
def test_printed_steps_by_hand(steps, alpha, beta):
    solver = bx.TTSA.as_printed(CONSTANTS, steps, alpha=3.0, beta=0.25)
    for k in (0, 17):  # constant over the run
        at = jnp.asarray(k, jnp.int32)
        np.testing.assert_allclose((solver.alpha(at), solver.beta(at)), (3 * alpha, 0.25 * beta), rtol=1e-12)
    assert solver.fresh is solver.deterministic is False and float(solver.c_h) == 1.0


@pytest.mark.parametrize("name", ["L_xy_f", "L_yy_f", "C_yx_g", "C_y_f", "L_yx_g", "L_yy_g"])
def test_printed_steps_ask_for_a_missing_constant_by_name(name):
    with pytest.raises(ValueError, match=name):
        bx.TTSA.as_printed(replace(CONSTANTS, **{name: np.nan}), 100)


def test_given_steps_are_kept_and_missing_ones_follow_from_the_constants():
    known = known_problem("Simplex")
    solver = chunks.prepare(known.problem, bx.TTSA(constants=known.constants), jnp.asarray(X0), jnp.zeros(6), KEY)
    found = [[float(step(jnp.asarray(k, jnp.int32))) for k in (0, 9)] for step in (solver.alpha, solver.beta)]
    np.testing.assert_allclose(found[0][0], 1 / (2 * curvature(known)), rtol=0.05)
    np.testing.assert_allclose(found[1][0], 2 / 11)
    np.testing.assert_allclose([last / first for first, last in found], (10**-0.6, 10**-0.4))
    kept = bx.TTSA(0.3, constants=known.constants, deterministic=True).prepare(None, None, None, None)
    np.testing.assert_allclose((kept.alpha.value, kept.beta.value), (0.3, 2 / 11))


def curvature(known):
    """The Lipschitz constant of the gradient of ell: the largest eigenvalue of B^T A^-2 B + rho I."""
    d = numbers(known)
    return np.linalg.norm(np.linalg.solve(d["A"], d["B"]), 2) ** 2 + d["rho"]


smoothness = jax.jit(jax.vmap(estimate_smoothness, (None, None, None, 0)))


def test_smoothness_of_ell_is_estimated_from_below():
    known = known_problem("Simplex")
    found = smoothness(known.problem, jnp.array([2.0, 0, 0, 0, 0]), jnp.zeros(6), jax.random.split(KEY, 10))
    assert np.all(found >= 0.9 * curvature(known)) and np.all(found <= (1 + 1e-6) * curvature(known))


def bent(x, y, d):
    """ell(x) = slope x + bend x^2 / 2, since y*(x) = x."""
    return jnp.sum(d["slope"] * y + 0.5 * d["bend"] * y**2)


def near(x, y, d):
    return jnp.sum((y - x) ** 2)


def smoothness_on_an_interval(x, **numbers):
    problem = bx.BilevelProblem(bent, near, bx.Box(-1.0, 1.0), {name: jnp.asarray(v) for name, v in numbers.items()})
    return np.asarray(smoothness(problem, jnp.array([x]), jnp.zeros(1), jax.random.split(KEY, 10)))


def test_smoothness_is_found_from_a_corner_whatever_the_key():
    """In one dimension every second key asks for the corner itself, and the first chord had no length."""
    np.testing.assert_allclose(smoothness_on_an_interval(1.0, slope=1.0, bend=3.0), 3.0, rtol=1e-6)


def test_a_linear_or_constant_ell_gives_a_finite_step():
    np.testing.assert_allclose(smoothness_on_an_interval(0.5, slope=-2.0, bend=0.0), 1e-3 * 2.0 / 1.5)
    np.testing.assert_allclose(smoothness_on_an_interval(0.5, slope=0.0, bend=0.0), 1.0)


def errors(known, solver, steps, keys=1):
    """ell(x_K) - ell* over its first value, for some keys, from a vertex and y = 0."""
    x, y = known.problem.domain.vertex(known.problem.x_like), jnp.zeros(6)
    ends = jax.jit(jax.vmap(lambda key: bx.run(known.problem, solver, x, y, steps=steps, key=key)[0].x))(
        jax.random.split(KEY, keys)
    )
    return [
        (known.ell(jax.tree.map(lambda v, i=i: v[i], ends)) - known.ell_star) / (known.ell(x) - known.ell_star)
        for i in range(keys)
    ]


QUICK = [(False, "L2Ball"), (True, "NuclearBall")]
slowly = [
    pytest.param(deterministic, domain, marks=() if (deterministic, domain) in QUICK else pytest.mark.slow)
    for deterministic in (False, True)
    for domain in ("Simplex", "Box", "L2Ball", "NuclearBall", "Product")
]


@pytest.mark.parametrize(("deterministic", "domain"), slowly)
def test_it_reaches_known_solutions(deterministic, domain):
    known = known_problem(domain)
    solver = bx.TTSA(deterministic=deterministic)
    if (deterministic, domain) in QUICK:  # nothing to estimate, which is most of the compilation
        first = 1 / (2 * curvature(known))
        solver = replace(solver, alpha=bx.Power(first, 0.0 if deterministic else 0.6), constants=known.constants)
    found = errors(known, solver, 3000, 1 if deterministic else 10)
    assert -1e-12 <= np.min(found)
    assert np.median(found) <= (1e-5 if deterministic else 0.05)  # one random product in ten is far off


def test_it_converges_on_a_finite_sum():
    problem, ell, least = finite_sum(8)
    start, solver = jnp.full(4, 0.25), bx.TTSA(bx.Power(0.5, 0.6), constants=bx.Constants(1.0, 4.0))
    end = lambda key: bx.run(problem, solver, start, start, steps=500, key=key)[0].x  # noqa: E731
    ends = jax.jit(jax.vmap(end))(jax.random.split(KEY, 10))
    assert np.mean([ell(x) - least for x in ends]) < 0.05 * (ell(start) - least)


def test_it_needs_no_set():
    known = known_problem("Box")
    problem = replace(known.problem, domain=bx.WholeSpace())
    solver = bx.TTSA(1 / (2 * curvature(known)), deterministic=True)
    result = bx.solve(problem, solver, jnp.zeros(5), jnp.zeros(6), steps=2000, tol=1e-2)
    assert result.status is bx.Status.CONVERGED
    assert np.linalg.norm(known.gradient(result.x)) <= 1e-2


def simplex_on_the_host(d):
    d = np.asarray(d)
    return 2.0 * (np.arange(len(d)) == np.argmin(d))


@pytest.mark.parametrize(
    "solver", [bx.TTSA(0.02, constants=bx.Constants(1.0, 10.0)), pytest.param(bx.TTSA(), marks=pytest.mark.slow)]
)
def test_a_projection_on_the_host_keeps_the_precision_of_the_start(solver):
    single = lambda tree: jax.tree.map(lambda v: jnp.asarray(v, jnp.float32), tree)  # noqa: E731
    p = known_problem("Simplex").problem
    domain = bx.UserSet(simplex_on_the_host, project=onto_simplex, host=True)  # which answers in float64
    problem = bx.BilevelProblem(p.upper, p.lower, domain, single(p.data))
    result = bx.solve(problem, solver, single(X0), single(Y0), steps=3)
    assert result.x.dtype == result.y.dtype == jnp.float32


def test_bad_input_is_refused_before_the_first_step():
    for c_h in (0.0, 1.5, -1.0, np.nan):
        with pytest.raises(ValueError, match=r"TTSA: c_h must lie in \(0, 1\]"):
            bx.TTSA(c_h=c_h)
    hull, cube = bx.VertexHull(np.eye(3)), bx.UserSet(lambda d: -jnp.sign(d))
    for domain, x in ((hull, jnp.eye(3)[0]), (cube, jnp.eye(3)[0])):
        problem = bx.BilevelProblem(near, near, domain)
        with pytest.raises(
            ValueError, match="TTSA projects onto the set and .* has no projection; use bx.PairwiseIBCG"
        ):
            bx.solve(problem, bx.TTSA(), x, x)


def test_a_users_projection_is_looked_at_before_the_first_step():
    p = known_problem("Simplex").problem
    for project, kind, words in (
        (onto_simplex, TypeError, "projection of .* outside JAX.*host=True"),
        (lambda x: x[:3], ValueError, r"the projection of .* returned .* for a point of .*; it must match x"),
        (lambda x: (x, x), ValueError, "the projection of .* returned .*; it must match x"),
    ):
        problem = replace(p, domain=bx.UserSet(simplex_on_the_host, project=project))
        with pytest.raises(kind, match=words):
            bx.solve(problem, bx.TTSA(), jnp.asarray(X0), jnp.asarray(Y0))
