"""SBFW against its pseudo-code in numpy, the exact moments of its estimator, known solutions and its cost claim."""

import warnings
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from zoo import finite_sum, known_problem

import bilevax as bx
from bilevax import hypergradient as hg
from bilevax.randomness import at_step

KEY = jax.random.key(4)
X0, Y0 = np.full(5, 0.4), np.linspace(-1, 1, 6)
K = jnp.asarray(0, jnp.int32)


def run(problem, solver, steps, key=KEY, collect=None):
    start = lambda x, y: bx.run(problem, solver, x, y, steps=steps, key=key, collect=collect)  # noqa: E731
    return jax.jit(start)(X0, Y0)


def numbers(known):
    return {name: np.asarray(value) for name, value in known.problem.data.items()}


def truncation(key, k, first, budget):
    """The random length of step k (counted from 1), drawn as the solver draws it."""
    _, _, common = jax.random.split(at_step(key, k - 1), 3)
    return int(jax.random.randint(jax.random.split(common)[0], (), first, first + budget, jnp.int32))


def estimators(d):
    """`name: (k, f_y) -> estimate of H^-1 f_y` at step k, for mu_g = 1 and L_g = 10."""

    def product(k, f_y, first, budget):
        p = truncation(KEY, k, first, budget)
        return budget / 10 * np.linalg.matrix_power(np.eye(6) - d["A"] / 10, p) @ f_y

    return {
        "exact": lambda k, f_y: np.linalg.solve(d["A"], f_y),
        "printed": lambda k, f_y: product(k, f_y, 1, k),
        "corrected": lambda k, f_y: product(k, f_y, 0, int(np.ceil(10 * np.log(k + 1)))),
    }


def four_lines(known, rho, eta, delta, steps, h):
    """Appendix C.1 in numpy, on the simplex: k from 1, x_1 = x_0, d_1 = h(x_1, y_1)."""
    d = numbers(known)
    slope = lambda x, y: d["A"] @ y - d["B"] @ x - d["b"]  # noqa: E731
    x = before_x = X0
    before_y, y = Y0, Y0 - delta(1) * slope(X0, Y0)
    for k in range(1, steps + 1):
        if k == 1:
            direction = h(k, x, y)
        else:
            direction = (1 - min(1, rho(k))) * (direction - h(k, before_x, before_y)) + h(k, x, y)
        s = np.zeros(5)
        s[np.argmin(direction)] = 2.0
        before_x, before_y = x, y
        y = y - delta(k + 1) * slope(x, y)
        x = (1 - min(1, eta(k))) * x + min(1, eta(k)) * s
    return x, y, direction


SCHEDULES = {
    "printed": (lambda k: 2 / k**0.5, lambda k: 2 / (k + 1) ** 0.75, lambda k: 0.005 / k**0.5),
    "ours": (lambda k: 2 / k ** (2 / 3), lambda k: 2 / (k + 1), lambda k: 2 / 11),
}


@pytest.mark.parametrize(
    ("schedules", "estimator"),
    [("printed", "printed"), ("printed", "exact"), ("ours", "exact"), ("ours", "corrected"), ("ours", "printed")],
)
def test_it_is_the_pseudo_code_line_by_line(schedules, estimator):
    known = known_problem("Simplex")
    constants = bx.Constants(1.0, 10.0)
    solver = (
        bx.SBFW.as_printed(constants, estimator) if schedules == "printed" else bx.SBFW(estimator, constants=constants)
    )
    state, _ = run(known.problem, solver, 30)
    d = numbers(known)
    inverse = estimators(d)[estimator]
    h = lambda k, x, y: d["rho"] * x + d["q"] + d["B"].T @ inverse(k, y - d["c"])  # noqa: E731
    for found, expected in zip(
        (state.x, state.y, state.d), four_lines(known, *SCHEDULES[schedules], 30, h), strict=True
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10)


