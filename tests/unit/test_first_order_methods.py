"""PBGD, F2SA, F3SA, BSA and StocBiO against their pseudo-code, their bias in closed form and the cost table."""

import math
from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import zoo

import bilevax as bx
from bilevax.problems import random_quadratic
from bilevax.randomness import at_step, stream_and_step
from bilevax.solvers import BSA, F2SA, F3SA, PBGD, StocBiO
from bilevax.solvers.pieces import defaults

KEY = jax.random.key(5)
CONSTANTS = bx.Constants(1.0, 4.0, L_yy_f=1.5)


# A finite sum whose minimiser is known:  f = 1/2 mean (v y + u x - s)^2 + rho/2 |x|^2,
#                                         g = 1/2 mean (a y - b x - t)^2 + mu/2 |y|^2.


def upper(x, y, data):
    d = data["val"]
    return 0.5 * jnp.mean((d["v"] @ y + d["u"] @ x - d["s"]) ** 2) + 0.5 * data["rho"] * jnp.sum(x**2)


def lower(x, y, data):
    d = data["train"]
    return 0.5 * jnp.mean((d["a"] @ y - d["b"] @ x - d["t"]) ** 2) + 0.5 * data["mu"] * jnp.sum(y**2)


class Sum:
    """The same derivatives in numpy, of all rows or of a batch, and the exact answers of the whole sum."""

    def __init__(self, batch=None, domain=None, noise=1.0, rho=0.2, rows=400, n=3, m=4, seed=0):
        rng = np.random.default_rng(seed)
        draw = lambda *shape: rng.standard_normal((rows, *shape))  # noqa: E731
        mean_a, mean_v = np.eye(m) * 2, np.eye(m)
        spread = lambda mean: np.sqrt(m) * mean[np.arange(rows) % m] + 0.3 * noise * draw(m)  # noqa: E731
        train = {"a": spread(mean_a), "b": draw(n), "t": 1 + noise * draw()}
        val = {"v": spread(mean_v), "u": 0.3 * draw(n), "s": 1 + noise * draw()}
        self.data = {"train": train, "val": val, "rho": np.float64(rho), "mu": np.float64(0.5)}
        self.domain = bx.Box(-0.4, 1.0) if domain is None else domain
        sampler = None if batch is None else bx.PerPart({k: bx.Minibatch(batch, rows) for k in ("train", "val")})
        self.problem = bx.BilevelProblem(upper, lower, self.domain, jax.tree.map(jnp.asarray, self.data), sampler)
        self.H, self.J = self.hessians()
        self.constants = bx.Constants(
            *np.linalg.eigvalsh(self.H)[[0, -1]], L_yy_f=np.linalg.norm(val["v"], 2) ** 2 / rows
        )
        self.A = np.linalg.solve(self.H, -self.J.T)  # y*(x) = A x + y*(0)
        self.y_zero = np.linalg.solve(self.H, train["a"].T @ train["t"] / rows)
        M, r = val["v"] @ self.A + val["u"], val["v"] @ self.y_zero - val["s"]
        self.Q, self.q = M.T @ M / rows + rho * np.eye(n), M.T @ r / rows
        self.x_star = minimise(self.Q, self.q, lambda x: np.clip(x, self.domain.lower, self.domain.upper))
        self.ell_star = self.ell(self.x_star)

    def rows(self, key):
        """The batch that the library draws with this key."""
        if self.problem.sampler is None or key is None:
            return self.data
        index = self.problem.sampler.draw(*stream_and_step(key))
        return {**self.data, **{k: {n: v[np.asarray(i)] for n, v in self.data[k].items()} for k, i in index.items()}}

    def upper_grads(self, x, y, key=None):
        d = self.rows(key)["val"]
        r = d["v"] @ y + d["u"] @ x - d["s"]
        return d["u"].T @ r / len(r) + self.data["rho"] * x, d["v"].T @ r / len(r)

    def lower_grads(self, x, y, key=None):
        d = self.rows(key)["train"]
        r = d["a"] @ y - d["b"] @ x - d["t"]
        return -d["b"].T @ r / len(r), d["a"].T @ r / len(r) + self.data["mu"] * y

    def hessians(self, key=None):
        d = self.rows(key)["train"]
        return d["a"].T @ d["a"] / len(d["t"]) + self.data["mu"] * np.eye(d["a"].shape[1]), -d["b"].T @ d["a"] / len(
            d["t"]
        )

    def ell(self, x):
        x = np.asarray(x)
        return self.upper(x, x @ self.A.T + self.y_zero)

    def upper(self, x, y):
        d = self.data["val"]
        return 0.5 * np.mean((y @ d["v"].T + x @ d["u"].T - d["s"]) ** 2, -1) + 0.5 * self.data["rho"] * np.sum(
            x**2, -1
        )

    def project(self, x):
        return np.clip(x, self.domain.lower, self.domain.upper)

    def vertex(self, d):
        return np.where(d > 0, self.domain.lower, self.domain.upper)


