"""What every set promises, on generated points; feasible points are drawn without the library's own oracles."""

from functools import partial

import hypothesis.extra.numpy as hnp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.flatten_util import ravel_pytree
from zoo import FAR, FEASIBLE, OUTSIDE, POINTS, SETS, every_second, point

import bilevax as bx
from bilevax import trees
from bilevax.linalg.host_loops import Kernels

UNPROJECTED = ("VertexHull", "UserSet", "SampledNuclearBall")
PROJECTED = [name for name in SETS if name not in UNPROJECTED]
TRACED = [name for name, (domain, _) in SETS.items() if domain.kernels is not Kernels.HOST]
SPECTRAL = {"NuclearBall", "Spectraplex", "Product", "SampledNuclearBall"}
quick = settings(max_examples=30, deadline=None, derandomize=True)
entries = hnp.arrays(np.float64, 30, elements=st.floats(-1e3, 1e3, allow_subnormal=False))
seeds = st.integers(0, 2**32 - 1)

compiled_lmo = jax.jit(lambda domain, direction, memory: domain.lmo(direction, memory))
project = jax.jit(lambda domain, x: domain.project(x))


def like(name, values):
    """The first of some numbers in the shape of a set's points."""
    zeros, back = ravel_pytree(SETS[name][1])
    return back(jnp.asarray(values[: zeros.size]))


def lmo(domain, direction, memory):
    return (domain.lmo if domain.kernels is Kernels.HOST else partial(compiled_lmo, domain))(direction, memory)


def vec(tree):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(trees.coordinates(tree))])


@pytest.mark.parametrize("name", SETS)
def test_lmo_answer_is_feasible_and_no_feasible_point_beats_it(name):
    domain = SETS[name][0]
    slack = 1e-6 if name in SPECTRAL else 1e-13

    @quick
    @given(entries, seeds)
    def check(values, seed):
        rng, direction = np.random.default_rng(seed), like(name, values)
        s, memory = lmo(domain, direction, domain.start(direction))
        d = vec(direction)
        assert domain.contains(s) and memory.error >= 0, domain.violations(s)
        for _ in range(10):
            z = np.ravel(FEASIBLE[name](rng))
            assert d @ vec(s) <= d @ z + float(memory.error) + slack * np.abs(d).sum() * np.abs(z).max()

    check()


@pytest.mark.parametrize("name", SETS)
def test_membership_of_inside_and_outside_points(name):
    domain, rng = SETS[name][0], np.random.default_rng(5)
    for _ in range(10):
        inside = point(name, np.ravel(FEASIBLE[name](rng)))
        assert domain.contains(inside) and domain.violations(inside) == ""
    assert domain.contains(domain.vertex(SETS[name][1]))
    for values in OUTSIDE.get(name, []):
        outside = point(name, np.ravel(np.asarray(values, float)))
        assert not domain.contains(outside) and domain.violations(outside) != ""


@pytest.mark.parametrize("name", OUTSIDE)
def test_nan_is_never_inside(name):
    domain, values = SETS[name][0], np.ravel(FEASIBLE[name](np.random.default_rng(5)))
    x = point(name, np.r_[values[:-1], np.nan])
    assert not domain.contains(x) and "nan" in domain.violations(x).lower()


@pytest.mark.parametrize("name", PROJECTED)
def test_projection_is_the_nearest_point(name):
    domain = SETS[name][0]

    @quick
    @given(entries, entries, seeds)
    def check(first, second, seed):
        rng = np.random.default_rng(seed)
        x, y = like(name, first), like(name, second)
        p, q = project(domain, x), project(domain, y)
        assert domain.contains(p), domain.violations(p)
        size = 1.0 + np.linalg.norm(vec(x)) + np.linalg.norm(vec(y))
        np.testing.assert_allclose(vec(project(domain, p)), vec(p), atol=1e-12 * size)
        assert np.linalg.norm(vec(p) - vec(q)) <= np.linalg.norm(vec(x) - vec(y)) + 1e-11 * size
        if name == "Spectraplex":  # only the symmetric part of a square matrix counts
            x = 0.5 * (x + x.T)
        for _ in range(5):
            z = np.ravel(FEASIBLE[name](rng))
            assert (vec(x) - vec(p)) @ (z - vec(p)) <= 1e-11 * size

    check()


@pytest.mark.parametrize("name", SETS)
def test_feasible_points_are_within_the_diameter(name):
    domain, shape = SETS[name]
    width, rng = domain.diameter(shape), np.random.default_rng(7)
    draws = [np.ravel(FEASIBLE[name](rng)) for _ in range(60)]
    assert max(np.linalg.norm(a - b) for a in draws for b in draws) <= float(width.value) * (1 + 1e-12)
    if width.exact:
        a, b = FAR[name]
        np.testing.assert_allclose(float(width.value), np.linalg.norm(a - b), rtol=1e-6)


