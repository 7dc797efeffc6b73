"""Arithmetic on points by hand-computed values, for arrays, nested arrays and a point of its own kind."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bilevax import trees

X = {"w": jnp.array([1.0, 2.0]), "b": (jnp.array(3.0), jnp.array([[4.0], [0.0]]))}
Y = {"w": jnp.array([5.0, -1.0]), "b": (jnp.array(2.0), jnp.array([[0.5], [7.0]]))}


def same(tree, expected):
    """Compare structure, shapes and values."""
    assert jax.tree.structure(tree) == jax.tree.structure(expected)
    for found, wanted in zip(jax.tree.leaves(tree), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-15)
        assert jnp.shape(found) == np.shape(wanted)


class Scaled(trees.Point):
    """A vector kept as a length and a unit vector."""

    length: jax.Array
    unit: jax.Array

    @property
    def dense(self):
        return self.length * self.unit

    def move(self, target, gamma):
        vector = self.dense + gamma * (dense(target) - self.dense)
        size = jnp.linalg.norm(vector)
        return Scaled(size, vector / size)

    coordinates = dense


def dense(value):
    return value.dense if isinstance(value, Scaled) else value


def scaled(*values):
    size = np.linalg.norm(values)
    return Scaled(jnp.asarray(size), jnp.asarray(np.array(values) / size))


def test_move_goes_the_given_part_of_the_way():
    same(trees.move(X, Y, jnp.array(0.5)), {"w": np.array([3.0, 0.5]), "b": (2.5, np.array([[2.25], [3.5]]))})
    same(trees.move(X, Y, jnp.array(0.0)), X)
    same(trees.move(X, Y, jnp.array(1.0)), Y)


def test_sums_and_multiples():
    same(trees.axpy(2.0, X, Y), {"w": np.array([7.0, 3.0]), "b": (8.0, np.array([[8.5], [7.0]]))})
    same(trees.add(X, Y), {"w": np.array([6.0, 1.0]), "b": (5.0, np.array([[4.5], [7.0]]))})
    same(trees.sub(X, Y), {"w": np.array([-4.0, 3.0]), "b": (1.0, np.array([[3.5], [-7.0]]))})
    same(trees.scale(-2.0, X), {"w": np.array([-2.0, -4.0]), "b": (-6.0, np.array([[-8.0], [0.0]]))})
    same(trees.zeros_like(X), {"w": np.zeros(2), "b": (0.0, np.zeros((2, 1)))})


def test_inner_norm_and_gap():
    # 1*5 - 2*1 + 3*2 + 4*0.5 + 0*7
    np.testing.assert_allclose(trees.inner(X, Y), 11.0, rtol=1e-15)
    np.testing.assert_allclose(trees.norm(X), np.sqrt(1 + 4 + 9 + 16), rtol=1e-15)
    direction = {"w": jnp.array([1.0, 1.0]), "b": (jnp.array(-1.0), jnp.array([[2.0], [0.0]]))}
    # (1 - 5) + (2 + 1) - (3 - 2) + 2 (4 - 0.5)
    np.testing.assert_allclose(trees.gap(direction, X, Y), 5.0, rtol=1e-15)
    assert trees.norm(jnp.zeros(3)) == 0
    np.testing.assert_allclose(trees.inner(jnp.array(3.0), jnp.array(-2.0)), -6.0)


def test_gap_subtracts_before_it_multiplies():
    # The products are 1e16 + 1 and 1e16: only the difference of the points tells them apart.
    x, s = jnp.array([1e8, 1.0]), jnp.array([1e8, 0.0])
    np.testing.assert_array_equal(trees.gap(jnp.array([1e8, 1.0]), x, s), 1.0)


def test_arithmetic_compiles_and_differentiates():
    np.testing.assert_allclose(jax.jit(trees.inner)(X, Y), 11.0)
    same(jax.grad(lambda x: trees.inner(x, Y))(X), Y)
    same(jax.jit(trees.move)(X, Y, jnp.array(1.0)), Y)


def test_cast_changes_floating_point_leaves_only():
    tree = {"x": jnp.array([1.5]), "n": jnp.array([3]), "flag": jnp.array(True), "number": 0.25, "count": 7}
    narrow = trees.cast(tree, jnp.float32)
    assert narrow["x"].dtype == narrow["number"].dtype == jnp.float32
    assert narrow["n"].dtype == tree["n"].dtype and narrow["flag"].dtype == bool and narrow["count"] == 7
    assert float(narrow["x"][0]) == 1.5 and float(narrow["number"]) == 0.25
    assert trees.cast(narrow, jnp.float64)["x"].dtype == jnp.float64


def test_shapes_round_trip_and_are_hashable():
    shapes = trees.shapes(X)
    same(shapes.zeros(), {"w": np.zeros(2), "b": (0.0, np.zeros((2, 1)))})
    assert trees.shapes(shapes) is shapes and trees.shapes(shapes.zeros()) == shapes
    assert hash(shapes) == hash(trees.shapes(Y)) and shapes == trees.shapes(Y)
    assert shapes != trees.shapes(trees.cast(X, jnp.float32))
    assert shapes != trees.shapes({"w": X["w"], "c": X["b"]})
    assert trees.shapes(jax.eval_shape(lambda: X)) == shapes
    assert [s.dtype for s in trees.shapes({"a": jnp.zeros(2, jnp.int32)}).leaves] == [jnp.int32]
    assert trees.shapes({"a": jnp.zeros(2, jnp.int32)}).zeros()["a"].dtype == jnp.int32


def test_size_and_dtype():
    assert trees.size(X) == 5 and trees.size(jnp.zeros((3, 0))) == 0 and trees.size(jnp.array(1.0)) == 1
    assert trees.size(trees.shapes(X)) == 5
    assert trees.dtype(X) == np.float64 and trees.dtype(trees.cast(X, jnp.float32)) == np.float32
    assert trees.dtype(trees.shapes(X)) == np.float64


def test_names_spell_the_way_to_each_leaf():
    named = trees.named_leaves({"weights": [jnp.array(1.0), jnp.array(2.0)], "b": jnp.array(3.0)}, "x0")
    assert [(name, float(leaf)) for name, leaf in named] == [
        ("x0['b']", 3.0), ("x0['weights'][0]", 1.0), ("x0['weights'][1]", 2.0),
    ]  # fmt: skip
    assert trees.named_leaves(jnp.zeros(2), "y0")[0][0] == "y0"


@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf, -jnp.inf])
def test_all_finite_sees_one_bad_entry(bad):
    assert trees.all_finite(X)
    assert not trees.all_finite({"w": X["w"], "b": (X["b"][0], X["b"][1].at[1, 0].set(bad))})
    assert not jax.jit(trees.all_finite)(jnp.array([1.0, bad], jnp.float32))


def test_all_finite_ignores_whole_numbers_and_accepts_nothing():
    assert trees.all_finite({"n": jnp.array([1, 2]), "flag": jnp.array(True)})
    assert trees.all_finite({})


def test_random_like_draws_independent_normal_entries(key):
    like = {"a": jnp.zeros((200, 50)), "b": [jnp.zeros((200, 50)), jnp.zeros(3, jnp.float32)]}
    draw = trees.random_like(like, key)
    assert trees.shapes(draw) == trees.shapes(like)
    a, b = np.ravel(draw["a"]), np.ravel(draw["b"][0])
    # Ten thousand draws: the mean has deviation 0.01, the variance 0.014, the correlation 0.01.
    assert abs(a.mean()) < 0.05 and abs(a.var() - 1) < 0.07 and abs(np.corrcoef(a, b)[0, 1]) < 0.05
    same(trees.random_like(like, key), draw)
    assert not np.allclose(trees.random_like(like, jax.random.key(1))["a"], draw["a"])
    assert trees.random_like({}, key) == {}


def test_point_of_its_own_kind_moves_itself():
    moved = trees.move({"p": scaled(3.0, 4.0)}, {"p": jnp.array([1.0, 0.0])}, jnp.array(0.5))["p"]
    assert isinstance(moved, Scaled)
    np.testing.assert_allclose(moved.dense, [2.0, 2.0], rtol=1e-15)
    np.testing.assert_allclose(moved.length, np.sqrt(8), rtol=1e-15)
    again = trees.move(moved, scaled(0.0, 6.0), jnp.array(0.25))
    np.testing.assert_allclose(again.dense, [1.5, 3.0], rtol=1e-15)
    np.testing.assert_allclose(jax.jit(trees.move)(moved, scaled(0.0, 6.0), jnp.array(0.25)).dense, [1.5, 3.0])


def test_point_of_its_own_kind_multiplies_itself():
    p, gradient = scaled(3.0, 4.0), jnp.array([2.0, -1.0])
    for x, y in ((p, gradient), (gradient, p), (p, scaled(2.0, -1.0))):
        np.testing.assert_allclose(trees.inner({"p": x}, {"p": y}), 2.0, rtol=1e-15)
    np.testing.assert_allclose(trees.norm(p), 5.0, rtol=1e-15)
    # <(2, -1), (3, 4) - (1, 5)>, the vertex once as an array and once as a point
    for vertex in (jnp.array([1.0, 5.0]), scaled(1.0, 5.0)):
        np.testing.assert_allclose(trees.gap(gradient, p, vertex), 5.0, rtol=1e-14)


def test_point_beside_arrays_in_one_tree():
    x = {"p": scaled(3.0, 4.0), "v": jnp.array([1.0])}
    y = {"p": jnp.array([1.0, 1.0]), "v": jnp.array([10.0])}
    np.testing.assert_allclose(trees.inner(x, y), 17.0, rtol=1e-15)
    moved = trees.move(x, y, jnp.array(1.0))
    np.testing.assert_allclose(moved["p"].dense, [1.0, 1.0], rtol=1e-15)
    np.testing.assert_allclose(moved["v"], [10.0])
