"""What a step of each method costs: the calls it makes, the calls it counts, and the cost table of the cards."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import zoo

import bilevax as bx
from bilevax.randomness import at_step
from bilevax.solvers import COUNTS
from bilevax.solvers.pieces import tracking
from bilevax.solvers.pieces.x_step import moves_both_ways

KEY = jax.random.key(3)
CONSTANTS = bx.Constants(1.0, 4.0, L_yy_f=1.0)
CALLS = dict.fromkeys(COUNTS, 0)


class Counting(bx.BilevelProblem):
    """Counts calls; where kernels live on the host, every call of an oracle is one of Python."""

    def upper_grads(self, x, y):
        CALLS["upper_grads"] += 2
        return super().upper_grads(x, y)

    def upper_value_and_grads(self, x, y):
        CALLS["upper_grads"] += 2
        return super().upper_value_and_grads(x, y)

    def lower_grad(self, x, y):
        CALLS["lower_grads"] += 1
        return super().lower_grad(x, y)

    def lower_grads(self, x, y):
        CALLS["lower_grads"] += 1
        return super().lower_grads(x, y)


def counted(name, function):
    def call(*args):
        CALLS[name] += 1
        return function(*args)

    return call


def counting_problem(on_rows):
    """The finite sum on a box, with formulas and oracles in numpy."""
    plain = zoo.finite_sum(8, blocks=True)[0]

    def hvp(x, y, w, data):
        A, w = np.asarray(data["A"]), np.asarray(w)
        return A.T @ (A @ w) / len(A) + w

    cross = counted("crosses", lambda x, y, w, data: -2 * np.asarray(w))
    structure = bx.LowerStructure(counted("hvps", hvp), cross, host=True)
    box = bx.UserSet(
        counted("lmos", lambda d: np.where(np.asarray(d) >= 0, -1.0, 1.0)),
        project=counted("projections", lambda x: np.clip(np.asarray(x), -1.0, 1.0)),
        host=True,
    )
    return Counting(plain.upper, plain.lower, box, plain.data, plain.sampler if on_rows else None, structure)


class CountingBall(bx.NuclearBall):
    """Counts low-rank steps as the projections they are."""

    def low_rank_step(self, *args, **options):
        CALLS["projections"] += 1
        return super().low_rank_step(*args, **options)


def as_matrix(problem):
    """The same problem with x as a matrix in a nuclear ball."""
    flat = lambda x: x.reshape(-1)  # noqa: E731
    cross = problem.structure.cross
    structure = replace(problem.structure, cross=lambda x, y, w, data: np.reshape(cross(flat(x), y, w, data), (2, 2)))
    return replace(
        problem,
        upper=lambda x, y, data: problem.upper(flat(x), y, data),
        lower=lambda x, y, data: problem.lower(flat(x), y, data),
        domain=CountingBall(2.0),
        structure=structure,
    )


ONE_GRADIENT = {"FSLA", "F2SA", "F3SA"}
"""Methods that use one of the two gradients of f per call: the other is never computed in compiled code."""
BOTH_WAYS = [
    (name, x_step)
    for name, (solver, _) in zoo.COSTS.items()
    for x_step in (("project", "fw") if moves_both_ways(solver) else (None,))
]


def test_the_table_has_every_exported_solver():
    assert {type(solver).__name__ for solver, _ in zoo.COSTS.values()} == zoo.exported("solver")


def prepared(name, x_step, problem, x, y):
    solver = replace(zoo.COSTS[name][0], constants=CONSTANTS)
    if x_step == "fw":
        solver = replace(solver, x_step="fw")
    return solver.prepare(problem, x, y, KEY)


@pytest.mark.parametrize(("name", "x_step"), zoo.every_second(BOTH_WAYS, of=8))
def test_a_step_makes_the_calls_it_counts_and_those_of_the_table(name, x_step, monkeypatch):
    # What kernels on the host cannot do, so that both do the same: an inverse of H, and the derivative of a projection.
    monkeypatch.setattr(tracking, "MOST_KEPT", 0)
    monkeypatch.setattr(bx.Box, "tells_faces", False)
    on_rows = name.split()[0] in zoo.ON_ROWS and name != "TTSA deterministic"
    problem, x, y = counting_problem(on_rows), jnp.zeros(4), jnp.ones(4)
    if zoo.COSTS[name][0].oracle == "low rank":
        problem, x = as_matrix(problem), jnp.zeros((2, 2))
    solver = prepared(name, x_step, problem, x, y)
    state, _ = solver.init(problem, x, y)
    for k in range(3):
        CALLS.update(dict.fromkeys(CALLS, 0))
        state, info = solver.step(problem, state, at_step(KEY, k))
    said = {n: int(getattr(info.counts, n)) for n in COUNTS}
    made = dict(CALLS)
    if name in ONE_GRADIENT:
        made["upper_grads"] //= 2
    if name != "ITDBiO":  # it differentiates through its lower steps: their products are nobody's calls
        assert said == made
    table = dict(zip(COUNTS, zoo.COSTS[name][1], strict=True))
    if x_step == "fw":
        table |= {"lmos": 1, "projections": 0}
    assert all(said[n] == cost for n, cost in table.items() if cost is not None)
    if name in zoo.HOST:
        return
    # Stepping on the host is the same method.
    plain = replace(zoo.finite_sum(8, blocks=True)[0], domain=bx.Box(-1.0, 1.0), sampler=problem.sampler)
    compiled, _ = bx.run(plain, solver, x, y, steps=3, key=KEY)
    np.testing.assert_allclose(state.x, compiled.x, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("name", "start"), [("SABA", 8), ("SRBA", 0), ("SOBA", 0), ("IBCG", 0), ("F3SA", 0)])
def test_the_start_costs_what_it_counts(name, start):
    """SABA fills its table; nobody else pays before the first step if the constants are given."""
    problem = counting_problem(True)
    x, y = jnp.zeros(4), jnp.ones(4)
    solver = prepared(name, None, problem, x, y)
    CALLS.update(dict.fromkeys(CALLS, 0))
    _, counts = solver.init(problem, x, y)
    said = {n: int(getattr(counts, n)) for n in COUNTS}
    assert said == CALLS
    assert tuple(said.values()) == (2 * start, start, start, start, 0, 0)


def test_a_full_direction_counts_every_batch():
    """SRBA's first step has all batches at once, and counts each of them."""
    problem = counting_problem(True)
    x, y = jnp.zeros(4), jnp.ones(4)
    solver = prepared("SRBA", None, problem, x, y)
    CALLS.update(dict.fromkeys(CALLS, 0))
    counts = solver.step(problem, solver.init(problem, x, y)[0], KEY)[1].counts
    assert [int(getattr(counts, n)) for n in COUNTS] == [16, 8, 8, 8, 0, 1]
    assert tuple(CALLS.values()) == (2, 1, 1, 1, 0, 1)
