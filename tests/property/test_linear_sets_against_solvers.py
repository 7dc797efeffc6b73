"""Affine sets, transport plans and projections onto polytopes against numpy, linear programs and a conic solver."""

import re

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse
from jax.flatten_util import ravel_pytree
from scipy.optimize import linear_sum_assignment, linprog
from zoo import UNBOUNDED, every_second

import bilevax as bx
from bilevax import trees
from bilevax.problems import random_quadratic
from bilevax.sets.margins import project_margins

RNG = np.random.default_rng(31)
project = jax.jit(lambda domain, x: domain.project(x))
lmo = jax.jit(lambda domain, direction, memory: domain.lmo(direction, memory))
NORMAL = np.array([1.0, -2.0, 0.5, 0.0, 3.0])
EQUATIONS = np.array([[1.0, 1, 1, 0, 0], [0, 1, -1, 2, 0], [1, 2, 0, 2, 0]]), np.array([1.0, -1.0, 0.0])


def affine_answer(matrix, right, x):
    return x - np.linalg.pinv(matrix) @ (matrix @ x - right)


# name: the projection in numpy
ANSWERS = {
    "Halfspace": lambda x: x if NORMAL @ x <= -1.5 else affine_answer(NORMAL[None], [-1.5], x),
    "Hyperplane": lambda x: affine_answer(NORMAL[None], [2.0], x),
    "AffineSet": lambda x: affine_answer(*EQUATIONS, x),
}


@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize("dtype, slack", [(np.float64, 1e-14), (np.float32, 1e-6)])
def test_affine_projection_agrees_with_numpy(name, dtype, slack):
    domain, like = trees.cast(UNBOUNDED[name], dtype)
    for size in (1.0, 0.0, 1e-3, 1e4):
        x = (size * RNG.standard_normal(5)).astype(dtype)
        p = project(domain, jnp.asarray(x))
        assert p.dtype == dtype and domain.contains(p), domain.violations(p)
        np.testing.assert_allclose(p, ANSWERS[name](x.astype(float)), atol=slack * (10 + 10 * size))
        np.testing.assert_allclose(project(domain, p), p, atol=slack * (10 + 10 * size))
    rows = jnp.asarray(RNG.standard_normal((3, 5)), dtype)
    for row, p in zip(rows, jax.vmap(domain.project)(rows), strict=True):
        np.testing.assert_allclose(p, project(domain, row), atol=10 * slack)
    assert domain.contains(domain.vertex(like)) and domain.vertex(like).dtype == dtype


@pytest.mark.parametrize("name", ANSWERS)
def test_affine_sets_are_unbounded_and_say_so(name):
    domain, like = UNBOUNDED[name]
    assert np.isinf(domain.diameter(like).value) and domain.diameter(like).exact
    with pytest.raises(NotImplementedError, match=re.escape(f"{domain!r} is unbounded and has no lmo; use a proj")):
        domain.lmo(like, domain.start(like))
    problem = bx.BilevelProblem(lambda x, y, _: jnp.sum(y**2), lambda x, y, _: jnp.sum((y - x) ** 2), domain)
    with pytest.raises(ValueError, match="IBCG moves by linear minimization and .* is unbounded"):
        bx.solve(problem, bx.IBCG(), domain.vertex(like), like)
    outside = jnp.full(5, 7.0)
    assert not domain.contains(outside) and re.match(r"it lies [\d.]+ (beyond|off) the", domain.violations(outside))
    assert not domain.contains(outside.at[0].set(np.nan))


def test_affine_sets_that_are_one_point_have_an_lmo():
    for domain, point in ((bx.Hyperplane([2.0], 3.0), [1.5]), (bx.AffineSet(np.eye(2), [1.0, 2.0]), [1, 2])):
        direction = jnp.ones(len(point))
        s, memory = domain.lmo(direction, domain.start(direction))
        np.testing.assert_allclose(s, point)
        assert float(memory.error) == 0 and float(domain.diameter(direction).value) == 0