def minimise(Q, q, project, steps=20000):
    """The minimiser of x Q x / 2 + q x over a set, by accelerated projected gradients."""
    x = ahead = project(np.zeros(len(q)))
    L, mu = np.linalg.eigvalsh(Q)[[-1, 0]]
    momentum = (math.sqrt(L) - math.sqrt(mu)) / (math.sqrt(L) + math.sqrt(mu))
    for _ in range(steps):
        following = project(ahead - (Q @ ahead + q) / L)
        if np.linalg.norm(following - x) <= 1e-15 * np.linalg.norm(x):
            break
        x, ahead = following, following + momentum * (following - x)
    return x


# ---------------------------------------------------------------- pseudo-code


def pbgd_steps(sum_, x, y, keys, *, penalty, x_step):
    """Card 3.5 with xi = 0.05, T = 3 and sigma from 2 to 10 over 4 steps."""
    z, L_g, L_f = y, float(CONSTANTS.L_g), float(CONSTANTS.L_yy_f)
    for k, key in enumerate(keys):
        sigma = 2 + 8 * min(k / 4, 1)
        f_x, f_y = sum_.upper_grads(x, y, key)
        g_x, g_y = sum_.lower_grads(x, y, key)
        if penalty == "value":
            for i in range(3):
                z = z - sum_.lower_grads(x, z, jax.random.fold_in(key, i))[1] / L_g
            F, D, step = f_x + sigma * (g_x - sum_.lower_grads(x, z, key)[0]), f_y + sigma * g_y, L_f + sigma * L_g
        else:
            H, J = sum_.hessians(key)
            F, D, step = f_x + sigma * J @ g_y, f_y + sigma * H @ g_y, L_f + sigma * L_g**2
        move = sum_.project(x - 0.05 * 2 / sigma * F) if x_step == "project" else x + 2 / (k + 2) * (sum_.vertex(F) - x)
        x, y = move, y - D / step
    return x, y


def f2sa_steps(sum_, x, y, keys, *, lam, gamma, T=3):
    """Card 4.6, with the step alpha = gamma / lambda of y."""
    z = y
    for k, key in enumerate(keys):
        draw_y, draw_x = jax.random.split(key)
        for t in range(T):
            one = jax.random.fold_in(draw_y, t)
            z_next = z - gamma(k) * sum_.lower_grads(x, z, one)[1]
            y = y - gamma(k) / lam(k) * (sum_.upper_grads(x, y, one)[1] + lam(k) * sum_.lower_grads(x, y, one)[1])
            z = z_next
        difference = sum_.lower_grads(x, y, draw_x)[0] - sum_.lower_grads(x, z, draw_x)[0]
        x = sum_.project(x - 0.1 * (sum_.upper_grads(x, y, draw_x)[0] + lam(k) * difference))
    return x, y


def f3sa_steps(sum_, x, y, keys, *, lam, gamma, theta):
    """The recursions of the momentum method, each of the six gradients with its own average."""
    z, before, d = y, (x, y, y), None
    for k, key in enumerate(keys):
        draw_y, draw_x = jax.random.split(key)

        def inner(x, y, z, key=draw_y):
            return sum_.lower_grads(x, z, key)[1], sum_.upper_grads(x, y, key)[1], sum_.lower_grads(x, y, key)[1]

        def outer(x, y, z, key=draw_x):
            return sum_.upper_grads(x, y, key)[0], sum_.lower_grads(x, y, key)[0], sum_.lower_grads(x, z, key)[0]

        keep = 0.0 if k == 0 else 1 - theta(k)
        old = [0, 0, 0] if d is None else [keep * (a - b) for a, b in zip(d[:3], inner(*before), strict=True)]
        h_z, h_f, h_g = (a + b for a, b in zip(inner(x, y, z), old, strict=True))
        y_next, z_next = y - gamma(k) / lam(k) * (h_f + lam(k) * h_g), z - gamma(k) * h_z
        old = [0, 0, 0] if d is None else [keep * (a - b) for a, b in zip(d[3:], outer(before[0], y, z), strict=True)]
        h_x, h_xy, h_xz = (a + b for a, b in zip(outer(x, y_next, z_next), old, strict=True))
        before, d = (x, y, z), (h_z, h_f, h_g, h_x, h_xy, h_xz)
        x, y, z = sum_.project(x - 0.1 * (h_x + lam(k) * (h_xy - h_xz))), y_next, z_next
    return x, y


