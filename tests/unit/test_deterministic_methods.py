"""Methods without noise: against their pseudo-code, known solutions, their cost claims and each other."""

from functools import cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import zoo

import bilevax as bx
from bilevax import trees
from bilevax.problems import quadratic, random_quadratic
from bilevax.sets import ConvexSet
from bilevax.sets.contract import Diameter, Memory
from bilevax.solvers import ABA, BA, RAHGD, SOBA, AIDBiO, AmIGO, ITDBiO
from bilevax.solvers.pieces import defaults
from bilevax.solvers.pieces.x_step import Watch

KEY = jax.random.key(3)
N, M = 5, 4
CONSTANTS = bx.Constants(1.0, 6.0)  # A has the spectrum 1..5, log cosh adds at most 1
ALPHA = 2 / 7.0
FW_TOO = ["BA", "AIDBiO", "ITDBiO", "AmIGO gd", "AmIGO cg", "SOBA"]
PROJECTED = [*FW_TOO, "ABA", "RAHGD"]
BOTH_WAYS = [(name, "project") for name in PROJECTED] + [(name, "fw") for name in FW_TOO]


def build(name, step, x_step="project", constants=CONSTANTS, **options):
    """A method by name, with `step` as its step of x."""
    kind, _, solver = name.partition(" ")
    if solver:
        options["solver"] = solver
    if name in FW_TOO:
        options["x_step"] = x_step
    classes = {c.__name__: c for c in (BA, ABA, AIDBiO, ITDBiO, AmIGO, RAHGD, SOBA)}
    return classes[kind](step, constants=constants, **options)


# A problem in which every derivative depends on where it is taken, and its derivatives by hand.
rng = np.random.default_rng(0)
turn = np.linalg.qr(rng.standard_normal((M, M)))[0]
DATA = {
    "A": turn * np.linspace(1.0, 5.0, M) @ turn.T,
    "B": rng.standard_normal((M, N)),
    "E": 0.3 * rng.standard_normal((N, M)),
    "b": rng.standard_normal(M),
    "c": rng.standard_normal(M),
    "q": rng.standard_normal(N),
}


def upper(x, y, d):
    return 0.5 * jnp.sum((y - d["c"]) ** 2) + 0.1 * jnp.sum(x**2) + d["q"] @ x + x @ d["E"] @ y


def lower(x, y, d):
    pull = d["B"] @ (x + 0.5 * jnp.sin(x)) + d["b"]
    return 0.5 * y @ d["A"] @ y + jnp.sum(jnp.log(jnp.cosh(y))) - y @ pull


def fx(x, y):
    return 0.2 * x + DATA["q"] + DATA["E"] @ y


def fy(x, y):
    return y - DATA["c"] + DATA["E"].T @ x


def gy(x, y):
    return DATA["A"] @ y + np.tanh(y) - DATA["B"] @ (x + 0.5 * np.sin(x)) - DATA["b"]


def H(y):
    return DATA["A"] + np.diag(1 / np.cosh(y) ** 2)


def J(x):
    return -(1 + 0.5 * np.cos(x))[:, None] * DATA["B"].T


def F(x, y, w):
    return fx(x, y) - J(x) @ w


def problem(domain=None, dtype=jnp.float64):
    data = {name: jnp.asarray(value, dtype) for name, value in DATA.items()}
    return bx.BilevelProblem(upper, lower, bx.Box(-1.0, 1.0) if domain is None else domain, data)


START = (np.linspace(-0.5, 0.9, N), np.linspace(1, -1, M))


# The pseudo-code of each method, on the box [-1, 1]^n; `move` is the step of x.
def projected(x, d, k):
    return np.clip(x - STEP * d, -1, 1)


def frank_wolfe(x, d, k):
    return x + 2 / (k + 2) * (np.where(d > 0, -1.0, 1.0) - x)


STEP = 0.2


def gradient_steps(x, y, count):
    for _ in range(count):
        y = y - ALPHA * gy(x, y)
    return y


def accelerated_steps(x, y, count, L, mu):
    momentum = (np.sqrt(L / mu) - 1) / (np.sqrt(L / mu) + 1)
    y_before = y
    for i in range(count):
        z = y if i == 0 else y + momentum * (y - y_before)
        y_before, y = y, z - gy(x, z) / L
    return y