def test_tracked_it_is_the_pseudo_code_with_one_adjoint_step():
    known = known_problem("Simplex")
    d, eta = numbers(known), 0.9 * 2 / 11
    w, seen = np.zeros(6), {}

    def h(k, x, y):
        """At the present point from the present w, at the previous point from the one kept there."""
        nonlocal w
        if (x.tobytes(), y.tobytes()) not in seen:
            w = w - eta * (d["A"] @ w - (y - d["c"]))
            seen[x.tobytes(), y.tobytes()] = d["rho"] * x + d["q"] + d["B"].T @ w
        return seen[x.tobytes(), y.tobytes()]

    solver = bx.SBFW("tracked", constants=bx.Constants(1.0, 10.0))
    state, _ = run(known.problem, solver, 30)
    expected = four_lines(known, *SCHEDULES["ours"], 30, h)
    for found, wanted in zip((state.x, state.y, state.d, state.w), (*expected, w), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-10, atol=1e-10)


def test_printed_schedules_and_factors():
    solver = bx.SBFW.as_printed(bx.Constants(0.5, 2.0), rho=0.1, eta=0.8, delta=5.0)
    a_0 = 0.5 / (2 * 2.0**2)  # the smaller one for any L_g >= mu_g
    for k in (1, 2, 9, 1000):
        rho, eta, delta = (step(jnp.asarray(k - 1, jnp.int32)) for step in (solver.rho, solver.eta, solver.delta))
        np.testing.assert_allclose(rho, 0.1 * 2 / k**0.5)
        np.testing.assert_allclose(eta, 0.8 * 2 / (k + 1) ** 0.75)
        np.testing.assert_allclose(delta, 5 * a_0 / k**0.5)
    assert solver.estimator == "printed"


@pytest.mark.parametrize(("factor", "last"), [(1000.0, 25197), (100.0, 1168)])
def test_steps_beyond_one_are_clipped_and_told(factor, last):
    eta = lambda k: factor * 2 / (k + 1) ** 0.75  # noqa: E731
    assert eta(last) > 1 >= eta(last + 1)
    with pytest.warns(UserWarning, match=f"up to k = {last} the step eta_k exceeds 1") as seen:
        solver = bx.SBFW.as_printed(bx.Constants(1.0, 10.0), "exact", eta=factor, rho=factor)
    assert len(seen) == 1
    with pytest.warns(UserWarning) as seen:
        bx.SBFW(eta=bx.Power(2.0 * factor, 0.75, 2.0))
    assert seen[0].filename == __file__
    known = known_problem("Simplex")
    _, xs = run(known.problem, solver, 5, collect=lambda state, _: state.x)
    assert [sorted(x) for x in np.asarray(xs)[1:].tolist()] == [[0.0, 0.0, 0.0, 0.0, 2.0]] * 4


def test_schedules_that_soon_fall_below_one_need_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for factor in (0.1, 0.8, 1.0, 2.0):
            bx.SBFW.as_printed(bx.Constants(1.0, 10.0), eta=factor)
        bx.SBFW(eta=bx.Power(-1.0, 0.5)), bx.SBFW(eta=bx.Power(1.5, 0.0)), bx.SBFW()


@pytest.mark.parametrize("estimator", ["corrected", "exact"])
def test_the_first_direction_is_the_first_estimate_whatever_rho(estimator):
    """Tuned runs divide rho by a thousand: an invented d_0 would then stay for the whole run."""
    known = known_problem("Simplex")
    first = []
    for rho in (1.0, 0.002):
        solver = bx.SBFW(estimator, rho=rho, eta=0.1, constants=known.constants)
        _, d = run(known.problem, solver, 1, collect=lambda _, info: info.direction)
        first.append(d[0])
    np.testing.assert_array_equal(*first)


# The estimator. For H = diag(l) it is (B c / L) r^p b in each entry, with r = 1 - c l / L and p uniform on B numbers,
# so that its j-th moment is (B c / L)^j / B * sum over p of r^(j p) b^j.

SPECTRUM, B_SIDE, L_G = np.array([0.2, 0.5, 1.0]), np.array([1.0, -2.0, 0.5]), 1.0
DRAWS = 20_000


def moment(j, budget, first, c):
    r = 1 - c * SPECTRUM / L_G
    p = np.arange(first, first + budget)
    return (budget * c / L_G * B_SIDE) ** j * np.mean(r[:, None] ** (j * p), axis=1)