def bsa_steps(sum_, x, y, keys):
    """Card 3.4 with alpha_k = 0.2 (k+1)^(-1/2)."""
    mu_g, L_g = 1.0, 4.0
    for k, key in enumerate(keys):
        draw_y, draw_f, draw_g, truncation = jax.random.split(key, 4)
        for t in range(math.ceil(math.sqrt(k + 1))):
            step = 2 / (mu_g * (t + 1) + L_g)
            y = y - step * sum_.lower_grads(x, y, jax.random.fold_in(draw_y, t))[1]
        budget = math.ceil(L_g / mu_g * math.log(k + 2))
        f_x, v = sum_.upper_grads(x, y, draw_f)
        draw, factors = jax.random.split(truncation)
        for i in range(int(jax.random.randint(draw, (), 0, budget, dtype=jnp.int32))):
            v = v - sum_.hessians(jax.random.fold_in(factors, i))[0] @ v / L_g
        F = f_x - sum_.hessians(draw_g)[1] @ v * budget / L_g
        x = sum_.project(x - 0.2 / math.sqrt(k + 1) * F)
    return x, y


def stoc_bio_steps(sum_, x, y, keys, T=3, Q=4):
    """Card 4.1: eta sum over q of prod over j from Q-q to Q of (I - eta H_j), where the product may be empty."""
    L_g = 4.0
    for k, key in enumerate(keys):
        draw_y, draw_f, draw_g, draw_h = jax.random.split(key, 4)
        for t in range(T):
            step = 1 / L_g / (math.sqrt(k + 1) if sum_.problem.sampler is not None else 1)
            y = y - step * sum_.lower_grads(x, y, jax.random.fold_in(draw_y, t))[1]
        f_x, f_y = sum_.upper_grads(x, y, draw_f)
        H = [sum_.hessians(jax.random.fold_in(draw_h, q))[0] for q in range(Q)][::-1]  # H_Q is drawn first
        total = np.zeros_like(y)
        for q in range(-1, Q):
            term = f_y
            for j in range(Q - 1, Q - 2 - q, -1):
                term = term - H[j] @ term / L_g
            total = total + term / L_g
        x = sum_.project(x - 0.1 * (f_x - sum_.hessians(draw_g)[1] @ total))
    return x, y


GROWING = {"lam": bx.Power(3.0, -0.2), "gamma": bx.Power(0.2, 0.4)}
NUMPY = {"lam": lambda k: 3 * (k + 1) ** 0.2, "gamma": lambda k: 0.2 * (k + 1) ** -0.4}
RAMP = {"sigma": 10.0, "start": 2.0, "ramp": 4, "lower": 3}
PSEUDO_CODE = {
    "PBGD value": (PBGD(0.05, **RAMP), pbgd_steps, {"penalty": "value", "x_step": "project"}),
    "PBGD value fw": (PBGD(**RAMP, x_step="fw"), pbgd_steps, {"penalty": "value", "x_step": "fw"}),
    "PBGD gradient": (PBGD(0.05, **RAMP, penalty="gradient"), pbgd_steps, {"penalty": "gradient", "x_step": "project"}),
    "F2SA": (F2SA(0.1, **GROWING, lower=3), f2sa_steps, NUMPY),
    "F3SA": (
        F3SA(0.1, **GROWING, theta=bx.Power(0.9, 0.5)),
        f3sa_steps,
        {**NUMPY, "theta": lambda k: 0.9 / (k + 1) ** 0.5},
    ),
    "BSA": (BSA(bx.Power(0.2, 0.5)), bsa_steps, {}),
    "StocBiO": (StocBiO(0.1, lower=3, factors=4), stoc_bio_steps, {}),
}


