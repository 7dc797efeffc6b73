"""Bad input is refused before the first step, in words that name the object, what was received and what to do."""

import re
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bilevax as bx

X0, Y0 = jnp.ones(3) / 3, jnp.zeros(3)


class NeverReached(eqx.Module):
    """A solver that fails as soon as the loop begins: whatever is refused with it was refused in time."""

    oracle: ClassVar[str] = "lmo"

    def prepare(self, problem, x, y, key):
        raise AssertionError("the run began")

    init = step = prepare


def upper(x, y, data):
    return 0.5 * jnp.sum((y - 0.3) ** 2)


def lower(x, y, data):
    return 0.5 * jnp.sum((y - x) ** 2)


def problem(upper=upper, lower=lower, domain=None, **options):
    return bx.BilevelProblem(upper, lower, bx.Simplex() if domain is None else domain, **options)


def refuse(kind, words, given, x0=X0, y0=Y0, solver=None, **options):
    with pytest.raises(kind, match=words):
        bx.solve(given, NeverReached() if solver is None else solver, x0, y0, **options)


def test_the_solver_of_these_tests_is_reached_by_good_input():
    refuse(AssertionError, "the run began", problem())


@pytest.mark.parametrize(
    "domain, x0, words",
    [
        (
            bx.Simplex(),
            [0.5, 0.5, 0.3],
            r"x0 is not in Simplex\(radius=1\): .*sum to 1\.3\. Start from .*project\(x0\)",
        ),
        (bx.Simplex(), [1.2, -0.2, 0.0], r"Simplex.*smallest entry is -0\.2\. Start from domain\.project"),
        (bx.UnitSimplex(0.5), [0.5, 0.5, 0.0], r"UnitSimplex\(radius=0\.5\): .*sum to 1\."),
        (bx.L2Ball(), [3.0, 4.0, 0.0], r"L2Ball\(radius=1\): .*l2 norm is 5\."),
        (bx.Box(0.0, 1.0), [1.5, 0.0, 0.0], r"Box\(0, 1\): .*0\.5 above its upper bound\."),
        (
            bx.VertexHull(np.eye(3)),
            [0.5, 0.5, 0.3],
            r"VertexHull\(3 points\): it is 0\.1 away .*Start from domain\.vertex",
        ),
        (bx.NuclearBall(), [[2.0, 0.0], [0.0, 1.0]], r"NuclearBall\(radius=1\): its nuclear norm is 3\."),
        (bx.Spectraplex(), [[1.0, 0.0], [0.0, 2.0]], r"Spectraplex\(trace=1, eps=0\): its trace is 3\."),
    ],
)
def test_a_start_outside_the_set_names_set_measurement_and_remedy(domain, x0, words):
    x0 = jnp.array(x0)
    refuse(ValueError, words, problem(domain=domain), x0, jnp.zeros_like(x0))


def test_a_start_outside_a_set_of_the_user_or_a_product():
    cube = bx.UserSet(lambda d: -jnp.sign(d), contains=lambda x: jnp.all(jnp.abs(x) <= 1))
    refuse(ValueError, r"UserSet\(.*membership test says no.*domain\.vertex", problem(domain=cube), jnp.full((3,), 2.0))
    both = problem(lambda x, y, _: jnp.sum(y), lambda x, y, _: jnp.sum(y**2), bx.Product((bx.Simplex(), bx.L2Ball())))
    refuse(ValueError, r"Product\(.*L2Ball\(radius=1\): its l2 norm is 2", both, (X0, jnp.array([2.0])))


@pytest.mark.parametrize(
    "cast, kind, words",
    [
        (lambda v: jnp.zeros(v.shape, int), TypeError, r"{name} has dtype int64.*floating point.*astype\(float\)"),
        (lambda v: jnp.zeros(v.shape, bool), TypeError, r"{name} has dtype bool.*floating point"),
        (lambda v: v.astype(complex), TypeError, r"{name} is complex \(complex128\).*real and imaginary"),
        (lambda v: v.astype("float16"), TypeError, r"{name} has dtype float16.*float32 and float64"),
        (lambda v: v.at[1].set(np.nan), ValueError, r"{name} holds a NaN or infinite entry"),
        (lambda v: v.at[1].set(np.inf), ValueError, r"{name} holds a NaN or infinite entry"),
        (lambda v: [1, 0, 0], TypeError, r"{name}\[0\] has type int.*jnp\.asarray"),
        (lambda v: {}, ValueError, r"{name} holds no arrays"),
    ],
)
def test_both_starts_must_be_finite_real_floats(cast, kind, words):
    refuse(kind, words.format(name="x0"), problem(), cast(X0), Y0)
    refuse(kind, words.format(name="y0"), problem(), X0, cast(Y0))