def test_affine_sets_over_nested_points():
    nested = {"w": jnp.ones((2, 2)), "b": jnp.full(1, 3.0)}
    values, back = ravel_pytree(nested)
    for kind in (bx.Halfspace, bx.Hyperplane):
        apart, joint = kind(back(jnp.asarray(NORMAL)), 0.5), kind(NORMAL, 0.5)
        apart.check_like(nested)
        np.testing.assert_allclose(ravel_pytree(apart.project(nested))[0], joint.project(values), atol=1e-14)
    np.testing.assert_allclose(
        ravel_pytree(bx.AffineSet(*EQUATIONS).project(nested))[0],
        affine_answer(*EQUATIONS, np.asarray(values)),
        atol=1e-13,
    )


def test_size_of_the_normal_does_not_matter():
    x = jnp.asarray(RNG.standard_normal(5))
    for size in (1e-200, 1e200):
        for kind in (bx.Halfspace, bx.Hyperplane):
            p = kind(size * NORMAL, -1.5 * size).project(x)
            np.testing.assert_allclose(p, kind(NORMAL, -1.5).project(x), atol=1e-13)


def test_sparse_and_dependent_equations_are_understood():
    matrix, right = EQUATIONS
    twice = scipy.sparse.csr_array(np.vstack([matrix, 1e6 * matrix, 0 * matrix]))
    domain = bx.AffineSet(twice, np.r_[right, 1e6 * right, 0 * right])
    assert repr(domain) == "AffineSet(5 coordinates, 2 independent equations)"
    x = RNG.standard_normal(5)
    np.testing.assert_allclose(domain.project(jnp.asarray(x)), affine_answer(matrix, right, x), atol=1e-13)


ENTRIES = "{}: a must hold finite numbers, not all of them 0; give one number per entry of x."
SHAPES = "AffineSet: A must be a matrix and b a vector with one number per row of A, got shapes {} and {}."
NEGATIVE = "TransportPolytope: columns must hold finite numbers >= 0, got [2.0, -1.0]."
NOTHING = "TransportPolytope: all sums of rows or columns are 0; the zero matrix needs no set."
UNEQUAL = "TransportPolytope is empty: rows sum to 3 and columns to 2.5; make them equal."
REFUSED = [
    (lambda: bx.Halfspace([0.0, 0.0], 1.0), ENTRIES.format("Halfspace")),
    (lambda: bx.Hyperplane([1.0, np.nan], 1.0), ENTRIES.format("Hyperplane")),
    (lambda: bx.Hyperplane([1.0], np.inf), "Hyperplane: b must be one finite number, got inf."),
    (lambda: bx.Halfspace([1.0], [1.0, 2.0]), "Halfspace: b must be one finite number, got [1.0, 2.0]."),
    (
        lambda: bx.Halfspace([1.0, 2.0], 3.0).check_like(jnp.zeros(3)),
        "Halfspace(a, b=3): a has shapes [(2,)], x has [(3,)]; give one number per entry, in the structure of x.",
    ),
    (lambda: bx.AffineSet([1.0], [1.0]), SHAPES.format("(1,)", "(1,)")),
    (lambda: bx.AffineSet([[1.0]], [np.nan]), "AffineSet: A or b has a NaN or infinite entry; leave that row out."),
    (
        lambda: bx.AffineSet([[3.0, 4.0], [6.0, 8.0]], [5.0, 20.0]),
        "AffineSet is empty: the equations contradict each other, and the best x misses one of them by 0.5 "
        "(rows scaled to length 1); remove or correct a row.",
    ),
    (
        lambda: bx.AffineSet([[1.0, 1.0]], [1.0]).check_like(jnp.zeros(3)),
        "AffineSet(2 coordinates, 1 independent equations): x has 3 entries; give equations with as many columns in A.",
    ),
    (lambda: bx.SparseSimplex(0), "SparseSimplex: k must be a positive whole number, got 0."),
    (lambda: bx.SparseSimplex(2, -1.0), "SparseSimplex: radius must be one positive finite number, got -1.0."),
    (
        lambda: bx.SparseSimplex(4).check_like(jnp.zeros(3)),
        "SparseSimplex(k=4, radius=1) is empty for 3 entries: at least 4 share the weight; take k at most 3.",
    ),
    (lambda: bx.TransportPolytope(1.0, [1.0]), "TransportPolytope: rows must be a vector of sums, got shape ()."),
    (lambda: bx.TransportPolytope([1.0], [2.0, -1.0]), NEGATIVE),
    (lambda: bx.TransportPolytope([0.0], [0.0]), NOTHING),
    (lambda: bx.TransportPolytope([1.0, 2.0], [2.5]), UNEQUAL),
    (
        lambda: bx.TransportPolytope([1.0, 2.0], [3.0]).check_like(jnp.zeros((1, 2))),
        "TransportPolytope(2 rows, 1 columns): x has shape (1, 2); give one sum for each of its rows and columns.",
    ),
]  # fmt: skip