@pytest.mark.parametrize("batch", [None, 7])
@pytest.mark.parametrize("name", zoo.every_second(PSEUDO_CODE, of=4))
def test_the_method_is_its_pseudo_code(name, batch):
    solver, steps, options = PSEUDO_CODE[name]
    sum_ = Sum(batch)
    x, y = np.array([0.1, 0.9, -0.3]), np.array([1.0, -1.0, 0.5, 0.0])
    solver = replace(solver, constants=CONSTANTS)
    state, _ = jax.jit(lambda x, y: bx.run(sum_.problem, solver, x, y, steps=6, key=KEY))(x, y)
    expected = steps(sum_, x, y, [at_step(KEY, k) for k in range(6)], **options)
    for found, wanted in zip((state.x, state.y), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-10, atol=1e-12)
    assert np.linalg.norm(state.x - x) > 1e-2


# ---------------------------------------------------------------- the bias of a penalty


def simplex_projection(x, radius):
    u = np.sort(x)[::-1]
    excess = (np.cumsum(u) - radius) / np.arange(1, len(x) + 1)
    return np.maximum(x - excess[np.nonzero(u > excess)[0][-1]], 0)


def nuclear_projection(x, radius):
    u, sigma, v = np.linalg.svd(x.reshape(2, 2))
    inside = sigma if sigma.sum() <= radius else simplex_projection(sigma, radius)
    return ((u * inside) @ v).reshape(-1)


SIDES = np.array([0.5, 2.0, 2.0, 0.5])
SETS = {
    "WholeSpace": (bx.WholeSpace(), lambda x: x),
    "Box": (bx.Box(-SIDES, SIDES), lambda x: np.clip(x, -SIDES, SIDES)),
    "Simplex": (bx.Simplex(2.0), lambda x: simplex_projection(x, 2.0)),
    "L2Ball": (bx.L2Ball(0.7), lambda x: x * min(1, 0.7 / max(np.linalg.norm(x), 1e-300))),
    "NuclearBall": (bx.NuclearBall(0.9), lambda x: nuclear_projection(x, 0.9)),
}
PENALTIES = np.array([20.0, 60.0, 200.0])
# The method, the power of A in its penalty, steps, and the condition number; `c` is the curvature of the penalty in x.
PENALISED = {
    "PBGD value": (lambda s, c, L: PBGD(1 / (1 + s * c), sigma=s), 1, 20000, 2.0),
    "PBGD gradient": (lambda s, c, L: PBGD(1 / (1 + s * c), sigma=s, penalty="gradient"), 2, 40000, 2.0),
    "PBGD value, kappa 10": (lambda s, c, L: PBGD(1 / (1 + s * c), sigma=s), 1, 100000, 10.0),
    "F2SA": (lambda s, c, L: F2SA(0.1, lam=s), 1, 1000, 2.0),
    "F2SA, kappa 10": (lambda s, c, L: F2SA(0.2 / L, lam=s), 1, 1000, 10.0),
    "F2SA, kappa 1000": (lambda s, c, L: F2SA(0.2 / L, lam=s, lower=200), 1, 1000, 1000.0),
    "F3SA": (lambda s, c, L: F3SA(0.1, lam=s), 1, 1000, 2.0),
    "F3SA, kappa 10": (lambda s, c, L: F3SA(0.05 / L, lam=s), 1, 5000, 10.0),
}


@cache
def penalised_problem(domain, kappa):
    """A known solution on one of the sets, where x is a matrix on the last."""
    like = jnp.zeros((2, 2) if domain == "NuclearBall" else 4)
    return random_quadratic(SETS[domain][0], like, 3, jax.random.key(4), kappa=kappa, rho=1.0)


def penalised_solution(known, project, sigma, order):
    """The minimiser of min over y of f + sigma p, a quadratic in x: p is r A r / 2 or |A r|^2 / 2, r = y - y*(x)."""
    d = {name: np.asarray(value) for name, value in known.problem.data.items()}
    A = np.linalg.matrix_power(d["A"], order)
    M = np.linalg.inv(np.eye(len(A)) + np.linalg.inv(sigma * A))  # |y*(x) - c|^2 in this norm is what remains of f
    S = np.linalg.solve(d["A"], d["B"])
    Q = S.T @ M @ S + d["rho"] * np.eye(S.shape[1])
    x = minimise(Q, S.T @ M @ (np.linalg.solve(d["A"], d["b"]) - d["c"]) + d["q"].reshape(-1), project)
    y_star = known.lower_solution(x)
    return x, y_star - np.linalg.solve(np.eye(len(A)) + sigma * A, y_star - d["c"])


