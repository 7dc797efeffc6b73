"""Every exported set, solver and small problem, for the suites that run over all of them."""

import inspect
from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
from jax.flatten_util import ravel_pytree

import bilevax as bx
from bilevax.estimation import estimate_constants
from bilevax.linalg.host_loops import Kernels
from bilevax.linalg.sparse import sorted_pattern
from bilevax.problems import random_quadratic
from bilevax.sets.sampled import Sampled, Term
from bilevax.solvers.pieces import defaults
from bilevax.solvers.pieces.smoothness import estimate_smoothness
from bilevax.solvers.pieces.x_step import moves_both_ways
from bilevax.solvers.protocol import kernels

POINTS = np.random.default_rng(3).standard_normal((7, 4))
EVERYWHERE, _ = sorted_pattern(*np.indices((4, 6)).reshape(2, -1), (4, 6))  # sampled in all places: the whole matrix

# name: (set, a point's shape)
SETS = {
    "Simplex": (bx.Simplex(2.0), jnp.zeros(5)),
    "UnitSimplex": (bx.UnitSimplex(1.5), jnp.zeros(5)),
    "L1Ball": (bx.L1Ball(3.0), jnp.zeros(5)),
    "L2Ball": (bx.L2Ball(0.5), jnp.zeros(5)),
    "LInfBall": (bx.LInfBall(0.7), jnp.zeros(5)),
    "Box": (bx.Box(-1.0, np.array([1.0, 2.0, 0.5, 0.0, 3.0])), jnp.zeros(5)),
    "VertexHull": (bx.VertexHull(POINTS), jnp.zeros(4)),
    "NuclearBall": (bx.NuclearBall(2.0), jnp.zeros((4, 6))),
    "SampledNuclearBall": (bx.SampledNuclearBall(EVERYWHERE, 2.0), jnp.zeros(24)),
    "Spectraplex": (bx.Spectraplex(2.0, 0.05), jnp.zeros((5, 5))),
    "Product": (
        bx.Product({"a": bx.Simplex(), "b": (bx.Box(-1.0, 1.0), bx.NuclearBall())}),
        {"a": jnp.zeros(3), "b": (jnp.zeros(2), jnp.zeros((3, 2)))},
    ),
    "CappedSimplex": (bx.CappedSimplex(1.75, 0.5), jnp.zeros(5)),
    "KSparse": (bx.KSparse(2, 0.8), jnp.zeros(5)),
    "GroupL2Ball": (bx.GroupL2Ball([0, 1, 0, 2, 1], 1.5), jnp.zeros(5)),
    "Birkhoff": (bx.Birkhoff(), jnp.zeros((3, 3))),
    "Polytope": (
        bx.Polytope([[1, 1, 1, 1], [1, -1, 0, 0]], [1.5, 0.25], [[0, 0, 1, -1]], [0.25], lower=-0.5, upper=1.0),
        jnp.zeros(4),
    ),
    "SparseSimplex": (bx.SparseSimplex(2, 1.5), jnp.zeros(5)),
    "TransportPolytope": (bx.TransportPolytope([0.5, 1.5], [0.75, 1.0, 0.25]), jnp.zeros((2, 3))),
    "UserSet": (bx.UserSet(lambda d: -jnp.sign(d), diameter=2 * np.sqrt(5)), jnp.zeros(5)),
}
UNBOUNDED = {
    "WholeSpace": (bx.WholeSpace(), jnp.zeros(5)),
    "Halfspace": (bx.Halfspace([1.0, -2.0, 0.5, 0.0, 3.0], -1.5), jnp.zeros(5)),
    "Hyperplane": (bx.Hyperplane([1.0, -2.0, 0.5, 0.0, 3.0], 2.0), jnp.zeros(5)),
    "AffineSet": (bx.AffineSet([[1, 1, 1, 0, 0], [0, 1, -1, 2, 0], [1, 2, 0, 2, 0]], [1.0, -1.0, 0.0]), jnp.zeros(5)),
}

