"""Capped, group and host sets by hand-computed values, and every message of theirs."""

import re
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
import scipy.sparse

import bilevax as bx
from bilevax import trees
from bilevax.linalg.host_loops import Kernels

NAN, INF = float("nan"), float("inf")
SQUARE = bx.Polytope(lower=[0.0, 0.0], upper=1.0)
SEGMENT = bx.Polytope(A_eq=[[1.0, 1.0]], b_eq=[1.0], lower=0.0)


def raises(kind, message):
    return pytest.raises(kind, match="^" + re.escape(message) + "$")


LMO = [
    (bx.CappedSimplex(1.5), [3.0, -1.0, 2.0], [0, 1, 0.5]),
    (bx.CappedSimplex(0.0), [3.0, -1.0, 2.0], [0, 0, 0]),
    (bx.CappedSimplex(3.0), [3.0, -1.0, 2.0], [1, 1, 1]),
    (bx.CappedSimplex(1.5), [[3.0, -1.0], [2.0, 5.0]], [[0, 1], [0.5, 0]]),
    (bx.CappedSimplex(1.5, at_most=True), [3.0, -1.0, 2.0], [0, 1, 0]),
    (bx.CappedSimplex(1.5, at_most=True), [-3.0, -1.0, -2.0], [1, 0, 0.5]),
    (bx.CappedSimplex(9.0, at_most=True), [-3.0, 0.0, -2.0], [1, 0, 1]),
    (bx.CappedSimplex(1.5, at_least=True), [-3.0, -1.0, -2.0], [1, 1, 1]),
    (bx.CappedSimplex(1.5, at_least=True), [3.0, -1.0, 2.0], [0, 1, 0.5]),
    (bx.CappedSimplex(0.5, at_least=True), [3.0, -1.0, 2.0], [0, 1, 0]),
    (bx.CappedSimplex(2.5, at_least=True), [3.0, 1.0, 2.0], [0.5, 1, 1]),
    (bx.KSparse(2, 3.0), [3.0, -1.0, -2.0], [-3, 0, 3]),
    (bx.KSparse(9, 3.0), [3.0, -1.0, 0.0], [-3, 3, 0]),
    (bx.KSparse(2), [0.0, 0.0, 0.0], [0, 0, 0]),
    (bx.GroupL2Ball([0, 1, 0], 10.0), [3.0, 4.5, -4.0], [-6, 0, 8]),
    (bx.GroupL2Ball([0, 1, 0], 10.0), [3.0, -6.0, -4.0], [0, 10, 0]),
    (bx.GroupL2Ball([[0, 1], [0, 1]], 10.0), [[3.0, 0.0], [4.0, 0.0]], [[-6, 0], [-8, 0]]),
    (bx.GroupL2Ball([0, 1, 0]), [0.0, 0.0, 0.0], [0, 0, 0]),
    (bx.Birkhoff(), [[3.0, 1.0, 9.0], [1.0, 0.0, 9.0], [9.0, 9.0, 9.0]], [[0, 1, 0], [1, 0, 0], [0, 0, 1]]),
    (SQUARE, [1.0, -2.0], [0, 1]),
    (SEGMENT, [1.0, -2.0], [0, 1]),
    (bx.Polytope([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]], [3.0, 2.0, 1.0, -1.0]), [1.0, 5.0], [-2, 1]),
    (bx.Polytope(A_eq=[[1.0, 1.0], [1.0, -1.0]], b_eq=[3.0, 1.0]), [1.0, 5.0], [2, 1]),
]


@pytest.mark.parametrize("domain, direction, expected", LMO, ids=lambda v: repr(v)[:60])
def test_lmo_by_hand(domain, direction, expected):
    direction = jnp.array(direction)
    domain.check_like(direction)
    s, memory = domain.lmo(direction, domain.start(direction))
    np.testing.assert_allclose(s, expected, atol=1e-12)
    assert 0 <= float(memory.error) <= 1e-12