@pytest.mark.parametrize("name", every_second(SETS, of=4))
def test_float32_lmo_stays_float32(name):
    domain, shape = trees.cast(SETS[name], jnp.float32)
    direction = trees.random_like(shape, jax.random.key(2))
    s, memory = lmo(domain, direction, domain.start(direction))
    answers = trees.coordinates((s, domain.vertex(shape))), memory.error
    assert all(v.dtype == jnp.float32 for v in jax.tree.leaves(answers))
    assert domain.contains(s)
    wide, shape = SETS[name]
    expected, _ = lmo(wide, trees.cast(direction, jnp.float64), wide.start(shape))
    np.testing.assert_allclose(vec(s), vec(expected), atol=2e-3 if name in SPECTRAL else 1e-6)


@pytest.mark.parametrize("name", PROJECTED)
def test_float32_projection_stays_float32(name):
    domain, shape = trees.cast(SETS[name], jnp.float32)
    x = trees.random_like(shape, jax.random.key(2))
    p = project(domain, x)
    assert all(v.dtype == jnp.float32 for v in jax.tree.leaves(p))
    np.testing.assert_allclose(vec(p), vec(project(SETS[name][0], trees.cast(x, jnp.float64))), atol=1e-5)


@pytest.mark.parametrize("name", SETS)
def test_float32_diameter_stays_float32(name):
    domain, shape = trees.cast(SETS[name], jnp.float32)
    value = domain.diameter(shape).value
    assert jnp.result_type(value) == jnp.float32
    np.testing.assert_allclose(float(value), float(SETS[name][0].diameter(SETS[name][1]).value), rtol=1e-6)


@pytest.mark.parametrize("name", every_second(TRACED, of=4))
def test_compiled_and_batched_calls_equal_single_ones(name):
    domain, shape = SETS[name]
    rows = jax.vmap(lambda key: trees.random_like(shape, key))(jax.random.split(jax.random.key(4), 3))
    start = domain.start(shape)
    batch, _ = jax.jit(jax.vmap(lambda d: domain.lmo(d, start)))(rows)
    nearest = jax.vmap(domain.project)(rows) if name in PROJECTED else None
    for i in range(3):
        row, s = (jax.tree.map(lambda v, i=i: v[i], tree) for tree in (rows, batch))
        np.testing.assert_allclose(vec(s), vec(lmo(domain, row, start)[0]), atol=1e-12)
        if nearest is not None:
            p = jax.tree.map(lambda v, i=i: v[i], nearest)
            np.testing.assert_allclose(vec(p), vec(project(domain, row)), atol=1e-12)
    np.testing.assert_allclose(vec(s), vec(domain.lmo(row, start)[0]), atol=1e-12)


RADII = {
    "Simplex": bx.Simplex, "UnitSimplex": bx.UnitSimplex, "L1Ball": bx.L1Ball, "L2Ball": bx.L2Ball,
    "LInfBall": bx.LInfBall, "Box": lambda r: bx.Box(-r, r), "VertexHull": lambda r: bx.VertexHull(r * POINTS),
    "NuclearBall": bx.NuclearBall, "Spectraplex": bx.Spectraplex, "KSparse": lambda r: bx.KSparse(2, r),
    "CappedSimplex": lambda r: bx.CappedSimplex(3.25 * r, r), "SparseSimplex": lambda r: bx.SparseSimplex(2, r),
}  # fmt: skip


@pytest.mark.parametrize("name", RADII)
def test_traced_radius_scales_the_answer(name):
    build, shape, radii = RADII[name], SETS[name][1], jnp.array([0.5, 1.0, 4.0])
    direction = trees.random_like(shape, jax.random.key(6))
    found = jax.jit(jax.vmap(lambda r: build(r).lmo(direction, build(r).start(shape))[0]))(radii)
    alone, _ = lmo(build(1.0), direction, build(1.0).start(shape))
    for r, s in zip(radii, found, strict=True):
        np.testing.assert_allclose(s, r * alone, atol=1e-12)


NESTED = {"w": jnp.zeros((2, 2)), "b": [jnp.zeros(()), jnp.zeros(3)]}
JOINT = {name: build(1.5) for name, build in RADII.items() if name not in SPECTRAL | {"VertexHull"}}
STACK = np.random.default_rng(8).standard_normal((6, 8))


@pytest.mark.parametrize("name", [*JOINT, "VertexHull"])
def test_leaves_of_a_nested_point_act_jointly(name):
    values = jnp.asarray(np.random.default_rng(9).standard_normal(8))
    back = ravel_pytree(NESTED)[1]
    nested, joint = back(values), JOINT.get(name, bx.VertexHull(STACK))
    apart = JOINT.get(name, bx.VertexHull(jax.vmap(back)(jnp.asarray(STACK))))
    apart.check_like(NESTED)
    s, _ = apart.lmo(nested, apart.start(nested))
    assert jax.tree.structure(s) == jax.tree.structure(NESTED) and apart.contains(s)
    np.testing.assert_allclose(ravel_pytree(s)[0], joint.lmo(values, joint.start(values))[0], atol=1e-15)
    np.testing.assert_allclose(float(apart.diameter(NESTED).value), float(joint.diameter(values).value), rtol=1e-14)
    if name != "VertexHull":
        np.testing.assert_allclose(ravel_pytree(apart.project(nested))[0], joint.project(values), atol=1e-15)
