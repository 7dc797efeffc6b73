"""Oracles and projections of every set against linear programs, dense decompositions and a conic solver."""

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import linprog

import bilevax as bx
from bilevax import trees

RNG = np.random.default_rng(11)
POINTS = RNG.standard_normal((9, 6))
UPPER = np.array([1.0, 2.0, 0.5, -0.5, 3.0, 0.0])
lmo = jax.jit(lambda domain, direction, memory: domain.lmo(direction, memory))
project = jax.jit(lambda domain, x: domain.project(x))

# name: (set, keyword arguments of the linear program over weights, the matrix from weights to points)
I6 = np.eye(6)
ONE = {"b_ub": [1.5], "bounds": (0, None)}
PROGRAMS = {
    "Simplex": (bx.Simplex(1.5), {"A_eq": np.ones((1, 6)), "b_eq": [1.5], "bounds": (0, None)}, I6),
    "UnitSimplex": (bx.UnitSimplex(1.5), {"A_ub": np.ones((1, 6)), **ONE}, I6),
    "L1Ball": (bx.L1Ball(1.5), {"A_ub": np.ones((1, 12)), **ONE}, np.hstack([I6, -I6])),
    "LInfBall": (bx.LInfBall(0.7), {"bounds": (-0.7, 0.7)}, I6),
    "Box": (bx.Box(-1.0, UPPER), {"bounds": [(-1.0, b) for b in UPPER]}, I6),
    "VertexHull": (bx.VertexHull(POINTS), {"A_eq": np.ones((1, 9)), "b_eq": [1.0], "bounds": (0, None)}, POINTS.T),
}
PLAIN = RNG.standard_normal(6)
VECTORS = {
    "random": PLAIN, "zero": 0 * PLAIN, "tied": np.ones(6), "tied below": -np.ones(6), "mixed signs": np.sign(PLAIN),
    "positive": np.abs(PLAIN), "sparse": np.array([0.0, 0, 0, -2, 0, 0]), "tiny": 1e-200 * PLAIN, "huge": 1e200 * PLAIN,
}  # fmt: skip


def unit_of(direction):
    """The size of a direction: solvers see it divided by this, and so does the answer."""
    return float(np.max(np.abs(direction))) or 1.0


@pytest.mark.parametrize("name", [*PROGRAMS, "L2Ball"])
@pytest.mark.parametrize("which", VECTORS)
def test_vector_lmo_reaches_the_optimum_of_the_linear_program(name, which):
    cases = [(np.float64, VECTORS[which], 1e-12)]
    cases.append((np.float32, np.clip(VECTORS[which], -1e30, 1e30) if "tiny" not in which else 1e-30 * PLAIN, 1e-5))
    for dtype, direction, slack in cases:
        direction = direction.astype(dtype)
        unit = unit_of(direction)
        scaled = direction.astype(float) / unit
        if name == "L2Ball":
            domain, best = bx.L2Ball(0.5), -0.5 * np.linalg.norm(scaled)
        else:
            domain, limits, columns = PROGRAMS[name]
            best = linprog(scaled @ columns, **limits).fun
        domain = trees.cast(domain, dtype)
        s, memory = lmo(domain, jnp.asarray(direction), domain.start(jnp.asarray(direction)))
        assert domain.contains(s), domain.violations(s)
        assert abs(scaled @ np.asarray(s, float) - best) <= slack * max(1.0, abs(best))
        assert memory.error == 0


def spread(p, q, values):
    """A matrix with the given singular values."""
    left, right = np.linalg.qr(RNG.standard_normal((p, p)))[0], np.linalg.qr(RNG.standard_normal((q, q)))[0]
    return left[:, : len(values)] * values @ right[: len(values)]


GAUSS, SQUARE = RNG.standard_normal((20, 15)), RNG.standard_normal((20, 20))
MATRICES = {
    "random": GAUSS, "wide": GAUSS.T, "zero": 0 * GAUSS, "ones": np.ones((20, 15)), "tiny": 1e-200 * GAUSS,
    "huge": 1e200 * GAUSS, "rank one": np.outer(GAUSS[:, 0], GAUSS[0]), "rank three": GAUSS[:, :3] @ GAUSS[:3],
    "orthogonal": np.linalg.qr(GAUSS)[0], "tied": spread(20, 15, [1, 1, 0]),
    "tied and spread": spread(20, 15, np.r_[1, 1, np.linspace(0.9, 0, 13)]),
    "slow decay": spread(20, 15, 0.9 ** np.arange(15)), "one entry": np.eye(20, 1) @ np.eye(1, 15, 2),
    "tied diagonal": np.diag([1.0, 1.0, 0.0]), "row": GAUSS[:1], "column": GAUSS[:, :1], "number": GAUSS[:1, :1],
}  # fmt: skip
SYMMETRIC = {
    "random": SQUARE, "zero": 0 * SQUARE, "ones": np.ones((20, 20)), "minus ones": -np.ones((20, 20)),
    "tiny": 1e-200 * SQUARE, "huge": 1e200 * SQUARE, "positive": SQUARE @ SQUARE.T, "negative": -SQUARE @ SQUARE.T,
    "identity": np.eye(20), "minus identity": -np.eye(20), "skew": SQUARE - SQUARE.T, "number": SQUARE[:1, :1],
    "minus number": -np.abs(SQUARE[:1, :1]), "rank two": SQUARE[:, :2] @ np.diag([1, -1]) @ SQUARE[:, :2].T,
    "tied low end": np.diag(np.r_[-1, -1, np.linspace(-0.9, 1, 18)]), "semidefinite": SQUARE[:, :3] @ SQUARE[:, :3].T,
}  # fmt: skip