PROJECTION = [
    (bx.CappedSimplex(1.5), [1.0, 0.5, 0.0], [1, 0.5, 0]),
    (bx.CappedSimplex(1.5), [9.0, 1.0, 0.0], [1, 0.5, 0]),
    (bx.CappedSimplex(1.5), [0.0, 0.0, 0.0], [0.5, 0.5, 0.5]),
    (bx.CappedSimplex(3.0), [-7.0, 0.0, 9.0], [1, 1, 1]),
    (bx.CappedSimplex(1.0, 9.0), [1.0, 0.5, -3.0], [0.75, 0.25, 0]),
    (bx.CappedSimplex(1.5, at_most=True), [0.25, -2.0, 3.0], [0.25, 0, 1]),
    (bx.CappedSimplex(1.5, at_most=True), [1.0, 0.75, 0.25], [0.75 + 1 / 12, 0.75 - 1 / 6, 1 / 12]),
    (bx.CappedSimplex(1.5, at_least=True), [1.0, 0.75, 0.25], [1, 0.75, 0.25]),
    (bx.CappedSimplex(1.5, at_least=True), [0.0, 0.25, -9.0], [0.625, 0.875, 0]),
    (bx.KSparse(2), [3.0, -0.5, 0.25], [1, -0.5, 0.25]),
    (bx.KSparse(2), [3.0, -2.5, 2.0], [1, -0.75, 0.25]),
    (bx.GroupL2Ball([0, 1, 0]), [6.0, 1.0, -8.0], [0.6, 0, -0.8]),
    (bx.GroupL2Ball([0, 1, 0], 10.0), [6.0, 5.0, -8.0], [4.5, 2.5, -6]),
    (bx.GroupL2Ball([0, 1, 0], 99.0), [6.0, 5.0, -8.0], [6, 5, -8]),
]


@pytest.mark.parametrize("domain, x, expected", PROJECTION, ids=lambda v: repr(v)[:60])
def test_projection_by_hand(domain, x, expected):
    np.testing.assert_allclose(domain.project(jnp.array(x)), expected, atol=1e-12)


DIAMETERS = [
    (bx.CappedSimplex(2.0), (5,), 2), (bx.CappedSimplex(2.0), (3,), np.sqrt(2)), (bx.CappedSimplex(3.0), (3,), 0),
    (bx.CappedSimplex(0.5), (3,), np.sqrt(0.5)), (bx.CappedSimplex(1.5, 3.0), (1,), 0),
    (bx.CappedSimplex(1.5), (3,), np.sqrt(2)), (bx.CappedSimplex(1.5, at_most=True), (4,), np.sqrt(2.5)),
    (bx.CappedSimplex(1.5, at_most=True), (3,), np.sqrt(2.25)), (bx.CappedSimplex(0.5, at_most=True), (1,), 0.5),
    (bx.CappedSimplex(2.5, at_least=True), (4,), np.sqrt(2.5)), (bx.CappedSimplex(0.0, 2.0, at_least=True), (4,), 4),
    (bx.KSparse(2, 3.0), (5,), 6 * np.sqrt(2)), (bx.KSparse(9, 3.0), (4,), 12),
    (bx.GroupL2Ball([0, 1], 3.0), (2,), 6), (bx.Birkhoff(), (1, 1), 0), (bx.Birkhoff(), (8, 8), 4),
]  # fmt: skip


@pytest.mark.parametrize("domain, shape, expected", DIAMETERS, ids=lambda v: repr(v)[:60])
def test_diameter_by_hand(domain, shape, expected):
    found = domain.diameter(jnp.zeros(shape))
    assert found.exact
    np.testing.assert_allclose(float(found.value), expected, rtol=1e-12)


def test_polytope_bounds_its_diameter_by_the_bounding_box():
    triangle = bx.Polytope([[3.0, 4.0]], [12.0], lower=0.0)
    value, exact = triangle.diameter(jnp.zeros(2))
    assert float(value) == pytest.approx(5.0) and not exact
    assert float(SEGMENT.diameter(jnp.zeros(2)).value) == pytest.approx(np.sqrt(2))


def test_vertices():
    np.testing.assert_array_equal(bx.Birkhoff().vertex(jnp.zeros((4, 4))), np.full((4, 4), 0.25))
    for domain, n in [(SEGMENT, 2), (bx.CappedSimplex(2.5, at_least=True), 4), (bx.GroupL2Ball([0, 0]), 2)]:
        assert domain.contains(domain.vertex(jnp.zeros(n)))


