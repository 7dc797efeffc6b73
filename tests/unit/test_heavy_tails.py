"""Rows far larger than the rest do no harm to methods on mini-batches that were given no step; y*(x) is numpy's."""

import sys
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from zoo import every_second

import bilevax as bx
from bilevax.schedules import Cut, Travelled
from bilevax.solvers.pieces.travel import start_noisy

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
try:
    import heavy_tails
finally:
    sys.path.pop(0)

SPACE = [
    name
    for name, method in heavy_tails.METHODS.items()
    if getattr(method, "oracle", None) != "lmo" and not getattr(method, "all_rows", False)
]
CHEAP = [("SOBA", "space"), ("SABA", "space"), ("AmIGO", "space"), ("BSA", "space"), ("AIDBiO", "box")]
CHEAP += [("StochasticIBCG", "box")]
"""A method of each kind: single loop, variance-reduced, inner loops, Neumann products, all rows, Frank-Wolfe."""


def is_safe(row):
    """Whether a run took all its steps, or converged, and y stayed near the lower solutions."""
    return row["status"] in ("MAX_STEPS", "CONVERGED") and row["largest |y|"] <= 10


@pytest.mark.parametrize(("name", "domain"), every_second(CHEAP, of=8))
def test_a_method_of_each_kind_is_safe(name, domain):
    for heavy in (16.0, 100.0):
        row = heavy_tails.measure(name, heavy, 2, "squares", domain, steps=min(1500, heavy_tails.steps_of(name)))
        assert is_safe(row), row


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["squares", "logistic"])
@pytest.mark.parametrize("batch", [2, 8, 64])
@pytest.mark.parametrize("domain", ["box", "space"])
@pytest.mark.parametrize("name", [name for name in heavy_tails.METHODS if name != "SampledIBCG"])
def test_every_method_is_safe(name, domain, batch, loss):
    if domain == "space" and name not in SPACE:
        pytest.skip("needs a bounded set, or no mini-batches")
    for heavy in (16.0, 100.0):
        row = heavy_tails.measure(name, heavy, batch, loss, domain)
        # Without bounds x may go where the ridge exp(x), and with it L_g, is far larger than at the start.
        assert is_safe(row) or (domain == "space" and "x has moved to where lower is" in row["message"]), row


@pytest.mark.parametrize(("every", "status"), [(1, "STALLED"), (1000, "NONFINITE")])
def test_where_x_is_the_cause_of_a_diverging_y_the_message_says_so(every, status):
    upper = lambda x, y, data: 0.1 * jnp.sum(y) - jnp.sum(x)  # noqa: E731
    lower = lambda x, y, data: 0.5 * jnp.sum(jnp.exp(x) * y**2) - jnp.sum(y)  # noqa: E731
    problem = bx.BilevelProblem(upper, lower, bx.WholeSpace())
    result = bx.solve(problem, bx.SOBA(xi=0.01, rho=0.5), jnp.zeros(2), jnp.zeros(2), steps=1000, every=every)
    assert result.status.name == status
    # y fails where exp(x) exceeds 2 / rho; the message is made some rows later
    words = result.message.split("x has moved to where lower ")[1]
    if every == 1:
        np.testing.assert_allclose(float(words.split()[1]), float(jnp.exp(result.x.max())), rtol=0.01)
    else:
        assert words.startswith("has a curvature that overflows") and jnp.isinf(jnp.exp(result.x.max()))


def used(directions, k):
    """The norms that count, of the first k directions: at most twice the root of the mean square of those before."""
    norms = []
    for d in directions[:k]:
        usual = np.sqrt(np.mean(np.square(norms))) if norms else np.inf
        norms.append(min(np.linalg.norm(d), 2 * usual))
    return np.array(norms)


DIRECTIONS = np.random.default_rng(0).standard_normal((40, 3)) + 1
DIRECTIONS[20] *= 1e6


def test_on_bounded_sets_a_step_is_the_distance_over_the_root_of_the_squares():
    """Against the same formula in numpy, with a direction a million times as large as the others among them."""
    x = start = np.array([1.0, -2.0, 0.5])
    first = 0.03
    travel = start_noisy(jnp.asarray(x), Travelled(first))
    farthest, grown = first, 0
    for k, d in enumerate(DIRECTIONS, 1):
        distance = np.linalg.norm(x - start)
        farthest, grown = (distance, k) if distance > 1.05 * farthest else (farthest, grown)
        norms = used(DIRECTIONS, k)
        late = grown / k if grown else 1
        expected = farthest * norms[-1] / np.linalg.norm(d) * np.sqrt(late * k / (k + 100) / np.sum(norms**2))
        travel = travel.look(jnp.asarray(x), jnp.asarray(d), jnp.asarray(np.nan))
        np.testing.assert_allclose(travel.length, expected, rtol=1e-12)
        x = x - float(travel.length) * d
    assert farthest > 3 * first


def test_on_unbounded_sets_large_directions_are_cut():
    usual = start_noisy(jnp.zeros(3), Cut(1.0, 0.5))
    for k, d in enumerate(DIRECTIONS, 1):
        usual = usual.look(jnp.zeros(3), jnp.asarray(d), jnp.asarray(0.7))
        expected = 0.7 * used(DIRECTIONS, k)[-1] / np.linalg.norm(d)
        np.testing.assert_allclose(usual.length, expected, rtol=1e-12)


def test_steps_that_were_given_are_taken_as_they_are():
    """Directions of very different lengths move x by the given step times their length."""
    problem, x, y = heavy_tails.heavy_rows.regression(100.0, 2, "squares", "space")
    solver = bx.SOBA(1e-9, 1e-5, constants=bx.Constants(1.0, 2.0)).prepare(problem, x, y, jax.random.key(0))
    state, _ = solver.init(problem, x, y)
    step, sizes = jax.jit(lambda state, key: solver.step(problem, state, key)), []
    for key in jax.random.split(jax.random.key(1), 60):
        following, info = step(state, key)
        np.testing.assert_allclose(following.x, state.x - 1e-9 * info.direction, rtol=1e-9, atol=1e-30)
        sizes.append(float(jnp.linalg.norm(info.direction)))
        state = following
    assert max(sizes) > 2 * np.sqrt(np.mean(np.square(sizes[:30])))  # one that a default would cut


@pytest.mark.parametrize(
    "name", ["AIDBiO", *(pytest.param(name, marks=pytest.mark.slow) for name in ("BA", "ABA", "ITDBiO", "RAHGD"))]
)
def test_methods_for_all_rows_ignore_a_sampler(name):
    problem, x, y = heavy_tails.heavy_rows.regression(16.0, 2, "squares", "box")
    ends = [
        bx.solve(p, getattr(bx, name)(), x, y, steps=5, every=5).x for p in (problem, replace(problem, sampler=None))
    ]
    np.testing.assert_array_equal(*ends)