def best_on(domain, scaled):
    """The least inner product over a spectral set, and the size against which its error is judged."""
    if isinstance(domain, bx.NuclearBall):
        top = np.linalg.svd(scaled, compute_uv=False)[0]
        return -float(domain.radius) * top, float(domain.radius) * top
    values = np.linalg.eigvalsh((scaled + scaled.T) / 2)
    room = float(domain.trace) - len(values) * float(domain.eps)
    return float(domain.eps) * values.sum() + room * min(values[0], 0), float(domain.trace) * np.abs(values).max()


def check_spectral(domain, direction, relative, memory=None):
    """One call against the dense decomposition; returns the memory for the next call."""
    unit = unit_of(direction)
    scaled = np.asarray(direction, float) / unit
    direction = jnp.asarray(direction)
    s, memory = lmo(domain, direction, domain.start(direction) if memory is None else memory)
    assert domain.contains(s), domain.violations(s)
    best, size = best_on(domain, scaled)
    error = np.vdot(scaled, np.asarray(s, float)) - best
    rounding = 50 * np.finfo(direction.dtype).eps * size
    assert error <= float(memory.error) / unit + rounding, "the reported error is no bound"
    assert abs(error) <= relative * size + rounding
    return memory


CASES = [pytest.param(bx.NuclearBall(2.0), m, id=f"NuclearBall {name}") for name, m in MATRICES.items()]
for eps in (0.0, 0.03):
    CASES += [pytest.param(bx.Spectraplex(2.0, eps), m, id=f"Spectraplex {eps} {n}") for n, m in SYMMETRIC.items()]


@pytest.mark.parametrize("domain, direction", CASES)
def test_spectral_lmo_reaches_the_dense_optimum(domain, direction):
    check_spectral(domain, direction, 1e-6)
    check_spectral(domain.at_full_precision(), direction, 1e-12)


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
@pytest.mark.parametrize("domain, direction", [(bx.NuclearBall(2.0), GAUSS), (bx.Spectraplex(2.0, 0.03), SQUARE)])
def test_spectral_lmo_in_single_precision(domain, direction, scale):
    check_spectral(trees.cast(domain, np.float32), (scale * direction).astype(np.float32), 1e-5)


def diagonals(n, gap):
    """Two diagonals with a spread tail whose first and second entries trade places."""
    first = np.r_[1.0, 1.0 - gap, np.linspace(0.9 * (1.0 - gap), 0.0, n - 2)]
    second = first.copy()
    second[:2] = first[1::-1]
    return np.diag(first), np.diag(second)


@pytest.mark.parametrize("n", [3, 40])
@pytest.mark.parametrize("sign, domain", [(1.0, bx.NuclearBall(2.0)), (-1.0, bx.Spectraplex(2.0))], ids=repr)
def test_memory_of_another_matrix_does_not_trap_the_lmo(domain, sign, n):
    memory, accurate = None, None
    for gap in (0.5, 0.1):
        for direction in diagonals(n, gap):
            memory = check_spectral(domain, sign * direction, 1e-6, memory)
            accurate = check_spectral(domain.at_full_precision(), sign * direction, 1e-12, accurate)


@pytest.mark.parametrize("n, gap", [(40, 3e-3), (40, 1e-3), (40, 1e-4), (200, 1e-3)])
@pytest.mark.parametrize("sign, domain", [(1.0, bx.NuclearBall(2.0)), (-1.0, bx.Spectraplex(2.0))], ids=repr)
@pytest.mark.parametrize("accurate", [False, True])
def test_nearly_tied_top_values_that_trade_places_are_told_apart(domain, sign, n, gap, accurate):
    domain, relative = (domain.at_full_precision(), 1e-12) if accurate else (domain, 1e-6)
    memory = None
    for direction in diagonals(n, gap):
        memory = check_spectral(domain, sign * direction, relative, memory)