WORDS = [
    (bx.CappedSimplex(2.0), [3.0, -0.5], "its entries sum to 2.5, its smallest entry is -0.5, its largest entry is 3"),
    (bx.CappedSimplex(1.5), [0.5, 1.0], ""),
    (bx.CappedSimplex(1.5, at_most=True), [0.25, 1.0], ""),
    (bx.CappedSimplex(1.5, at_most=True), [1.0, 1.0], "its entries sum to 2"),
    (bx.CappedSimplex(1.5, at_least=True), [1.0, 1.0], ""),
    (bx.CappedSimplex(1.5, at_least=True), [0.25, 1.0], "its entries sum to 1.25"),
    (bx.CappedSimplex(1.0, 1e12), [1.0, 1e-4], "its entries sum to 1.0001"),
    (bx.KSparse(2), [1.5, 0.25, 0.5], "its largest magnitude is 1.5, its l1 norm is 2.25"),
    (bx.GroupL2Ball([0, 1, 0]), [3.0, -1.0, 4.0], "its group norms sum to 6"),
    (bx.Birkhoff(), [[1.5, -0.5], [0.0, 1.0]],
     "a column sums to 1.5, its smallest entry is -0.5"),
    (bx.Birkhoff(), [[1.0, 0.0], [1.0, 0.5]], "a row sums to 1.5, a column sums to 2"),
    (bx.Polytope([[3.0, 4.0]], [5.0], lower=0.0), [3.0, -1.0], "an entry is 1 below its lower bound"),
    (bx.Polytope([[3.0, 4.0]], [5.0], lower=0.0), [5.0, 0.0], "it lies 2 beyond an inequality"),
    (SEGMENT, [0.25, 0.25], "it lies 0.353553 off an equality"),
    (SQUARE, [1.25, NAN], "an entry is nan below its lower bound, an entry is nan above its upper bound"),
    (SQUARE, [1.25, 0.0], "an entry is 0.25 above its upper bound"),
]  # fmt: skip


@pytest.mark.parametrize("domain, x, words", WORDS, ids=lambda v: repr(v)[:60])
def test_violations_are_told_in_words(domain, x, words):
    assert domain.violations(jnp.array(x)) == words
    assert bool(domain.contains(jnp.array(x))) == (words == "")


