"""Mini-batches first, then all rows: answers by dense linear algebra and scipy, rows of very different sizes."""

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

import bilevax as bx
from bilevax.runs.chunks import advance, cast_numbers
from bilevax.solvers.pieces.batch_rounds import lower_start

ROWS, FEATURES = 1024, 6
LONG = bx.SampledIBCG(passes=2000.0)
"""These rows are so few that by default mini-batches are left at once."""


def _loss(y, part):
    return 0.5 * jnp.mean((part["A"] @ y - part["b"]) ** 2)


def _logistic(y, part):
    return jnp.mean(jax.nn.softplus(-jnp.sign(part["b"]) * (part["A"] @ y)))


def _upper(x, y, data):
    return _loss(y, data["valid"])


def _lower(x, y, data):
    return _loss(y, data["train"]) + 0.5 * jnp.sum(jnp.exp(x) * y**2)


def _logistic_upper(x, y, data):
    return _logistic(y, data["valid"])


def _logistic_lower(x, y, data):
    return _logistic(y, data["train"]) + 0.5 * jnp.sum(jnp.exp(x) * y**2)


@cache
def regression(heavy=1.0, batch=32, logistic=False, seed=0):
    """A ridge weight for each feature; one row in twenty is `heavy` times as large as the others."""
    rng = np.random.default_rng(seed)
    truth, data = rng.standard_normal(FEATURES), {}
    for name in ("train", "valid"):
        scale = np.where(rng.random(ROWS) < 0.05, heavy, 1.0)
        A = rng.standard_normal((ROWS, FEATURES)) * scale[:, None]
        data[name] = {"A": A, "b": A @ truth + 2 * scale * rng.standard_normal(ROWS)}
    functions = (_logistic_upper, _logistic_lower) if logistic else (_upper, _lower)
    sampler = bx.PerPart({name: bx.Minibatch(batch, ROWS) for name in data})
    return bx.BilevelProblem(*functions, bx.Box(-5.0, 3.0), jax.tree.map(jnp.asarray, data), sampler)


def ell(problem):
    """x -> f(x, y*(x)) for the squared loss, in numpy."""
    train, valid = ({k: np.asarray(v) for k, v in problem.data[name].items()} for name in ("train", "valid"))
    H, b = train["A"].T @ train["A"] / ROWS, train["A"].T @ train["b"] / ROWS

    def value(x):
        y = np.linalg.solve(H + np.diag(np.exp(x)), b)
        return 0.5 * np.mean((valid["A"] @ y - valid["b"]) ** 2)

    return value


@pytest.mark.slow
def test_it_ends_at_the_optimum_of_all_rows():
    problem = regression()
    result = bx.solve(problem, LONG, jnp.zeros(FEATURES), jnp.zeros(FEATURES), steps=260, tol=1e-8)
    assert result.status.name == "CONVERGED"
    value = ell(problem)
    best = scipy.optimize.minimize(value, np.zeros(FEATURES), bounds=[(-5, 3)] * FEATURES, options={"ftol": 1e-15})
    assert value(np.asarray(result.x)) <= best.fun + 1e-8


@pytest.mark.parametrize(
    "method",
    [
        pytest.param(bx.PairwiseIBCG(), marks=pytest.mark.slow, id="pairwise"),
        pytest.param(bx.AdaptiveIBCG(), marks=pytest.mark.slow, id="adaptive"),
    ],
)
def test_with_an_lmo_only_it_ends_at_the_optimum_of_all_rows(method):
    corners = 2.0 * jnp.concatenate([jnp.eye(FEATURES), -jnp.eye(FEATURES)])
    problem = replace(regression(), domain=bx.VertexHull(corners))
    start = jnp.zeros(FEATURES)
    result = bx.solve(problem, replace(LONG, method=method), start, start, steps=500, tol=1e-4, every=1)
    assert result.status.name == "CONVERGED"
    value, weights = ell(problem), np.full(2 * FEATURES, 1 / (2 * FEATURES))
    best = scipy.optimize.minimize(
        lambda v: value(v @ np.asarray(corners)),
        weights,
        bounds=[(0, 1)] * weights.size,
        constraints={"type": "eq", "fun": lambda v: v.sum() - 1},
        options={"ftol": 1e-14, "maxiter": 500},
    )
    assert value(np.asarray(result.x)) <= best.fun + 1e-4
    lmos = result.trace["lmos"]
    assert lmos[1] == 1 and result.trace["projections"][-1] == 0  # one for 64 mini-batches


