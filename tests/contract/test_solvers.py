"""What every solver promises, over the zoo: each exported solver on a few sets."""

from dataclasses import replace
from functools import cached_property

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import zoo

import bilevax as bx
from bilevax.problems import quadratic
from bilevax.randomness import at_step
from bilevax.runs import chunks

# Most of a test is compilation: the paper's own method meets every set, its rivals two, another method one, and a mode
# a vector. Methods for sampled problems meet rows, in blocks.
SETS = {
    **{name: ["rows" if name in zoo.ON_ROWS else "L2Ball"] for name in sorted(zoo.exported("solver"))},
    "IBCG": ["Simplex", "NuclearBall", "Product"],
    "SBFW": ["Simplex", "NuclearBall", "rows"],
    "TTSA": ["Simplex", "Product", "rows"],
    "SOBA": ["L2Ball", "NuclearBall"],
    "F2SA": ["L2Ball", "Product"],
    "BlockIBCG": ["NuclearBall"],
}
PAIRS = [(name, domain) for name in SETS for domain in SETS[name]]
MODES = [(name, SETS[name.split()[0]][0]) for name in zoo.SOLVERS if name not in SETS]


def over_cases(pairs, later=()):
    """The tests of one set after another: its small operations are compiled once. `later` ones are slow tests."""
    pairs = sorted([*pairs, *later], key=lambda pair: pair[1])
    marked = [pytest.param(pair, id="-".join(pair), marks=[pytest.mark.slow] * (pair in later)) for pair in pairs]
    return pytest.mark.parametrize("case", marked, indirect=True)


def one_of(n, pairs):
    """One of n pairs in the quick tests."""
    return over_cases(pairs[::n], later=[pair for i, pair in enumerate(pairs) if i % n])


over_a_part_of_the_zoo = one_of(3, PAIRS)
ONCE = [(name, SETS[name][0]) for name in SETS]
over_a_part_of_the_solvers = one_of(3, ONCE)
over_everything = one_of(4, PAIRS + MODES)
COMPILED = [name for name in SETS if name not in zoo.HOST]
ONE_OF_EACH_KIND = ["IBCG", "SOBA"]  # by lmo and by projection: what `solve` adds to `run` sees no more of a method
ESTIMATING = [("IBCG", "Simplex"), ("TTSA", "Simplex")]
KEY = jax.random.key(3)
CONSTANTS = bx.Constants(1.0, 10.0)


def told(name, constants=CONSTANTS):
    """A solver that has nothing to estimate."""
    solver = replace(zoo.SOLVERS[name], constants=constants)
    return zoo.with_step(solver, 0.05) if zoo.lacks_step(solver) else solver


def setting(name, domain):
    """A problem, a solver with its constants known, a start inside the set and one for y."""
    if domain == "rows":
        return zoo.finite_sum(8, blocks=True)[0], told(name), jnp.array([0.1, 0.2, 0.3, 0.4]), jnp.ones(4)
    problem = zoo.known_problem(domain).problem
    x0 = problem.domain.vertex(problem.x_like)
    return problem, told(name), jax.tree.map(jnp.asarray, x0), jnp.ones(6)


class Case:
    """A setting and 200 compiled steps from it, in which several tests look."""

    def __init__(self, name, domain):
        self.name, self.domain, self.on_host = name, domain, name in zoo.HOST
        self.setting = setting(name, domain)

    @cached_property
    def history(self):
        """Stacked over steps: the state that a step started from, and its info."""
        problem, solver, x0, y0 = self.setting
        options = {"steps": 200, "key": KEY, "collect": lambda state, info: (state, info)}
        run = jax.jit(lambda x, y: bx.run(problem, solver, x, y, **options)[1])
        return jax.tree.map(np.asarray, run(x0, y0))

    def at(self, k):
        """State and info of the step k."""
        return jax.tree.map(lambda v: v[k], self.history)


@pytest.fixture(scope="module")  # pytest then puts the tests of one case together, and they share its compiled code
def case(request):
    return Case(*request.param)


def first_state(problem, solver, x0, y0):
    solver = solver.prepare(problem, x0, y0, KEY)
    return solver, solver.init(problem, x0, y0)[0]