NONE = "GroupL2Ball: groups is empty; give one label per entry of x."
COUNT = f"{SEGMENT!r}: x has 3 entries; give constraints on as many coordinates."
BOTH = "CappedSimplex: at_most and at_least exclude each other; leave both out for a fixed sum."
FULL = "CappedSimplex({}) is empty for {} entries: the largest possible total is {} * cap = {}; "
FULL += "take a smaller total or a larger cap."
PARTS = "Polytope: its parts have different numbers of coordinates: {}."
TOTAL = "CappedSimplex: total must be one finite number >= 0, got {}."
EMPTY = "Polytope is empty: no point satisfies all its constraints; relax one of them."
BOUND = "Polytope: a bound is NaN, or infinite on the wrong side; give lower < inf, upper > -inf."
UNKNOWN = "Polytope: the number of coordinates is unknown; give A, A_eq, or a bound as a vector."
SHAPES = "Polytope: A must be a matrix and b a vector with one number per row of A, got shapes {} and {}."
ENTRY = "Polytope: {} or {} has a NaN or infinite entry; leave that row out."
LABELS = "GroupL2Ball: groups must hold whole-number labels, got an array of {}."
FIT = "{!r}: groups has shapes {}, x has {}; give one label per entry, in the structure of x."
PAIR = bx.GroupL2Ball([0, 1])
MATRIX = "Birkhoff() needs a point that is one square matrix, got shapes {}; use bx.Product for one set per leaf."
OPEN = "Polytope is unbounded: coordinate {} can go to {}infinity; give it {} bound."
REFUSED = [
    *[(lambda bad=bad: bx.CappedSimplex(bad), TOTAL.format(bad)) for bad in (-1.0, NAN, INF, [1.0, 2.0])],
    (lambda: bx.CappedSimplex(1.0, 0.0), "CappedSimplex: cap must be one positive finite number, got 0.0."),
    (lambda: bx.CappedSimplex(1.0, at_most=True, at_least=True), BOTH),
    (lambda: bx.CappedSimplex(6.0).check_like(jnp.zeros(5)), FULL.format("total=6, cap=1", 5, 5, 5)),
    (
        lambda: bx.CappedSimplex(2.5, 0.5, at_least=True).check_like(jnp.zeros((2, 2))),
        FULL.format("total=2.5, cap=0.5, at_least=True", 4, 4, 2),
    ),
    *[(lambda k=k: bx.KSparse(k), f"KSparse: k must be a positive whole number, got {k}.") for k in (0, 2.0, True)],
    (lambda: bx.KSparse(2, -1), "KSparse: radius must be one positive finite number, got -1.0."),
    (lambda: bx.GroupL2Ball([0, 1], 0), "GroupL2Ball: radius must be one positive finite number, got 0.0."),
    (lambda: bx.GroupL2Ball(np.array([0.0, 1.0])), LABELS.format("float64")),
    (lambda: bx.GroupL2Ball([True, False]), LABELS.format("bool")),
    *[(lambda g=g: bx.GroupL2Ball(g), NONE) for g in ([], {})],
    (lambda: bx.GroupL2Ball([-1, 0]), "GroupL2Ball: a label is -1; number the groups 0, 1, 2, ..."),
    (lambda: bx.GroupL2Ball([0, 3, 1]), "GroupL2Ball: no entry has label 2, but labels go up to 3; leave no gaps."),
    (lambda: bx.GroupL2Ball([1, 1]), "GroupL2Ball: no entry has label 0, but labels go up to 1; leave no gaps."),
    (lambda: PAIR.check_like(jnp.zeros(3)), FIT.format(PAIR, "[(2,)]", "[(3,)]")),
    (lambda: PAIR.check_like({"a": jnp.zeros(2)}), FIT.format(PAIR, "[(2,)]", "[(2,)]")),
    (lambda: bx.Birkhoff().check_like(jnp.zeros((2, 3))), MATRIX.format("[(2, 3)]")),
    (lambda: bx.Birkhoff().check_like((jnp.zeros((2, 2)),) * 2), MATRIX.format("[(2, 2), (2, 2)]")),
    (lambda: bx.Polytope([[1.0]]), "Polytope: give A and b together, or neither."),
    (lambda: bx.Polytope(b_eq=[1.0]), "Polytope: give A_eq and b_eq together, or neither."),
    (lambda: bx.Polytope([1.0, 2.0], [1.0, 2.0]), SHAPES.format("(2,)", "(2,)")),
    (lambda: bx.Polytope([[1.0, 2.0]], [1.0, 2.0]), SHAPES.format("(1, 2)", "(2,)")),
    (lambda: bx.Polytope([[1.0, NAN]], [1.0]), ENTRY.format("A", "b")),
    (lambda: bx.Polytope(A_eq=[[1.0, 1.0]], b_eq=[INF]), ENTRY.format("A_eq", "b_eq")),
    (lambda: bx.Polytope(), UNKNOWN),
    (lambda: bx.Polytope(lower=0.0, upper=1.0), UNKNOWN),
    (lambda: bx.Polytope([[1.0, 1.0]], [1.0], lower=np.zeros(3)), PARTS.format("{'A': 2, 'lower': 3}")),
    (lambda: bx.Polytope(lower=np.zeros(2), upper=np.ones((2, 2))), PARTS.format("{'lower': 2, 'upper': 4}")),
    (lambda: bx.Polytope(lower=[NAN, 0.0], upper=1.0), BOUND),
    (lambda: bx.Polytope(lower=[INF, 0.0]), BOUND),
    (lambda: bx.Polytope(lower=[2.0, 0.0], upper=1.0), EMPTY),
    (lambda: bx.Polytope([[1.0, 1.0]], [-1.0], lower=0.0), EMPTY),
    (lambda: bx.Polytope(A_eq=[[1.0, 1.0], [2.0, 2.0]], b_eq=[1.0, 3.0], lower=0.0), EMPTY),
    (lambda: bx.Polytope([[0.0, 0.0]], [-1.0], lower=0.0, upper=1.0), EMPTY),
    (lambda: bx.Polytope([[1.0, 1.0]], [1.0]), OPEN.format(0, "-", "a lower")),
    (lambda: bx.Polytope(lower=[0.0, 0.0], upper=[1.0, INF]), OPEN.format(1, "+", "an upper")),
    (lambda: bx.Polytope(A_eq=[[1.0, -1.0]], b_eq=[0.0], lower=0.0), OPEN.format(0, "+", "an upper")),
    (lambda: SEGMENT.check_like(jnp.zeros(3)), COUNT),
]  # fmt: skip


@pytest.mark.parametrize("build, message", REFUSED)
def test_refusals(build, message):
    with raises(ValueError, message):
        build()


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_total_that_equals_all_caps_up_to_rounding_is_accepted(dtype):
    for n in range(1, 40):
        trees.cast(bx.CappedSimplex(sum([0.1] * n), 0.1), dtype).check_like(jnp.zeros(n))
    full = trees.cast(bx.CappedSimplex(sum([0.1] * 39), 0.1), dtype)
    np.testing.assert_allclose(full.project(jnp.arange(39, dtype=dtype)), 0.1, rtol=1e-6)


HOST = [(bx.Birkhoff(), (2, 2)), (SQUARE, (2,)), (bx.TransportPolytope([2.0, 1.0], [2.5, 0.5]), (2, 2))]