def cg(A, b, w, count):
    r = b - A @ w
    p = r
    for _ in range(count):
        length = (r @ r) / (p @ A @ p)
        w = w + length * p
        r_next = r - length * A @ p
        p = r_next + (r_next @ r_next) / (r @ r) * p
        r = r_next
    return w


def ba(x, y, steps, move):
    for k in range(steps):
        y = gradient_steps(x, y, int(np.ceil((k + 1) ** 0.25 / 2)))
        w = np.linalg.solve(H(y), fy(x, y))
        x = move(x, F(x, y, w), k)
    return x, y


def aba(x, y, steps, move):
    x_ag = x
    for k in range(1, steps + 1):
        a = 2 / (k + 1)
        x_md = (1 - a) * x_ag + a * x
        y = gradient_steps(x_md, y, min(int(np.ceil(k**2 / 2)), 7))
        d = F(x_md, y, np.linalg.solve(H(y), fy(x_md, y)))
        x = np.clip(x - k * STEP / 2 * d, -1, 1)
        x_ag = np.clip(x_md - STEP * d, -1, 1)
    return x_ag, y


def aid(x, y, steps, move):
    w = np.zeros(M)
    for k in range(steps):
        y = gradient_steps(x, y, 3)
        w = cg(H(y), fy(x, y), w, 2)
        x = move(x, F(x, y, w), k)
    return x, y


def itd(x, y, steps, move):
    for k in range(steps):
        ys = [y]
        for _ in range(3):
            ys.append(ys[-1] - ALPHA * gy(x, ys[-1]))
        y = ys.pop()
        d, back = fx(x, y), fy(x, y)  # the derivative of f(x, y_3(x)), by hand from the last step to the first
        for before in reversed(ys):
            d = d - ALPHA * J(x) @ back
            back = back - ALPHA * H(before) @ back
        x = move(x, d, k)
    return x, y


def amigo(x, y, steps, move, conjugate=False):
    w = np.zeros(M)
    for k in range(steps):
        y = gradient_steps(x, y, 3)
        if conjugate:
            w = cg(H(y), fy(x, y), w, 2)
        else:
            for _ in range(2):
                w = w - 0.9 * ALPHA * (H(y) @ w - fy(x, y))
        x = move(x, F(x, y, w), k)
    return x, y


def rahgd(x, y, steps, move):
    w, before, t, travelled, bound, restarts = np.zeros(M), x, 0, 0.0, 0.5, 0
    for _ in range(steps):
        u = x + t / (t + 3) * (x - before)
        y = accelerated_steps(u, y, 3, 6.0, 1.0)
        w = cg(H(y), fy(u, y), w, 2)
        d = F(u, y, w)
        before, x = x, np.clip(u - STEP * d, -1, 1)
        t, travelled = t + 1, travelled + np.sum((x - before) ** 2)
        if t * travelled > bound**2 or d @ (x - before) > 0:
            before, t, travelled, bound, restarts = x, 0, 0.0, max(bound / 2, 0.5 / 1000), restarts + 1
    assert 1 < restarts < steps - 1  # or the test would show little
    return x, y


def rahgd_in_epochs(x, y, steps, move, K=4, bound=0.2):
    w, ended, restarted = np.zeros(M), 0, 0
    while steps:
        before, us, moves = x, [], []
        while steps:
            us.append(x + (1 - 1 / K) * (x - before))
            y = accelerated_steps(us[-1], y, 3, 6.0, 1.0)
            w = cg(H(y), fy(us[-1], y), w, 2)
            before, x, steps = x, np.clip(us[-1] - STEP * F(us[-1], y, w), -1, 1), steps - 1
            moves.append(np.linalg.norm(x - before))
            if len(moves) * np.sum(np.square(moves)) > bound**2:
                restarted += 1
                break
            if len(moves) == K:
                K_0 = K // 2 + int(np.argmin(moves[K // 2 :]))
                x, ended = np.clip(np.mean(us[: K_0 + 1], axis=0), -1, 1), ended + 1
                break
    assert ended > 1 and restarted > 1  # or the test would show little
    return x, y