# The first of each class is the default; the others are its modes.
SOLVERS = {
    "IBCG": bx.IBCG(),
    "SBFW": bx.SBFW(),
    "SBFW printed": bx.SBFW("printed"),
    "SBFW exact": bx.SBFW("exact"),
    "SBFW tracked": bx.SBFW("tracked"),
    "TTSA": bx.TTSA(),
    "TTSA deterministic": bx.TTSA(deterministic=True),
    "BA": bx.BA(),
    "ABA": bx.ABA(),
    "BSA": bx.BSA(),
    "PBGD": bx.PBGD(),
    "PBGD gradient": bx.PBGD(penalty="gradient"),
    "AIDBiO": bx.AIDBiO(),
    "ITDBiO": bx.ITDBiO(),
    "StocBiO": bx.StocBiO(),
    "AmIGO": bx.AmIGO(),
    "AmIGO cg": bx.AmIGO(solver="cg"),
    "RAHGD": bx.RAHGD(),
    "SUSTAIN": bx.SUSTAIN(),
    "FSLA": bx.FSLA(),
    "SOBA": bx.SOBA(),
    "SABA": bx.SABA(),
    "MASOBA": bx.MASOBA(),
    "SRBA": bx.SRBA(),
    "F2SA": bx.F2SA(),
    "F3SA": bx.F3SA(),
    "StochasticIBCG": bx.StochasticIBCG(),
    "BlockIBCG": bx.BlockIBCG(),
    "AdaptiveIBCG": bx.AdaptiveIBCG(),
    "PairwiseIBCG": bx.PairwiseIBCG(),
    "PairwiseIBCG last steps": bx.PairwiseIBCG(memory=3),
    "ProjectedIBCG": bx.ProjectedIBCG(),
    "ProjectedIBCG last steps": bx.ProjectedIBCG(3),
    "SampledIBCG": bx.SampledIBCG(),
}
SOLVERS |= {f"{name} fw": replace(s, x_step="fw") for name, s in SOLVERS.items() if moves_both_ways(s)}
STEP = {type(solver).__name__: "xi" for solver in SOLVERS.values()}
STEP |= dict.fromkeys(
    ("BlockIBCG", "AdaptiveIBCG", "PairwiseIBCG", "ProjectedIBCG", "SampledIBCG")
)  # they find it themselves
STEP |= {"IBCG": "gamma", "StochasticIBCG": "gamma", "SBFW": "eta", "TTSA": "alpha", "BSA": "alpha", "ABA": "beta"}
ON_ROWS = {"SBFW", "TTSA", "BSA", "StocBiO", "SUSTAIN", "FSLA", "SABA", "MASOBA", "SRBA", "F3SA", "StochasticIBCG"}
"""Methods for sampled problems, by class."""


HOST = {type(solver).__name__ for solver in SOLVERS.values() if kernels(solver) is Kernels.HOST}
"""Methods that step on the host: `run`, `jit` and `vmap` refuse them."""


def with_step(solver, length):
    """The same solver with this constant step for x, if it takes one."""
    name = STEP[type(solver).__name__]
    return solver if name is None else replace(solver, **{name: bx.Constant(length)})


def lacks_step(solver):
    """Whether the step of x is still to be estimated."""
    name = STEP[type(solver).__name__]
    return name is not None and getattr(solver, name) is None


ESTIMATES = {f.__name__: jax.jit(f) for f in (estimate_constants, estimate_smoothness)}


def prepared(solver, problem, x, y, key):
    """`solver.prepare`, where methods on one problem share compiled estimates: they are most of a run's code."""
    with pytest.MonkeyPatch.context() as patch:
        for name, estimate in ESTIMATES.items():
            patch.setattr(defaults, name, estimate)
        return solver.prepare(problem, x, y, key)


def point(name, values):
    """The point of a set with these coordinates."""
    zeros, back = ravel_pytree(SETS[name][1])
    values = jnp.asarray(values)[: zeros.size]
    if name != "SampledNuclearBall":
        return back(values)
    matrix = np.asarray(values).reshape(4, 6)
    return Sampled(values, (Term(1.0, matrix, np.eye(6, dtype=matrix.dtype)),))