def test_the_offending_leaf_is_named_and_precisions_are_not_mixed():
    refuse(TypeError, r"x0\['a'\]\[1\] has dtype int64", problem(), {"a": (X0, jnp.arange(3))})
    refuse(TypeError, r"share one precision, got x0 float64, y0 float32; cast", problem(), X0, Y0.astype("float32"))


def test_one_precision_within_a_start():
    refuse(TypeError, r"share one precision, .*x0\['b'\] float32", problem(), {"a": X0, "b": X0.astype("float32")})


def test_float64_without_64_bit_is_refused_not_truncated():
    single = np.full(3, 1 / 3, np.float32)
    words = r"{} is float64 but JAX runs in 32 bits.*jax_enable_x64.*float32"
    with jax.enable_x64(False):
        refuse(TypeError, words.format("x0"), problem(), np.full(3, 1 / 3), single)
        refuse(TypeError, words.format("y0"), problem(), single, np.zeros(3))
        refuse(TypeError, words.format(r"data\['c'\]"), problem(data={"c": np.zeros(3)}), single, single)
        refuse(TypeError, r"data holds integers beyond 32 bits", problem(data=np.array([2**40])), single, single)


def test_no_start_and_no_shapes():
    refuse(ValueError, r"no x0 and no x_like: give a start, or BilevelProblem\(\.\.\., x_like=\)", problem(), None)
    refuse(ValueError, r"no y0 and no y_like", problem(), X0, None)


@pytest.mark.parametrize("name", ["x_like", "y_like"])
def test_shapes_of_integers_are_refused_by_name(name):
    refuse(TypeError, name, problem(**{"x_like": X0, "y_like": Y0, name: jnp.zeros(3, int)}), None, None)


def test_start_must_match_the_shapes_promised():
    refuse(ValueError, r"x0 does not match x_like.*\(3,\).*expected.*\(4,\)", problem(x_like=jnp.zeros(4)))
    refuse(ValueError, r"x0 does not match x_like.*expected.*'a'", problem(x_like={"a": X0}))
    refuse(ValueError, r"y0 does not match y_like", problem(y_like=jnp.zeros((3, 1))))


def test_shapes_that_do_not_fit_the_functions():
    refuse(
        TypeError, r"lower\(x, y, data\) failed on x of shapes float64\[3\] and y .*\[4\]", problem(), y0=jnp.zeros(4)
    )
    refuse(TypeError, r"upper\(x, y, data\) failed.*3 were given", problem(upper=lambda x, y: jnp.sum(y)))


@pytest.mark.parametrize("name", ["upper", "lower"])
@pytest.mark.parametrize(
    "function, kind, words",
    [
        (lambda x, y, _: y, ValueError, r"must return one scalar, got shapes \[\(3,\)\].*jnp\.sum"),
        (lambda x, y, _: (jnp.sum(x), jnp.sum(y)), ValueError, r"must return one scalar"),
        (lambda x, y, _: jnp.argmax(y), TypeError, r"must return a real float, got int64"),
        (lambda x, y, _: jnp.sum(y.astype(complex)), TypeError, r"must return a real float, got complex128"),
        (lambda x, y, _: jnp.sum(jnp.log(y)), ValueError, r"is -inf; both objectives must be finite"),
        (lambda x, y, _: np.sum(np.asarray(x)), TypeError, r"outside JAX.*numpy.*Write it with jax\.numpy"),
        (lambda x, y, _: np.dot(x, y), TypeError, r"outside JAX.*numpy"),
        (lambda x, y, _: jnp.sum(y if x[0] > 0 else x), TypeError, r"outside JAX.*Python `if`.*jnp\.where"),
        (lambda x, y, _: float(x[0]) * jnp.sum(y), TypeError, r"outside JAX.*`float`"),
    ],
)
def test_objectives_must_be_finite_scalars_written_in_jax(name, function, kind, words):
    refuse(kind, rf"^{name}\(.*{words}", problem(**{name: function}))


def test_functions_must_be_callable_and_hashable():
    class Unhashable:
        __hash__ = None

        def __call__(self, x, y, data):
            return jnp.sum(y)

    with pytest.raises(TypeError, match=r"Unhashable.* cannot be hashed.*arrays in data"):
        problem(upper=Unhashable())
    with pytest.raises(TypeError, match=r"lower must be .*of \(x, y, data\), got 3"):
        problem(lower=3)
    with pytest.raises(TypeError, match=r"structure must be a bx\.LowerStructure"):
        problem(structure={"hvp": lower})