def soba(x, y, steps, move):
    w = np.zeros(M)
    for k in range(steps):
        D_y, D_w, D_x = gy(x, y), H(y) @ w - fy(x, y), F(x, y, w)
        y, w, x = y - 0.1 * D_y, w - 0.1 * D_w, move(x, D_x, k)
    return x, y


PSEUDO_CODE = {
    "BA": (ba, {}),
    "ABA": (aba, {"most": 7}),
    "AIDBiO": (aid, {"lower": 3, "adjoint": 2}),
    "ITDBiO": (itd, {"lower": 3}),
    "AmIGO gd": (amigo, {"lower": 3, "adjoint": 2}),
    "AmIGO cg": (lambda *a: amigo(*a, conjugate=True), {"lower": 3, "adjoint": 2}),
    "RAHGD": (rahgd, {"lower": 3, "adjoint": 2, "bound": 0.5}),
    "SOBA": (soba, {"rho": 0.1}),
}


def test_rahgd_in_epochs_follows_the_published_pseudo_code():
    solver = build("RAHGD", STEP, "project", lower=3, adjoint=2, bound=0.2, epoch=4)
    state, _ = bx.run(problem(), solver, *map(jnp.asarray, START), steps=30)
    x, y = rahgd_in_epochs(*START, 30, projected)
    np.testing.assert_allclose(state.x, x, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(state.y, y, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("name", "x_step"), zoo.every_second(BOTH_WAYS, of=4))
def test_it_follows_its_pseudo_code(name, x_step):
    code, options = PSEUDO_CODE[name]
    solver = build(name, STEP if x_step == "project" else bx.OpenLoop(), x_step, **options)
    state, _ = bx.run(problem(), solver, *map(jnp.asarray, START), steps=12)
    x, y = code(*START, 12, projected if x_step == "project" else frank_wolfe)
    np.testing.assert_allclose(state.x, x, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(state.y, y, rtol=1e-10, atol=1e-12)


# Known solutions. One compiled run per method serves all sets and condition numbers.
SETS = [bx.WholeSpace(), bx.Box(-1.0, 1.0), bx.Simplex(2.0), bx.L2Ball(1.0), bx.NuclearBall(2.0)]
MATRIX = (2, 3)
"""The shape of x on the last set; on the others it is a vector of as many entries."""


class OneOf(ConvexSet):
    """The set of that index in `SETS`, chosen by a number, so that runs on all of them can be batched."""

    index: jax.Array

    def _ask(self, oracle, v, memory):
        def of(one):
            shape = MATRIX if isinstance(one, bx.NuclearBall) else v.shape

            def answer(v, memory):
                s, memory = oracle(trees.cast(one, v.dtype), v.reshape(shape), memory)
                return s.reshape(-1), memory

            return answer

        return jax.lax.switch(self.index, [of(one) for one in SETS], v, memory)

    def lmo(self, direction, memory):
        bounded = lambda one, v, memory: (v, memory) if isinstance(one, bx.WholeSpace) else one.lmo(v, memory)  # noqa: E731
        return self._ask(bounded, direction, memory)

    def project(self, x):
        return self._ask(lambda one, v, memory: (one.project(v), memory), x, None)[0]

    def start(self, like):
        return SETS[-1].start(jnp.zeros(MATRIX, like.dtype))

    def conditions(self, x):
        raise NotImplementedError

    def diameter(self, like):
        return Diameter(np.nan, False)


@cache
def lane(index, kappa, rho):
    """A problem with a known solution on one of the sets, as arrays only."""
    like = jnp.zeros(MATRIX) if isinstance(SETS[index], bx.NuclearBall) else jnp.zeros(6)
    known = random_quadratic(SETS[index], like, 6, jax.random.key(index), kappa=kappa, rho=rho)
    data = {name: np.asarray(value) for name, value in known.problem.data.items()}
    data["q"] = data["q"].reshape(-1)
    half = np.linalg.solve(data["A"], data["B"])
    return {
        "data": data,
        "index": index,
        "start": np.asarray(SETS[index].vertex(like)).reshape(-1),
        "kappa": np.linalg.cond(data["A"]),
        "x_star": np.asarray(known.x_star).reshape(-1),
        "slope": np.asarray(known.gradient(known.x_star)).reshape(-1),
        "curvature": half.T @ half + rho * np.eye(6),
        "L": np.linalg.norm(half.T @ half + rho * np.eye(6), 2),
        "excess": known.ell(SETS[index].vertex(like)) - known.ell_star,
    }


def errors(make, sets=range(5), kappas=(10.0, 1000.0), steps=1000, rho=0.1):
    """ell(x_k) - ell* over its first value: steps x sets x kappas; `make(constants, L_ell)` builds the solver."""
    lanes = [lane(i, kappa, rho) for i in sets for kappa in kappas]

    def error(lane, x):  # exact for a quadratic, and free of cancellation
        away = x - lane["x_star"]
        return lane["slope"] @ away + 0.5 * away @ lane["curvature"] @ away

    def setting(lane):
        return bx.BilevelProblem(quadratic.upper, quadratic.lower, OneOf(lane["index"]), lane["data"])

    def one(lane, solver):
        collect = lambda state, _: error(lane, state.x) / error(lane, lane["start"])  # noqa: E731
        return bx.run(setting(lane), solver, lane["start"], jnp.zeros(6), steps=steps + 1, collect=collect)[1]

    for each in lanes:  # the closed form of the problem agrees with the expansion around its solution
        np.testing.assert_allclose(error(each, each["start"]), each["excess"], rtol=1e-9)
    solvers = [
        zoo.prepared(make(bx.Constants(1.0, lane["kappa"]), lane["L"]), setting(lane), lane["start"], jnp.zeros(6), KEY)
        for lane in lanes
    ]
    arrays, rest = zip(*(eqx.partition(solver, eqx.is_array) for solver in solvers), strict=True)
    assert eqx.tree_equal(*rest)
    stack = lambda trees: jax.tree.map(lambda *v: np.stack(v), *trees)  # noqa: E731
    run = jax.jit(jax.vmap(lambda lane, arrays: one(lane, eqx.combine(arrays, rest[0]))))
    found = np.asarray(run(stack(lanes), stack(arrays)))
    return np.moveaxis(found, 0, -1).reshape(steps + 1, len(sets), len(kappas))


def classical(name, **options):
    """The method with steps 1/(2 L_ell) of x, for the L_ell and the constants of each problem."""
    return lambda constants, L: build(name, 1 / (2 * L), constants=constants, **options)


def lagging(constants, L):
    """Steps that do not outrun a y and a w that take kappa steps to follow."""
    return 2 / (L * (constants.kappa + 1))


# A solver for given constants and L_ell, and how many steps it gets. Everything is estimated where nothing is given.
PROJECTED_RUNS = {
    "BA": (classical("BA"), {"steps": 1500}),
    "ABA": (classical("ABA"), {"steps": 400}),
    "AIDBiO": (classical("AIDBiO"), {"steps": 400}),
    "AIDBiO with 2 adjoint steps": (classical("AIDBiO", adjoint=2), {"steps": 1500}),
    "ITDBiO": (classical("ITDBiO"), {"steps": 400, "kappas": (10.0,)}),
    "ITDBiO with 4500 lower steps": (
        lambda constants, L: ITDBiO(1 / L, lower=4500, constants=constants),
        {"steps": 150, "kappas": (1000.0,)},
    ),
    "AmIGO gd": (lambda constants, L: AmIGO(), {"steps": 12000}),
    "AmIGO cg": (classical("AmIGO cg"), {"steps": 1000}),
    "RAHGD": (lambda constants, L: RAHGD(), {"steps": 200}),
    "SOBA": (
        lambda constants, L: SOBA(lagging(constants, L), constants.alpha, constants=constants),
        {"steps": 80000},
    ),
    "FSLA": (
        lambda c, L: bx.FSLA(lagging(c, L), beta=c.alpha, eta=c.alpha, constants=c),
        {"steps": 2000, "kappas": (10.0,)},
    ),
    "MASOBA": (
        lambda c, L: bx.MASOBA(lagging(c, L), c.alpha, theta=0.5, constants=c),
        {"steps": 2000, "kappas": (10.0,)},
    ),
    "SRBA": (lambda c, L: bx.SRBA(lagging(c, L), c.alpha, constants=c), {"steps": 2000, "kappas": (10.0,)}),
    "SUSTAIN": (lambda c, L: bx.SUSTAIN(lagging(c, L), c.alpha, constants=c), {"steps": 3000, "kappas": (10.0,)}),
    "StocBiO": (
        lambda c, L: bx.StocBiO(1 / L, lower=1000, factors=9000, constants=c),
        {"steps": 150, "kappas": (10.0, 1000.0)},
    ),
    "TTSA": (
        lambda constants, L: bx.TTSA(1 / (2 * L), deterministic=True, constants=constants),
        {"steps": 1500, "kappas": (10.0, 100.0)},
    ),
}


@pytest.mark.parametrize("name", zoo.every_second(PROJECTED_RUNS, of=8))
def test_projected_steps_reach_the_known_solution(name):
    make, options = PROJECTED_RUNS[name]
    assert np.all(errors(make, **options)[-1] < 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["FSLA", "MASOBA", "SRBA"])
def test_the_relatives_of_soba_reach_the_known_solution_of_an_ill_conditioned_problem(name):
    """In the fast tests SOBA, which they are without noise, stands for them at this condition number."""
    assert np.all(errors(PROJECTED_RUNS[name][0], steps=80000, kappas=(1000.0,))[-1] < 1e-6)


@pytest.mark.slow
def test_deterministic_ttsa_reaches_the_known_solution_of_an_ill_conditioned_problem():
    """Its series takes kappa log k products, 2,000 at most, and one lower step per step lets y lag by kappa of them."""
    make, _ = PROJECTED_RUNS["TTSA"]
    assert np.all(errors(make, steps=2500, kappas=(200.0,))[-1] < 1e-6)


def open_loop(name, **options):
    return lambda constants, _: build(name, bx.OpenLoop(), "fw", constants=constants, **options)


# The last entry: for which condition numbers the direction is accurate from early on, so that the rate shows.
FW_RUNS = {
    "BA": (open_loop("BA"), {"steps": 3000}, (10.0,)),
    "AIDBiO": (open_loop("AIDBiO"), {"steps": 2000}, (10.0, 1000.0)),
    "ITDBiO": (open_loop("ITDBiO", lower=70), {"steps": 2000, "kappas": (10.0,)}, (10.0,)),
    "ITDBiO with 4500 lower steps": (
        open_loop("ITDBiO", lower=4500),
        {"steps": 300, "kappas": (1000.0,)},
        (1000.0,),
    ),
    "AmIGO gd": (open_loop("AmIGO gd"), {"steps": 3000}, (10.0,)),
    "AmIGO cg": (open_loop("AmIGO cg"), {"steps": 2000}, (10.0,)),
    "SOBA": (open_loop("SOBA"), {"steps": 12000}, (10.0,)),
    "IBCG": (lambda constants, _: bx.IBCG(constants=constants), {"steps": 12000}, (10.0,)),
    "StochasticIBCG": (lambda c, _: bx.StochasticIBCG(constants=c), {"steps": 12000}, (10.0,)),
    "FSLA": (lambda c, _: bx.FSLA(x_step="fw", constants=c), {"steps": 12000}, (10.0,)),
    "MASOBA": (lambda c, _: bx.MASOBA(x_step="fw", constants=c), {"steps": 12000}, (10.0,)),
    "SRBA": (lambda c, _: bx.SRBA(x_step="fw", constants=c), {"steps": 12000}, (10.0,)),
    "SBFW exact": (lambda constants, _: bx.SBFW("exact", constants=constants), {"steps": 3000}, (10.0,)),
    "SBFW tracked": (lambda constants, _: bx.SBFW("tracked", constants=constants), {"steps": 12000}, (10.0,)),
}


@pytest.mark.parametrize("name", zoo.every_second(FW_RUNS, of=8))
def test_frank_wolfe_steps_approach_the_known_solution_at_their_rate(name):
    make, options, accurate = FW_RUNS[name]
    found = errors(make, sets=range(1, 5), **options)
    assert np.all(found[-1] < 1e-3)
    # The rate of the largest error still to come, over the middle of the run: errors themselves go up and down.
    worst = np.maximum.accumulate(found[::-1], axis=0)[::-1]
    k = np.unique(np.geomspace(30, 0.5 * options["steps"], 40).astype(int))
    for j, kappa in enumerate(options.get("kappas", (10.0, 1000.0))):
        if kappa in accurate:
            for i in range(4):
                slope = np.polyfit(np.log(k), np.log(worst[k, i, j]), 1)[0]
                assert slope < -0.8, (SETS[1 + i], kappa, slope)


def steps_to(found, target):
    """The step from which on every error is below the target."""
    return int(np.argmax(np.maximum.accumulate(found[::-1])[::-1] < target))


@pytest.mark.slow
def test_acceleration_saves_steps_where_ell_is_ill_conditioned():
    run = lambda name, steps: errors(classical(name), [0], (10.0,), steps, rho=1e-4)[:, 0, 0]  # noqa: E731
    ba, aid = (steps_to(run(name, 20000), 1e-6) for name in ("BA", "AIDBiO"))
    aba, rahgd = (steps_to(run(name, 2000), 1e-6) for name in ("ABA", "RAHGD"))
    assert 0 < 5 * aba < ba and 0 < 5 * rahgd < aid


# ITDBiO differentiates what it runs.
def test_unrolled_gradient_equals_finite_differences_of_the_unrolled_objective():
    x, y = START
    solver = ITDBiO(0.1, lower=6, constants=CONSTANTS).prepare(problem(), jnp.asarray(x), jnp.asarray(y), KEY)
    state, _ = solver.init(problem(), jnp.asarray(x), jnp.asarray(y))
    _, info = solver.step(problem(), state, KEY)

    def unrolled(x):
        return float(problem().upper_value(jnp.asarray(x), jnp.asarray(gradient_steps(x, y, 6))))

    h = 1e-5
    slopes = [(unrolled(x + h * e) - unrolled(x - h * e)) / (2 * h) for e in np.eye(N)]
    np.testing.assert_allclose(info.direction, slopes, rtol=1e-7, atol=1e-9)


def test_truncation_bias_of_the_unrolled_gradient_decays_geometrically():
    known = random_quadratic(bx.Box(-1.0, 1.0), jnp.zeros(6), 6, KEY, kappa=10.0)
    x = jnp.linspace(-0.5, 0.5, 6)
    y = jnp.asarray(known.lower_solution(x))
    depths, biases = np.array([10, 20, 40, 80]), []
    for depth in depths:
        solver = ITDBiO(0.1, lower=int(depth), constants=known.constants).prepare(known.problem, x, y, KEY)
        state, _ = solver.init(known.problem, x, y)
        _, info = solver.step(known.problem, state, KEY)
        biases.append(np.linalg.norm(info.direction - known.gradient(x)))
    rate = np.exp(np.polyfit(depths, np.log(biases), 1)[0])
    np.testing.assert_allclose(rate, 9 / 11, rtol=1e-2)  # beta = (kappa - 1) / (kappa + 1)


# Batching, sets.
HULL = np.random.default_rng(3).standard_normal((8, N))


@pytest.mark.parametrize(
    ("name", "x_step"), [("BA", "project"), ("RAHGD", "project"), ("AIDBiO", "fw"), ("ITDBiO", "fw"), ("SOBA", "fw")]
)
def test_batched_runs_equal_single_ones_where_only_one_oracle_exists(name, x_step):
    """On the whole space, which has no lmo, and on a hull of points, which has no projection."""
    domain = bx.WholeSpace() if x_step == "project" else bx.VertexHull(HULL)
    x, y = jnp.asarray(HULL.mean(axis=0)), jnp.asarray(START[1])

    def end(step):
        options = {"lower": 5} if name == "ITDBiO" else {}
        state, _ = bx.run(problem(domain), build(name, step, x_step, **options), x, y, steps=20)
        return state.x, state.y

    steps = jnp.array([0.01, 0.05, 0.1])
    together, single = jax.jit(jax.vmap(end))(steps), jax.jit(end)
    for i, step in enumerate(steps):
        for a, b in zip(together, single(step), strict=True):
            np.testing.assert_allclose(a[i], b, rtol=1e-10, atol=1e-12)
    assert not np.allclose(together[0][0], together[0][2], atol=1e-3)
    assert bool(domain.contains(together[0][2]))


@pytest.mark.parametrize(("name", "x_step"), BOTH_WAYS)
def test_sets_without_the_oracle_are_refused_before_the_first_step(name, x_step):
    solver = build(name, 0.1, x_step)
    x, y = jnp.asarray(HULL.mean(axis=0)), jnp.asarray(START[1])
    kind = type(solver).__name__
    if x_step == "fw":
        with pytest.raises(ValueError, match=rf"{kind} moves by linear minimization and WholeSpace\(\) is unbounded"):
            bx.solve(problem(bx.WholeSpace()), solver, x, y)
    else:
        with pytest.raises(ValueError, match=rf"{kind} projects onto the set and VertexHull\(8 points\) has no proj"):
            bx.solve(problem(bx.VertexHull(HULL)), solver, x, y)


def test_frank_wolfe_steps_beyond_one_are_refused_or_clipped():
    with pytest.raises(ValueError, match=r"BA: xi must lie between 0 and 1 to keep x in the set, got 3"):
        BA(3.0, x_step="fw")
    solver = BA(lambda k: 3.0, x_step="fw", constants=CONSTANTS)
    state, _ = bx.run(problem(), solver, *map(jnp.asarray, START), steps=3)
    assert bool(problem().domain.contains(state.x))


def test_fresh_samples_lead_amigo_to_the_solution_of_the_mean():
    known = random_quadratic(bx.L2Ball(1.0), jnp.zeros(6), 6, KEY, kappa=3.0)
    noise = 0.3 * jax.random.normal(KEY, (64, 6))
    noise = noise - jnp.mean(noise, axis=0)
    data = {**known.problem.data, "b": known.problem.data["b"] + noise, "c": known.problem.data["c"] - noise}
    mean = lambda f: lambda x, y, d: jnp.mean(jax.vmap(lambda b, c: f(x, y, {**d, "b": b, "c": c}))(d["b"], d["c"]))  # noqa: E731
    setting = bx.BilevelProblem(
        mean(quadratic.upper), mean(quadratic.lower), bx.L2Ball(1.0), data, sampler=bx.Minibatch(8, 64)
    )
    solver = AmIGO(bx.Power(0.2, 0.5), lower=2, adjoint=2, constants=bx.Constants(1.0, 3.0))
    state, _ = jax.jit(lambda x, y: bx.run(setting, solver, x, y, steps=3000))(jnp.zeros(6), jnp.zeros(6))
    assert known.ell(state.x) - known.ell_star < 1e-2 * (known.ell(jnp.zeros(6)) - known.ell_star)


# What is filled in, and what is refused.
def test_missing_constants_follow_from_the_condition_number(monkeypatch):
    monkeypatch.setattr(defaults, "estimate_smoothness", lambda *_: jnp.asarray(4.0))
    x, y, k = *map(jnp.asarray, START), jnp.zeros((), jnp.int32)
    ready = lambda solver: solver.prepare(problem(), x, y, KEY)  # noqa: E731
    cases = [(9.0, 9, 3, 50, 6), (400.0, 50, 20, 400, 40), (1e6, 50, 50, 5000, 200)]
    for kappa, lower, adjoint, most, enough in cases:
        constants = bx.Constants(1.0, kappa)
        for kind in (BA, AIDBiO, ITDBiO, RAHGD):
            assert float(ready(kind(constants=constants)).xi(k)) == 1 / 8
            if kind not in (BA, RAHGD):
                assert ready(kind(constants=constants, x_step="fw")).xi == bx.OpenLoop()
        aid, aba, rahgd = (ready(kind(constants=constants)) for kind in (AIDBiO, ABA, RAHGD))
        assert (int(aid.lower), int(aid.adjoint), int(aba.most)) == (lower, adjoint, most)
        assert (int(rahgd.lower), int(rahgd.adjoint), float(aba.beta(k))) == (enough, enough, 1 / 8)
        # y and w lose their errors slowly, and x must not outrun them.
        left_y, left_w = (1 - 2 / (kappa + 1)) ** 10, (1 - 1.8 / (kappa + 1)) ** 10
        pace = max(1e-3, 1 - (left_y + left_w) / 2)
        np.testing.assert_allclose(ready(AmIGO(constants=constants)).xi(k), pace / 8, rtol=1e-12)
        pace = 1 - (left_y + np.exp(-20 / np.sqrt(kappa))) / 2
        np.testing.assert_allclose(ready(AmIGO(constants=constants, solver="cg")).xi(k), pace / 8, rtol=1e-9)


ALL = (BA, ABA, AIDBiO, ITDBiO, AmIGO, RAHGD, SOBA)
WHOLE = "must be a whole number of at least 1"
REFUSED = [
    *[(c, {"x_step": "away"}, "x_step must be 'project'.* got 'away'") for c in (BA, AIDBiO, ITDBiO, AmIGO, SOBA)],
    *[(c, {"lower": n}, f"lower {WHOLE}") for c in (AIDBiO, ITDBiO, AmIGO, RAHGD) for n in (0, 2.5)],
    *[(AmIGO, {"adjoint": n}, f"AmIGO: adjoint {WHOLE}") for n in (-1, True, "3", np.nan)],
    (AIDBiO, {"adjoint": jnp.asarray(0)}, f"AIDBiO: adjoint {WHOLE}"),
    (RAHGD, {"lower": jnp.asarray(2.0)}, f"RAHGD: lower {WHOLE}"),
    (ABA, {"most": 0}, f"ABA: most {WHOLE}"),
    *[(c, {"beta" if c is ABA else "xi": v}, "must be positive") for c in ALL for v in (0.0, -0.1, np.nan, np.inf)],
    (AmIGO, {"solver": "lu"}, "AmIGO: solver of the adjoint must be 'gd' or 'cg', got 'lu'"),
    (RAHGD, {"bound": -1.0}, "RAHGD: bound must be positive and finite"),
    (BA, {"xi": "fast"}, "a step size must be a number, a schedule or a function of k"),
]


@pytest.mark.parametrize(("kind", "options", "words"), REFUSED)
def test_bad_options_are_refused_by_name(kind, options, words):
    with pytest.raises((ValueError, TypeError), match=words):
        kind(**options)


def test_whole_numbers_of_numpy_and_jax_are_counts():
    assert (int(AIDBiO(lower=np.int64(3)).lower), int(AIDBiO(adjoint=jnp.asarray(4)).adjoint)) == (3, 4)


CURVED = {
    "TTSA": bx.TTSA(deterministic=True),
    **{name: getattr(bx, name)() for name in ("BA", "ABA", "RAHGD", "AIDBiO", "AmIGO", "SOBA", "FSLA", "MASOBA")},
}


@pytest.mark.parametrize("name", zoo.every_second(CURVED, of=8))
def test_default_steps_become_shorter_where_ell_curves_more_than_at_the_start(name):
    """At the start ell has a curvature of 0.01 at most, at the solution of 14 to 134, at a corner of 1,200."""
    pull = jnp.array([1.0, 2.0, -30.0])
    problem = bx.BilevelProblem(
        lambda x, y, d: 25 * jnp.sum(y**4) + 0.005 * jnp.sum(y**2) - d @ y,
        lambda x, y, d: 0.5 * jnp.sum(jnp.array([1.0, 2.0, 4.0]) * (y - x) ** 2),
        bx.Box(-2.0, 2.0),
        pull,
    )
    result = bx.solve(problem, CURVED[name], jnp.zeros(3), jnp.zeros(3), steps=500)
    solution = [np.roots([100, 0, 0.01, -p]) for p in pull]  # the root of 100 y^3 + 0.01 y = p that is real
    np.testing.assert_allclose(result.x, [r[np.abs(r.imag) < 1e-9].real[0] for r in solution], atol=1e-5)


@pytest.mark.slow
def test_steps_that_were_given_are_not_changed():
    problem, x, y = zoo.known_problem("Box").problem, jnp.zeros(5), jnp.zeros(6)
    state = bx.solve(problem, BA(0.1), x, y, steps=3).state
    assert isinstance(state.memory, Memory)
    assert isinstance(bx.solve(problem, BA(), x, y, steps=3).state.memory, Watch)
