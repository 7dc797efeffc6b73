"""Derivatives of a problem against closed forms, user formulas against autodiff."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from zoo import known_problem

import bilevax as bx


def nested_problem():
    """x and y are trees; the Hessian and the cross derivative of g are written down below."""

    def upper(x, y, data):
        return jnp.sum(y["u"] ** 3) + jnp.sum(x[0] * y["v"])

    def lower(x, y, data):
        coupling = jnp.sum(y["u"] * (data @ x[0])) + jnp.sum(y["v"] * x[1] ** 2)
        return jnp.sum(jnp.cosh(y["u"])) + 2.0 * jnp.sum(y["v"] ** 2) - coupling

    rng = np.random.default_rng(0)
    data = jnp.asarray(rng.standard_normal((2, 3)))
    x = (jnp.asarray(rng.standard_normal(3)), jnp.asarray(rng.standard_normal(3)))
    y = {"u": jnp.asarray(rng.standard_normal(2)), "v": jnp.asarray(rng.standard_normal(3))}
    return bx.BilevelProblem(upper, lower, bx.Box(-5.0, 5.0), data), x, y


def test_derivatives_of_nested_trees_match_closed_forms():
    problem, x, y = nested_problem()
    w = {"u": jnp.array([0.3, -0.2]), "v": jnp.array([1.0, 2.0, -1.0])}
    f_x, f_y = problem.upper_grads(x, y)
    np.testing.assert_allclose(f_x[0], y["v"], rtol=1e-14)
    np.testing.assert_allclose(f_x[1], 0)
    np.testing.assert_allclose(f_y["u"], 3 * y["u"] ** 2, rtol=1e-14)
    g_y = problem.lower_grad(x, y)
    np.testing.assert_allclose(g_y["u"], np.sinh(y["u"]) - problem.data @ x[0], rtol=1e-12)
    np.testing.assert_allclose(g_y["v"], 4 * y["v"] - x[1] ** 2, rtol=1e-12)
    products = problem.linearize_lower(x, y)
    for Hw in (products.hvp(w), problem.lower_hvp(x, y, w)):
        np.testing.assert_allclose(Hw["u"], np.cosh(y["u"]) * w["u"], rtol=1e-12)
        np.testing.assert_allclose(Hw["v"], 4 * w["v"], rtol=1e-12)
    for Jw in (products.cross(w), problem.lower_cross(x, y, w)):
        np.testing.assert_allclose(Jw[0], -problem.data.T @ w["u"], rtol=1e-12)
        np.testing.assert_allclose(Jw[1], -2 * x[1] * w["v"], rtol=1e-12)


def test_hessian_product_is_symmetric_and_cross_is_adjoint_to_the_x_derivative():
    problem, x, y = nested_problem()
    keys = jax.random.split(jax.random.key(1), 3)
    a, b = bx.trees.random_like(y, keys[0]), bx.trees.random_like(y, keys[1])
    products = problem.linearize_lower(x, y)
    np.testing.assert_allclose(
        bx.trees.inner(a, products.hvp(b)), bx.trees.inner(b, products.hvp(a)), rtol=1e-12
    )  # fmt: skip
    d = bx.trees.random_like(x, keys[2])
    _, moved = jax.jvp(lambda x: problem.lower_grad(x, y), (x,), (d,))
    np.testing.assert_allclose(bx.trees.inner(moved, a), bx.trees.inner(d, products.cross(a)), rtol=1e-12)


def test_both_products_share_one_linearisation():
    calls = []

    def lower(x, y, data):
        calls.append(1)
        return jnp.sum((y - x) ** 4) + jnp.sum(y**2)

    problem = bx.BilevelProblem(lambda x, y, _: jnp.sum(y), lower, bx.Simplex())
    x, y = jnp.ones(3) / 3, jnp.zeros(3)
    products = problem.linearize_lower(x, y)
    products.hvp(y), products.cross(y), products.hvp(x)
    assert len(calls) == 1


GOOD = bx.LowerStructure(
    hvp=lambda x, y, w, data: data["A"] @ w,
    cross=lambda x, y, w, data: -(data["B"].T @ w),
    hessian_diagonal=lambda x, y, data: jnp.diag(data["A"]),
    solve_lower=lambda x, y, data: jnp.linalg.solve(data["A"], data["B"] @ x + data["b"]),
    solve_adjoint=lambda x, y, b, data: jnp.linalg.solve(data["A"], b),
)


def test_right_formulas_pass_and_wrong_ones_are_named():
    known = known_problem("Simplex")
    x, y = jnp.full(5, 0.4), jnp.ones(6)
    errors = bx.check_derivatives(replace(known.problem, structure=GOOD), x, y, jax.random.key(0))
    assert set(errors) == {"hvp", "cross", "hessian_diagonal", "solve_lower", "solve_adjoint"}
    assert max(errors.values()) < 1e-12
    for name in errors:
        formula = getattr(GOOD, name)
        wrong = replace(GOOD, **{name: lambda *args, formula=formula: 1.01 * formula(*args)})
        found = bx.check_derivatives(replace(known.problem, structure=wrong), x, y, jax.random.key(0))
        assert found[name] > 1e-3
        assert all(error < 1e-12 for other, error in found.items() if other != name)


def test_formulas_replace_autodiff():
    known = known_problem("Simplex")
    marked = bx.LowerStructure(hvp=lambda x, y, w, data: 7 * w)
    problem = replace(known.problem, structure=marked)
    products = problem.linearize_lower(jnp.full(5, 0.4), jnp.ones(6))
    np.testing.assert_allclose(products.hvp(jnp.ones(6)), 7)
    np.testing.assert_allclose(products.cross(jnp.ones(6)), -known.problem.data["B"].T @ np.ones(6), rtol=1e-12)


def test_a_problem_is_a_pytree_of_arrays_only():
    problem = known_problem("Product").problem
    assert all(eqx.is_array(leaf) for leaf in jax.tree.leaves(problem))
    assert jax.jit(lambda p: p.upper_value(p.domain.vertex(p.x_like), p.y_like.zeros()))(problem).shape == ()


def test_large_data_are_arguments_of_compiled_code():
    problem = bx.BilevelProblem(
        lambda x, y, data: jnp.mean((y - data) ** 2), lambda x, y, data: jnp.mean((y - x) ** 2), bx.L2Ball(),
        jnp.ones(100_000),
    )  # fmt: skip
    traced = jax.make_jaxpr(lambda p, x, y: p.upper_grads(x, y))(problem, jnp.zeros(100_000), jnp.zeros(100_000))
    assert sum(np.size(c) for c in traced.consts) < 100


@pytest.mark.parametrize("name", ["upper", "lower"])
def test_an_objective_must_be_a_hashable_function(name):
    functions = {"upper": lambda x, y, d: 0.0, "lower": lambda x, y, d: 0.0}
    with pytest.raises(TypeError, match=f"{name} must be a function"):
        bx.BilevelProblem(**{**functions, name: 3}, domain=bx.Simplex())

    class Holder(eqx.Module):
        array: jax.Array

        def __call__(self, x, y, data):
            return jnp.sum(y)

    with pytest.raises(TypeError, match="put the arrays in data"):
        bx.BilevelProblem(**{**functions, name: Holder(jnp.ones(3))}, domain=bx.Simplex())
