"""An attack on the verdict: no CONVERGED may be false, and no bound below the truth.

The truth comes from extended precision in numpy (families.py). Every check runs again on a library with one protected
line broken, and has to fail there.
"""

import warnings
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import zoo
from verdict_families import FAMILIES, Long, case

import bilevax as bx
from bilevax.linalg import positive
from bilevax.verdict import bounded_gradient, dense

VECTORS = ["Simplex", "UnitSimplex", "L1Ball", "L2Ball", "LInfBall", "Box", "CappedSimplex", "KSparse", "GroupL2Ball"]


def random_point(name, rng):
    """A point of one of the sets for vectors of five numbers."""
    domain, like = zoo.SETS[name]
    return np.asarray(project(domain, rng.standard_normal(like.shape) * 10 ** rng.uniform(-1, 1)))


project = jax.jit(lambda domain, x: domain.project(x))


def audits(count, seed, sizes=(6, 6, 6, 40), factorize=None, families=tuple(FAMILIES)):
    """Audits of random problems at random points: (problem and truth, x, audit) for each."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        family, m, single = families[rng.integers(len(families))], int(rng.choice(sizes)), bool(rng.random() < 0.2)
        name = VECTORS[rng.integers(len(VECTORS))]
        made = case(family, m, rng, zoo.SETS[name][0], single=single)
        kind = np.float32 if single else np.float64
        x = random_point(name, rng).astype(kind)
        y = (rng.standard_normal(m) * 10 ** rng.uniform(-3, 3) * rng.choice([0, 1])).astype(kind)
        with jax.numpy_dtype_promotion("standard"):
            yield made, x, bx.audit(made.problem, jnp.asarray(x), jnp.asarray(y), factorize=factorize)


def least(domain, g):
    """min over the set of <g, s>: the oracles are compared with independent solvers elsewhere."""
    return float(np.asarray(minimiser(domain, g)) @ g)


minimiser = jax.jit(lambda domain, g: domain.lmo(g, domain.start(g))[0])


def judge(results):
    """How many bounds were false, how many audits of honest problems were refused, and out of how many."""
    false, refused, honest, all_of_them = [], 0, 0, 0
    for made, x, seen in results:
        gradient, scale, _ = made.truth(x)
        all_of_them += 1
        off = float(np.linalg.norm(np.asarray(seen.gradient, Long) - gradient))
        if seen.gradient.dtype == np.float32:  # the answer is rounded to the precision of the run
            off -= 1e-7 * float(np.linalg.norm(gradient))
        gap = float(np.asarray(x, Long) @ gradient) - least(made.problem.domain, np.asarray(gradient, float))
        slack = 1e-13 * scale
        if seen.certified and (off > seen.grad_error + slack or abs(gap - seen.gap) > seen.gap_error + 10 * slack):
            false.append((made.problem.lower.__name__, made.kappa, off, seen.grad_error, gap, seen.gap, seen.gap_error))
        if made.kappa <= 1e6 and x.dtype == np.float64:
            honest += 1
            width = float(made.problem.domain.diameter(jnp.asarray(x)).value)
            refused += not seen.certified or seen.gap_error > 1e-6 * width * scale
    return false, refused, honest


def check(results, allowed=0.0):
    false, refused, honest = judge(results)
    assert len(false) <= allowed * honest, f"{len(false)} bounds are false, first: {false[0]}"
    return refused, honest


def test_audits_of_small_problems():
    refused, honest = check(audits(150, 0, sizes=(6,) * 30 + (40,)))
    assert honest > 35 and refused <= 0.01 * honest


def test_audits_of_larger_problems():
    refused, honest = check(audits(20, 1, sizes=(300,), families=("quadratic", "least squares")))
    assert refused <= 0.1 * honest


@pytest.mark.slow
def test_audits_by_conjugate_gradients():
    """Without a factorization mu_g is an estimate: true in 99.9 % of the audits is asked for, and all of these are."""
    check(audits(25, 2, sizes=(6, 6, 40), factorize=False))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(20))
def test_very_many_audits(part):
    refused, honest = check(audits(5000, 100 + part, sizes=(6, 6, 6, 6, 6, 6, 6, 6, 40, 40)))
    assert refused <= 0.01 * honest


@pytest.mark.slow
def test_many_audits_of_larger_problems():
    check(audits(1000, 50, sizes=(300, 400, 500)))


@pytest.mark.slow
def test_many_audits_by_conjugate_gradients():
    check(audits(5000, 60, sizes=(6, 40, 120), factorize=False), allowed=0.001)


# A solver and the set on which it is asked to lie; five vectors sets and all solvers in the slow test.
QUICK = [("IBCG", "Simplex"), ("AIDBiO", "Box"), ("SOBA", "L2Ball"), ("SBFW exact", "Simplex")]
QUICK += [("ProjectedIBCG", "L1Ball"), ("PairwiseIBCG", "Box")]


def false_claims(name, domain, count, seed):
    """Solve `count` problems, most of them from near a point where the tracked gap is small; list false claims."""
    rng = np.random.default_rng(seed)
    false, converged = [], 0
    for _ in range(count):
        family = list(FAMILIES)[rng.integers(4)]
        made = case(family, 6, rng, zoo.SETS[domain][0], kappa=10 ** rng.uniform(0, 8))
        x0 = random_point(domain, rng)
        gradient, scale, _ = made.truth(x0)
        width = float(made.problem.domain.diameter(jnp.asarray(x0)).value)
        tol = 10 ** rng.uniform(-6, 0) * width * scale
        # A linear term makes x0 optimal, or nearly so: claims are made at once, and have to be judged.
        target = gradient * rng.choice([1.0, 1.0, 0.999, 0.5])
        made = replace(made, problem=with_linear_term(made.problem, np.asarray(target, float)))
        y0 = jnp.asarray(rng.standard_normal(6) * 10 ** rng.uniform(-1, 4) * rng.choice([0, 1]))
        result = bx.solve(made.problem, zoo.SOLVERS[name], jnp.asarray(x0), y0, steps=20, every=5, tol=tol)
        if result.success:
            converged += 1
            gradient, _, y = made.truth(np.asarray(result.x))
            g = np.asarray(gradient, float)
            gap = float(np.asarray(result.x) @ g) - least(made.problem.domain, g)
            near = float(np.linalg.norm(np.asarray(result.y, Long) - y)) <= result.audit().lower_error * 1.01 + 1e-12
            if gap > tol * (1 + 1e-6) or not near:
                false.append((name, domain, family, made.kappa, tol, gap, near, result.message))
    return false, converged


def with_linear_term(problem, gradient):
    return replace(problem, data={**problem.data, "q": problem.data["q"] - jnp.asarray(gradient)})


@pytest.mark.parametrize("name, domain", zoo.every_second(QUICK, of=4))
def test_no_claim_of_a_solve_is_false(name, domain):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # runs that diverge
        false, converged = false_claims(name, domain, 20, 7)
    assert not false, false[0]
    assert converged >= 3


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [n for n in zoo.SOLVERS if zoo.SOLVERS[n].oracle != "low rank" and not n.startswith("SABA")]
)
def test_no_claim_of_any_solver_is_false(name):
    for i, domain in enumerate(VECTORS):
        false, _ = false_claims(name, domain, 18, 1000 + i)
        assert not false, false[0]


def near_half(x, y, _):
    return jnp.sum((y - 0.5) ** 2)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_the_bound_on_y_includes_the_rounding_of_y(kind):
    """y*(x) = 1e6 x / 3 is no floating-point number: what is handed out is off by its rounding."""
    lower = lambda x, y, _: 0.5 * jnp.sum((3e-6 * y - x) ** 2)  # noqa: E731
    x = jnp.full(5, 0.1, kind)
    with jax.numpy_dtype_promotion("standard"):
        seen = bx.audit(bx.BilevelProblem(near_half, lower, bx.Box(-1.0, 1.0)), x, jnp.zeros(5, kind))
    truth = np.asarray(x, Long) / Long(3e-6)
    off = float(np.linalg.norm(np.asarray(seen.y, Long) - truth))
    assert off <= seen.lower_error and seen.lower_error > 0.5 * np.finfo(kind).eps * np.linalg.norm(seen.y)


BROKEN = {
    "concave": lambda x, y, _: -0.5 * jnp.sum((y - x) ** 2),
    "double well": lambda x, y, _: 0.25 * jnp.sum((y**2 - 1) ** 2) - 0.01 * y @ x,
    "singular": lambda x, y, _: 0.5 * (y[0] + y[1] - x[0]) ** 2 + 0.5 * (y[2] - x[1]) ** 2,
    "linear": lambda x, y, _: y @ x + 0.5 * y[0] ** 2,
    "one negative direction": lambda x, y, _: 0.5 * jnp.sum((y - x) ** 2) - 0.7 * y[3] ** 2,
    "saddle far away": lambda x, y, _: 0.5 * jnp.sum((y - x) ** 2) + 2 * jnp.sum(jnp.cos(y)),
}


@pytest.mark.parametrize("name", zoo.every_second(BROKEN))
def test_a_lower_level_without_a_unique_minimiser_never_converges(name):
    problem = bx.BilevelProblem(near_half, BROKEN[name], bx.Box(-1.0, 1.0))
    for start in (0.0, 0.05, 3.0):
        result = bx.solve(problem, bx.AIDBiO(), jnp.zeros(5), jnp.full(5, start), steps=30, tol=10.0)
        assert not result.success, result.message
        if result.status is bx.Status.NOT_STRONGLY_CONVEX:
            assert "convex" in result.message and "ridge" in result.message


def lying_upper(x, y, c):
    return jnp.sum((jax.lax.stop_gradient(y) - c) ** 2)


@jax.custom_jvp
def half(v):
    return 0.5 * v


half.defjvp(lambda primals, tangents: (half(primals[0]), 0.4 * tangents[0]))


def honest_upper(x, y, c):
    return jnp.sum((y - c) ** 2)


def lying_lower(x, y, c):
    return 0.5 * jnp.sum((y - half(x)) ** 2)


def honest_lower(x, y, c):
    return 0.5 * jnp.sum((y - 0.5 * x) ** 2)


LIARS = {"upper": (lying_upper, honest_lower), "lower": (honest_upper, lying_lower)}


@pytest.mark.parametrize("liar", LIARS)
def test_wrong_derivatives_are_refused(liar):
    problem = bx.BilevelProblem(*LIARS[liar], bx.Box(-1.0, 1.0), 0.1)
    result = bx.solve(problem, bx.AIDBiO(), jnp.full(4, 0.2), jnp.zeros(4), steps=200, tol=1.0)
    assert not result.success and "autodiff disagrees with finite differences" in result.message


def test_a_wrong_formula_that_is_right_at_zero_is_refused_before_the_first_step():
    lower = lambda x, y, c: 0.5 * jnp.sum((y - x) ** 2) + 0.25 * jnp.sum(x * y**2) + jnp.sum(y**2)  # noqa: E731
    wrong = lambda x, y, w, c: -w - 0.5 * y * w  # noqa: E731 - J w is -w + y w / 2
    problem = bx.BilevelProblem(honest_upper, lower, bx.Box(-1.0, 1.0), 0.1, structure=bx.LowerStructure(cross=wrong))
    with pytest.raises(ValueError, match=r"structure.cross disagrees with autodiff of lower: .* at a random point"):
        bx.solve(problem, bx.IBCG(), jnp.zeros(4), jnp.zeros(4), steps=5)


def without(monkeypatch, mutation):
    """Break one protected line."""
    if mutation == "error := 0":
        bound = bounded_gradient._bound
        monkeypatch.setattr(bounded_gradient, "_bound", lambda *a: bound(*a)._replace(error=0.0))
    else:
        measured = bounded_gradient._measured
        zero = lambda *a: measured(*a)._replace(g_y=0.0, phi=0.0, rounding=0.0)  # noqa: E731
        monkeypatch.setattr(bounded_gradient, "_measured", zero)


@pytest.mark.parametrize("mutation", ["error := 0", "residual := 0"])
def test_the_audits_notice_when_a_term_of_the_bound_is_lost(mutation, monkeypatch):
    without(monkeypatch, mutation)
    assert judge(audits(60, 3, sizes=(6,)))[0]


@pytest.mark.parametrize("mutation", ["margin", "curvature flag"])
def test_singular_lower_levels_converge_when_the_proof_of_convexity_is_skipped(mutation, monkeypatch):
    """What protects them is the margin of the factorization and the flag it raises: without either they pass."""
    proof = positive.definiteness

    def careless(matrix, noise=0.0):
        answer = proof(matrix, noise)
        if mutation == "margin":
            lifted = proof(matrix + 1e-3 * np.eye(len(matrix)), noise)
            return lifted
        return answer

    monkeypatch.setattr(dense, "definiteness", careless)
    if mutation == "curvature flag":
        factorize = dense._factorize
        soft = lambda *a: _unflagged(factorize(*a))  # noqa: E731
        monkeypatch.setattr(dense, "_factorize", soft)
    problem = bx.BilevelProblem(near_half, nearly_singular, bx.Box(-1.0, 1.0))
    seen = bx.audit(problem, jnp.zeros(5), jnp.zeros(5))
    assert not seen.not_convex


def nearly_singular(x, y, _):
    return 0.5 * (y[0] + y[1] - x[0]) ** 2 + 0.5 * jnp.sum((y[2:] - x[2:]) ** 2)


def _unflagged(factorized):
    if factorized.proof.factor is None:
        eye = np.eye(len(factorized.scale))
        factorized = factorized._replace(proof=positive.definiteness(eye))
    return factorized._replace(not_convex="")


def test_and_they_do_not_where_it_is_not():
    problem = bx.BilevelProblem(near_half, nearly_singular, bx.Box(-1.0, 1.0))
    assert bx.audit(problem, jnp.zeros(5), jnp.zeros(5)).not_convex
