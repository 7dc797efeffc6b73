"""Capped, group and host sets against linear programs, a conic solver, all vertices, and exact fractions."""

import itertools
import os
import subprocess
import sys
from fractions import Fraction

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse
import zoo
from scipy.optimize import linprog

import bilevax as bx
from bilevax import trees
from bilevax.problems import random_quadratic

RNG = np.random.default_rng(21)
lmo = jax.jit(lambda domain, direction, memory: domain.lmo(direction, memory))
project = jax.jit(lambda domain, x: domain.project(x))

I6, ONES = np.eye(6), np.ones((1, 6))
GROUPS = np.array([0, 1, 0, 2, 1, 0])
SUMS = np.vstack([np.kron(np.eye(3), np.ones(3)), np.kron(np.ones(3), np.eye(3))])
A, A_EQ = RNG.standard_normal((5, 6)), RNG.standard_normal((2, 6))
LIMITS = {"A": A, "b": np.ones(5), "A_eq": A_EQ, "b_eq": A_EQ @ np.full(6, 0.1), "lower": -1.0, "upper": 2.0}
WIDE = {"A_ub": np.hstack([A, -A]), "b_ub": LIMITS["b"], "A_eq": np.hstack([A_EQ, -A_EQ]), "b_eq": LIMITS["b_eq"]}
# x = p - q: the bounds become rows too, so that nothing but the numbers is shared with the set
WIDE["A_ub"] = np.vstack([WIDE["A_ub"], np.hstack([I6, -I6]), np.hstack([-I6, I6])])
WIDE["b_ub"] = np.r_[WIDE["b_ub"], np.full(6, 2.0), np.full(6, 1.0)]
# name: (set, keyword arguments of the linear program over weights, the matrix from weights to points)
PROGRAMS = {
    "CappedSimplex": (bx.CappedSimplex(1.7, 0.5), {"A_eq": ONES, "b_eq": [1.7], "bounds": (0, 0.5)}, I6),
    "at_most": (bx.CappedSimplex(1.7, 0.5, at_most=True), {"A_ub": ONES, "b_ub": [1.7], "bounds": (0, 0.5)}, I6),
    "at_least": (bx.CappedSimplex(1.7, 0.5, at_least=True), {"A_ub": -ONES, "b_ub": [-1.7], "bounds": (0, 0.5)}, I6),
    "KSparse": (
        bx.KSparse(2, 0.7), {"A_ub": np.ones((1, 12)), "b_ub": [1.4], "bounds": (0, 0.7)}, np.hstack([I6, -I6])
    ),
    "Birkhoff": (bx.Birkhoff(), {"A_eq": SUMS, "b_eq": np.ones(6), "bounds": (0, None)}, np.eye(9)),
    "Polytope": (bx.Polytope(**LIMITS), {**WIDE, "bounds": (0, None)}, np.hstack([I6, -I6])),
}  # fmt: skip


def directions(n):
    plain = np.random.default_rng(n).standard_normal(n)
    return {
        "random": plain, "zero": 0 * plain, "tied": np.ones(n), "tied below": -np.ones(n), "signs": np.sign(plain),
        "positive": np.abs(plain), "sparse": -2.0 * (np.arange(n) == 3), "tiny": 1e-200 * plain, "huge": 1e200 * plain,
        "spread": plain * 10.0 ** -np.arange(n),
    }  # fmt: skip


def check_lmo(domain, direction, shape, best_of, slack):
    """The answer is feasible, and as good as the optimum of an independent program."""
    unit = float(np.max(np.abs(direction))) or 1.0
    scaled, given = direction.astype(float) / unit, jnp.asarray(direction.reshape(shape))
    s, memory = lmo(domain, given, domain.start(given))
    best, error = best_of(scaled), float(memory.error) / unit
    assert domain.contains(s), domain.violations(s)
    assert s.dtype == given.dtype and 0 <= error <= slack
    assert abs(scaled @ np.ravel(s).astype(float) - best) <= slack * max(1.0, abs(best))


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("dtype, slack", [(np.float64, 2e-10), (np.float32, 1e-5)])
def test_lmo_reaches_the_optimum_of_the_linear_program(name, dtype, slack):
    domain, limits, columns = PROGRAMS[name]
    shape = (3, 3) if name == "Birkhoff" else (6,)
    slack = 1e-12 if dtype == np.float64 and name not in ("Polytope", "Birkhoff") else slack
    for which, direction in directions(columns.shape[0]).items():
        if dtype == np.float32:
            direction = {"tiny": 1e170, "huge": 1e-170}.get(which, 1.0) * direction
        best_of = lambda scaled: linprog(scaled @ columns, **limits).fun  # noqa: E731
        check_lmo(trees.cast(domain, dtype), direction.astype(dtype), shape, best_of, slack)


