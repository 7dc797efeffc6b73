"""Calls with anything in place of arrays and numbers: refused in words, or answered with an honest status."""

import inspect
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse
import zoo
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import bilevax as bx
from bilevax.estimators import MatrixCompletion
from bilevax.runs.lock import Busy

DOCUMENTED = (ValueError, TypeError, NotImplementedError, Busy)
ALL_SETS = zoo.SETS | zoo.UNBOUNDED

SHAPES = [(), (0,), (1,), (4,), (5,), (24,), (3, 3), (4, 6), (5, 5), (2, 3), (0, 3), (2, 2, 2)]
KINDS = ["float64", "float64", "float64", "float32", "float16", "int64", "int8", "uint64", "bool", "complex128"]
KINDS += ["object", "U3"]
FILLS = ["zeros", "random", "random", "random", "nan", "inf", "-inf", "huge", "tiny", "one nan"]


def made(shape, kind, fill, wrap):
    """An array with this fault; `wrap` says in what it is wrapped."""
    rng = np.random.default_rng(len(shape))
    values = rng.uniform(-1, 1, shape)
    special = {"zeros": 0.0, "nan": np.nan, "inf": np.inf, "-inf": -np.inf, "huge": 1e300, "tiny": 1e-310}
    if fill == "one nan" and values.size:
        values.reshape(-1)[0] = np.nan
    elif fill in special:
        values = np.full(shape, special[fill])
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        array = values.astype(kind)
    return WRAPS[wrap](array)


WRAPS = {
    "numpy": lambda a: a,
    "jax": lambda a: a if a.dtype.kind in "OU" else jnp.asarray(a),
    "list": lambda a: [a],
    "tuple": lambda a: (a, a),
    "dict": lambda a: {"a": a, "b": (a, a)},
    "nothing": lambda a: None,
    "empty": lambda a: {},
    "number": lambda a: 1.5,
    "text": lambda a: "abc",
    "plain list": lambda a: a.tolist(),
    "with none": lambda a: [a, None],
}
FAULTS = st.sampled_from(SHAPES), st.sampled_from(KINDS), st.sampled_from(FILLS)
ARRAYS = st.builds(made, *FAULTS, st.sampled_from(["numpy"] * 6 + ["jax"] * 4 + list(WRAPS)))
TREES = st.builds(made, *FAULTS, st.sampled_from(["numpy", "jax", "jax", "list", "tuple", "dict"]))
"""What oracles take: trees of arrays. Other things than arrays are refused by `bx.solve`."""


def often(count):
    return settings(
        max_examples=count, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
    )