@pytest.mark.parametrize("convert", [np.asarray, jnp.asarray])
def test_large_closed_over_arrays_are_pointed_to_data(convert):
    weights = convert(np.ones(200_000))
    given = problem(lower=lambda x, y, _: jnp.mean(weights) * jnp.sum((y - x) ** 2))
    with pytest.warns(UserWarning, match=r"lower closes over 2 MB of arrays.*pass them in data"):
        bx.solve(given, bx.IBCG(), X0, Y0, steps=1)
    as_data = problem(lower=lambda x, y, w: jnp.mean(w) * jnp.sum((y - x) ** 2), data=weights)
    bx.solve(as_data, bx.IBCG(), X0, Y0, steps=1)  # silent: here a warning would be an error


@pytest.mark.parametrize("kind", [bx.Simplex, bx.UnitSimplex, bx.L1Ball, bx.L2Ball, bx.LInfBall, bx.NuclearBall])
@pytest.mark.parametrize("radius", [-1.0, 0.0, np.nan, np.inf])
def test_radius_must_be_positive(kind, radius):
    with pytest.raises(ValueError, match=rf"{kind.__name__}: radius must be one positive finite number, got {radius}"):
        kind(radius)


def test_empty_sets_and_bad_numbers():
    for build, words in [
        (lambda: bx.IBCG(w0="foo"), r"IBCG: w0 must be 'zero' or 'y0' \(as printed\), got 'foo'"),
        (lambda: bx.IBCG(warmup=-1), r"IBCG: warmup must be a whole number of inner steps >= 0, got -1"),
        (lambda: bx.Constants(2.0, 1.0), r"Constants: need 0 < mu_g <= L_g, got mu_g=2, L_g=1"),
        (lambda: bx.Box(1.0, 0.5), r"Box is empty: lower exceeds upper by up to 0\.5"),
        (lambda: bx.Box(np.nan, 1.0), r"Box: a bound is NaN"),
        (lambda: bx.VertexHull(np.zeros((0, 3))), r"VertexHull is empty"),
        (lambda: bx.Product({}), r"Product: give at least one set"),
        (lambda: bx.Spectraplex(1.0, -0.1), r"Spectraplex: eps must be one number >= 0, got -0\.1"),
    ]:
        with pytest.raises(ValueError, match=words):
            build()
    words = r"Spectraplex\(trace=1, eps=0\.5\) is empty for 3 x 3 matrices.*eps at most 0\.333"
    refuse(ValueError, words, problem(domain=bx.Spectraplex(1.0, 0.5)), jnp.eye(3), jnp.eye(3))


def test_a_set_that_does_not_fit_the_point():
    refuse(ValueError, r"NuclearBall.*needs a point that is one matrix, got shapes", problem(domain=bx.NuclearBall()))
    refuse(ValueError, r"Box: its bounds do not fit the point", problem(domain=bx.Box(np.zeros(4), np.ones(4))))
    refuse(ValueError, r"VertexHull.*x has \[\(3,\)\]", problem(domain=bx.VertexHull(np.eye(4))))
    tree = problem(domain=bx.Product({"a": bx.Simplex()}))
    refuse(ValueError, r"Product\(.*does not match the structure of x", tree)


@pytest.mark.parametrize("domain", [None, 3, "simplex"])
def test_what_is_no_set(domain):
    with pytest.raises(TypeError, match=rf"domain must be a bilevax set.*got {domain!r}"):
        bx.BilevelProblem(upper, lower, domain)


def test_a_set_class_that_was_not_called():
    with pytest.raises(TypeError, match=r"write Simplex\(\.\.\.\) to build one"):
        problem(domain=bx.Simplex)


@pytest.mark.parametrize("domain", [bx.WholeSpace(), bx.Box(0.0, np.inf), bx.UserSet(jnp.sign, diameter=np.inf)])
def test_ibcg_refuses_unbounded_sets_by_name(domain):
    words = rf"IBCG moves by linear minimization and {re.escape(repr(domain))} is unbounded; bound it"
    refuse(ValueError, words, problem(domain=domain), solver=bx.IBCG())


def test_oracle_that_answers_in_another_shape():
    words = r"the lmo of UserSet\(.*\) returned float64\[2\] for a direction of float64\[3\]; it must match x"
    refuse(ValueError, words, problem(domain=bx.UserSet(lambda d: d[:2])))
    refuse(ValueError, words, problem(domain=bx.UserSet(lambda d: np.asarray(d)[:2], host=True)))


@pytest.mark.parametrize("answer", [lambda d: (d, d), lambda d: None])
def test_oracle_that_answers_in_another_structure(answer):
    refuse(ValueError, r"the lmo of UserSet\(.*\) returned .*must match x", problem(domain=bx.UserSet(answer)))