def group_norms(z):
    return cp.hstack([cp.norm(z[np.flatnonzero(GROUPS == g)], 2) for g in range(3)])


def test_group_lmo_reaches_the_optimum_of_the_conic_program():
    z, slope = cp.Variable(6), cp.Parameter(6)
    program = cp.Problem(cp.Minimize(slope @ z), [cp.sum(group_norms(z)) <= 1.5])

    def best_of(scaled):
        slope.value = scaled
        return program.solve(solver=cp.CLARABEL, tol_gap_abs=1e-10, tol_gap_rel=1e-10, tol_feas=1e-10)

    for direction in directions(6).values():
        check_lmo(bx.GroupL2Ball(GROUPS, 1.5), direction, (6,), best_of, 1e-8)


# name: (set, constraints on the variable)
CONES = {
    "CappedSimplex": (PROGRAMS["CappedSimplex"][0], lambda z: [z >= 0, z <= 0.5, cp.sum(z) == 1.7]),
    "at_most": (PROGRAMS["at_most"][0], lambda z: [z >= 0, z <= 0.5, cp.sum(z) <= 1.7]),
    "at_least": (PROGRAMS["at_least"][0], lambda z: [z >= 0, z <= 0.5, cp.sum(z) >= 1.7]),
    "KSparse": (PROGRAMS["KSparse"][0], lambda z: [cp.abs(z) <= 0.7, cp.norm1(z) <= 1.4]),
    "GroupL2Ball": (bx.GroupL2Ball(GROUPS, 1.5), lambda z: [cp.sum(group_norms(z)) <= 1.5]),
}


def furthest(name, slope):
    """The largest `<slope, z>` over a set."""
    if name == "GroupL2Ball":
        return 1.5 * max(np.linalg.norm(slope[GROUPS == g]) for g in range(3))
    _, limits, columns = PROGRAMS[name]
    return -linprog(-slope @ columns, **limits).fun


@pytest.mark.parametrize("name", CONES)
def test_projection_agrees_with_a_conic_solver(name):
    domain, constraints = CONES[name]
    z, centre, weight = cp.Variable(6), cp.Parameter(6), cp.Parameter(nonneg=True)
    # |z - x|^2 / 2 divided by the size of x, without the constant: the solver sees numbers near one.
    loss = weight * cp.sum_squares(z) / 2 - cp.sum(cp.multiply(centre, z))
    program = cp.Problem(cp.Minimize(loss), constraints(z))
    plain = np.random.default_rng(17).standard_normal(6)
    for x in (2 * plain, 0.1 * plain, 0 * plain, np.sign(plain), np.ones(6), -np.ones(6), 50 * plain, 1e8 * plain):
        size = max(1.0, np.max(np.abs(x)))
        centre.value, weight.value = x / size, 1.0 / size
        program.solve(solver=cp.CLARABEL, tol_gap_abs=1e-11, tol_gap_rel=1e-11, tol_feas=1e-11)
        p = np.asarray(project(domain, jnp.asarray(x)))
        assert domain.contains(jnp.asarray(p)), domain.violations(jnp.asarray(p))
        np.testing.assert_allclose(p, z.value, atol=1e-5)
        assert furthest(name, (x - p) / size) - (x - p) @ p / size <= 1e-9
    for size in (1e-200, 1e200):
        p = project(domain, jnp.asarray(size * plain))
        q = project(domain, jnp.asarray((1e-12 if size < 1 else 1e12) * plain))
        np.testing.assert_allclose(p, q, atol=1e-9)