@pytest.mark.slow
@pytest.mark.parametrize("domain", ["matrices", "hull"])
def test_mini_batches_alone_get_most_of_the_way_with_one_move_for_all_of_them(domain):
    problem, shape = regression(), (2, FEATURES // 2)
    of_matrix = lambda function: lambda x, y, data: function(x.reshape(-1), y, data)  # noqa: E731
    upper, lower = of_matrix(_upper), of_matrix(_lower)
    x, method = jnp.zeros(shape), bx.ProjectedIBCG()
    matrices = bx.NuclearBall(4.0)
    if domain == "hull":
        corners = 4.0 * jnp.concatenate([jnp.eye(FEATURES), -jnp.eye(FEATURES)]).reshape(-1, *shape)
        matrices, method = bx.VertexHull(corners), bx.PairwiseIBCG()
    problem = replace(problem, upper=upper, lower=lower, domain=matrices)
    reference = bx.solve(replace(problem, sampler=None), method, x, jnp.zeros(FEATURES), tol=1e-6)
    result = bx.solve(problem, replace(LONG, method=method), x, jnp.zeros(FEATURES), steps=60)
    value = ell(problem)
    start, least, end = (value(np.asarray(point).reshape(-1)) for point in (x, reference.x, result.x))
    assert reference.status.name == "CONVERGED" and start > least
    assert end - least <= 0.2 * (start - least)


def test_mini_batches_alone_get_most_of_the_way():
    problem = regression()
    states = []
    bx.solve(
        problem, LONG, jnp.zeros(FEATURES), jnp.zeros(FEATURES), steps=60, every=1,
        observers=lambda row, state: states.append(state),
    )  # fmt: skip
    sampled = [state for state in states if state.sampling]
    assert 6 < len(sampled) < len(states)
    value = ell(problem)
    first, last, end = (value(np.asarray(state.x)) for state in (states[0], sampled[-1], states[-1]))
    assert last - end < 0.3 * (first - end)


@pytest.mark.slow
@pytest.mark.parametrize(
    "logistic", [pytest.param(False, marks=pytest.mark.slow, id="squares"), pytest.param(True, id="logistic")]
)
@pytest.mark.parametrize("batch", [2, *(pytest.param(size, marks=pytest.mark.slow) for size in (8, 64))])
@pytest.mark.parametrize("heavy", [pytest.param(16.0, marks=pytest.mark.slow), 100.0])
def test_rows_far_larger_than_the_rest_do_no_harm(heavy, batch, logistic):
    problem = regression(heavy, batch, logistic)
    largest = []

    def watch(row, state):
        largest.append(float(jnp.linalg.norm(state.y)))

    result = bx.solve(
        problem, LONG, jnp.zeros(FEATURES), jnp.zeros(FEATURES), steps=60, every=1, observers=watch, tol=1e-7
    )
    assert result.status.name in ("CONVERGED", "MAX_STEPS")
    truth = bx.exact_hypergradient(replace(problem, sampler=None), result.x, result.y)
    start = bx.exact_hypergradient(replace(problem, sampler=None), jnp.zeros(FEATURES), result.y)
    assert truth.ell <= start.ell + 1e-9
    assert max(largest) <= 10 * max(jnp.linalg.norm(truth.y), jnp.linalg.norm(start.y))


@pytest.mark.slow
def test_an_upper_level_with_a_huge_constant_is_solved_as_well():
    """The first step is made for an f that can fall to zero; here it is a million times too long."""
    problem = regression()
    shifted = replace(problem, upper=_far_above_zero)
    result = bx.solve(shifted, LONG, jnp.zeros(FEATURES), jnp.zeros(FEATURES), steps=100)
    value = ell(problem)
    plain = bx.solve(problem, bx.ProjectedIBCG(), jnp.zeros(FEATURES), jnp.zeros(FEATURES), steps=100)
    assert value(np.asarray(result.x)) <= value(np.asarray(plain.x)) + 1e-6


def _far_above_zero(x, y, data):
    return 1e6 + _upper(x, y, data)


def test_a_sampled_gap_is_never_taken_for_convergence():
    """With a tolerance that every noisy gap passes, the run still goes on to all rows."""
    problem = regression()
    result = bx.solve(problem, LONG, jnp.zeros(FEATURES), jnp.zeros(FEATURES), steps=100, tol=50.0)
    assert result.status.name == "CONVERGED"
    assert not result.state.sampling


def test_another_method_for_all_rows_is_refused_by_name():
    with pytest.raises(
        TypeError, match="SampledIBCG: method must be a bx.ProjectedIBCG, bx.PairwiseIBCG or bx.AdaptiveIBCG, got IBCG"
    ):
        bx.SampledIBCG(bx.IBCG())


def test_cutting_a_run_changes_no_bit():
    problem, key = regression(), jax.random.key(3)
    problem, solver = cast_numbers(problem, LONG, jnp.float64)
    start, _ = solver.init(problem, jnp.zeros(FEATURES), jnp.zeros(FEATURES))
    steps = lambda state, count: advance(problem, solver, state, key, jnp.asarray(count, jnp.int32)).state  # noqa: E731
    whole, cut = steps(start, 25), steps(steps(steps(start, 3), 14), 8)
    assert all(jax.tree.leaves(jax.tree.map(lambda a, b: bool(jnp.array_equal(a, b)), whole, cut)))
    assert not jnp.array_equal(steps(start, 3).x, advance(problem, solver, start, jax.random.key(4), 3).state.x)


@pytest.mark.slow
def test_a_step_that_overflows_is_undone():
    """Without a bound on x, the first step, a million times too long, makes exp(x) infinite."""
    problem = replace(regression(), upper=_far_above_zero, domain=bx.WholeSpace())
    result = bx.solve(problem, LONG, jnp.zeros(FEATURES), jnp.zeros(FEATURES), steps=20)
    assert result.status.name == "MAX_STEPS"
    value = ell(problem)
    assert value(np.asarray(result.x)) <= value(np.zeros(FEATURES)) + 1e-6


@pytest.mark.slow
def test_a_start_far_away_does_not_lead_x_astray():
    """While y comes back from 1,000, f falls whatever x does."""
    problem = regression(heavy=100.0, batch=2)
    far = jnp.full(FEATURES, 1e3)
    result = bx.solve(problem, LONG, jnp.zeros(FEATURES), far, steps=60)
    value = ell(problem)
    assert value(np.asarray(result.x)) <= value(np.zeros(FEATURES)) + 1e-9


def test_few_rows_or_few_lower_variables_are_left_to_methods_on_all_rows():
    """Decided by sizes: the arrays here take no memory."""

    def chosen(rows, m):
        part = {"A": np.broadcast_to(np.float32(0), (rows, 784)), "b": np.broadcast_to(np.float32(0), (rows,))}
        data = {"train": part, "valid": part}
        sampler = bx.PerPart({name: bx.Minibatch(64, rows) for name in data})
        problem = bx.BilevelProblem(_upper, _lower, bx.Box(-5.0, 3.0), data, sampler)
        return type(bx.auto(problem, np.zeros(m, np.float32), np.zeros(m, np.float32))).__name__

    assert chosen(20_000, 7840) == "SampledIBCG"
    assert chosen(2_000, 7840) == "ProjectedIBCG"
    assert chosen(20_000, 100) == "ProjectedIBCG"
    assert chosen(2_000_000, 100) == "SampledIBCG"


def test_x_waits_until_y_has_caught_up():
    """From 1,000 the upper loss is still 1,000 times as large as at the end after two steps of 64 batches."""
    states = []
    bx.solve(
        regression(heavy=16.0), LONG, jnp.zeros(FEATURES), jnp.full(FEATURES, 1e3), steps=30, every=1,
        observers=lambda row, state: states.append(state),
    )  # fmt: skip
    moved = [bool(jnp.any(state.x != 0)) for state in states]
    settling = [bool(state.rounds.settling) for state in states]
    assert settling[2] and not any(moved[:4])
    assert not settling[-1] and moved[-1]


def test_the_first_x_is_tried_again_only_if_y_was_far_off():
    problem, worse, first = replace(regression(), sampler=None), jnp.full(FEATURES, 3.0), jnp.zeros(FEATURES)
    begin = lambda x, y: bx.ProjectedIBCG().init(problem, x, y, jnp.zeros(FEATURES))  # noqa: E731
    solved = begin(worse, jnp.zeros(FEATURES))[0]
    assert ell(problem)(np.asarray(worse)) > ell(problem)(np.asarray(first))
    for y, kept in ((solved.y + 1e3, first), (solved.y, worse)):
        state, _ = lower_start(lambda x, y=y: begin(x, y), worse, first, y, solved)
        np.testing.assert_array_equal(state.x, kept)