@pytest.mark.parametrize("build, message", REFUSED)
def test_refusals(build, message):
    with pytest.raises(ValueError, match="^" + re.escape(message) + "$"):
        build()


def test_sets_with_factored_numbers_are_built_outside_compiled_functions():
    for build in (lambda v: bx.AffineSet(v[None], [1.0]), lambda v: bx.TransportPolytope(v, v)):
        with pytest.raises(TypeError, match="outside compiled functions"):
            jax.jit(lambda v, build=build: build(v).project(v))(jnp.ones(3))


PLANS = {
    "two by three": ([0.5, 1.5], [0.75, 1.0, 0.25]), "with zeros": ([2.0, 0.0, 1.0], [0.0, 1.0, 1.5, 0.5]),
    "one row": ([3.0], [1.0, 2.0]), "equal": ([2.0] * 4, [2.0] * 4), "large": ([1e6, 3e6], [2e6, 2e6]),
    "tiny": ([1e-6, 3e-6], [2e-6, 2e-6]), "many": (np.arange(1.0, 8), np.full(14, 2.0)),
}  # fmt: skip


def plan_program(costs, rows, columns):
    """The transport program with one row per constraint, each made by hand."""
    m, n = costs.shape
    sums = np.zeros((m + n, m, n))
    for i in range(m):
        sums[i, i] = 1
    for j in range(n):
        sums[m + j, :, j] = 1
    unit = np.max(rows)
    return unit * linprog(costs.ravel(), A_eq=sums.reshape(m + n, -1), b_eq=np.r_[rows, columns] / unit).fun


@pytest.mark.parametrize("name", PLANS)
def test_transport_lmo_reaches_the_optimum_of_the_linear_program(name):
    rows, columns = (np.asarray(v) for v in PLANS[name])
    domain, rng = bx.TransportPolytope(rows, columns), np.random.default_rng(2)
    for costs in (rng.standard_normal((rows.size, columns.size)), np.ones((rows.size, columns.size))):
        for size, dtype in ((1.0, np.float64), (1e150, np.float64), (1.0, np.float32)):
            given = jnp.asarray((size * costs).astype(dtype))
            s, memory = lmo(domain, given, domain.start(given))
            slack = (1e-9 if dtype == np.float64 else 1e-5) * rows.sum()
            assert domain.contains(s) and s.dtype == dtype, domain.violations(s)
            assert 0 <= float(memory.error) / size <= slack
            assert abs(np.sum(np.asarray(given / size) * np.asarray(s)) - plan_program(costs, rows, columns)) <= slack
    ends = [
        np.asarray(lmo(domain, jnp.asarray(rng.standard_normal(given.shape)), domain.start(given))[0])
        for _ in range(20)
    ]
    width = float(domain.diameter(given.astype(float)).value)
    assert max(np.linalg.norm(a - b) for a in ends for b in ends) <= width * (1 + 1e-12)


