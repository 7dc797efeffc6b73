"""The stochastic single-loop methods: their pseudo-code in numpy, known solutions, noise, counts, refusals."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from zoo import every_second

import bilevax as bx
from bilevax.problems import random_quadratic
from bilevax.randomness import at_step, stream_and_step
from bilevax.solvers import BSA, FSLA, MASOBA, SABA, SOBA, SRBA, SUSTAIN, StocBiO, StochasticIBCG
from bilevax.solvers.pieces.defaults import batch_constants

KEY = jax.random.key(7)
METHODS = [SOBA, MASOBA, SABA, SRBA, FSLA, SUSTAIN, StochasticIBCG]
ROWS, N, M = 32, 3, 4  # rows of the data, entries of x and of y
RIDGE = 0.5


def name_of(value):
    return value.__name__ if isinstance(value, type) else None


# A finite sum with quartic term `e`, so that H and J depend on the point; without it everything is quadratic.
def upper(x, y, d):
    return 0.5 * jnp.mean((d["C"] @ y + d["E"] @ x - d["t"]) ** 2) + 0.01 * jnp.sum(x**2)


def lower(x, y, d):
    fit = 0.5 * jnp.mean((d["A"] @ y - d["B"] @ x - d["c"]) ** 2) + 0.5 * RIDGE * jnp.sum(y**2)
    return fit + d["e"] * (1 + jnp.sum(x**2)) * jnp.sum(y**4) / 4


def rows(e=0.0):
    """Regression data whose best x, about (1.5, -0.5, 0.4), lies outside the box and the ball."""
    rng = np.random.default_rng(0)
    A, C, E = (rng.standard_normal((ROWS, k)) for k in (M, M, N))
    B = A @ np.linalg.qr(rng.standard_normal((M, N)))[0] + 0.1 * rng.standard_normal((ROWS, N))
    y = np.linalg.solve(A.T @ A / ROWS + RIDGE * np.eye(M), A.T @ B @ np.array([1.5, -0.5, 0.4]) / ROWS)
    c, t = 0.2 * rng.standard_normal(ROWS), C @ y + 0.2 * rng.standard_normal(ROWS)
    return {"A": A, "B": B, "C": C, "E": 0.1 * E, "c": c, "t": t, "e": np.asarray(e)}


def finite_sum(sampler, domain=None, e=0.0):
    domain = bx.Box(-1.0, 1.0) if domain is None else domain
    return bx.BilevelProblem(upper, lower, domain, jax.tree.map(jnp.asarray, rows(e)), sampler=sampler)


class Numpy:
    """The derivatives of the finite sum on some rows, by hand."""

    def __init__(self, e=0.0, batch=slice(None)):
        self.d = {k: v if k == "e" else v[batch] for k, v in rows(e).items()}
        self.n = len(self.d["c"])

    def g_y(self, x, y):
        d = self.d
        return d["A"].T @ (d["A"] @ y - d["B"] @ x - d["c"]) / self.n + RIDGE * y + d["e"] * (1 + x @ x) * y**3

    def H(self, x, y):
        d = self.d
        return d["A"].T @ d["A"] / self.n + RIDGE * np.eye(M) + 3 * d["e"] * (1 + x @ x) * np.diag(y**2)

    def J(self, x, y):
        return -self.d["B"].T @ self.d["A"] / self.n + 2 * self.d["e"] * np.outer(x, y**3)

    def f(self, x, y):
        r = self.d["C"] @ y + self.d["E"] @ x - self.d["t"]
        return self.d["E"].T @ r / self.n + 0.02 * x, self.d["C"].T @ r / self.n

    def F(self, x, y, w):
        return self.f(x, y)[0] - self.J(x, y) @ w

    def D(self, x, y, w):
        """The directions of y, w and x."""
        return np.r_[self.g_y(x, y), self.H(x, y) @ w - self.f(x, y)[1], self.F(x, y, w)]


def split(D):
    return D[:M], D[M : 2 * M], D[2 * M :]


# --- Each method is its pseudo-code -------------------------------------------------------------------------------

BLOCKS = bx.Blocks(8, ROWS)
QUARTIC = 0.02
STEPS = 7
XI, RHO, ETA, THETA = (bx.Power(0.06, 0.3), bx.Power(0.2, 0.4), bx.Power(0.15, 0.2), bx.Power(0.8, 0.5))
CONSTANTS = bx.Constants(1.2, 4.0, C_y_f=1.0)  # so small a C_y_f that w is clipped
POWERS = {"xi": (0.06, 0.3), "rho": (0.2, 0.4), "eta": (0.15, 0.2), "theta": (0.8, 0.5)}


def power(name, k):
    scale, exponent = POWERS[name]
    return scale / (k + 1) ** exponent


def theta(k):
    return 1.0 if k == 0 else power("theta", k)


def sampled(key):
    """The rows a sampler draws with a key, as Numpy."""
    i = int(BLOCKS.draw(*stream_and_step(key)))
    return Numpy(QUARTIC, slice(8 * i, 8 * i + 8))


def clip(w):
    return w * min(1.0, 1.0 / 1.2 / np.linalg.norm(w))


def moved(x, d, length, x_step):
    if x_step == "project":
        return np.clip(x - length * d, -1, 1)
    return x + length * (np.where(d > 0, -1.0, 1.0) - x)


def printed_soba(x, y, w, keys, x_step):
    for k, key in enumerate(keys):
        d_y, d_w, d_x = split(sampled(key).D(x, y, w))
        x, y, w = moved(x, d_x, power("xi", k), x_step), y - power("rho", k) * d_y, w - power("rho", k) * d_w
    return x, y, w


def printed_masoba(x, y, w, keys, x_step):
    d = np.zeros(N)
    for k, key in enumerate(keys):
        d_y, d_w, d_x = split(sampled(key).D(x, y, w))
        d = (1 - theta(k)) * d + theta(k) * d_x
        x, y, w = moved(x, d, power("xi", k), x_step), y - power("rho", k) * d_y, w - power("rho", k) * d_w
    return x, y, w


def printed_saba(x, y, w, keys, x_step):
    table = [Numpy(QUARTIC, slice(8 * i, 8 * i + 8)).D(x, y, w) for i in range(4)]
    for k, key in enumerate(keys):
        i = int(BLOCKS.draw(*stream_and_step(key)))
        D = sampled(key).D(x, y, w)
        d_y, d_w, d_x = split(D - table[i] + np.mean(table, axis=0))
        table[i] = D
        x, y, w = moved(x, d_x, power("xi", k), x_step), y - power("rho", k) * d_y, w - power("rho", k) * d_w
    return x, y, w


def printed_srba(x, y, w, keys, x_step):
    d, before = None, None
    for k, key in enumerate(keys):
        z = (x, y, w)
        d = Numpy(QUARTIC).D(*z) if k % 3 == 0 else d + sampled(key).D(*z) - sampled(key).D(*before)
        d_y, d_w, d_x = split(d)
        before = z
        x, y = moved(x, d_x, power("xi", k), x_step), y - power("rho", k) * d_y
        w = clip(w - power("rho", k) * d_w)
    return x, y, w


def printed_stochastic_ibcg(x, y, w, keys, x_step):
    before, d = (x, y, w), np.zeros(2 * M + N)
    for k, key in enumerate(keys):
        z = (x, y, w)
        d = sampled(key).D(*z) + (1 - theta(k)) * (d - sampled(key).D(*before))
        d_y, d_w, d_x = split(d)
        before = z
        x, y = moved(x, d_x, power("xi", k), "fw"), y - power("rho", k) * d_y
        w = clip(w - power("eta", k) * d_w)
    return x, y, w


def printed_fsla(x, y, w, keys, x_step):
    before, d = (x, y, w), np.zeros(N)
    for k, key in enumerate(keys):
        for_y, for_w, for_x = (sampled(part) for part in jax.random.split(key, 3))
        y = y - power("rho", k) * for_y.g_y(x, y)
        w = w - power("eta", k) * (for_w.H(x, y) @ w - for_w.f(x, y)[1])
        d = for_x.F(x, y, w) + (1 - theta(k)) * (d - for_x.F(*before))
        before = (x, y, w)
        x = moved(x, d, power("xi", k), x_step)
    return x, y, w


def printed_sustain(x, y, w, keys, x_step):
    before, d_x, d_y = (x, y), np.zeros(N), np.zeros(M)
    for k, key in enumerate(keys):
        of_f, of_g, truncation = jax.random.split(key, 3)
        f, g = sampled(of_f), sampled(of_g)
        budget = int(np.ceil(4.0 / 1.2 * np.log(k + 2)))
        draw, factors = jax.random.split(truncation)
        p = int(jax.random.randint(draw, (), 0, budget, dtype=jnp.int32))

        def estimate(x, y, f=f, g=g, p=p, budget=budget, factors=factors):
            f_x, v = f.f(x, y)
            for i in range(p):
                v = v - sampled(jax.random.fold_in(factors, i)).H(x, y) @ v / 4.0
            return f_x - g.J(x, y) @ (budget / 4.0 * v)

        d_y = g.g_y(x, y) + (1 - theta(k)) * (d_y - g.g_y(*before))
        d_x = estimate(x, y) + (1 - theta(k)) * (d_x - estimate(*before))
        before = (x, y)
        x, y = moved(x, d_x, power("xi", k), x_step), y - power("rho", k) * d_y
    return x, y, w


PRINTED = {
    SOBA: (printed_soba, {"xi": XI, "rho": RHO}),
    MASOBA: (printed_masoba, {"xi": XI, "rho": RHO, "theta": THETA}),
    SABA: (printed_saba, {"xi": XI, "rho": RHO}),
    SRBA: (printed_srba, {"xi": XI, "rho": RHO, "q": 3}),
    FSLA: (printed_fsla, {"xi": XI, "beta": RHO, "eta": ETA, "theta": THETA}),
    SUSTAIN: (printed_sustain, {"xi": XI, "beta": RHO, "theta": THETA}),
    StochasticIBCG: (printed_stochastic_ibcg, {"gamma": XI, "alpha": RHO, "eta": ETA, "theta": THETA}),
}


def options(method, x_step):
    return {} if method is StochasticIBCG else {"x_step": x_step}


CASES = [(m, x_step) for m in METHODS for x_step in ("project", "fw") if (m, x_step) != (StochasticIBCG, "project")]


@pytest.mark.parametrize(("method", "x_step"), every_second(CASES, of=4), ids=name_of)
def test_a_method_follows_its_pseudo_code(method, x_step):
    printed, steps = PRINTED[method]
    x, y = np.array([0.2, -0.3, 0.5]), np.linspace(-0.5, 1.0, M)
    solver = method(**steps, constants=CONSTANTS, **options(method, x_step))
    state, _ = bx.run(finite_sum(BLOCKS, e=QUARTIC), solver, jnp.asarray(x), jnp.asarray(y), steps=STEPS, key=KEY)
    keys = [at_step(KEY, k) for k in range(STEPS)]
    x_end, y_end, w_end = printed(x, y, np.zeros(M), keys, x_step)
    assert np.max(np.abs(x_end)) < 1  # the box must not hide a wrong step
    np.testing.assert_allclose(state.x, x_end, atol=1e-10)
    np.testing.assert_allclose(state.y, y_end, atol=1e-10)
    np.testing.assert_allclose(getattr(state, "w", w_end), w_end, atol=1e-10)


# --- Without noise they solve the problem -------------------------------------------------------------------------

SETS = {"WholeSpace": bx.WholeSpace(), "Simplex": bx.Simplex(2.0)}


@functools.cache
def quadratic(name):
    return random_quadratic(SETS[name], jnp.zeros(5), 6, jax.random.key(0), kappa=3.0, rho=0.5)


@pytest.mark.parametrize("name", every_second(SETS, of=4))
@pytest.mark.parametrize(("method", "x_step"), CASES, ids=name_of)
def test_without_noise_they_reach_the_solution(method, x_step, name):
    if x_step == "fw" and name == "WholeSpace":
        return  # there is no lmo
    known = quadratic(name)
    problem = replace(known.problem, sampler=bx.Blocks(6, 6) if method is SABA else None)  # one batch of everything
    x0 = SETS[name].project(jnp.full(5, 0.3))
    S = np.linalg.solve(known.problem.data["A"], known.problem.data["B"])
    xi = {"xi": 0.2 / np.linalg.norm(S.T @ S + 0.5 * np.eye(5), 2)} if x_step == "project" else {}
    solver = method(**xi, constants=known.constants, **options(method, x_step))
    state, _ = bx.run(problem, solver, x0, jnp.zeros(6), steps=1000 if method is SUSTAIN else 400)
    left = (known.ell(state.x) - known.ell_star) / (known.ell(x0) - known.ell_star)
    assert left < (1e-6 if x_step == "project" else 1e-3)


def test_default_steps_converge_however_slowly_y_follows():
    """x must not outrun y and w: steps of 1/(4 L_ell) diverge on this problem."""
    known = random_quadratic(bx.WholeSpace(), jnp.zeros(5), 6, jax.random.key(0), kappa=100.0)
    x0, y0 = jnp.full(5, 0.3), jnp.zeros(6)
    solver = SOBA(constants=known.constants).prepare(known.problem, x0, y0, KEY)
    far = known.ell(x0) - known.ell_star
    end = lambda solver: known.ell(bx.run(known.problem, solver, x0, y0, steps=5000)[0].x) - known.ell_star  # noqa: E731
    assert end(solver) < 0.01 * far
    S = np.linalg.solve(known.problem.data["A"], known.problem.data["B"])
    assert end(replace(solver, xi=bx.Constant(0.25 / np.linalg.norm(S.T @ S + 0.1 * np.eye(5), 2)))) > 100 * far


# --- With noise they come near, and nearer with larger batches ------------------------------------------------------

BALL = (bx.L2Ball(1.0), lambda x: x / max(1.0, np.linalg.norm(x)))
BOX = (bx.Box(-1.0, 1.0), lambda x: np.clip(x, -1, 1))
TUNED = {
    SOBA: ({"xi": 0.1, "rho": 0.1}, BOX),
    MASOBA: ({"xi": 0.1, "rho": 0.1, "theta": 0.2}, BOX),
    FSLA: ({"xi": 0.1, "beta": 0.1, "eta": 0.1, "theta": 0.2}, BOX),
    SUSTAIN: ({"xi": 0.03, "beta": 0.1, "theta": 0.05}, BOX),
    BSA: ({"alpha": 0.05, "lower": 5}, BOX),
    StocBiO: ({"xi": 0.1, "lower": 3}, BOX),
    StochasticIBCG: ({"gamma": 0.01, "alpha": 0.1, "eta": 0.1, "theta": 0.1}, BALL),
    SABA: ({"xi": 0.1, "rho": 0.1}, BOX),
    SRBA: ({"xi": 0.1, "rho": 0.1}, BOX),
}
BATCHED = bx.Constants(1.0, 5.4)  # L_g of two rows, which bounds the Neumann factors


def closed_form():
    """y*(x) = S x + s and ell(x) = x^T Q x / 2 + q^T x + constant."""
    full, zero = Numpy(), np.zeros(N)
    d, H = full.d, full.H(zero, np.zeros(M))
    S, s = np.linalg.solve(H, d["A"].T @ d["B"] / ROWS), np.linalg.solve(H, d["A"].T @ d["c"] / ROWS)
    G = d["C"] @ S + d["E"]
    return G.T @ G / ROWS + 0.02 * np.eye(N), G.T @ (d["C"] @ s - d["t"]) / ROWS


def mean_error(solver, sampler, domain, project, steps=1000):
    """The mean of ell - ell* over ten keys, as a share of its start at zero."""
    problem, (Q, q) = finite_sum(sampler, domain), closed_form()
    end = lambda key: bx.run(problem, solver, jnp.zeros(N), jnp.zeros(M), steps=steps, key=key)[0].x  # noqa: E731
    ends = np.asarray(jax.jit(jax.vmap(end))(jax.random.split(jax.random.key(3), 10)))
    ell = lambda x: 0.5 * x @ Q @ x + q @ x  # noqa: E731
    best = np.zeros(N)
    for _ in range(2000):
        best = project(best - (Q @ best + q) / np.linalg.norm(Q, 2))
    return np.mean([ell(x) - ell(best) for x in ends]) / -ell(best)


@pytest.mark.parametrize(
    "method",
    # Neumann series with random lengths take seconds to run.
    [SOBA, MASOBA, *(pytest.param(m, marks=pytest.mark.slow) for m in (FSLA, SUSTAIN, BSA)), StocBiO, StochasticIBCG],
    ids=name_of,
)
def test_noise_floor_of_constant_steps_falls_with_the_batch(method):
    steps, (domain, project) = TUNED[method]
    solver = method(**steps, constants=BATCHED)
    small, large = (mean_error(solver, bx.Minibatch(size, ROWS), domain, project) for size in (2, 8))
    assert small < 0.05 and large < 0.75 * small


@pytest.mark.parametrize("method", [SABA, SRBA], ids=name_of)
def test_variance_reduction_leaves_no_floor(method):
    steps, (domain, project) = TUNED[method]
    assert abs(mean_error(method(**steps, constants=BATCHED), bx.Blocks(2, ROWS), domain, project)) < 1e-12


# --- Sampled directions are unbiased --------------------------------------------------------------------------------


class Listed(bx.Blocks):
    """Blocks in a given order instead of a random one; for steps that are not compiled."""

    order: list = ()

    def draw(self, key, k):
        return jnp.asarray(self.order.pop(0))


def stepped(method, order, **options):
    """One step on blocks in the given order, from a state in the middle of a run."""
    rng = np.random.default_rng(5)
    problem = finite_sum(replace(BLOCKS), e=QUARTIC)
    solver = method(**options, constants=bx.Constants(1.2, 4.0)).prepare(problem, jnp.zeros(N), jnp.zeros(M), KEY)
    state, _ = solver.init(problem, jnp.full(N, 0.1), jnp.full(M, 0.3))
    noise = lambda v: v + 0.1 * rng.standard_normal(v.shape) if v.dtype == float else v  # noqa: E731
    state = replace(jax.tree.map(noise, state), k=jnp.asarray(4, jnp.int32))
    if method is SABA:
        state = replace(state, mean=jax.tree.map(lambda v: jnp.mean(v, axis=0), state.seen()))
    problem = replace(problem, sampler=Listed(8, ROWS, order=list(order)))
    following, info = solver.step(problem, state, KEY)
    return state, following, info


@pytest.mark.parametrize("method", every_second([SOBA, MASOBA, SABA, SRBA, StochasticIBCG]), ids=name_of)
def test_directions_average_to_the_full_ones_over_all_batches(method):
    steps = PRINTED[method][1]
    means = [np.zeros(N), np.zeros(M), np.zeros(M)]
    for i in range(4):
        state, following, info = stepped(method, [i], **steps)
        ends = (info.direction, following.y - state.y, following.w - state.w)
        means = [mean + np.asarray(end) / 4 for mean, end in zip(means, ends, strict=True)]
    at = lambda z: np.r_[Numpy(QUARTIC).D(*map(np.asarray, z))]  # noqa: E731
    D, kept = at((state.x, state.y, state.w)), theta(4)
    if method is MASOBA:
        D[2 * M :] = (1 - kept) * np.asarray(state.d) + kept * D[2 * M :]
    if method in (SRBA, StochasticIBCG):
        forget = 0.0 if method is SRBA else kept
        D = D + (1 - forget) * (np.concatenate(state.d) - at(state.previous))
    d_y, d_w, d_x = split(D)
    eta = power("eta" if method is StochasticIBCG else "rho", 4)
    for mean, expected in zip(means, (d_x, -power("rho", 4) * d_y, -eta * d_w), strict=True):
        np.testing.assert_allclose(mean, expected, atol=1e-12)


def test_fsla_averages_each_of_its_three_samples():
    steps, full = PRINTED[FSLA][1], Numpy(QUARTIC)
    by_y, by_w, by_x = ([stepped(FSLA, [*head, i, 0, 0][:3], **steps) for i in range(4)] for head in ([], [1], [1, 2]))
    state, first, _ = by_x[0]
    x, y, w = (np.asarray(v) for v in (state.x, state.y, state.w))
    y_mean = np.mean([s.y for _, s, _ in by_y], axis=0)
    np.testing.assert_allclose(y_mean, y - power("rho", 4) * full.g_y(x, y), atol=1e-12)
    y_1, w_12 = np.asarray(first.y), np.asarray(first.w)
    w_mean = np.mean([s.w for _, s, _ in by_w], axis=0)
    np.testing.assert_allclose(w_mean, w - power("eta", 4) * (full.H(x, y_1) @ w - full.f(x, y_1)[1]), atol=1e-12)
    kept = np.asarray(state.d) - full.F(np.asarray(state.x_previous), y, w)
    d_mean = np.mean([info.direction for *_, info in by_x], axis=0)
    np.testing.assert_allclose(d_mean, full.F(x, y_1, w_12) + (1 - theta(4)) * kept, atol=1e-12)


def test_sustain_averages_to_the_truncated_neumann_sum():
    problem = finite_sum(BLOCKS, e=QUARTIC)
    x, y, L_g = np.array([0.2, -0.3, 0.5]), np.linspace(-0.5, 1.0, M), 4.0
    solver = SUSTAIN(0.1, 0.1, theta=1.0, constants=bx.Constants(1.2, L_g))
    solver = solver.prepare(problem, jnp.asarray(x), jnp.asarray(y), KEY)
    state = replace(solver.init(problem, jnp.asarray(x), jnp.asarray(y))[0], k=jnp.asarray(4, jnp.int32))
    look = jax.jit(jax.vmap(lambda key: solver.step(problem, state, key)[1].direction))
    draws = look(jax.random.split(KEY, 20_000))
    full = Numpy(QUARTIC)
    f_x, term = full.f(x, y)
    v = np.zeros(M)
    for _ in range(int(np.ceil(L_g / 1.2 * np.log(6)))):
        v, term = v + term / L_g, term - full.H(x, y) @ term / L_g
    spread = jnp.std(draws, axis=0) / jnp.sqrt(20_000.0)
    assert np.all(np.abs(jnp.mean(draws, axis=0) - (f_x - full.J(x, y) @ v)) <= 4.5 * spread)


# --- Samplers, defaults and refusals --------------------------------------------------------------------------------


def test_estimated_constants_are_those_of_mini_batches():
    problem = finite_sum(bx.Blocks(2, ROWS))
    constants = batch_constants(None, problem, jnp.zeros(N), jnp.zeros(M), KEY)
    ends = [np.linalg.eigvalsh(Numpy(0.0, slice(2 * i, 2 * i + 2)).H(np.zeros(N), np.zeros(M))) for i in range(16)]
    full = np.linalg.eigvalsh(Numpy().H(np.zeros(N), np.zeros(M)))
    assert full[-1] < 0.5 * max(e[-1] for e in ends)
    assert np.median([e[-1] for e in ends]) < constants.L_g <= max(e[-1] for e in ends) + 1e-9
    np.testing.assert_allclose(constants.mu_g, full[0], rtol=0.02)


def test_saba_pairs_the_blocks_of_several_parts():
    parts = ("A", "B", "C", "E", "c", "t")
    together = bx.PerPart({name: bx.Blocks(8, ROWS) for name in parts})
    ends = []
    for sampler in (BLOCKS, together):
        problem = finite_sum(sampler)
        solver = SABA(0.1, 0.1, constants=BATCHED).prepare(problem, jnp.zeros(N), jnp.zeros(M), KEY)
        first, _ = solver.init(problem, jnp.zeros(N), jnp.ones(M))
        ends.append((first, solver.step(problem, first, KEY)[0]))
    # All parts of a batch have its number, so that the table is that of rows kept together.
    np.testing.assert_allclose(ends[0][0].seen().x, ends[1][0].seen().x, atol=1e-12)
    for _, end in ends:
        np.testing.assert_allclose(jnp.mean(end.seen().x, axis=0), end.mean.x, atol=1e-12)


@pytest.mark.parametrize(
    "sampler",
    [None, bx.Minibatch(2, ROWS), bx.PerPart({"A": bx.Blocks(8, ROWS), "t": bx.Blocks(4, ROWS)})],
    ids=["none", "Minibatch", "unequal parts"],
)
def test_saba_names_what_it_needs_and_what_runs_without(sampler):
    with pytest.raises(ValueError, match=r"(?s)SABA keeps a table .*bx\.Blocks.*bx\.SOBA"):
        bx.solve(finite_sum(sampler), SABA(), jnp.zeros(N), jnp.zeros(M), steps=1)
    with pytest.raises(ValueError, match="SABA keeps a table"):
        bx.run(finite_sum(sampler), SABA(), jnp.zeros(N), jnp.zeros(M), steps=1)


@pytest.mark.parametrize(
    ("method", "options", "words"),
    [
        *[(method, {"x_step": "away"}, f"{method.__name__}: x_step must be") for method in METHODS[:-1]],
        (SOBA, {"xi": 0.0}, "SOBA: xi must be positive and finite, got 0"),
        (SABA, {"rho": -1.0}, "SABA: rho must be positive and finite, got -1"),
        (FSLA, {"eta": np.nan}, "FSLA: eta must be positive and finite, got nan"),
        (SUSTAIN, {"beta": np.inf}, "SUSTAIN: beta must be positive and finite, got inf"),
        (MASOBA, {"theta": 1.5}, "MASOBA: theta must lie in \\(0, 1\\], got 1.5"),
        (FSLA, {"theta": 0.0}, "FSLA: theta must lie in \\(0, 1\\], got 0"),
        (SUSTAIN, {"theta": -0.1}, "SUSTAIN: theta must lie in \\(0, 1\\], got -0.1"),
        (StochasticIBCG, {"gamma": 2.0}, "StochasticIBCG: gamma must lie in \\(0, 1\\], got 2"),
        (SRBA, {"q": 0}, "SRBA: q must be a whole number of at least 1, got 0"),
        (SRBA, {"q": 2.5}, "SRBA: q must be a whole number of at least 1, got 2.5"),
    ],
    ids=str,
)
def test_bad_options_are_refused_by_name(method, options, words):
    with pytest.raises(ValueError, match=words):
        method(**options)