def close(a, b, tol):
    return all(np.allclose(u, v, rtol=tol, atol=tol) for u, v in zip(*map(jax.tree.leaves, (a, b)), strict=True))


def advance(problem, solver, state, count):
    """`count` steps, compiled or on the host."""
    stepping = chunks.place(problem, solver)
    return stepping.advance(stepping.problem, solver, state, KEY, np.int32(count)).state


def found_itself(name):
    """Whether a method finds its step by itself."""
    return zoo.STEP[type(zoo.SOLVERS[name]).__name__] is None


def same_kind(a, b):
    kinds = [[(v.shape, v.dtype) for v in jax.tree.leaves(tree)] for tree in (a, b)]
    return jax.tree.structure(a) == jax.tree.structure(b) and kinds[0] == kinds[1]


def test_nothing_exported_is_missing_from_the_zoo():
    assert zoo.exported("solver") == {type(solver).__name__ for solver in zoo.SOLVERS.values()} == set(zoo.STEP)
    assert zoo.exported("set") == set(zoo.SETS) | set(zoo.UNBOUNDED)


@over_a_part_of_the_solvers
def test_step_keeps_structure_and_dtype_and_jit_equals_eager(case):
    problem, solver, x0, y0 = case.setting
    solver, state = first_state(problem, solver, x0, y0)
    for k in range(2):
        following, info = solver.step(problem, state, at_step(KEY, state.k))
        assert same_kind((following.x, following.y, following.k), (state.x, state.y, state.k))
        assert same_kind(info.direction, x0) and info.gap.shape == () and info.gap.dtype == jnp.float64
        if not case.on_host:  # whose rank, and hence the shapes in its state, may change
            assert same_kind(following, state)
            # A method that is at the solution after one step decides on rounding in the next.
            assert found_itself(case.name) and k or close((case.at(k + 1)[0], case.at(k)[1]), (following, info), 1e-10)
        state = following


@pytest.mark.parametrize("name", sorted(zoo.HOST))
def test_solvers_on_the_host_refuse_compiled_runs_by_name(name):
    problem, solver, x0, y0 = setting(name, SETS[name][0])
    with pytest.raises(ValueError, match=f"run: {name} steps on the host and cannot be traced; use solve"):
        bx.run(problem, solver, x0, y0, steps=3)
    with pytest.raises(ValueError, match=f"run: {name} steps on the host"):
        jax.vmap(lambda x: bx.run(problem, solver, x, y0, steps=3)[0].x)(jnp.stack([x0, x0]))


@over_everything
def test_single_precision_stays_single(case):
    problem, solver, x0, y0 = case.setting
    solver = zoo.SOLVERS[case.name] if (case.name, case.domain) in ESTIMATING else solver
    cast = lambda tree: jax.tree.map(lambda v: jnp.asarray(v, jnp.float32), tree)  # noqa: E731
    domain = zoo.SETS[case.domain][0] if case.domain in zoo.SETS else problem.domain
    problem = replace(problem, data=cast(problem.data), domain=domain, x_like=None, y_like=None)
    result = bx.solve(problem, solver, cast(x0), cast(y0), steps=5, tol=1e-3)
    arrays = [v for v in jax.tree.leaves(result.state) if hasattr(v, "dtype")]
    kinds = {v.dtype for v in arrays if jnp.issubdtype(v.dtype, jnp.floating)}
    assert kinds == {np.dtype("float32")}
    assert bool(problem.domain.contains(result.x))


@over_everything
def test_iterates_stay_in_the_set(case):
    problem, solver, x0, y0 = case.setting
    if case.on_host:
        xs = []
        bx.solve(problem, solver, x0, y0, steps=200, every=10, observers=lambda row, state: xs.append(state.x))
    else:
        xs = [case.at(k)[0].x for k in [*range(0, 200, 10), 199]]
    assert len(xs) == 21
    for k, x in enumerate(xs):
        assert bool(problem.domain.contains(x)), (k, problem.domain.violations(x))