T, N, BUDGET = 4, 2, 6  # lower and adjoint steps; 4 log(k+2) at k = 2, rounded up, is the budget of Neumann series
# Gradients of f and g, Hessian and cross products, lmos, projections of the step k = 2; None: as long as it takes.
# Three rows differ from the cards: FSLA needs one f_y and two f_x, not four gradients; STORM doubles F3SA's; and
# conjugate gradients take one product more than steps, for the first residual.
COSTS = {
    "IBCG": (bx.IBCG(warmup=0), (2, 1, 1, 1, 1, 0)),
    "SBFW": (bx.SBFW(), (4, 1, None, 2, 1, 0)),
    "SBFW printed": (bx.SBFW("printed"), (4, 1, None, 2, 1, 0)),
    "SBFW tracked": (bx.SBFW("tracked"), (4, 1, 2, 2, 1, 0)),
    "SBFW exact": (bx.SBFW("exact"), (4, 1, None, 2, 1, 0)),
    "TTSA": (bx.TTSA(0.1), (2, 1, None, 1, 0, 1)),
    "TTSA deterministic": (bx.TTSA(0.1, deterministic=True), (2, 1, BUDGET, 1, 0, 1)),
    "BA": (bx.BA(0.1), (2, 1, None, 1, 0, 1)),
    "BA convex": (bx.BA(0.1, convex=True), (2, 1, None, 1, 0, 1)),
    "ABA": (bx.ABA(0.1), (2, 5, None, 1, 0, 2)),
    "BSA": (bx.BSA(0.1), (2, 2, None, 1, 0, 1)),
    "PBGD": (bx.PBGD(0.1, sigma=5.0, lower=T), (2, T + 2, 0, 0, 0, 1)),
    "PBGD gradient": (bx.PBGD(0.1, sigma=5.0, penalty="gradient"), (2, 1, 1, 1, 0, 1)),
    "AIDBiO": (bx.AIDBiO(0.1, lower=T, adjoint=N), (2, T, N + 1, 1, 0, 1)),
    "ITDBiO": (bx.ITDBiO(0.1, lower=T), (2, T, T, T, 0, 1)),
    "StocBiO": (bx.StocBiO(0.1, lower=T, factors=6), (2, T, 6, 1, 0, 1)),
    "AmIGO": (bx.AmIGO(0.1, lower=T, adjoint=N), (2, T, N, 1, 0, 1)),
    "AmIGO cg": (bx.AmIGO(0.1, lower=T, adjoint=N, solver="cg"), (2, T, N + 1, 1, 0, 1)),
    "RAHGD": (bx.RAHGD(0.1, lower=T, adjoint=N), (2, T, N + 1, 1, 0, 1)),
    "SUSTAIN": (bx.SUSTAIN(0.1, 0.1), (4, 2, None, 2, 0, 1)),
    "FSLA": (bx.FSLA(0.1), (3, 1, 1, 2, 0, 1)),
    "SOBA": (bx.SOBA(0.1), (2, 1, 1, 1, 0, 1)),
    "SABA": (bx.SABA(0.1), (2, 1, 1, 1, 0, 1)),
    "MASOBA": (bx.MASOBA(0.1), (2, 1, 1, 1, 0, 1)),
    "SRBA": (bx.SRBA(0.1), (4, 2, 2, 2, 0, 1)),
    "F2SA": (bx.F2SA(0.1, lower=T), (T + 1, 2 * T + 2, 0, 0, 0, 1)),
    "F3SA": (bx.F3SA(0.1), (4, 8, 0, 0, 0, 1)),
    "StochasticIBCG": (bx.StochasticIBCG(), (4, 2, 2, 2, 1, 0)),
    "BlockIBCG": (bx.BlockIBCG(), (None, None, None, None, 0, None)),
    "AdaptiveIBCG": (bx.AdaptiveIBCG(), (2, None, None, 1, 1, 0)),
    "PairwiseIBCG": (bx.PairwiseIBCG(), (2, None, None, 1, 1, 0)),
    "PairwiseIBCG last steps": (bx.PairwiseIBCG(memory=3), (2, None, None, 1, 1, 0)),
    "ProjectedIBCG": (bx.ProjectedIBCG(), (2, None, None, 1, 0, None)),
    "ProjectedIBCG last steps": (bx.ProjectedIBCG(3), (2, None, None, 1, 0, None)),
    "SampledIBCG": (bx.SampledIBCG(), (2, None, None, 1, 0, None)),
}