@pytest.mark.parametrize("wrap", [bx.UserSet, lambda lmo: lmo])
def test_numpy_inside_an_oracle_proposes_the_host(wrap):
    words = r"the lmo of UserSet\(.*outside JAX.*numpy.*bx\.UserSet\(lmo, host=True\)"
    refuse(TypeError, words, problem(domain=wrap(lambda d: -np.sign(np.asarray(d)))))


def test_run_refuses_host_problems_by_name():
    for given in (
        problem(domain=bx.UserSet(lambda d: -np.sign(d), host=True)),
        problem(structure=bx.LowerStructure(solve_lower=lambda x, y, data: x, host=True)),
    ):
        words = rf"run: {re.escape(repr(given.domain))} or the lower structure steps on the host.*use solve"
        with pytest.raises(ValueError, match=words):
            bx.run(given, NeverReached(), X0, Y0, steps=1)


FORMULAS = {
    "hvp": lambda x, y, w, c: 2 * c * w,
    "cross": lambda x, y, w, c: -2 * c * w,
    "hessian_diagonal": lambda x, y, c: jnp.full(3, 2 * c),
    "solve_lower": lambda x, y, c: c * x,
    "solve_adjoint": lambda x, y, b, c: c * b / 2,
}


@pytest.mark.parametrize("name", FORMULAS)
def test_a_slightly_wrong_formula_is_named(name):
    def given(c):
        structure = bx.LowerStructure(**{name: lambda *args: FORMULAS[name](*args[:-1], c)})
        return problem(lower=lambda x, y, _: jnp.sum((y - x) ** 2), structure=structure)

    refuse(AssertionError, "the run began", given(1.0))
    words = rf"structure\.{name} disagrees with autodiff of lower: relative error .*Correct the formula or leave it out"
    refuse(ValueError, words, given(1.0001))


@pytest.mark.parametrize(
    "options, words",
    [({"steps": n}, rf"steps must be a whole number of at least 1, got {n}") for n in (0, -1, 2.5, True)]
    + [({"every": n}, rf"every must be a whole number of steps per row, at least 1, got {n}") for n in (0, 1.5, True)]
    + [({"time_limit": t}, rf"time_limit must be a positive number of seconds, got {t}") for t in (0, -1.0)]
    + [({"tol": t}, rf"solve: tol must be a positive number.*got {t}") for t in (-1.0, 0, np.nan)],
)
def test_options_of_solve(options, words):
    refuse(ValueError, words, problem(), **options)


def test_unknown_keywords_and_what_is_no_solver_and_no_problem():
    refuse(TypeError, r"unexpected keyword argument 'max_iter'", problem(), max_iter=3)
    with pytest.raises(TypeError, match=r"IBCG.*unexpected keyword argument 'lr'"):
        bx.IBCG(lr=0.1)
    refuse(TypeError, r"the solver is the class IBCG; write IBCG\(\) to build one", problem(), solver=bx.IBCG)
    refuse(
        TypeError,
        r"second argument must be a solver such as bx\.IBCG\(\), got str; give starts by name",
        problem(),
        solver="ibcg",
    )
    refuse(TypeError, r"first argument must be a bx\.BilevelProblem, got function", upper)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"key": 3}, r"key must be a JAX random key, got 3; write jax\.random\.key\(3\)"),
        ({"stop": 3}, r"stop= takes a function or several of them, got 3"),
        ({"metrics": [3]}, r"metrics= takes {name: function}, a function or several"),
        ({"metrics": {"v": lambda x, y, data: x}}, r"metric 'v' must be one real number, got shape \(3,\)"),
        ({"metrics": {"gap": lambda x, y, data: 0.0}}, r"named 'gap', which the trace already has"),
    ],
)
def test_options_of_the_wrong_kind(options, words):
    with pytest.raises((TypeError, ValueError), match=words):
        bx.solve(problem(), None, X0, Y0, steps=5, **options)


def test_step_sizes_of_the_wrong_kind():
    with pytest.raises(TypeError, match="a step size must be a number, a schedule or a function of k, got 'abc'"):
        bx.IBCG("abc")
    with pytest.raises(ValueError, match="warmup must be a whole number of inner steps >= 0, got 2.5"):
        bx.IBCG(warmup=2.5)


def test_formulas_in_numpy_or_of_the_wrong_shape():
    numpy_hvp = bx.LowerStructure(hvp=lambda x, y, w, data: np.asarray(w) * 1.0)
    refuse(
        ValueError, "answer like y, cross like x", problem(structure=bx.LowerStructure(hvp=lambda x, y, w, d: w[:2]))
    )
    refuse(TypeError, r"outside JAX.*numpy.*LowerStructure\(\.\.\., host=True\)", problem(structure=numpy_hvp))