@pytest.fixture(scope="module")
def draw():
    """Many estimates, for any budget, first index and c: one compiled function."""

    @jax.jit
    def one(key, budget, c, extra):
        hvp = lambda w, _: jnp.asarray(SPECTRUM) * w  # noqa: E731
        v0, p0 = hg.random_neumann(hvp, jnp.asarray(B_SIDE), key, budget=budget, L_g=L_G, c=c)
        v1, p1 = hg.random_neumann(hvp, jnp.asarray(B_SIDE), key, budget=budget, L_g=L_G, c=c, first=1)
        return jnp.where(extra, v1, v0), jnp.where(extra, p1, p0)

    keys = jax.random.split(jax.random.key(1), DRAWS)
    return lambda budget, first, c: jax.vmap(one, (0, None, None, None))(keys, jnp.asarray(budget), c, first == 1)


@pytest.mark.parametrize("budget, first, c", [(1, 0, 1.0), (8, 0, 1.0), (32, 0, 0.5), (128, 0, 1.0), (40, 1, 1.0)])
def test_mean_and_variance_of_the_estimator(draw, budget, first, c):
    values, p = draw(budget, first, c)
    assert (int(p.min()), int(p.max())) == (first, first + budget - 1)
    mean, second, fourth = (moment(j, budget, first, c) for j in (1, 2, 4))
    np.testing.assert_allclose(
        mean, c / L_G * sum((1 - c * SPECTRUM / L_G) ** j * B_SIDE for j in range(first, first + budget)), atol=1e-12
    )
    spread = np.sqrt(np.maximum(second - mean**2, 0) / DRAWS)
    assert np.all(np.abs(np.mean(values, axis=0) - mean) <= 4 * spread + 1e-12)
    spread = np.sqrt(np.maximum(fourth - second**2, 0) / DRAWS)
    assert np.all(np.abs(np.mean(values**2, axis=0) - second) <= 4 * spread + 1e-12)


def test_the_variance_grows_linearly_with_the_budget():
    budgets = np.array([50, 100, 200, 400])
    variance = np.array([(moment(2, b, 0, 1.0) - moment(1, b, 0, 1.0) ** 2)[0] for b in budgets])
    slope = 1 / (1 - (1 - 0.2) ** 2)  # c^2 / (L^2 (1 - r^2)) b^2
    np.testing.assert_allclose(np.diff(variance) / np.diff(budgets), slope, rtol=1e-3)
    # kappa = 5, the bottom direction, where the mean is 5 or 4: budget k as printed, and kappa log k
    deviation = lambda budget, first: np.sqrt(moment(2, budget, first, 1.0) - moment(1, budget, first, 1.0) ** 2)[0]  # noqa: E731
    np.testing.assert_allclose((deviation(100, 1), deviation(10_000, 1)), (12.7, 133.3), atol=0.05)
    np.testing.assert_allclose(deviation(int(hg.neumann_budget(5.0, jnp.asarray(9998))), 0), 10.3, atol=0.05)


def test_the_printed_estimator_lacks_the_identity_term(draw):
    values, _ = draw(200, 1, 1.0)
    assert np.all(np.asarray(values)[:, 2] == 0)  # along the top eigenvector not one draw sees anything
    np.testing.assert_allclose(moment(1, 200, 1, 1.0), (1 / SPECTRUM - 1 / L_G) * B_SIDE, atol=1e-12)
    np.testing.assert_allclose(moment(1, 200, 0, 1.0), 1 / SPECTRUM * B_SIDE, atol=1e-12)


def test_printed_with_a_perfectly_conditioned_lower_level_it_ignores_that_level():
    problem = bx.BilevelProblem(
        lambda x, y, _: jnp.sum((y - 1) ** 2) + jnp.sum(x * jnp.arange(3.0)),
        lambda x, y, _: jnp.sum((y - 2 * x) ** 2),
        bx.Simplex(),
    )
    solver = bx.SBFW.as_printed(bx.Constants(2.0, 2.0))
    x = jnp.ones(3) / 3
    _, d = bx.run(problem, solver, x, jnp.zeros(3), steps=20, collect=lambda _, info: info.direction)
    np.testing.assert_allclose(d, np.broadcast_to(np.arange(3.0), (20, 3)), atol=1e-12)  # f_x alone


