"""What `solve` does by default depends neither on the units of the data nor, beyond rounding, on the precision."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from zoo import every_second

import bilevax as bx
from bilevax.problems import random_quadratic

pytestmark = pytest.mark.slow  # alike to quicker tests of the same claims
HULL = np.random.default_rng(0).standard_normal((20, 12))
SETS = {
    "Simplex": (bx.Simplex, jnp.zeros(12)),
    "Box": (lambda size: bx.Box(-size, size), jnp.zeros(12)),
    "NuclearBall": (bx.NuclearBall, jnp.zeros((4, 3))),
    "VertexHull": (lambda size: bx.VertexHull(size * HULL), jnp.zeros(12)),
}
UNITS = [(1.0, 1.0, 1.0), (1e6, 1.0, 1e-6), (1.0, 1e6, 1e6), (1e-6, 1e-6, 1.0), (1e-6, 1e6, 1e-6)]


@functools.cache
def plain(name):
    make, like = SETS[name]
    return random_quadratic(make(1.0), like, 10, jax.random.key(7), kappa=100.0, slope=0.3)


def upper(x, y, d):
    """The quadratic's, where f, x and y are measured in units of their own."""
    f, x_unit, y_unit = d["units"]
    return f * _problem(d).upper(x / x_unit, y / y_unit, d)


def lower(x, y, d):
    f, x_unit, y_unit = d["units"]
    return f * _problem(d).lower(x / x_unit, y / y_unit, d) + f * 0.1 * jnp.sum(jnp.log(jnp.cosh(y / y_unit)))


def _problem(d):
    return plain("NuclearBall" if d["q"].ndim == 2 else "Simplex").problem  # the formulas are those of any set


def solved(name, units, dtype=jnp.float64, share=1e-6):
    """The relative true gap after a solve from a vertex, audited in double precision."""
    for kind in ("NuclearBall", "Simplex"):  # before they are asked for while something is traced
        plain(kind)
    make, like = SETS[name]
    cast = lambda tree: jax.tree.map(lambda v: jnp.asarray(v, dtype), tree)  # noqa: E731
    data = cast({**plain(name).problem.data, "units": jnp.array(units)})
    problem = bx.BilevelProblem(upper, lower, make(units[1]), data)
    x0, y0 = cast(problem.domain.vertex(like)), jnp.zeros(10, dtype)
    first = bx.audit(problem, x0, y0).gap
    result = bx.solve(problem, x0=x0, y0=y0, steps=300, tol=share * float(first))
    assert bool(problem.domain.contains(result.x))
    return result, float(bx.audit(problem, result.x, result.y).gap / first)


@pytest.mark.parametrize("name", every_second(SETS, of=4))
def test_other_units_change_neither_the_verdict_nor_the_steps(name):
    usual, _ = solved(name, UNITS[0])
    for units in UNITS[1:]:
        result, gap = solved(name, units)
        assert result.success and gap <= 1.01e-6, (units, result.message)
        assert result.steps <= 2 * usual.steps + 3, (units, result.steps, usual.steps)


@pytest.mark.parametrize("name", every_second(reversed(SETS), of=4))
def test_in_single_precision_nothing_breaks_and_no_claim_is_false(name):
    for units in (UNITS[0], UNITS[2]):
        result, gap = solved(name, units, jnp.float32, 1e-3)
        assert gap <= 1e-2, units
        assert not result.success or gap <= 1.01e-3, units