def exact_capped(values, total, cap):
    """The projection in rational numbers."""
    values, total, cap = [Fraction(float(v)) for v in values], Fraction(float(total)), Fraction(float(cap))
    mass = lambda t: sum(min(max(v - t, 0), cap) for v in values)  # noqa: E731
    edges = sorted({*values, *(v - cap for v in values)})
    low = max(t for t in edges if mass(t) >= total)
    high = min((t for t in edges if t > low), default=low)
    fall = mass(low) - mass(high)
    tau = low + (high - low) * (mass(low) - total) / fall if fall else low
    return np.array([float(min(max(v - tau, 0), cap)) for v in values])


@pytest.mark.parametrize("dtype, slack", [(np.float64, 1e-14), (np.float32, 4e-6)])
def test_capped_projection_keeps_all_digits(dtype, slack):
    rng = np.random.default_rng(23)
    near = rng.uniform(-1, 1, 12)
    places = [
        near, np.round(near), 1e8 + near, 1e8 * near, 1e-9 * near, 1e8 + 1e-9 * near, np.r_[1e8, near[1:]],
        np.full(12, 0.3), np.r_[near[:6], near[:6]], -1e8 + np.round(4 * near), 10.0 ** rng.uniform(-9, 9, 12),
    ]  # fmt: skip
    for x in places:
        for total, cap in [(4.3, 1.0), (3.0, 0.25), (2e-9, 1e-9), (1.0, 1e9), (5.5, 0.5), (1e-3, 0.1)]:
            x, total, cap = x.astype(dtype), dtype(total), dtype(cap)
            p = project(trees.cast(bx.CappedSimplex(total, cap), dtype), jnp.asarray(x))
            np.testing.assert_allclose(p, exact_capped(x, total, cap), rtol=0, atol=slack * total)


def corners(n, total, cap, mode):
    """All vertices of a capped simplex: entries 0 or cap, and one in between where the sum is the total."""
    found = []
    for x in map(np.array, itertools.product([0.0, cap], repeat=n)):
        if (mode == "at_most" and x.sum() <= total) or (mode == "at_least" and x.sum() >= total):
            found.append(x)
        for i in range(n):
            rest = total - x.sum() + x[i]
            if 0 <= rest <= cap:
                found.append(np.r_[x[:i], rest, x[i + 1 :]])
    return np.array(found)


def spread_of(points):
    points = np.asarray(points).reshape(len(points), -1)
    return max(np.max(np.linalg.norm(points - p, axis=1)) for p in points)


@pytest.mark.parametrize("mode", ["", "at_most", "at_least"])
def test_capped_diameter_equals_that_of_all_vertices(mode):
    for n, k in itertools.product(range(1, 6), [0.0, 0.3, 1.0, 1.5, 2.0, 2.75, 3.2, 4.9, 5.0]):
        if k <= n:
            domain = bx.CappedSimplex(0.5 * k, 0.5, **({mode: True} if mode else {}))
            value, exact = domain.diameter(jnp.zeros(n))
            assert exact and float(value) == pytest.approx(spread_of(corners(n, 0.5 * k, 0.5, mode)), abs=1e-7)


def test_other_diameters_equal_those_of_all_vertices():
    for n, k in itertools.product(range(1, 5), range(1, 5)):
        vertices = [x for x in itertools.product([-0.7, 0.0, 0.7], repeat=n) if np.count_nonzero(x) == min(k, n)]
        assert float(bx.KSparse(k, 0.7).diameter(jnp.zeros(n)).value) == pytest.approx(spread_of(vertices))
    for n in range(1, 5):
        vertices = [np.eye(n)[list(order)] for order in itertools.permutations(range(n))]
        assert float(bx.Birkhoff().diameter(jnp.zeros((n, n))).value) == pytest.approx(spread_of(vertices))