# Tests share problems: making one compiles much, and code compiled for one function serves no other.
@cache
def known_problem(name, seed=0, **options):
    """A small quadratic problem with a known solution over one of the sets."""
    domain, like = SETS[name]
    return random_quadratic(domain, like, 6, jax.random.key(seed), **options)


@cache
def finite_sum(size, rows=64, blocks=False):
    """Regression on rows, pulled towards x, judged on other rows; ell and its minimiser in numpy."""
    rng = np.random.default_rng(0)
    train, test = rng.standard_normal((2, rows, 4)) @ np.diag([1.0, 0.8, 0.6, 0.4])
    truth = np.array([3.0, 2.0, 1.0, -1.0])
    data = {"A": train, "a": train @ truth, "V": test, "v": test @ truth + 0.1 * rng.standard_normal(rows)}
    sampler = bx.Blocks(size, rows) if blocks else bx.Minibatch(size, rows)
    problem = bx.BilevelProblem(
        lambda x, y, d: 0.5 * jnp.mean((d["V"] @ y - d["v"]) ** 2),
        lambda x, y, d: 0.5 * jnp.mean((d["A"] @ y - d["a"]) ** 2) + 0.5 * jnp.sum((y - 2 * x) ** 2),
        bx.Simplex(),
        jax.tree.map(jnp.asarray, data),
        sampler,
        x_like=jnp.zeros(4),
        y_like=jnp.zeros(4),
    )

    def ell(x):
        y = np.linalg.solve(train.T @ train / rows + np.eye(4), train.T @ data["a"] / rows + 2 * np.asarray(x))
        return 0.5 * np.mean((test @ y - data["v"]) ** 2)

    best = scipy.optimize.minimize(
        ell, np.full(4, 0.25), bounds=[(0, 1)] * 4, constraints={"type": "eq", "fun": lambda x: x.sum() - 1}, tol=1e-12
    )
    return problem, ell, best.fun


def exported(kind):
    """Names of the exported classes of one kind."""
    classes = {name: getattr(bx, name) for name in bx.__all__ if inspect.isclass(getattr(bx, name))}
    if kind == "set":
        return {n for n, c in classes.items() if issubclass(c, bx.ConvexSet) and c is not bx.ConvexSet}
    return {n for n, c in classes.items() if all(hasattr(c, m) for m in ("prepare", "init", "step"))}


def weights(rng, n):
    return rng.dirichlet(np.full(n, rng.choice([1.0, 0.05])))


def frame(rng, n, k):
    return np.linalg.qr(rng.standard_normal((n, k)))[0]


def turned(rng, values, p, q):
    return frame(rng, p, len(values)) * values @ frame(rng, q, len(values)).T


def spectral(rng):
    q = frame(rng, 5, 5)
    return q * (0.05 + 1.75 * rng.uniform() * weights(rng, 5)) @ q.T


def box_point(rng, low, high, n):
    return rng.choice([rng.uniform(low, high, n), np.where(rng.uniform(size=n) < 0.5, low, high)])


def on_circles(rng):
    a, b = rng.uniform(0, 7, 2)
    return np.array([np.cos(a), np.cos(b), np.sin(a), rng.choice([-1.0, 1.0]), np.sin(b)])


def mixed(rng):
    return np.tensordot(
        weights(rng, 6), np.eye(3)[[[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]]], 1
    )


def transported(rng):
    """Goods sent one way after another, in random order, as much as still fits."""
    plans = []
    for _ in range(3):
        left, room, plan = np.array([0.5, 1.5]), np.array([0.75, 1.0, 0.25]), np.zeros((2, 3))
        for place in rng.permutation(6):
            i, j = divmod(place, 3)
            plan[i, j] = min(left[i], room[j])
            left[i], room[j] = left[i] - plan[i, j], room[j] - plan[i, j]
        plans.append(plan)
    return np.tensordot(weights(rng, 3), plans, 1)