@pytest.mark.parametrize("name", PLANS)
def test_transport_projection_obeys_the_variational_inequality(name):
    rows, columns = (np.asarray(v) for v in PLANS[name])
    domain, rng, unit = bx.TransportPolytope(rows, columns), np.random.default_rng(3), np.max(rows)
    for size in (0.0, 0.1, 1.0, 30.0, 1e4):
        x = size * unit * rng.standard_normal((rows.size, columns.size))
        p = np.asarray(project(domain, jnp.asarray(x)))
        assert domain.contains(jnp.asarray(p), tol=1e-11 * (1 + size) * unit) and p.min() >= 0
        slope = (p - x) / ((1 + size) * unit)
        assert np.sum(slope * p) - plan_program(slope, rows, columns) <= 1e-8 * rows.sum()


def test_doubly_stochastic_projection_on_hard_numbers():
    n, rng = 30, np.random.default_rng(4)
    near = rng.standard_normal((n, n))
    places = {
        "near": near, "ties": np.round(near), "offset": 1e8 + near, "large": 1e3 * near, "huge": 1e8 * near,
        "product": near + 1e4 * np.outer(np.arange(n), np.arange(n)) / n**2, "scales": 10.0 ** (3 * near),
        "large ties": 1e3 * np.round(near), "equal": np.ones((n, n)),
        "one": 1e3 * (np.arange(n * n) == 7).reshape(n, n),
    }  # fmt: skip
    for name, x in places.items():
        p = np.asarray(project(bx.Birkhoff(), jnp.asarray(x)))
        sums = max(np.max(np.abs(p.sum(axis=k) - 1)) for k in (0, 1))
        spread = np.ptp(x)
        assert p.min() >= 0 and sums <= 1e-14 * max(100, spread), name
        slope = p - x
        slope = slope - slope.mean(axis=1, keepdims=True)
        gap = np.sum(slope * p) - slope[linear_sum_assignment(slope)].sum()
        assert gap <= 1e-12 * n * max(1.0, spread, 1e-3 * np.max(np.abs(x))), name


@pytest.mark.parametrize("shape", [(4, 4), (3, 5), (6, 2)])
def test_derivative_of_the_projection_onto_plans(shape):
    rng = np.random.default_rng(7)
    x, change = (jnp.asarray(rng.standard_normal(shape)) for _ in range(2))
    rows, columns = (jnp.asarray(rng.dirichlet(np.ones(n))) for n in shape)
    ask = jax.jit(lambda v: project_margins(v, rows, columns))
    _, forward = jax.jvp(ask, (x,), (change,))
    np.testing.assert_allclose(forward, (ask(x + 1e-6 * change) - ask(x - 1e-6 * change)) / 2e-6, atol=1e-8)
    weights = jnp.asarray(rng.standard_normal(shape))
    backward = jax.vjp(ask, x)[1](weights)[0]
    np.testing.assert_allclose(jnp.vdot(backward, change), jnp.vdot(weights, forward), atol=1e-12)
    _, by_rows = jax.jvp(lambda r, c: project_margins(x, r, c), (rows, columns), (rows, columns))
    ends = [project_margins(x, (1 + h) * rows, (1 + h) * columns) for h in (1e-6, -1e-6)]
    np.testing.assert_allclose(by_rows, (ends[0] - ends[1]) / 2e-6, atol=1e-8)