@over_a_part_of_the_zoo
def test_run_and_solve_agree_and_repeat(case):
    problem, solver, x0, y0 = case.setting
    first, second = (bx.solve(problem, solver, x0, y0, steps=30, every=e, key=KEY) for e in (30, 7))
    for a, b in zip(*(jax.tree.leaves((r.x, r.y)) for r in (first, second)), strict=True):
        assert np.array_equal(a, b)
    if not case.on_host:
        state, _ = case.at(30)
        assert close((state.x, state.y), (first.x, first.y), 1e-10)


@over_a_part_of_the_zoo
def test_stopped_written_and_continued_equals_uninterrupted(case, tmp_path):
    problem, solver, x0, y0 = case.setting
    solver, state = first_state(problem, solver, x0, y0)
    seven = advance(problem, solver, state, 7)
    eqx.tree_serialise_leaves(tmp_path / "state", seven)
    continued = advance(problem, solver, eqx.tree_deserialise_leaves(tmp_path / "state", seven), 6)
    assert all(map(np.array_equal, *map(jax.tree.leaves, (continued, advance(problem, solver, state, 13)))))


@pytest.mark.parametrize(
    "name, domain", [*zoo.every_second(((n, SETS[n][0]) for n in COMPILED), of=8), ("IBCG", "L2Ball")]
)
def test_vmap_equals_a_loop_of_single_runs(name, domain):
    problem, solver, x0, y0 = setting(name, domain)

    @jax.jit
    def end(length, key):
        changed = zoo.with_step(solver, length)
        state, norms = bx.run(problem, changed, x0, y0, steps=25, key=key, collect=lambda _, info: info.grad_norm)
        return state.x, state.y, norms

    lengths, keys = jnp.array([0.01, 0.1, 0.3]), jax.random.split(KEY, 3)
    together = jax.vmap(end)(lengths, keys)
    for i in range(3):
        assert close(jax.tree.map(lambda v, i=i: v[i], together), end(lengths[i], keys[i]), 1e-10)
    if not found_itself(name):
        assert not close(end(lengths[0], keys[0]), end(lengths[2], keys[0]), 1e-3)


@pytest.mark.parametrize("name", zoo.every_second(SETS, of=8))
def test_nested_points(name):
    """One tree of small arrays on each level gives what the same numbers in one vector give."""
    if zoo.SOLVERS[name].oracle == "low rank":
        return check_nested_lower_level(name)
    B = jax.random.normal(KEY, (4, 5))
    join = lambda x: jnp.concatenate([x["a"], x["b"][0].reshape(-1)])  # noqa: E731
    whole = bx.BilevelProblem(
        lambda x, y, B: 0.5 * jnp.sum((y - 1) ** 2),
        lambda x, y, B: jnp.sum((y - B @ x) ** 2),
        bx.L1Ball(2.0),
        B,
        bx.Blocks(4, 4) if name == "SABA" else None,  # which keeps a table over batches
    )
    nested = replace(
        whole,
        upper=lambda x, y, B: whole.upper(join(x), jnp.concatenate([y["u"], y["v"]]), B),
        lower=lambda x, y, B: whole.lower(join(x), jnp.concatenate([y["u"], y["v"]]), B),
    )
    x0 = {"a": jnp.zeros(3), "b": (jnp.zeros((2, 1)),)}
    solver = told(name, bx.Constants(2.0, 2.0))
    y0 = {"u": jnp.zeros(1), "v": jnp.zeros(3)}
    run = lambda problem, start: bx.run(problem, solver, *start, steps=40)[0]  # noqa: E731
    flat, tree = jax.jit(lambda a, b: (run(whole, a), run(nested, b)))((jnp.zeros(5), jnp.zeros(4)), (x0, y0))
    for end in (tree, bx.solve(nested, solver, x0, y0, steps=40)) if name in ONE_OF_EACH_KIND else (tree,):
        assert jax.tree.structure(end.x) == jax.tree.structure(x0)
        assert np.allclose(join(end.x), flat.x, atol=1e-12)
        assert np.allclose(jnp.concatenate([end.y["u"], end.y["v"]]), flat.y, atol=1e-12)