@pytest.mark.parametrize("domain, shape", HOST, ids=repr)
def test_host_sets_may_be_traced(domain, shape):
    assert domain.kernels is bx.Product((domain, bx.Simplex())).kernels is Kernels.CALLBACK
    x = jnp.ones(shape)
    np.testing.assert_array_equal(jax.jit(domain.project)(x), domain.project(x))


@pytest.mark.parametrize("domain, shape", HOST, ids=repr)
@pytest.mark.parametrize("bad", [NAN, INF])
def test_direction_that_is_not_finite_gives_nan_and_no_exception(domain, shape, bad):
    direction = jnp.ones(shape).at[0].set(bad)
    for ask in (domain.lmo, jax.jit(domain.lmo)):
        s, memory = ask(direction, domain.start(direction))
        assert s.shape == shape and np.all(np.isnan(s)) and np.isnan(memory.error)
        assert np.any(np.isnan(domain.project(direction)))


def test_failing_program_is_reported_with_its_status():
    answer = scipy.optimize.OptimizeResult(status=1, message="out of time")
    with mock.patch("scipy.optimize.linprog", return_value=answer):
        with raises(RuntimeError, "Polytope: the linear program failed with status 1: out of time"):
            SQUARE.lmo(jnp.ones(2), SQUARE.start(jnp.ones(2)))
        with pytest.raises(RuntimeError, match="failed with status 1: out of time"):
            jax.jit(SQUARE.lmo)(jnp.ones(2), SQUARE.start(jnp.ones(2)))


def test_failing_transport_program_is_reported_with_its_status():
    plans = bx.TransportPolytope([2.0, 1.0], [2.5, 0.5])
    answer = scipy.optimize.OptimizeResult(status=1, message="out of time")
    with mock.patch("scipy.optimize.linprog", return_value=answer):
        with raises(RuntimeError, "TransportPolytope: the linear program failed with status 1: out of time"):
            plans.lmo(jnp.ones((2, 2)), plans.start(jnp.ones((2, 2))))


def test_equal_polytopes_share_compiled_code():
    trace = mock.Mock()
    ask = jax.jit(lambda p, d: (p.lmo(d, p.start(d))[0], trace())[0])
    for matrix in ([[1.0, 1.0]], np.ones((1, 2)), scipy.sparse.csr_array(np.ones((1, 2)))):
        ask(bx.Polytope(matrix, [1.0], lower=0.0), jnp.ones(2))
    assert trace.call_count == 1
    ask(bx.Polytope([[1.0, 2.0]], [1.0], lower=0.0), jnp.ones(2))
    assert trace.call_count == 2
    assert bx.TransportPolytope([1, 2], [3]).margins == bx.TransportPolytope(np.array([1.0, 2.0]), [3.0]).margins
    assert bx.TransportPolytope([1, 2], [3]).margins != bx.TransportPolytope([2, 1], [3]).margins


def test_repr_shows_what_was_given():
    assert repr(bx.CappedSimplex(2.5)) == "CappedSimplex(total=2.5, cap=1)"
    assert repr(bx.CappedSimplex(2, 0.5, at_most=True)) == "CappedSimplex(total=2, cap=0.5, at_most=True)"
    assert repr(bx.KSparse(np.int64(3), 0.5)) == "KSparse(k=3, radius=0.5)"
    assert repr(bx.GroupL2Ball({"a": np.array([0, 1]), "b": np.array(2)})) == "GroupL2Ball(3 groups, radius=1)"
    assert repr(bx.Birkhoff()) == "Birkhoff()"
    assert repr(bx.Polytope([[1, 1]], [1], lower=0)) == "Polytope(2 coordinates, 1 inequalities, 0 equalities)"


def test_known_numbers_of_a_set_are_checked_inside_a_trace():
    """Projected methods ask for the shape of a projection; the set's own numbers are concrete arrays then."""
    for kind in (bx.KSparse, bx.SparseSimplex):
        domain = trees.cast(kind(2, 0.8), jnp.float64)
        assert jax.eval_shape(domain.project, jnp.ones(5)).shape == (5,)
    problem = bx.BilevelProblem(
        lambda x, y, _: jnp.sum((y - 1) ** 2), lambda x, y, _: jnp.sum((y - x) ** 2), bx.KSparse(2, 0.8)
    )
    assert bx.solve(problem, bx.AIDBiO(), jnp.zeros(5), jnp.zeros(5), steps=200, tol=1e-6).success