def polytope(d, rng):
    A, A_eq = rng.standard_normal((2 * d, d)), rng.standard_normal((d // 4, d))
    inside = rng.uniform(-0.5, 0.5, d)
    return {
        "A": A, "b": A @ inside + rng.uniform(0, 1, 2 * d), "A_eq": np.vstack([A_eq, A_eq[:1]]),
        "b_eq": np.r_[A_eq @ inside, A_eq[:1] @ inside], "lower": -1.0, "upper": np.linspace(1, 2, d),
    }  # fmt: skip


def test_polytope_projection_agrees_with_a_conic_solver():
    for d in (4, 12):
        numbers = polytope(d, np.random.default_rng(d))
        domain, z = bx.Polytope(**numbers), cp.Variable(d)
        limits = [
            numbers["A"] @ z <= numbers["b"],
            numbers["A_eq"] @ z == numbers["b_eq"],
            z >= -1,
            z <= numbers["upper"],
        ]
        for size in (0.0, 0.1, 1.0, 10.0, 1e4):
            x = size * np.random.default_rng(5).standard_normal(d)
            loss = cp.sum_squares(z) / (2 + 2 * size) - (x / (1 + size)) @ z
            cp.Problem(cp.Minimize(loss), limits).solve(
                solver=cp.CLARABEL, tol_gap_abs=1e-12, tol_gap_rel=1e-12, tol_feas=1e-12
            )
            p = np.asarray(domain.project(jnp.asarray(x)))
            assert domain.contains(jnp.asarray(p), tol=1e-12 * (1 + size)), domain.violations(jnp.asarray(p))
            np.testing.assert_allclose(p, z.value, atol=2e-5)
            s, memory = domain.lmo(jnp.asarray(p - x), domain.start(jnp.asarray(x)))
            assert (p - x) @ (p - np.asarray(s)) <= 1e-8 * (1 + size) + float(memory.error)


def test_polytope_projection_in_corners_and_on_repeated_rows():
    square = bx.Polytope(np.vstack([np.eye(2)] * 3), np.ones(6), lower=0.0)
    for x, p in [((3.0, 0.5), (1, 0.5)), ((3.0, 7.0), (1, 1)), ((-1e6, 0.25), (0, 0.25)), ((0.25, 0.5), (0.25, 0.5))]:
        np.testing.assert_allclose(square.project(jnp.array(x)), p, atol=1e-15)
    point = bx.Polytope(A_eq=[[1.0, 1.0], [1.0, -1.0]], b_eq=[3.0, 1.0])
    np.testing.assert_allclose(point.project(jnp.array([9.0, -9.0])), [2, 1], atol=1e-13)
    flat = bx.Polytope([[1.0, 1.0]], [1.0], A_eq=[[1.0, 1.0]], b_eq=[1.0], lower=0.0)  # the row restricts nothing
    np.testing.assert_allclose(flat.project(jnp.array([5.0, 1.0])), [1, 0], atol=1e-14)


def test_weights_shared_by_k_entries_equal_the_capped_simplex():
    domain, capped = bx.SparseSimplex(3, 1.2), bx.CappedSimplex(1.2, 0.4)
    assert repr(domain) == "SparseSimplex(k=3, radius=1.2)"
    for n in (3, 5, 8):
        direction = jnp.asarray(RNG.standard_normal(n))
        np.testing.assert_allclose(*(d.lmo(direction, d.start(direction))[0] for d in (domain, capped)), atol=1e-15)
        np.testing.assert_allclose(domain.project(direction), capped.project(direction), atol=1e-15)
        np.testing.assert_allclose(*(float(d.diameter(direction).value) for d in (domain, capped)), atol=1e-7)
        best = linprog(direction, A_eq=np.ones((1, n)), b_eq=[1.2], bounds=(0, 0.4)).fun
        assert float(direction @ domain.lmo(direction, domain.start(direction))[0]) == pytest.approx(best, abs=1e-12)


SOLVED = {
    "Birkhoff": (bx.Birkhoff(), jnp.zeros((3, 3))), "AffineSet": UNBOUNDED["AffineSet"],
    "Halfspace": UNBOUNDED["Halfspace"],
    "TransportPolytope": (bx.TransportPolytope(*PLANS["two by three"]), jnp.zeros((2, 3))),
    "Polytope": (bx.Polytope(**polytope(6, np.random.default_rng(6))), jnp.zeros(6)),
}  # fmt: skip


@pytest.mark.parametrize("name", every_second(SOLVED))
def test_projected_methods_converge(name):
    domain, like = SOLVED[name]
    known = random_quadratic(domain, like, 4, jax.random.key(3), kappa=3.0, rho=0.5)
    solver = bx.AIDBiO(constants=known.constants)
    start = domain.vertex(like)
    result = bx.solve(known.problem, solver, start, jnp.zeros(4), steps=3000, tol=1e-6)
    assert result.status is bx.Status.CONVERGED, result
    if np.isfinite(float(domain.diameter(like).value)):
        assert known.ell(result.x) - known.ell_star <= 2e-6