def spread(values):
    return np.max(values) / np.min(values) - 1


@pytest.mark.parametrize(
    ("method", "domain"),
    zoo.every_second(
        ((m, d) for m in PENALISED for d in (SETS if m in ("PBGD value", "F2SA") else ["WholeSpace", "NuclearBall"])),
        of=4,
    ),
)
def test_the_limit_is_the_penalised_solution_and_its_error_falls_like_one_over_the_penalty(method, domain):
    make, order, steps, kappa = PENALISED[method]
    members, project = SETS[domain]
    known = penalised_problem(domain, kappa)
    like = known.problem.x_like.zeros()
    x0, y0 = jnp.asarray(members.vertex(like)), jnp.ones(3)
    A, B = (np.asarray(known.problem.data[name]) for name in "AB")
    curvature = np.linalg.norm(B.T @ np.linalg.matrix_power(A, order - 2) @ B, 2)
    L = np.linalg.norm(np.linalg.solve(A, B), 2) ** 2 + 1.0

    def end(sigma):
        solver = replace(make(sigma, curvature, L), constants=known.constants)
        state, _ = bx.run(known.problem, solver, x0, y0, steps=steps)
        return state.x.reshape(-1), state.y

    x, y = map(np.asarray, jax.jit(jax.vmap(end))(jnp.asarray(PENALTIES)))
    for i, sigma in enumerate(PENALTIES):
        exact = penalised_solution(known, project, sigma, order)
        np.testing.assert_allclose(x[i], exact[0], atol=1e-8)
        np.testing.assert_allclose(y[i], exact[1], atol=1e-8)
    in_x = np.linalg.norm(x - np.asarray(known.x_star).reshape(-1), axis=1)
    in_y = np.array([np.linalg.norm(y[i] - known.lower_solution(x[i])) for i in range(3)])
    in_ell = np.array([known.ell(v.reshape(like.shape)) for v in x]) - known.ell_star
    assert in_x[0] > 1e-4 and spread(in_x * PENALTIES) < 0.2
    assert spread(in_y * PENALTIES) < 0.2
    assert spread(in_ell * PENALTIES**2) < 0.4


def test_the_two_penalties_displace_y_by_different_powers_of_the_hessian():
    """To first order y - y*(x) is -H^-1 f_y / sigma with the value penalty and -H^-2 f_y / sigma with the gradient."""
    known = penalised_problem("WholeSpace", 2.0)
    for order in (1, 2):
        x, y = penalised_solution(known, lambda x: x, 1e4, order)
        shift = -np.linalg.matrix_power(np.linalg.inv(known.problem.data["A"]), order - 1) @ known.adjoint(x) / 1e4
        np.testing.assert_allclose(y - known.lower_solution(x), shift, rtol=1e-3)


@pytest.mark.parametrize("solver", [PBGD(sigma=60.0), F2SA(lam=60.0), F3SA(lam=60.0)], ids=lambda s: type(s).__name__)
def test_frank_wolfe_steps_go_to_the_same_limit(solver):
    members, project = SETS["Simplex"]
    known = penalised_problem("Simplex", 2.0)
    solver = replace(solver, x_step="fw", constants=known.constants)
    run = jax.jit(lambda x, y: bx.run(known.problem, solver, x, y, steps=10000)[0].x)
    x = run(jnp.asarray(members.vertex(jnp.zeros(4))), jnp.ones(3))
    np.testing.assert_allclose(x, penalised_solution(known, project, 60.0, 1)[0], atol=5e-3)


# ---------------------------------------------------------------- convergence


def excess(sum_, solver, steps, keys):
    """ell - ell* at the end, relative to the start, for each key."""
    x0, y0 = jnp.full(len(sum_.x_star), 0.9), jnp.zeros(len(sum_.H))
    solver = zoo.prepared(solver, sum_.problem, x0, y0, KEY)
    end = jax.jit(jax.vmap(lambda key: bx.run(sum_.problem, solver, x0, y0, steps=steps, key=key)[0].x))
    return (sum_.ell(np.asarray(end(keys))) - sum_.ell_star) / (sum_.ell(x0) - sum_.ell_star)