def check_nested_lower_level(name):
    """The same where x has to be one matrix."""
    plain, solver, x0, y0 = setting(name, "NuclearBall")
    join = lambda y: jnp.concatenate([y["u"], y["v"][0].reshape(-1)])  # noqa: E731
    nested = replace(
        plain,
        upper=lambda x, y, data: plain.upper(x, join(y), data),
        lower=lambda x, y, data: plain.lower(x, join(y), data),
        y_like=None,
    )
    flat = bx.solve(plain, solver, x0, y0, steps=20)
    tree = bx.solve(nested, solver, x0, {"u": y0[:2], "v": (y0[2:].reshape(2, 2),)}, steps=20)
    assert np.allclose(tree.x, flat.x, atol=1e-12) and np.allclose(join(tree.y), flat.y, atol=1e-12)


@pytest.mark.parametrize(
    "name, domain",
    zoo.every_second(
        [
            ("IBCG", "Simplex"),
            ("SBFW", "VertexHull"),
            ("TTSA", "Box"),
            *(("IBCG", d) for d in ("Box", "VertexHull", "NuclearBall")),
        ]
    ),
)
def test_other_numbers_compile_nothing_again(name, domain):
    problem, _, x0, y0 = setting(name, domain)
    fresh = lambda x, y, data: quadratic.upper(x, y, data)  # noqa: E731 - compiled for nobody yet
    problem = replace(problem, upper=fresh)
    larger = jax.tree.map(lambda v: 2 * v, problem.domain) if domain != "NuclearBall" else bx.NuclearBall(9.0)
    start = larger.vertex(problem.x_like)
    other = replace(zoo.known_problem(domain, seed=5).problem, upper=fresh)
    change = lambda length: zoo.with_step(zoo.SOLVERS[name], length)  # noqa: E731
    key = jax.random.key(9)
    jax.block_until_ready((start, other.data))
    calls = [
        lambda: bx.solve(problem, change(0.1), x0, y0, steps=40, tol=1e3),
        lambda: bx.solve(problem, change(0.2), x0, y0, steps=40, tol=2e3),
        lambda: bx.solve(replace(problem, domain=larger), change(0.1), start, y0, steps=40, tol=1e3),
        lambda: bx.solve(other, change(0.1), x0, y0, steps=40, tol=1e3),
        lambda: bx.solve(problem, change(0.1), x0, y0, steps=77, every=5, tol=1e-9, key=key),
    ]
    compiled, counts = [], []
    listen = lambda event, *_, **__: compiled.append(event) if "backend_compile" in event else None  # noqa: E731
    jax.monitoring.register_event_duration_secs_listener(listen)
    for call in calls:
        compiled.clear()
        call()
        counts.append(len(compiled))
    jax.monitoring.unregister_event_duration_listener(listen)
    assert counts[0] > 0 and counts[1:] == [0, 0, 0, 0]


@pytest.mark.parametrize("name", COMPILED)
def test_large_data_are_arguments_of_the_compiled_loop(name):
    x0 = jnp.full((5,), 0.2, float)
    lower = lambda x, y, data: jnp.sum((y - x) ** 2)  # noqa: E731
    upper = lambda x, y, data: jnp.sum(y) * jnp.mean(data)  # noqa: E731

    def largest_constant(problem):
        solver, state = first_state(problem, told(name), x0, x0)
        traced = jax.make_jaxpr(chunks.advance.__wrapped__)(problem, solver, state, KEY, np.int32(3))
        return max((np.size(c) for c in constants(traced)), default=0)

    def constants(traced):
        yield from traced.consts
        for part in inside(traced.jaxpr):
            yield from constants(part)

    def inside(jaxpr):
        for equation in jaxpr.eqns:
            for value in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda v: hasattr(v, "consts")):
                if hasattr(value, "consts"):
                    yield value

    large, sampler = jnp.ones(100_000), bx.Blocks(100_000, 100_000) if name == "SABA" else None
    assert largest_constant(bx.BilevelProblem(upper, lower, bx.Simplex(), large, sampler)) < 1000
    closed_over = bx.BilevelProblem(lambda x, y, _: upper(x, y, large), lower, bx.Simplex(), sampler=sampler)
    assert largest_constant(closed_over) == 100_000