def test_the_length_of_a_series_is_never_zero_nor_endless():
    budgets = [int(hg.neumann_budget(kappa, jnp.asarray(k))) for kappa, k in ((1.0, 0), (10.0, 99), (0.1, 0))]
    assert budgets == [1, int(np.ceil(10 * np.log(101))), 1]
    for kappa in (np.inf, np.nan, 1e12, -3.0):  # what an estimated mu_g of zero can lead to
        assert int(hg.neumann_budget(kappa, jnp.asarray(5))) == hg.LONGEST_SERIES


def test_both_points_of_an_average_share_their_sample():
    """At a point that stays, with rho = 0, the two estimates cancel: same truncation index, same mini-batches."""
    for problem in (known_problem("Simplex").problem, finite_sum(8)[0]):
        y = jnp.ones(6) if problem.sampler is None else jnp.ones(4)
        x = problem.domain.vertex(jnp.zeros(5 if problem.sampler is None else 4))
        solver = bx.SBFW(rho=0.0, eta=0.0, delta=0.0, constants=bx.Constants(1.0, 10.0))
        _, (d, products) = bx.run(
            problem, solver, x, y, steps=30, collect=lambda _, info: (info.direction, info.counts.hvps)
        )
        assert len(set(products.tolist())) > 5
        np.testing.assert_allclose(d, np.broadcast_to(d[0], d.shape), atol=1e-12 * float(jnp.abs(d).max()) + 1e-11)


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


# On the ball of radius 1/2 the gradient is small against the noise, which falls like k^(-1/3).
LIMITS = {"Simplex": 0.05, "Box": 0.05, "NuclearBall": 0.05, "Product": 0.05, "L2Ball": 0.25}
QUICK = [("corrected", "Simplex"), ("exact", "L2Ball"), ("tracked", "Box")]
slowly = [
    pytest.param(estimator, domain, marks=() if (estimator, domain) in QUICK else pytest.mark.slow)
    for estimator in ("corrected", "exact", "tracked")
    for domain in LIMITS
]


@pytest.mark.parametrize(("estimator", "domain"), slowly)
def test_it_reaches_known_solutions(estimator, domain):
    known = known_problem(domain)
    solver = bx.SBFW(estimator, constants=known.constants)
    found = errors(known, solver, 3000, 10 if estimator == "corrected" else 1)
    assert -1e-12 <= np.mean(found) <= (LIMITS[domain] if estimator == "corrected" else 1e-5)


@pytest.mark.slow
def test_estimated_constants_serve_too():
    assert errors(known_problem("Simplex"), bx.SBFW("tracked"), 1000)[0] < 1e-4


def test_it_converges_on_a_finite_sum():
    problem, ell, least = finite_sum(8)
    start = jnp.full(4, 0.25)
    end = lambda key: bx.run(problem, bx.SBFW(constants=bx.Constants(1.0, 4.0)), start, start, steps=500, key=key)[0].x  # noqa: E731
    ends = jax.jit(jax.vmap(end))(jax.random.split(KEY, 10))
    assert np.mean([ell(x) - least for x in ends]) < 0.05 * (ell(start) - least)


def test_the_users_adjoint_formula_is_used_where_the_inverse_is():
    known = known_problem("Simplex")
    formula = bx.LowerStructure(solve_adjoint=lambda x, y, b, d: np.linalg.solve(d["A"], b), host=True)
    solver = bx.SBFW("exact", constants=known.constants)
    results = [
        bx.solve(p, solver, jnp.asarray(X0), jnp.asarray(Y0), steps=10)
        for p in (replace(known.problem, structure=formula), known.problem)
    ]
    np.testing.assert_allclose(results[0].x, results[1].x, atol=1e-10)
    assert results[0].trace.last["hvps"] == 0


def test_bad_input_is_refused_before_the_first_step():
    with pytest.raises(ValueError, match="estimator must be one of corrected, printed, exact, tracked, got 'hia'"):
        bx.SBFW("hia")
    for eta in (1.5, -0.1, np.nan):
        with pytest.raises(ValueError, match="SBFW: eta must lie between 0 and 1"):
            bx.SBFW(eta=eta)
    problem = replace(known_problem("Simplex").problem, domain=bx.WholeSpace())
    with pytest.raises(ValueError, match=r"SBFW moves by linear minimization and WholeSpace\S* is unbounded"):
        bx.solve(problem, bx.SBFW(), jnp.asarray(X0), jnp.asarray(Y0))