DEFAULTS = {
    "PBGD": (PBGD(), 1e-3),
    "PBGD gradient": (PBGD(penalty="gradient"), 1e-2),
    "PBGD fw": (PBGD(x_step="fw"), 5e-3),
    "F2SA": (F2SA(), 1e-3),
    "F2SA fw": (F2SA(x_step="fw"), 1e-3),
    "F3SA": (F3SA(), 1e-3),
    "BSA": (BSA(), 5e-2),
    "StocBiO": (StocBiO(), 1e-3),
}


@pytest.mark.parametrize("name", zoo.every_second(DEFAULTS, of=4))
def test_defaults_with_estimated_constants_come_close_without_sampling(name):
    solver, bound = DEFAULTS[name]
    found = excess(Sum(), solver, 2000, KEY[None])
    assert -1e-12 < found.item() < bound


def test_a_long_neumann_sum_makes_stoc_bio_exact_without_sampling():
    sum_ = Sum()
    for solver, bound in ((StocBiO(0.2, factors=100), 1e-12), (StocBiO(factors=100, x_step="fw", lower=20), 1e-5)):
        found = excess(sum_, replace(solver, constants=sum_.constants), 1000, KEY[None])
        assert -1e-12 < found.item() < bound


def test_the_authors_scaling_is_not_ours():
    """A Neumann sum of Q factors leaves exactly (1 - eta lambda)^(Q+1) of each eigenvalue's inverse undone."""
    sum_ = Sum()
    x, y = jnp.full(3, 0.3), jnp.asarray(sum_.A @ np.full(3, 0.3) + sum_.y_zero)
    solver = StocBiO(0.1, factors=4, constants=sum_.constants).prepare(sum_.problem, x, y, KEY)
    _, info = solver.step(sum_.problem, solver.init(sum_.problem, x, y)[0], KEY)
    f_x, f_y = sum_.upper_grads(np.asarray(x), np.asarray(y))
    left = np.linalg.matrix_power(np.eye(4) - sum_.H / float(sum_.constants.L_g), 5)
    expected = f_x - sum_.J @ np.linalg.solve(sum_.H, f_y - left @ f_y)
    np.testing.assert_allclose(info.direction, expected, rtol=1e-9)


NOISY = {
    "F2SA": (F2SA(), 1500),
    "F3SA": (F3SA(), 1500),
}


@pytest.mark.parametrize("name", zoo.every_second(NOISY))
def test_on_mini_batches_the_error_is_small_and_falls_with_the_batch_size(name):
    solver, steps = NOISY[name]
    means = []
    for batch in (4, 16):
        sum_ = Sum(batch, n=4, m=3, rho=0.0, domain=bx.Box(-3.0, 3.0))
        solver = replace(solver, constants=sum_.constants)
        means.append(np.mean(excess(sum_, solver, steps, jax.random.split(KEY, 10))))
    assert means[0] < 0.05
    assert means[1] < 0.5 * means[0]


@pytest.mark.parametrize("name", ["BSA", "StocBiO"])
def test_the_direction_is_unbiased_up_to_the_truncation(name):
    """Every factor has its own sample, so the mean is the direction of the whole sum after the same lower steps."""
    sum_ = Sum(3)
    x, y = np.array([0.1, 0.9, -0.3]), np.array([1.0, -1.0, 0.5, 0.0])
    mu_g, L_g = float(sum_.constants.mu_g), 3 * float(sum_.constants.L_g)
    options = {"lower": 3, "constants": bx.Constants(mu_g, L_g)}
    solver = BSA(0.1, budget=5, **options) if name == "BSA" else StocBiO(0.1, factors=4, **options)
    solver = solver.prepare(sum_.problem, jnp.asarray(x), jnp.asarray(y), KEY)
    state, _ = solver.init(sum_.problem, jnp.asarray(x), jnp.asarray(y))
    one = lambda key: solver.step(sum_.problem, state, key)[1].direction  # noqa: E731
    found = np.asarray(jax.jit(jax.vmap(one))(jax.random.split(KEY, 40000)))
    for t in range(3):
        y = y - (2 / (mu_g * (t + 1) + L_g) if name == "BSA" else 1 / L_g) * sum_.lower_grads(x, y)[1]
    f_x, f_y = sum_.upper_grads(x, y)
    partial = sum(np.linalg.matrix_power(np.eye(4) - sum_.H / L_g, q) for q in range(5)) / L_g
    error = np.abs(found.mean(0) - (f_x - sum_.J @ partial @ f_y))
    deviation = found.std(0) / math.sqrt(len(found))
    assert np.all(error < 4 * deviation) and np.all(deviation < 0.05 * np.linalg.norm(f_x))