# name: (set, shape, constraints on the variable)
CONES = {
    "Simplex": (bx.Simplex(1.5), (6,), lambda z: [z >= 0, cp.sum(z) == 1.5]),
    "UnitSimplex": (bx.UnitSimplex(1.5), (6,), lambda z: [z >= 0, cp.sum(z) <= 1.5]),
    "L1Ball": (bx.L1Ball(1.5), (6,), lambda z: [cp.norm1(z) <= 1.5]),
    "L2Ball": (bx.L2Ball(0.5), (6,), lambda z: [cp.norm(z, 2) <= 0.5]),
    "LInfBall": (bx.LInfBall(0.7), (6,), lambda z: [cp.abs(z) <= 0.7]),
    "Box": (bx.Box(-1.0, UPPER), (6,), lambda z: [z >= -1.0, z <= UPPER]),
    "NuclearBall": (bx.NuclearBall(2.0), (4, 3), lambda z: [cp.normNuc(z) <= 2.0]),
    "Spectraplex": (bx.Spectraplex(2.0), (4, 4), lambda z: [z == z.T, z >> 0, cp.trace(z) <= 2.0]),
    "Spectraplex eps": (
        bx.Spectraplex(2.0, 0.2), (4, 4), lambda z: [z == z.T, z - 0.2 * np.eye(4) >> 0, cp.trace(z) <= 2.0]
    ),
}  # fmt: skip


def places(shape):
    plain = np.random.default_rng(17).standard_normal(shape)
    flat = np.resize([1.0, 1.0, -1.0, 0.0], int(np.prod(shape))).reshape(shape)
    return {"random": 2 * plain, "near": 0.1 * plain, "zero": 0 * plain, "tied": flat, "ones": np.ones(shape),
            "low": -np.ones(shape), "large": 50 * plain, "huge": 1e8 * plain}  # fmt: skip


@pytest.mark.parametrize("name", CONES)
def test_projection_agrees_with_a_conic_solver(name):
    domain, shape, constraints = CONES[name]
    z, centre, weight = cp.Variable(shape), cp.Parameter(shape), cp.Parameter(nonneg=True)
    # |z - x|^2 / 2 divided by the size of x, without the constant: the solver sees numbers near one.
    loss = weight * cp.sum_squares(z) / 2 - cp.sum(cp.multiply(centre, z))
    program = cp.Problem(cp.Minimize(loss), constraints(z))
    for place, x in places(shape).items():
        size = max(1.0, np.max(np.abs(x)))
        centre.value, weight.value = x / size, 1.0 / size
        best = program.solve(solver=cp.CLARABEL, tol_gap_abs=1e-11, tol_gap_rel=1e-11, tol_feas=1e-11)
        p = np.asarray(project(domain, jnp.asarray(x)))
        assert domain.contains(jnp.asarray(p)), (place, domain.violations(jnp.asarray(p)))
        reached = np.sum(p**2) / (2 * size) - np.vdot(x / size, p)
        assert reached <= best + 1e-7, place
        np.testing.assert_allclose(p, z.value, atol=1e-5, err_msg=place)


def test_projection_of_a_product_projects_each_part():
    parts = {"a": bx.Simplex(1.5), "b": [bx.NuclearBall(2.0), bx.Box(-1.0, 1.0)]}
    x = {"a": jnp.asarray(2 * PLAIN), "b": [jnp.asarray(GAUSS[:4, :3]), jnp.asarray(POINTS)]}
    p = project(bx.Product(parts), x)
    left, values, right = np.linalg.svd(GAUSS[:4, :3], full_matrices=False)
    shift = np.max([(np.sort(values)[::-1][:k].sum() - 2.0) / k for k in (1, 2, 3)])
    np.testing.assert_allclose(p["b"][0], left * np.maximum(values - max(shift, 0), 0) @ right, atol=1e-12)
    np.testing.assert_allclose(p["b"][1], np.clip(POINTS, -1, 1))
    shift = np.max([(np.sort(2 * PLAIN)[::-1][:k].sum() - 1.5) / k for k in range(1, 7)])
    np.testing.assert_allclose(p["a"], np.maximum(2 * PLAIN - shift, 0), atol=1e-12)


@pytest.mark.parametrize("name", CONES)
def test_projection_of_extreme_points_is_finite_and_feasible(name):
    domain, shape, _ = CONES[name]
    plain = np.random.default_rng(18).standard_normal(shape)
    for size in (1e-200, 1e200):
        p = project(domain, jnp.asarray(size * plain))
        assert domain.contains(p), (size, domain.violations(p))
        q = project(domain, jnp.asarray((1e-12 if size < 1 else 1e12) * plain))
        np.testing.assert_allclose(p, q, atol=1e-9)


def test_projection_onto_a_single_matrix():
    # n * eps = trace leaves the one point eps I
    p = project(bx.Spectraplex(1.0, 0.25), jnp.asarray(SQUARE[:4, :4]))
    np.testing.assert_allclose(p, 0.25 * np.eye(4), atol=1e-12)
