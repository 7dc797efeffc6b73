"""What a step of each method costs: the calls it makes, the calls it counts, and the cost table of the cards."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import zoo

import bilevax as bx
from bilevax.solvers import COUNTS

KEY = jax.random.key(3)
CONSTANTS = bx.Constants(1.0, 4.0, L_yy_f=1.0)
T, N, BUDGET = 4, 2, 6  # lower and adjoint steps; 4 log(k+2) at k = 2, rounded up, is the budget of Neumann series
CALLS = dict.fromkeys(COUNTS, 0)


class Counting(bx.BilevelProblem):
    """Counts calls; where kernels live on the host, every call of an oracle is one of Python."""

    def upper_grads(self, x, y):
        CALLS["upper_grads"] += 2
        return super().upper_grads(x, y)

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


# Gradients of f and g, Hessian and cross products, lmos, projections of the step k = 2; None: as long as it takes.
# Three rows differ from the cards: FSLA needs one f_y and two f_x, not four gradients; STORM doubles F3SA's; and
# conjugate gradients take one product more than steps, for the first residual.
TABLE = {
    "IBCG": (bx.IBCG(warmup=0), (2, 1, 1, 1, 1, 0)),
    "SBFW": (bx.SBFW(), (4, 1, None, 2, 1, 0)),
    "SBFW printed": (bx.SBFW("printed"), (4, 1, None, 2, 1, 0)),
    "SBFW tracked": (bx.SBFW("tracked"), (4, 1, 2, 2, 1, 0)),
    "SBFW exact": (bx.SBFW("exact"), (4, 1, None, 2, 1, 0)),
    "TTSA": (bx.TTSA(0.1), (2, 1, None, 1, 0, 1)),
    "TTSA deterministic": (bx.TTSA(0.1, deterministic=True), (2, 1, BUDGET, 1, 0, 1)),
    "BA": (bx.BA(0.1), (2, 1, None, 1, 0, 1)),
    "BA convex": (bx.BA(0.1, convex=True), (2, 1, None, 1, 0, 1)),
    "ABA": (bx.ABA(0.1), (2, 5, None, 1, 0, 2)),
    "BSA": (bx.BSA(0.1), (2, 2, None, 1, 0, 1)),
    "PBGD": (bx.PBGD(0.1, sigma=5.0, lower=T), (2, T + 2, 0, 0, 0, 1)),
    "PBGD gradient": (bx.PBGD(0.1, sigma=5.0, penalty="gradient"), (2, 1, 1, 1, 0, 1)),
    "AIDBiO": (bx.AIDBiO(0.1, lower=T, adjoint=N), (2, T, N + 1, 1, 0, 1)),
    "ITDBiO": (bx.ITDBiO(0.1, lower=T), (2, T, T, T, 0, 1)),
    "StocBiO": (bx.StocBiO(0.1, lower=T, factors=6), (2, T, 6, 1, 0, 1)),
    "AmIGO": (bx.AmIGO(0.1, lower=T, adjoint=N), (2, T, N, 1, 0, 1)),
    "AmIGO cg": (bx.AmIGO(0.1, lower=T, adjoint=N, solver="cg"), (2, T, N + 1, 1, 0, 1)),
    "RAHGD": (bx.RAHGD(0.1, lower=T, adjoint=N), (2, T, N + 1, 1, 0, 1)),
    "SUSTAIN": (bx.SUSTAIN(0.1, 0.1), (4, 2, None, 2, 0, 1)),
    "FSLA": (bx.FSLA(0.1), (3, 1, 1, 2, 0, 1)),
    "SOBA": (bx.SOBA(0.1), (2, 1, 1, 1, 0, 1)),
    "SABA": (bx.SABA(0.1), (2, 1, 1, 1, 0, 1)),
    "MASOBA": (bx.MASOBA(0.1), (2, 1, 1, 1, 0, 1)),
    "SRBA": (bx.SRBA(0.1), (4, 2, 2, 2, 0, 1)),
    "F2SA": (bx.F2SA(0.1, lower=T), (T + 1, 2 * T + 2, 0, 0, 0, 1)),
    "F3SA": (bx.F3SA(0.1), (4, 8, 0, 0, 0, 1)),
    "StochasticIBCG": (bx.StochasticIBCG(), (4, 2, 2, 2, 1, 0)),
    "BlockIBCG": (bx.BlockIBCG(lower_steps=T), (4, 2 * T, 2 * T + 2, 2, 0, 1)),
}
ONE_GRADIENT = {"FSLA", "F2SA", "F3SA"}
"""Methods that use one of the two gradients of f per call: the other is never computed in compiled code."""
BOTH_WAYS = [
    (name, x_step)
    for name, (solver, _) in TABLE.items()
    for x_step in (("project", "fw") if hasattr(solver, "x_step") else (None,))
]


def test_the_table_has_every_exported_solver():
    assert {type(solver).__name__ for solver, _ in TABLE.values()} == zoo.exported("solver")


def prepared(name, x_step, problem, x, y):
    solver = replace(TABLE[name][0], constants=CONSTANTS)
    if x_step == "fw":
        solver = replace(solver, x_step="fw")
    return solver.prepare(problem, x, y, KEY)


@pytest.mark.parametrize(("name", "x_step"), BOTH_WAYS)
def test_a_step_makes_the_calls_it_counts_and_those_of_the_table(name, x_step):
    on_rows = name.split()[0] in zoo.ON_ROWS and name != "TTSA deterministic"
    problem, x, y = counting_problem(on_rows), jnp.zeros(4), jnp.ones(4)
    if TABLE[name][0].oracle == "low rank":
        problem, x = as_matrix(problem), jnp.zeros((2, 2))
    solver = prepared(name, x_step, problem, x, y)
    state, _ = solver.init(problem, x, y)
    for k in range(3):
        CALLS.update(dict.fromkeys(CALLS, 0))
        state, info = solver.step(problem, state, jax.random.fold_in(KEY, k))
    said = {n: int(getattr(info.counts, n)) for n in COUNTS}
    made = dict(CALLS)
    if name in ONE_GRADIENT:
        made["upper_grads"] //= 2
    if name != "ITDBiO":  # it differentiates through its lower steps: their products are nobody's calls
        assert said == made
    table = dict(zip(COUNTS, TABLE[name][1], strict=True))
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