# ---------------------------------------------------------------- loops and input


def test_bsa_takes_more_lower_steps_and_longer_products_as_it_goes():
    sum_ = Sum()
    spent = lambda _, info: (info.counts.lower_grads, info.counts.hvps)  # noqa: E731
    for solver, expected in ((BSA(0.1), [1, 2, 2, 2, 3]), (BSA(0.1, convex=True), [1, 2, 3, 4, 5])):
        solver = replace(solver, constants=CONSTANTS)
        run = lambda x, y, s=solver: bx.run(sum_.problem, s, x, y, steps=200, key=KEY, collect=spent)  # noqa: E731
        steps, products = map(np.asarray, jax.jit(run)(jnp.zeros(3), jnp.zeros(4))[1])
        assert steps[:5].tolist() == expected
        budgets = np.ceil(4 * np.log(np.arange(200) + 2))
        assert np.all(products < budgets) and np.any(products >= 16)  # 4 log 55, which a fixed budget would miss


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PBGD(sigma=0.0), "PBGD: sigma must be positive and finite, got 0"),
        (lambda: PBGD(sigma=-1.0), "sigma must be positive"),
        (lambda: PBGD(sigma=np.nan), "sigma must be positive"),
        (lambda: PBGD(sigma=5.0, start=0.0), "start must be positive"),
        (lambda: PBGD(penalty="norm"), "PBGD: penalty must be 'value' or 'gradient', got 'norm'"),
        (lambda: PBGD(lower=-1), "PBGD: lower must be a whole number of at least 1, got -1"),
        (lambda: PBGD(ramp=0), "PBGD: ramp must be a whole number"),
        (lambda: PBGD(x_step="away"), "PBGD: x_step must be 'project'"),
        (lambda: F2SA(lam=0.0), "F2SA: lam must be positive and finite, got 0"),
        (lambda: F2SA(lam=bx.Power(-1.0, 0.2)), "F2SA: lam must be positive"),
        (lambda: F2SA(lower=2.5), "F2SA: lower must be a whole number"),
        (lambda: F2SA(noise="some"), "F2SA: noise must be 'none', 'upper' or 'both', got 'some'"),
        (lambda: F2SA(x_step="lmo"), "F2SA: x_step"),
        (lambda: F3SA(lam=-2.0), "F3SA: lam must be positive"),
        (lambda: F3SA(noise="lower"), "F3SA: noise"),
        (lambda: F3SA(x_step=None), "F3SA: x_step"),
        (lambda: BSA(budget=-3), "BSA: budget must be a whole number of at least 1, got -3"),
        (lambda: BSA(lower=0), "BSA: lower"),
        (lambda: StocBiO(factors=0), "StocBiO: factors must be a whole number"),
        (lambda: StocBiO(x_step="gd"), "StocBiO: x_step"),
    ],
)
def test_bad_options_are_refused_by_name(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(("solver", "a", "c"), [(F2SA, 5 / 7, 4 / 7), (F3SA, 3 / 5, 2 / 5)])
def test_exponents_follow_the_noise(solver, a, c, monkeypatch):
    monkeypatch.setattr(defaults, "estimate_smoothness", lambda *_: jnp.asarray(4.0))
    sum_, x, y = Sum(5), jnp.zeros(3), jnp.zeros(4)
    ratio = lambda schedule: float(schedule(jnp.asarray(99)) / schedule(jnp.asarray(0)))  # noqa: E731

    def ratios(problem, **options):
        made = solver(constants=sum_.constants, **options).prepare(problem, x, y, KEY)
        return [ratio(made.xi), ratio(made.gamma), ratio(made.lam)]

    exact = replace(sum_.problem, sampler=None)
    # On mini-batches the step of x is found while running; its value is a distance.
    np.testing.assert_allclose(ratios(sum_.problem), [1, 100**-c, 100 ** (a - c)], rtol=1e-12)
    np.testing.assert_allclose(ratios(exact), [100 ** (-1 / 3), 1, 100 ** (1 / 3)], rtol=1e-12)
    np.testing.assert_allclose(ratios(sum_.problem, lam=9.0), [1, 100**-c, 1], rtol=1e-12)
    np.testing.assert_allclose(ratios(exact, lam=9.0), [1, 1, 1], rtol=1e-12)