@pytest.mark.parametrize("seed", range(5))
def test_random_polytope_equals_the_hull_of_its_vertices(seed):
    rng = np.random.default_rng(seed)
    rows, right = (
        np.vstack([rng.standard_normal((6, 3)), np.eye(3), -np.eye(3)]),
        np.r_[rng.uniform(0.2, 2, 6), [3.0] * 6],
    )
    meeting = [list(c) for c in itertools.combinations(range(12), 3) if np.linalg.cond(rows[list(c)]) < 1e8]
    points = np.array([np.linalg.solve(rows[c], right[c]) for c in meeting])
    vertices = points[np.all(points @ rows.T <= right + 1e-9, axis=1)]
    domain = bx.Polytope(scipy.sparse.csr_array(np.vstack([rows, rows])), np.r_[right, right])  # every row twice
    box = np.linalg.norm(vertices.max(axis=0) - vertices.min(axis=0))
    assert float(domain.diameter(jnp.zeros(3)).value) == pytest.approx(box) and spread_of(vertices) <= box
    for direction in directions(3).values():
        check_lmo(domain, direction, (3,), lambda scaled: np.min(vertices @ scaled), 2e-10)
    assert all(domain.contains(jnp.asarray(rng.dirichlet(np.ones(len(vertices))) @ vertices)) for _ in range(5))
    assert not any(domain.contains(jnp.asarray(v + 1e-4 * (v - vertices.mean(axis=0)))) for v in vertices)


NESTED = {"w": jnp.zeros((2, 2)), "b": [jnp.zeros(()), jnp.zeros(1)]}


def test_leaves_of_a_nested_point_act_jointly():
    values, back = jnp.asarray(directions(6)["random"]), jax.flatten_util.ravel_pytree(NESTED)[1]
    labels = jax.tree.map(lambda v: v.astype(int), back(jnp.asarray(GROUPS, float)))
    polytope = bx.Polytope(**LIMITS)
    for joint, apart in [(bx.GroupL2Ball(GROUPS), bx.GroupL2Ball(labels)), (polytope, polytope)]:
        apart.check_like(NESTED)
        s, _ = apart.lmo(back(values), apart.start(NESTED))
        np.testing.assert_allclose(jax.flatten_util.ravel_pytree(s)[0], joint.lmo(values, joint.start(values))[0])


@pytest.mark.parametrize("name", zoo.every_second(["Polytope", "Birkhoff", "Product"]))
def test_run_over_many_step_sizes_agrees_with_solve(name):
    both = bx.Product((bx.Birkhoff(), bx.Polytope(**LIMITS)))
    domain, like = {
        "Polytope": (bx.Polytope(**LIMITS), jnp.zeros(6)), "Birkhoff": (bx.Birkhoff(), jnp.zeros((3, 3))),
        "Product": (both, (jnp.zeros((3, 3)), jnp.zeros(6))),
    }[name]  # fmt: skip
    known = random_quadratic(domain, like, 4, jax.random.key(3))
    solver = lambda gamma: bx.IBCG(gamma, constants=known.constants)  # noqa: E731
    x0, y0 = domain.vertex(like), jnp.zeros(4)
    gammas = jnp.array([0.05, 0.2])
    ends = jax.vmap(lambda gamma: bx.run(known.problem, solver(gamma), x0, y0, steps=30)[0].x)(gammas)
    for i, gamma in enumerate(gammas):
        alone = bx.solve(known.problem, solver(float(gamma)), x0, y0, steps=30).x
        for found, expected in zip(jax.tree.leaves(ends), jax.tree.leaves(alone), strict=True):
            np.testing.assert_allclose(found[i], expected, atol=1e-10)
    result = bx.solve(known.problem, bx.IBCG(constants=known.constants), x0, y0, steps=500, tol=1e-2)
    assert result.status is bx.Status.CONVERGED and known.ell(result.x) - known.ell_star <= 1e-2


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs a process bound to one core")
def test_large_direction_in_compiled_code_on_one_core_does_not_hang():
    code = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); "
        "import jax, jax.numpy as jnp, bilevax as bx; "
        "ask = jax.jit(lambda d: bx.Birkhoff().lmo(2 * d, bx.Birkhoff().start(d))[0]); "
        "eye = jnp.roll(jnp.eye(500), 1, axis=0); assert all((ask(-k * eye) == eye).all() for k in range(1, 11))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
