"""Each set by hand-computed values, and every message of its constructors."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bilevax as bx
from bilevax.sets import as_set

NAN, INF = float("nan"), float("inf")
BALLS = [bx.Simplex, bx.UnitSimplex, bx.L1Ball, bx.L2Ball, bx.LInfBall, bx.NuclearBall]


lmo = jax.jit(lambda domain, direction: domain.lmo(direction, domain.start(direction)))


def ask(domain, *direction):
    s, memory = lmo(domain, jnp.array(direction))
    assert float(memory.error) <= 1e-12
    return s


def raises(kind, message):
    return pytest.raises(kind, match="^" + re.escape(message) + "$")


LMO = [
    (bx.Simplex(2.0), [3.0, -1.0, 2.0], [0, 2, 0]),
    (bx.Simplex(2.0), [3.0, 1.0, 2.0], [0, 2, 0]),
    (bx.UnitSimplex(2.0), [3.0, -1.0, 2.0], [0, 2, 0]),
    (bx.UnitSimplex(2.0), [3.0, 1.0, 2.0], [0, 0, 0]),
    (bx.L1Ball(2.0), [3.0, -4.0, 2.0], [0, 2, 0]),
    (bx.L1Ball(2.0), [5.0, -4.0, 2.0], [-2, 0, 0]),
    (bx.L2Ball(10.0), [3.0, -4.0], [-6, 8]),
    (bx.LInfBall(0.5), [3.0, -4.0, 1e-9], [-0.5, 0.5, -0.5]),
    (bx.Box(-1.0, np.array([1.0, 2.0, 3.0])), [1.0, -1.0, -5.0], [-1, 2, 3]),
    (bx.VertexHull(np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]])), [1.0, -2.0], [0, 1]),
    (bx.NuclearBall(3.0), [[2.0, 0.0], [0.0, -1.0]], [[-3, 0], [0, 0]]),
    (bx.NuclearBall(10.0), [[3.0], [4.0]], [[-6], [-8]]),
    (bx.Spectraplex(3.0), [[2.0, 0.0], [0.0, -1.0]], [[0, 0], [0, 3]]),
    (bx.Spectraplex(3.0, 0.5), [[2.0, 0.0], [0.0, -1.0]], [[0.5, 0], [0, 2.5]]),
    (bx.Spectraplex(3.0, 0.5), [[2.0, 0.0], [0.0, 1.0]], [[0.5, 0], [0, 0.5]]),
    (bx.Spectraplex(2.0), [[0.0, 4.0], [0.0, 0.0]], [[1, -1], [-1, 1]]),
    (bx.UserSet(lambda d: -jnp.sign(d)), [3.0, -1.0], [-1, 1]),
]


@pytest.mark.parametrize("domain, direction, expected", LMO, ids=lambda v: repr(v)[:40])
def test_lmo_by_hand(domain, direction, expected):
    np.testing.assert_allclose(ask(domain, *direction), expected, atol=1e-12)


PROJECTION = [
    (bx.Simplex(1.0), [0.5, 0.5, 0.0], [0.5, 0.5, 0]),
    (bx.Simplex(1.0), [1.0, 0.5, -3.0], [0.75, 0.25, 0]),
    (bx.Simplex(3.0), [0.0, 0.0, 0.0], [1, 1, 1]),
    (bx.UnitSimplex(1.0), [0.25, -2.0, 0.5], [0.25, 0, 0.5]),
    (bx.UnitSimplex(1.0), [1.0, 0.5, -3.0], [0.75, 0.25, 0]),
    (bx.L1Ball(1.0), [1.0, -0.5, 0.0], [0.75, -0.25, 0]),
    (bx.L1Ball(1.0), [0.3, -0.5, 0.0], [0.3, -0.5, 0]),
    (bx.L2Ball(5.0), [6.0, -8.0], [3, -4]),
    (bx.L2Ball(5.0), [0.0, 0.0], [0, 0]),
    (bx.LInfBall(0.5), [3.0, -4.0, 0.2], [0.5, -0.5, 0.2]),
    (bx.Box(np.array([-1.0, -INF]), np.array([INF, 2.0])), [-3.0, 5.0], [-1, 2]),
    (bx.NuclearBall(1.0), [[1.0, 0.0], [0.0, -0.5]], [[0.75, 0], [0, -0.25]]),
    (bx.NuclearBall(9.0), [[1.0, 2.0], [3.0, 4.0]], [[1, 2], [3, 4]]),
    (bx.Spectraplex(1.0), [[1.0, 0.0], [0.0, 0.5]], [[0.75, 0], [0, 0.25]]),
    (bx.Spectraplex(9.0, 0.5), [[1.0, 0.0], [0.0, -2.0]], [[1, 0], [0, 0.5]]),
    (bx.Spectraplex(9.0), [[2.0, 2.0], [0.0, 2.0]], [[2, 1], [1, 2]]),
    (bx.WholeSpace(), [3.0, -4.0], [3, -4]),
]


@pytest.mark.parametrize("domain, x, expected", PROJECTION, ids=lambda v: repr(v)[:40])
def test_projection_by_hand(domain, x, expected):
    np.testing.assert_allclose(domain.project(jnp.array(x)), expected, atol=1e-12)


DIAMETERS = [
    (bx.Simplex(2.0), (3,), 2 * np.sqrt(2)), (bx.Simplex(2.0), (1,), 0), (bx.UnitSimplex(2.0), (1,), 2),
    (bx.UnitSimplex(2.0), (3,), 2 * np.sqrt(2)), (bx.L1Ball(2.0), (3,), 4), (bx.L2Ball(2.0), (3,), 4),
    (bx.LInfBall(2.0), (9,), 12), (bx.Box(-1.0, np.array([1.0, 0.5])), (2,), 2.5), (bx.Box(-INF, 1.0), (2,), INF),
    (bx.VertexHull(np.array([[0.0, 0], [3, 4], [1, 1]])), (2,), 5), (bx.NuclearBall(2.0), (3, 2), 4),
    (bx.Spectraplex(2.0, 0.5), (3, 3), 0.5 * np.sqrt(2)), (bx.Spectraplex(2.0, 0.5), (1, 1), 1.5),
]  # fmt: skip


@pytest.mark.parametrize("domain, shape, expected", DIAMETERS, ids=lambda v: repr(v)[:40])
def test_diameter_by_hand(domain, shape, expected):
    found = domain.diameter(jnp.zeros(shape))
    assert found.exact
    np.testing.assert_allclose(float(found.value), expected, rtol=1e-12)


def test_large_hull_gives_only_a_bound():
    corners = np.random.default_rng(0).uniform(size=(1200, 2))
    found = bx.VertexHull(corners).diameter(jnp.zeros(2))
    true = max(np.linalg.norm(corners - c, axis=1).max() for c in corners)
    assert not found.exact and true <= float(found.value) <= 2 * true


WORDS = [
    (bx.Simplex(2.0), [3.0, -0.5], "its entries sum to 2.5, its smallest entry is -0.5"),
    (bx.Simplex(2.0), [3.0, NAN], "its entries sum to nan, its smallest entry is nan"),
    (bx.Simplex(2.0), [0.5, 1.5], ""),
    (bx.UnitSimplex(2.0), [3.0, 0.25], "its entries sum to 3.25"),
    (bx.L1Ball(2.0), [3.0, -0.25], "its l1 norm is 3.25"),
    (bx.L2Ball(2.0), [3.0, -4.0], "its l2 norm is 5"),
    (bx.LInfBall(2.0), [1.0, -4.0], "its largest magnitude is 4"),
    (bx.Box(0.0, 1.0), [3.0, -0.25], "an entry is 0.25 below its lower bound, an entry is 2 above its upper bound"),
    (bx.VertexHull(np.eye(2)), [1.0, 1.0], "it is 0.5 away from every convex combination of the points"),
    (bx.NuclearBall(2.0), [[3.0, 0.0], [0.0, -0.25]], "its nuclear norm is 3.25"),
    (bx.Spectraplex(2.0, 0.5), [[3.0, 0.0], [0.0, 0.25]], "its trace is 3.25, its smallest eigenvalue is 0.25"),
    (bx.Spectraplex(2.0), [[1.0, 0.5], [0.0, 1.0]], "it differs from its transpose by 0.5"),
    (bx.UserSet(jnp.negative, contains=lambda x: x[0] < 1), [1.0], "its own membership test says no"),
    (bx.UserSet(jnp.negative, contains=lambda x: x[0] < 1), [0.0], ""),
    (bx.Product((bx.Simplex(), bx.L2Ball())), ([2.0], [0.5]), "Simplex(radius=1): its entries sum to 2"),
]


@pytest.mark.parametrize("domain, x, words", WORDS)
def test_violations_are_told_in_words(domain, x, words):
    x = tuple(jnp.array(v) for v in x) if isinstance(x, tuple) else jnp.array(x)
    assert domain.violations(x) == words
    assert bool(domain.contains(x)) == (words == "")


@pytest.mark.parametrize("values", [[1.0, 1.0, 1.0, 1.0], [2.0, 1.0, 0.5, 0.5], [4.0, 0.0, 0.0, 0.0]])
def test_the_nuclear_ball_is_sharp_whatever_the_spectrum(values):
    """Only for equal singular values is the bound by the Frobenius norm, which saves an SVD inside, an equality."""
    rng = np.random.default_rng(0)
    left, right = (np.linalg.qr(rng.standard_normal((n, 4)))[0] for n in (6, 4))
    on_the_boundary = left * np.array(values) @ right.T
    domain = bx.NuclearBall(4.0)
    compiled = jax.jit(lambda x: domain.contains(x))
    for factor, inside in ((0.2, True), (1 - 1e-6, True), (1 - 1e-12, True), (1 + 1e-12, True), (1 + 1e-6, False)):
        x = jnp.asarray(factor * on_the_boundary)
        assert bool(domain.contains(x)) is bool(compiled(x)) is inside
        assert bool(domain.contains(x, tol=0.0)) is (factor < 1)
        if factor > 1:  # a size is told only where it is the nuclear norm itself
            np.testing.assert_allclose(domain.conditions(x)[0].measured, factor * 4.0, rtol=1e-12)


def test_product_judges_each_part_on_its_own_scale():
    domain = bx.Product((bx.L2Ball(1e6), bx.L2Ball(1e-3)))
    assert domain.contains((jnp.array([1e6 + 1e-3]), jnp.array([1e-3])))
    assert not domain.contains((jnp.array([1e6]), jnp.array([1e-3 + 1e-9])))
    assert bx.L2Ball().contains(jnp.array([1.1]), tol=0.2) and not bx.L2Ball().contains(jnp.array([1.1]), tol=0.05)


@pytest.mark.parametrize("kind", BALLS)
@pytest.mark.parametrize("bad, shown", [(-1, "-1.0"), (0, "0.0"), (NAN, "nan"), (INF, "inf"), ([1, 2], "[1.0, 2.0]")])
def test_radius_must_be_positive(kind, bad, shown):
    with raises(ValueError, f"{kind.__name__}: radius must be one positive finite number, got {shown}."):
        kind(bad)


EMPTY = "Box is empty: lower exceeds upper by up to {}; swap or widen the bounds."
WRONG = "Box: a bound is NaN, or infinite on the wrong side; give lower < inf and upper > -inf."
STACK = "VertexHull: stack the points along the first axis of every leaf, the same number in each."
SET = "domain must be a bilevax set, an object with an lmo, or a function lmo(direction) -> s; got {}."
REFUSED = [
    (lambda: bx.Box(1.0, 0.5), EMPTY.format("0.5")),
    (lambda: bx.Box(np.array([0.0, 3.0]), 1.0), EMPTY.format("2")),
    (lambda: bx.Box({"a": 0.0, "b": 3.0}, {"a": 1.0, "b": 1.0}), EMPTY.format("2")),
    (lambda: bx.Box(1.0, {"a": 2.0, "b": 0.0}), EMPTY.format("1")),
    (lambda: bx.Box({"a": 0.0, "b": 3.0}, 1.0), EMPTY.format("2")),
    (lambda: bx.Box(NAN, 1.0), WRONG),
    (lambda: bx.Box(0.0, np.array([1.0, NAN])), WRONG),
    (lambda: bx.Box(INF, INF), WRONG),
    (lambda: bx.Box(-INF, -INF), WRONG),
    (lambda: bx.VertexHull(np.zeros((0, 2))), "VertexHull is empty: it was given no points; give at least one."),
    (lambda: bx.VertexHull({"a": np.zeros((3, 2)), "b": np.zeros(4)}), STACK),
    (lambda: bx.VertexHull(1.0), STACK),
    (lambda: bx.VertexHull({}), STACK),
    (lambda: bx.VertexHull(np.array([[1.0, NAN]])), "VertexHull: a point has a NaN or infinite coordinate; remove it."),
    (lambda: bx.Spectraplex(-1.0), "Spectraplex: trace must be one positive finite number, got -1.0."),
    (lambda: bx.Spectraplex(1.0, -0.5), "Spectraplex: eps must be one number >= 0, got -0.5."),
    (lambda: bx.Spectraplex(1.0, NAN), "Spectraplex: eps must be one number >= 0, got nan."),
    (
        lambda: bx.Spectraplex(1.0, 0.5).check_like(jnp.zeros((4, 4))),
        "Spectraplex(trace=1, eps=0.5) is empty for 4 x 4 matrices: 4 * eps = 2 exceeds the trace; "
        "take eps at most 0.25.",
    ),
    (
        lambda: bx.Spectraplex().check_like(jnp.zeros((2, 3))),
        "Spectraplex(trace=1, eps=0) needs a point that is one square matrix, got shapes [(2, 3)]; "
        "use bx.Product for one set per leaf.",
    ),
    (
        lambda: bx.NuclearBall(2.0).check_like(jnp.zeros(3)),
        "NuclearBall(radius=2) needs a point that is one matrix, got shapes [(3,)]; "
        "use bx.Product for one set per leaf.",
    ),
    (
        lambda: bx.Box(np.zeros(3), 1.0).check_like(jnp.zeros(2)),
        "Box: its bounds do not fit the point (float64[2]); give scalars or arrays of the same structure.",
    ),
    (
        lambda: bx.VertexHull(np.zeros((5, 3))).check_like(jnp.zeros(2)),
        "VertexHull(5 points): one point has shapes [(3,)], x has [(2,)]; "
        "stack points of the shape of x along a new first axis.",
    ),
    (lambda: bx.Product({}), "Product: give at least one set."),
]


@pytest.mark.parametrize("build, message", REFUSED)
def test_refusals(build, message):
    with raises(ValueError, message):
        build()


def test_product_refuses_another_structure():
    with pytest.raises(ValueError, match=r"^Product\(Simplex\(radius=1\)\): its tree of sets does not match"):
        bx.Product({"a": bx.Simplex()}).check_like({"b": jnp.zeros(2)})


@pytest.mark.parametrize("domain", [bx.VertexHull(np.eye(2)), bx.UserSet(jnp.negative)])
def test_sets_without_a_projection_say_so(domain):
    message = f"{domain!r} has no projection; use a solver that asks only the lmo, such as PairwiseIBCG."
    with raises(NotImplementedError, message):
        domain.project(jnp.zeros(2))


class Cube:
    diameter = 4.0

    def lmo(self, direction):
        return -jnp.sign(direction)

    def contains(self, x):
        return jnp.max(jnp.abs(x)) <= 1


def test_as_set_takes_sets_objects_and_functions():
    simplex = bx.Simplex()
    assert as_set(simplex) is simplex
    cube = as_set(Cube())
    np.testing.assert_array_equal(ask(cube, 2.0, -3.0), [-1.0, 1.0])
    assert cube.diameter(jnp.zeros(2)) == (4.0, False)
    assert cube.contains(jnp.ones(2)) and not cube.contains(2 * jnp.ones(2))
    np.testing.assert_array_equal(ask(as_set(lambda d: -d), 2.0), [-2.0])


@pytest.mark.parametrize("bad", [3, None, "simplex", [1.0]])
def test_as_set_refuses_other_things(bad):
    with raises(TypeError, SET.format(repr(bad))):
        as_set(bad)


@pytest.mark.parametrize("kind", [bx.Simplex, Cube, dict])
def test_as_set_asks_for_an_instance_instead_of_a_class(kind):
    with raises(TypeError, SET.format(f"{kind!r}; write {kind.__name__}(...) to build one")):
        as_set(kind)


def test_repr_shows_what_was_given():
    assert [repr(kind(2.5)) for kind in BALLS] == [f"{kind.__name__}(radius=2.5)" for kind in BALLS]
    assert repr(bx.Box(-1, 2)) == "Box(-1, 2)" and repr(bx.Box(-1, np.ones(3))) == "Box(-1, <array>)"
    both = bx.Product({"a": bx.Spectraplex(2.0, 0.1), "b": bx.VertexHull(np.eye(3))})
    assert repr(both) == "Product(Spectraplex(trace=2, eps=0.1), VertexHull(3 points))"
    assert repr(bx.UserSet(jnp.negative)) == "UserSet(negative)"