def drawn_until(rng, draw, holds):
    return next(x for x in (draw(rng) for _ in range(10**6)) if holds(x))


UPPER = np.array([1.0, 2.0, 0.5, 0.0, 3.0])
# Points of each set, drawn without its oracles; points outside; two points as far apart as an exact diameter says.
FEASIBLE = {
    "Simplex": lambda rng: 2.0 * weights(rng, 5),
    "UnitSimplex": lambda rng: 1.5 * rng.uniform() * weights(rng, 5),
    "L1Ball": lambda rng: 3.0 * rng.uniform() ** 0.2 * weights(rng, 5) * rng.choice([-1.0, 1.0], 5),
    "L2Ball": lambda rng: 0.5 * rng.uniform() ** 0.2 * (g := rng.standard_normal(5)) / np.linalg.norm(g),
    "LInfBall": lambda rng: box_point(rng, -0.7, 0.7, 5),
    "Box": lambda rng: box_point(rng, -1.0, UPPER, 5),
    "VertexHull": lambda rng: weights(rng, 7) @ POINTS,
    "NuclearBall": lambda rng: turned(rng, 2.0 * rng.uniform() ** 0.2 * weights(rng, 4), 4, 6),
    "SampledNuclearBall": lambda rng: turned(rng, 2.0 * rng.uniform() ** 0.2 * weights(rng, 4), 4, 6),
    "Spectraplex": spectral,
    "Product": lambda rng: np.r_[weights(rng, 3), box_point(rng, -1, 1, 2), turned(rng, weights(rng, 2), 3, 2).ravel()],
    "CappedSimplex": lambda rng: drawn_until(
        rng, lambda r: 1.75 * r.dirichlet(np.full(5, 3.0)), lambda x: x.max() <= 0.5
    ),
    "KSparse": lambda rng: drawn_until(rng, lambda r: box_point(r, -0.8, 0.8, 5), lambda x: np.abs(x).sum() <= 1.6),
    "GroupL2Ball": lambda rng: 1.5 * weights(rng, 3)[[0, 1, 0, 2, 1]] * on_circles(rng),
    "Birkhoff": mixed,
    "Polytope": lambda rng: drawn_until(
        rng,
        lambda r: (x := r.uniform([-0.5, -0.5, 0.0, -0.5], [1, 1, 0, 0.75])) + [0, 0, x[3] + 0.25, 0],
        lambda x: x.sum() <= 1.5 and x[0] - x[1] <= 0.25,
    ),
    "SparseSimplex": lambda rng: drawn_until(
        rng, lambda r: 1.5 * r.dirichlet(np.full(5, 3.0)), lambda x: x.max() <= 0.75
    ),
    "TransportPolytope": transported,
    "UserSet": lambda rng: box_point(rng, -1.0, 1.0, 5),
}
OUTSIDE = {
    "Simplex": [[1, 1, 1e-4, 0, 0], [2.001, -1e-3, 0, 0, 0], [0] * 5],
    "UnitSimplex": [[1, 0.5, 1e-4, 0, 0], [-1e-4, 0, 0, 0, 0]],
    "L1Ball": [[1, -1, 1.001, 0, 0], [-3.001, 0, 0, 0, 0]],
    "L2Ball": [[0.4, 0.4, 0, 0, 0], [0, 0, 0, 0, -0.5001]],
    "LInfBall": [[0, 0, 0, 0, 0.7001], [-0.7001, 0, 0, 0, 0]],
    "Box": [[0, 0, 0, 1e-4, 0], [-1.0001, 0, 0, 0, 0], [0, 0, 0.6, 0, 0]],
    "VertexHull": [2.0 * POINTS[np.argmax(np.linalg.norm(POINTS, axis=1))], POINTS.max(axis=0) + 1e-3],
    "NuclearBall": [2.001 * np.eye(4, 6), 0.5001 * np.eye(4, 6)],
    "SampledNuclearBall": [2.001 * np.eye(4, 6), 0.5001 * np.eye(4, 6)],
    "Spectraplex": [np.zeros((5, 5)), 0.4001 * np.eye(5), np.diag([0.5, 0.3, 0.3, 0.3, 0.049]), 0.1 * np.tri(5)],
    "CappedSimplex": [[0.5, 0.5, 0.5, 0.25, 1e-4], [0.5, 0.5, 0.5001, 0.2499, 0], [0.5, 0.5, 0.5, 0.2501, -1e-4]],
    "KSparse": [[0.8001, 0, 0, 0, 0], [0.8, -0.8, 1e-4, 0, 0], [0.33] * 5],
    "GroupL2Ball": [[0, 1, 0, 0.5001, 0], [1.2, 0, -1.2, 0, 0], [0.6, 0, 0.6, 0.6, 0.6]],
    "Birkhoff": [np.zeros((3, 3)), 1.001 * np.eye(3), np.eye(3)[[0, 0, 1]], [[2, -1, 0], [-1, 2, 0], [0, 0, 1]]],
    "Polytope": [[0, 0, 0, 0], [0.5, 0.2, 0, -0.25], [0, 0, 1.01, 0.76], [0.5, 0.5, 0.5, 0.25], [-0.6, 0, 0, -0.25]],
    "SparseSimplex": [
        [0.75, 0.75, 1e-4, 0, 0],
        [0.7501, 0.7499, 0, 0, 0],
        [0.75, 0.7501, -1e-4, 0, 0],
        [1.5, 0, 0, 0, 0],
    ],
    "TransportPolytope": [
        np.zeros((2, 3)),
        [[0.5, 0, 0], [0.25, 1.0, 0.2501]],
        [[0.5, 0.5, -0.5], [0.25, 0.5, 0.75]],
        [[0, 0.5, 0], [0.75, 0.4999, 0.2501]],
    ],
    "Product": [np.r_[1.1, np.zeros(10)], np.r_[1, 0, 0, 1.001, 0, np.zeros(6)], np.r_[1, 0, 0, 0, 0, np.ones(6)]],
}
AXES = np.eye(5)
FAR = {
    "Simplex": (2.0 * AXES[0], 2.0 * AXES[1]),
    "UnitSimplex": (1.5 * AXES[0], 1.5 * AXES[1]),
    "L1Ball": (3.0 * AXES[0], -3.0 * AXES[0]),
    "L2Ball": (0.5 * AXES[0], -0.5 * AXES[0]),
    "LInfBall": (np.full(5, 0.7), np.full(5, -0.7)),
    "Box": (np.full(5, -1.0), UPPER),
    "VertexHull": max(((a, b) for a in POINTS for b in POINTS), key=lambda pair: np.linalg.norm(pair[0] - pair[1])),
    "NuclearBall": (2.0 * np.eye(4, 6)[:1], -2.0 * np.eye(4, 6)[:1]),
    "Spectraplex": (0.05 * AXES + 1.75 * np.diag(AXES[0]), 0.05 * AXES + 1.75 * np.diag(AXES[1])),
    "CappedSimplex": (np.array([0.5, 0.5, 0.5, 0.25, 0]), np.array([0, 0.25, 0.5, 0.5, 0.5])),
    "KSparse": (0.8 * (AXES[0] + AXES[1]), -0.8 * (AXES[0] + AXES[1])),
    "GroupL2Ball": (1.5 * AXES[0], -1.5 * AXES[0]),
    "Birkhoff": (np.eye(3), np.eye(3)[[1, 2, 0]]),
    "SparseSimplex": (0.75 * (AXES[0] + AXES[1]), 0.75 * (AXES[2] + AXES[3])),
    "Product": (np.r_[1, 0, 0, 1, 1, 1, np.zeros(5)], np.r_[0, 1, 0, -1, -1, -1, np.zeros(5)]),
}


def every_second(cases, of=2):
    """All cases, most of them slow: of each `of` one is quick. For cases that compile much and fail together."""
    rest = lambda i: [pytest.mark.slow] * (i % of > 0)  # noqa: E731
    parts = lambda case: case if isinstance(case, tuple) else (case,)  # noqa: E731
    return [pytest.param(*parts(case), marks=rest(i)) for i, case in enumerate(cases)]