def documented(call):
    """What a call gives; None if it was refused as documented."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return call()
    except DOCUMENTED as error:
        assert str(error).strip(), "an error without words"
        return None


def honest(result):
    """A status, and never CONVERGED where x or y is not finite or x is not in the set."""
    assert isinstance(result.status, bx.Status)
    if result.status is bx.Status.CONVERGED:
        assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves((bx.trees.coordinates(result.x), result.y)))
        assert result.problem.domain.contains(result.x, 1e-5)


# ---- sets


def upper(x, y, data):
    return 0.5 * sum(jnp.sum((v - 1) ** 2) for v in jax.tree.leaves(y))


def lower(x, y, data):
    pull = sum(jnp.mean(v) for v in jax.tree.leaves(x))
    return 0.5 * sum(jnp.sum((v - pull) ** 2) for v in jax.tree.leaves(y))


class NeverReached(bx.IBCG):
    """Every refusal must come before the first step."""

    def prepare(self, problem, x, y, key):
        raise NotImplementedError("the run began")


@pytest.mark.parametrize("name", ALL_SETS)
def test_starts_that_are_anything(name):
    domain, like = ALL_SETS[name]
    problem = bx.BilevelProblem(upper, lower, domain)

    @often(12)
    @given(ARRAYS, st.one_of(st.just(jnp.zeros(3)), ARRAYS))
    def check(x0, y0):
        if jax.tree.structure(x0) == jax.tree.structure(like) and np.shape(x0) == np.shape(like):
            return  # a start that fits compiles the checks of the oracle, which is for the slow test
        words = refusal(lambda: bx.solve(problem, NeverReached(), x0, y0, steps=1))
        assert words is None or any(part in words for part in NAMED), words

    check()


NAMED = ["x0", "y0", "solve", "upper", "lower", "x_like", "y_like", "the run began", *(n for n in bx.__all__)]


def refusal(call):
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            call()
    except DOCUMENTED as error:
        return str(error)
    return None


ORACLES = {
    "lmo": lambda domain, x: domain.lmo(x, domain.start(x)),
    "project": lambda domain, x: domain.project(x),
    "contains": lambda domain, x: domain.contains(x),
    "violations": lambda domain, x: domain.violations(x),
    "diameter": lambda domain, x: domain.diameter(x),
    "vertex": lambda domain, x: domain.vertex(x),
    "check_like": lambda domain, x: domain.check_like(x),
}


def oracle_calls(name, count):
    domain, like = ALL_SETS[name]

    @often(count)
    @given(TREES, st.sampled_from(list(ORACLES)))
    def check(x, oracle):
        documented(lambda: ORACLES[oracle](domain, x))

    check()


@pytest.mark.parametrize("name", list(ALL_SETS)[::6])
def test_oracles_of_sets_given_anything(name):
    oracle_calls(name, 8)


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL_SETS)
def test_oracles_of_all_sets_given_anything(name):
    oracle_calls(name, 300)


NOT_FINITE = [np.nan, np.inf, -np.inf]


@pytest.mark.parametrize("name", ALL_SETS)
def test_a_point_that_is_not_finite_is_in_no_set(name):
    domain, like = ALL_SETS[name]
    for value in NOT_FINITE:
        x = jax.tree.map(lambda leaf: jnp.full(leaf.shape, value).at[..., 1:].set(0.1), like)  # noqa: B023
        assert documented(lambda: bool(domain.contains(x))) in (False, None), f"{name} contains {value}"  # noqa: B023


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL_SETS)
def test_short_runs_on_every_set_are_honest(name):
    domain, like = ALL_SETS[name]
    problem = bx.BilevelProblem(upper, lower, domain, x_like=like, y_like=jnp.zeros(2))

    @often(30)
    @given(ARRAYS)
    def check(x0):
        result = documented(lambda: bx.solve(problem, None, x0, None, steps=3, tol=1e-3))
        if result is not None:
            honest(result)

    check()


# ---- parameters of sets and solvers

WEIRD = [np.nan, np.inf, -1.0, 0.0, 0, True, None, "x", 1j, [], [1.0, 2.0], {}, (), 1e308, -(10**30), np.zeros(0)]
WEIRD += [np.array([1.0, np.nan]), np.array("a"), object(), jnp.ones((2, 2)), float, lambda k: 0.1, b"x", np.float16(1)]


@pytest.mark.parametrize("name", sorted(zoo.exported("set") | zoo.exported("solver")))
def test_classes_made_from_anything(name):
    kind = getattr(bx, name)
    taken = inspect.signature(kind).parameters.values()
    needed = [p.name for p in taken if p.default is inspect.Parameter.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
    for parameter in taken:
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            continue
        for weird in WEIRD:
            given = {other: weird for other in needed} | {parameter.name: weird}
            made = documented(lambda: kind(**given))  # noqa: B023
            assert made is None or repr(made)


# ---- solvers on functions that misbehave

MISBEHAVING = {
    "a NaN on the way": (lambda x, y, d: jnp.where(jnp.sum(x) > 0.5, jnp.nan, 1.0) * jnp.sum((y - 1) ** 2), None),
    "no lower bound": (lambda x, y, d: -1e12 * jnp.sum(y**3) - jnp.sum(x), None),
    "an infinite slope": (lambda x, y, d: jnp.sum(jnp.sqrt(jnp.abs(x - 0.1))) + jnp.sum(y**2), None),
    "a lower level that is not convex": (None, lambda x, y, d: -jnp.sum(y**2) + jnp.sum(x * y)),
    "a lower level that is flat": (None, lambda x, y, d: 0.0 * jnp.sum(y) + jnp.sum(x)),
    "huge numbers": (lambda x, y, d: 1e200 * jnp.sum((y - 1) ** 2), lambda x, y, d: 1e200 * jnp.sum((y - x) ** 2)),
    "tiny numbers": (lambda x, y, d: 1e-200 * jnp.sum((y - 1) ** 2), lambda x, y, d: 1e-200 * jnp.sum((y - x) ** 2)),
    "NaN in the data": (lambda x, y, d: jnp.sum((y - d) ** 2), None),
    "a NaN in a slope": (lambda x, y, d: jnp.sum(jnp.sqrt(y**2)) + jnp.sum(x), None),
}


def misbehaving(name, what):
    f, g = MISBEHAVING[what]
    good = lambda x, y, d: jnp.sum((y - 1) ** 2) + 0.0 * jnp.sum(d)  # noqa: E731
    smooth = lambda x, y, d: jnp.sum((y - x) ** 2)  # noqa: E731
    data = jnp.array([1.0, jnp.nan, 1.0]) if "data" in what else jnp.ones(3)
    problem = bx.BilevelProblem(f or good, g or smooth, bx.Box(0.0, 1.0), data)
    solver = zoo.SOLVERS[name]
    result = documented(lambda: bx.solve(problem, solver, jnp.full(3, 0.1), jnp.zeros(3), steps=40, tol=1e-3))
    if result is not None:
        honest(result)
        flat = "not convex" in what or "flat" in what or "data" in what
        assert not (flat and result.status is bx.Status.CONVERGED), f"{name}: CONVERGED on {what}"


@pytest.mark.parametrize("what", ["a NaN on the way", "NaN in the data"])
@pytest.mark.parametrize("name", ["IBCG", "ProjectedIBCG"])
def test_solvers_on_functions_that_misbehave(name, what):
    misbehaving(name, what)


@pytest.mark.slow
@pytest.mark.parametrize("what", MISBEHAVING)
@pytest.mark.parametrize("name", [name for name in zoo.SOLVERS if name != "BlockIBCG"])
def test_all_solvers_on_functions_that_misbehave(name, what):
    misbehaving(name, what)


# ---- options of solve

OPTIONS = ["steps", "tol", "stop", "time_limit", "key", "metrics", "observers", "every", "checkpoint", "progress"]


@pytest.mark.parametrize("option", OPTIONS)
def test_options_that_are_anything(option, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # some texts are names of folders
    problem = bx.BilevelProblem(upper, lower, bx.Box(-1.0, 1.0))
    for weird in WEIRD:
        if option == "checkpoint" and isinstance(weird, str) or callable(weird):
            continue
        documented(lambda: bx.solve(problem, NeverReached(), jnp.zeros(2), jnp.zeros(2), **{option: weird}))  # noqa: B023


# ---- matrix completion

ENTRIES = (np.array([0, 0, 1, 1, 2, 2, 3, 3]), np.array([0, 1, 1, 2, 0, 2, 0, 1]), np.arange(8.0) % 5)
HUGE_INDICES = [[0, 10**12], [0.0, 1e300], [0.0, np.inf], [0, 2**63 - 1], [0, -1], [True, False], ["a", "b"], [None, 0]]


def fitted(model):
    if model is not None:
        assert isinstance(model.status_, str) and np.all(np.isfinite(model.complete()))


@pytest.mark.parametrize("count", [8, pytest.param(400, marks=pytest.mark.slow)])
def test_completion_of_anything(count):
    @often(count)
    @given(ARRAYS, st.one_of(st.none(), ARRAYS))
    def check(X, y):
        fitted(documented(lambda: MatrixCompletion(effort="fast").fit(X, y)))

    check()


@pytest.mark.parametrize("count", [15, pytest.param(1000, marks=pytest.mark.slow)])
def test_completion_of_triples_of_anything(count):
    column = st.one_of(ARRAYS, st.sampled_from(HUGE_INDICES), st.sampled_from(ENTRIES))

    @often(count)
    @given(column, column, column)
    def check(rows, cols, values):
        fitted(documented(lambda: MatrixCompletion(effort="fast").fit((rows, cols, values))))

    check()


@pytest.mark.parametrize("rows", HUGE_INDICES)
def test_indices_that_are_no_indices_are_refused(rows):
    with pytest.raises(ValueError, match=r"MatrixCompletion: (rows|cols)"):
        MatrixCompletion(effort="fast").fit((rows, [0, 1], [1.0, 2.0]))
    with pytest.raises(ValueError, match=r"MatrixCompletion: (rows|cols)"):
        MatrixCompletion(effort="fast").fit(([0, 1], rows, [1.0, 2.0]))


def test_sparse_matrices_of_anything():
    for kind in ("float32", "bool", "complex128"):
        for shape in ((4, 3), (0, 3), (3, 0), (1, 1)):
            matrix = scipy.sparse.random_array(shape, density=0.9, rng=0, dtype="float64").astype(kind)
            fitted(documented(lambda: MatrixCompletion(effort="fast").fit(matrix.tocsr())))  # noqa: B023
    broken = scipy.sparse.csr_array(np.eye(4))
    broken.indices[0] = 10**6
    fitted(documented(lambda: MatrixCompletion(effort="fast").fit(broken)))


@pytest.mark.parametrize("fit", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", inspect.signature(MatrixCompletion).parameters)
def test_completion_with_parameters_that_are_anything(name, fit, tmp_path, monkeypatch):
    """All are refused, if at all, by the check before the fit."""
    monkeypatch.chdir(tmp_path)  # some texts are names of folders
    for weird in WEIRD:
        model = MatrixCompletion(**{"effort": "fast", name: weird})
        options = documented(lambda: (model._options(), np.dtype(model.dtype)))  # noqa: B023
        if fit and options is not None:
            documented(lambda: model.fit(ENTRIES))  # noqa: B023


def test_predictions_of_anything():
    model = MatrixCompletion(effort="fast").fit(ENTRIES)

    @often(60)
    @given(ARRAYS, ARRAYS, st.sampled_from(["predict", "complete", "fold_in", "score", "recommend"]))
    def check(a, b, method):
        arguments = (a,) if method == "complete" else (a, b)
        documented(lambda: getattr(model, method)(*arguments))

    check()
