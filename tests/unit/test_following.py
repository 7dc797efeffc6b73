"""What our own methods are made of, against dense linear algebra in numpy and finite differences."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
import zoo

import bilevax as bx
from bilevax.linalg.conjugate_gradient import rough_solution
from bilevax.linalg.host_loops import Kernels
from bilevax.problems import random_quadratic
from bilevax.solvers.pieces import tracking
from bilevax.solvers.pieces.ell_hessian import ell_hessian
from bilevax.solvers.pieces.line_search import search
from bilevax.solvers.pieces.model_minimum import minimize_model
from bilevax.solvers.pieces.quasi_newton import WholeMatrix, last_steps, pair, whole_matrix

RNG = np.random.default_rng(0)


def spd(n, kappa, seed=0):
    """A symmetric matrix with this condition number."""
    Q, _ = np.linalg.qr(np.random.default_rng(seed).standard_normal((n, n)))
    return (Q * np.geomspace(1 / kappa, 1, n)) @ Q.T


@pytest.mark.parametrize("kappa", [1e1, 1e4, 1e6])
@pytest.mark.parametrize("precondition", ["none", "near", "old"])
def test_a_rough_solution_leaves_the_share_it_says(kappa, precondition):
    """In energy: on an ill-conditioned matrix the residual would tell nothing, nor would it by an old inverse."""
    H, b = spd(300, kappa), np.random.default_rng(1).standard_normal(300)
    scale = np.exp(np.random.default_rng(2).uniform(-4, 4, 300))
    given = {"none": H, "near": H + 0.1 * np.diag(np.diag(H)), "old": H + 0.1 * np.diag(scale * np.diag(H))}
    inverse = jnp.asarray(np.linalg.inv(given[precondition]))
    found = rough_solution(
        lambda v: jnp.asarray(H) @ v,
        jnp.asarray(b),
        share=0.01,
        precondition=None if precondition == "none" else lambda r: inverse @ r,
        max_steps=3500,
    )
    truth = np.linalg.solve(H, b)
    error = np.asarray(found.w) - truth
    assert np.sqrt(error @ H @ error) <= 0.03 * np.sqrt(truth @ H @ truth)
    np.testing.assert_allclose(found.energy, found.w @ H @ found.w, rtol=1e-4)
    np.testing.assert_allclose(found.residual, b - H @ found.w, atol=1e-4 * np.linalg.norm(b))


def logistic():
    """A lower level that is not quadratic, with one weight per coefficient."""
    A, signs = RNG.standard_normal((2, 60, 5)), np.sign(RNG.standard_normal((2, 60)))
    loss = lambda A, s, y: jnp.mean(jnp.logaddexp(0.0, -s * (A @ y)))  # noqa: E731
    return bx.BilevelProblem(
        lambda x, y, data: loss(data["A"][1], data["s"][1], y),
        lambda x, y, data: loss(data["A"][0], data["s"][0], y) + 0.5 * jnp.sum(jnp.exp(x) * y**2),
        bx.Box(-6.0, 2.0),
        {"A": jnp.asarray(A), "s": jnp.asarray(signs)},
    )


@pytest.mark.parametrize("kept", [0, pytest.param(500, marks=pytest.mark.slow)])
def test_the_lower_level_is_followed_closer_and_closer(kept, monkeypatch):
    monkeypatch.setattr(tracking, "MOST_KEPT", kept)
    problem, x = logistic(), jnp.full(5, -2.0)
    lower, _ = jax.jit(tracking.begin)(problem, x, jnp.zeros(5))
    for length in (0.3, 0.03, 0.003):
        x = x + length * RNG.standard_normal(5)
        lower, counts = tracking.follow(problem, x, lower)
        truth = bx.exact_hypergradient(problem, x, lower.y)
        size = float(jnp.linalg.norm(truth.gradient))
        assert float(jnp.linalg.norm(lower.F - truth.gradient)) <= 0.1 * length * size
        assert abs(float(lower.value - truth.ell)) <= 1e-3 * length**2 * abs(float(truth.ell)) + 10 * float(lower.doubt)
        assert int(counts.lower_grads) <= 3
        plain = abs(float(problem.upper_value(x, lower.y) - truth.ell))  # the error of f is of first order
        assert abs(float(lower.value - truth.ell)) <= 0.2 * plain + 1e-9


def test_far_away_the_first_lower_solve_converges():
    problem = logistic()
    lower, _ = tracking.begin(problem, jnp.full(5, -2.0), jnp.full(5, 1e3))
    truth = bx.exact_hypergradient(problem, jnp.full(5, -2.0), jnp.zeros(5))
    np.testing.assert_allclose(lower.F, truth.gradient, rtol=0.05, atol=1e-4)


@pytest.mark.parametrize(
    "make", [pytest.param(logistic, marks=pytest.mark.slow), lambda: zoo.known_problem("Box").problem]
)
def test_the_hessian_of_ell_is_that_of_finite_differences(make):
    problem = make()
    x, y = jnp.full(5, -0.3), jnp.zeros(5 if make is logistic else 6)
    lower, _ = tracking.begin(problem, x, y)
    hypergradient = jax.jit(lambda x: bx.exact_hypergradient(problem, x, y))
    exact = hypergradient(x)
    lower = replace(lower, y=exact.y, w=exact.v, inverse=tracking._inverse_hessian(problem, x, exact.y))
    gradient = lambda x: np.asarray(hypergradient(x).gradient)  # noqa: E731
    step = 1e-5
    rows = [(gradient(x + step * e) - gradient(x - step * e)) / (2 * step) for e in np.eye(5)]
    np.testing.assert_allclose(ell_hessian(problem, x, lower), rows, rtol=1e-5, atol=1e-7)


def test_the_compact_model_is_that_of_bfgs_updates_one_by_one():
    H, memory = spd(12, 1e3), last_steps(jnp.zeros(12), 4, 1.0)
    pairs = [(s, H @ s) for s in RNG.standard_normal((6, 12))]
    for s, c in pairs:
        memory = memory.add(pair(jnp.asarray(s), jnp.zeros(12), jnp.asarray(c)))
    s, c = pairs[-1]
    B = np.eye(12) * (c @ c) / (s @ c)
    whole = WholeMatrix(jnp.asarray(B))
    for s, c in pairs[-4:]:
        B = B - np.outer(B @ s, B @ s) / (s @ B @ s) + np.outer(c, c) / (s @ c)
        whole = whole.add(pair(jnp.asarray(s), jnp.zeros(12), jnp.asarray(c)))
    v = RNG.standard_normal(12)
    for model in (memory.model(), whole.model()):
        np.testing.assert_allclose(model.times(jnp.asarray(v)), B @ v, rtol=1e-8)
        np.testing.assert_allclose(model.inverse_times(jnp.asarray(v)), np.linalg.solve(B, v), rtol=1e-6)


def test_a_step_along_which_ell_bends_down_teaches_nothing():
    memory = last_steps(jnp.zeros(3), 2, 1.0)
    bent = pair(jnp.ones(3), jnp.zeros(3), -jnp.ones(3))
    assert not bent.useful and np.array_equal(memory.add(bent).steps, memory.steps)
    mere_rounding = pair(jnp.ones(3), jnp.ones(3), jnp.ones(3) * (1 + 1e-15))
    assert not mere_rounding.useful


@pytest.mark.parametrize("name", ["Simplex", "L1Ball", "Box", "L2Ball", "GroupL2Ball", "Polytope"])
@pytest.mark.parametrize("kappa", [pytest.param(1e1, marks=pytest.mark.slow), 1e6])
def test_the_minimum_of_a_model_over_a_set(name, kappa):
    """The optimality condition by the lmo, which the search for the minimum never calls."""
    domain, like = zoo.SETS[name]
    B, F = spd(like.size, kappa), np.random.default_rng(4).standard_normal(like.size)
    x = domain.project(like)
    model = whole_matrix(jnp.asarray(B)).model()
    z, _ = jax.jit(lambda x: minimize_model(domain, x, jnp.asarray(F), model, 50))(x)
    gradient = jnp.asarray(F + B @ (z - x))
    s, _ = domain.lmo(gradient, domain.start(gradient))
    assert bool(domain.contains(z)) and float(gradient @ (z - s)) <= 1e-3 * float(F @ (x - z))


@pytest.mark.parametrize(
    "domain", [bx.Box(0.0, 1.0), bx.Simplex(), bx.L1Ball(1.0), bx.L2Ball(1.0), bx.CappedSimplex(3.0)], ids=repr
)
def test_the_minimum_of_a_very_ill_conditioned_model_over_a_set(domain):
    """Least squares with a condition number of 1e9, where gradient steps alone would take tens of thousands."""
    rng = np.random.default_rng(6)
    A = np.linalg.solve(spd(40, 1e3, 7), rng.standard_normal((40, 40)))
    x = domain.project(jnp.zeros(40))
    B, F = A.T @ A + 1e-2 * np.eye(40), A.T @ (A @ x - rng.standard_normal(40))
    assert np.linalg.cond(B) > 1e8
    model = whole_matrix(jnp.asarray(B)).model()
    z, _ = jax.jit(lambda x: minimize_model(domain, x, jnp.asarray(F), model, 400))(x)
    gradient = jnp.asarray(F + B @ (z - x))
    s, _ = domain.lmo(gradient, domain.start(gradient))
    assert bool(domain.contains(z)) and float(gradient @ (z - s)) <= 1e-6 * float(F @ (x - z))


def test_the_minimum_of_a_model_is_never_above_x():
    """Also where the newest step met little curvature, and older ones much: the scale of the model is then small."""
    lowest = jax.jit(lambda x, F, model: minimize_model(bx.Simplex(), x, F, model, 0)[0])
    rng = np.random.default_rng(0)
    for _ in range(100):
        H, memory = spd(6, 1e4, int(rng.integers(1000))), last_steps(jnp.zeros(6), 4, 1.0)
        for s in rng.standard_normal((4, 6)) @ H:
            memory = memory.add(pair(jnp.asarray(s), jnp.zeros(6), jnp.asarray(H @ s)))
        s = np.linalg.eigh(H)[1][:, 0] + 1e-3 * rng.standard_normal(6)
        model = memory.add(pair(jnp.asarray(s), jnp.zeros(6), jnp.asarray(H @ s))).model()
        x, F = jnp.asarray(rng.dirichlet(np.ones(6))), jnp.asarray(0.1 * H @ rng.standard_normal(6))
        d = lowest(x, F, model) - x
        assert float(F @ d + 0.5 * d @ model.times(d)) <= 0


def test_the_search_finds_what_a_line_search_on_ell_finds():
    known = zoo.known_problem("Box")
    problem, x = known.problem, jnp.zeros(5)
    lower, _ = tracking.begin(problem, x, jnp.zeros(6))
    d = -10 * lower.F  # far too long
    found = search(problem, x, lower, d)
    best = scipy.optimize.minimize_scalar(lambda t: known.ell(x + t * d), bounds=(0, 1), method="bounded").x
    assert bool(found.accepted) and float(found.length) == pytest.approx(best, rel=0.5)
    assert known.ell(x + float(found.length) * d) < known.ell(x)
    curvature = (known.gradient(x + d) - known.gradient(x)) @ d
    assert float(found.curvature) == pytest.approx(float(curvature), rel=1e-6)


def test_no_direction_leads_down_from_the_solution():
    known = zoo.known_problem("Box")
    lower, _ = tracking.begin(known.problem, known.x_star, jnp.zeros(6))
    found = search(known.problem, known.x_star, lower, lower.F)
    assert bool(found.accepted) and float(found.length) == 0


def ours(name):
    """The methods of ours that serve a set."""
    domain, _ = (zoo.SETS | zoo.UNBOUNDED)[name]
    both = name in ("Box", "VertexHull")  # with the whole Hessian, and with the last steps
    solvers = [bx.PairwiseIBCG(), bx.PairwiseIBCG(memory=5)][: 1 + both] if name not in zoo.UNBOUNDED else []
    if (domain.kernels is Kernels.COMPILED or domain.minimizes_models) and name not in ("VertexHull", "UserSet"):
        solvers += [bx.ProjectedIBCG(), bx.ProjectedIBCG(5)][: 1 + both]
    return solvers


LATER = ["WholeSpace", "Simplex", "L1Ball", "CappedSimplex", "Birkhoff", "UserSet", "L2Ball"]


@pytest.mark.parametrize("kappa", [pytest.param(1e1, marks=pytest.mark.slow), 1e5])
@pytest.mark.parametrize(
    "name", ["Box", *(pytest.param(n, marks=pytest.mark.slow) for n in ("VertexHull", "Polytope", *LATER))]
)
def test_a_quadratic_problem_takes_few_steps_whatever_its_condition(name, kappa):
    domain, like = (zoo.SETS | zoo.UNBOUNDED)[name]
    known = random_quadratic(domain, like, 6, jax.random.key(3), kappa=kappa, rho=1e-2)
    start = domain.vertex(like)
    if name not in zoo.UNBOUNDED:  # the vertex opposite to the solution
        start, _ = domain.lmo(jax.tree.map(lambda v: -v, known.gradient(known.x_star)), domain.start(like))
    size = bx.audit(known.problem, start, jnp.zeros(6)).measure[1]
    for solver in ours(name):
        result = bx.solve(known.problem, solver, start, jnp.zeros(6), steps=60, every=1, tol=1e-6 * size)
        assert result.status is bx.Status.CONVERGED, (solver, result.message)
        if known.ell_star is not None:
            assert known.ell(result.x) - known.ell_star <= 1e-6 * size + 1e-9


def test_weights_on_vertices_sum_to_one_and_make_up_x():
    domain, like = zoo.SETS["VertexHull"]
    problem = zoo.known_problem("VertexHull").problem
    result = bx.solve(problem, bx.PairwiseIBCG(3), domain.vertex(like), jnp.zeros(6), steps=20)
    weights, atoms = result.state.weights, result.state.atoms
    assert weights.shape == (3,) and float(weights.min()) >= 0 and float(weights.sum()) == pytest.approx(1, abs=1e-12)
    np.testing.assert_allclose(weights @ atoms, result.x, atol=1e-12)


CHOICES = {
    "Simplex": bx.ProjectedIBCG,
    "Box": bx.ProjectedIBCG,
    "WholeSpace": bx.ProjectedIBCG,
    "NuclearBall": bx.ProjectedIBCG,
    "SampledNuclearBall": bx.BlockIBCG,
    "VertexHull": bx.PairwiseIBCG,
    "UserSet": bx.PairwiseIBCG,
    "Polytope": bx.ProjectedIBCG,
    "Birkhoff": bx.PairwiseIBCG,
}


@pytest.mark.parametrize("name", CHOICES)
def test_auto_chooses_by_the_set(name):
    domain, like = (zoo.SETS | zoo.UNBOUNDED)[name]
    problem = bx.BilevelProblem(lambda x, y, _: jnp.sum(y**2), lambda x, y, _: jnp.sum((y - x) ** 2), domain)
    x = zoo.point(name, np.zeros(24)) if name == "SampledNuclearBall" else like
    assert type(bx.auto(problem, x)) is CHOICES[name]


def test_auto_takes_low_rank_steps_for_large_matrices_only():
    functions = (lambda x, y, _: jnp.sum(y**2), lambda x, y, _: jnp.sum((y - x) ** 2))
    problem = bx.BilevelProblem(*functions, bx.NuclearBall(1.0))
    assert type(bx.auto(problem, jnp.zeros((100, 80)))) is bx.BlockIBCG
    assert type(bx.auto(problem, jnp.zeros((100, 8)))) is bx.ProjectedIBCG


def test_auto_begins_with_mini_batches_where_there_are_many():
    functions = (lambda x, y, _: jnp.sum(y**2), lambda x, y, _: jnp.sum((y - x) ** 2))
    x = jnp.zeros((2, 2))
    on_host = bx.UserSet(lambda direction: -np.sign(direction), host=True, diameter=4.0)
    for domain, batches, method in (
        (bx.Box(0.0, 1.0), 16, bx.SampledIBCG()),
        (bx.WholeSpace(), 16, bx.SampledIBCG()),
        (bx.Box(0.0, 1.0), 2, bx.ProjectedIBCG()),
        (bx.NuclearBall(1.0), 16, bx.SampledIBCG()),
        (bx.VertexHull(jnp.stack([x, x + 1])), 16, bx.SampledIBCG(bx.PairwiseIBCG())),
        (on_host, 16, bx.PairwiseIBCG()),
    ):
        rows = np.broadcast_to(np.float32(0), (2 * batches, 10**7))  # many numbers in no memory
        problem = bx.BilevelProblem(*functions, domain, rows, sampler=bx.Minibatch(2, 2 * batches))
        assert bx.auto(problem, x) == method


def test_a_run_says_why_its_method_was_chosen_and_names_a_better_one():
    problem, x, y = zoo.known_problem("Simplex").problem, zoo.SETS["Simplex"][0].vertex(jnp.zeros(5)), jnp.zeros(6)
    assert "ProjectedIBCG, since the set has a cheap projection" in str(bx.solve(problem, None, x, y, tol=1e-3))
    assert "bx.ProjectedIBCG(), which bx.auto would choose" in str(bx.solve(problem, bx.IBCG(), x, y, steps=5))


def test_a_lower_level_at_the_end_of_its_precision_is_left_alone():
    """There Newton's method would go on with steps that only rounding accepts: 2,000 gradients at each x."""
    rng = np.random.default_rng(0)
    inputs, truth = rng.standard_normal((500, 20)), rng.standard_normal((2, 20))
    scores = np.where(rng.random(500) < 0.1, inputs @ truth[1], inputs @ truth[0]) + rng.standard_normal(500)
    data = {"inputs": jnp.asarray(inputs), "labels": jnp.where(scores > 0, 1.0, -1.0)}

    def mixture(x, y, data):
        losses = jnp.logaddexp(0.0, -data["labels"] * (data["inputs"] @ y))
        return 0.05 * x.size * jnp.sum((x - 1 / x.size) ** 2) - x @ losses - 0.005 * jnp.sum(y**2)

    problem = bx.minimax(mixture, bx.Simplex(), data)
    trace = bx.solve(problem, bx.ProjectedIBCG(), jnp.full(500, 1 / 500), jnp.zeros(20), steps=60, every=10).trace
    assert np.diff(trace["lower_grads"]).max() < 10 * 200


def endless(seed, rows=1500, n=12):
    """Ridge weights of a logistic regression on the whole space: the best ones are infinite, or zero."""
    rng = np.random.default_rng(seed)
    truth, data = 3 * rng.standard_normal(n) * (rng.random(n) < 0.6), {}
    for name in ("train", "valid"):
        A = rng.standard_normal((rows, n))
        data[name] = np.float32(A * np.sign(A @ truth + rng.standard_normal(rows))[:, None])
    loss = lambda A, y: jnp.mean(jax.nn.softplus(-A @ y))  # noqa: E731
    return bx.BilevelProblem(
        lambda x, y, data: loss(data["valid"], y),
        lambda x, y, data: loss(data["train"], y) + 0.5 * jnp.sum(jnp.exp(x) * y**2),
        bx.WholeSpace(),
        data,
    )


def ell_of(problem):
    """x -> f(x, y*(x)) in numpy, by Newton's method in double precision, with y scaled by its ridge."""
    A, V = (np.float64(problem.data[name]) for name in ("train", "valid"))

    def value(x):
        scale = (1 + np.exp(np.clip(np.float64(x), -30, 30))) ** -0.5
        B, ridge, z = A * scale, np.exp(np.clip(np.float64(x), -30, 30)) * scale**2, np.zeros(len(x))
        lower = lambda z: np.mean(np.logaddexp(0, -B @ z)) + 0.5 * ridge @ z**2  # noqa: E731
        for _ in range(50):
            slope = ridge * z - B.T @ (1 / (1 + np.exp(B @ z))) / len(B)
            bend = (B.T * (0.25 / np.cosh(B @ z / 2) ** 2)) @ B / len(B) + np.diag(ridge)
            step = np.linalg.solve(bend, slope)
            while lower(z - step) > lower(z) and np.linalg.norm(step) > 1e-12:
                step = step / 2
            z = z - step
        assert np.linalg.norm(slope) < 1e-9
        return np.mean(np.logaddexp(0, -V @ (scale * z)))

    return value


SLOW = [pytest.param(*case, marks=pytest.mark.slow) for case in ((1, -12.0), (4, 0.0), (5, 6.0), (3, -6.0))]


@pytest.mark.parametrize(("seed", "start"), [(0, -6.0), (2, -6.0), *SLOW])
def test_single_precision_without_a_bound_on_x_goes_down_only(seed, start):
    """Weights of e^30 beside e^-13: the lower level cannot be solved everywhere that a step may lead to."""
    problem, visited = endless(seed), []
    x0, y0 = np.full(12, start, np.float32), np.zeros(12, np.float32)
    bx.solve(problem, bx.ProjectedIBCG(), x0, y0, steps=40, observers=lambda row, state: visited.append(state))
    ell = ell_of(problem)
    values = [ell(np.asarray(state.x)) for state in visited]
    assert max(np.diff(values)) <= 1e-2 * values[0]
    assert abs(values[-1] - float(visited[-1].lower.value)) <= 1e-2 * values[-1]
    best = min(ell(np.clip(np.asarray(state.x), -15, 15)) for state in visited)
    assert values[-1] <= min(best, values[0]) * 1.05


def test_a_fall_that_is_not_there_is_not_believed(monkeypatch):
    """The first answer far away claims that ell is below zero; solving again would not confirm it."""
    problem, x, y = logistic(), jnp.zeros(5), jnp.zeros(5)
    lower, _ = tracking.begin(problem, x, y)
    calls = []

    def lying(problem, at, before):
        found, counts = tracking.follow(problem, at, before)
        calls.append(float(jnp.linalg.norm(at - x)))
        lie = replace(found, value=found.value - 5, correction=found.correction + 5)
        return lie if len(calls) == 1 else found, counts

    monkeypatch.setattr("bilevax.solvers.pieces.line_search.follow", lying)
    monkeypatch.setattr("bilevax.linalg.host_loops.loop_while", _python_loop)
    found = search(problem, x, lower, -50 * lower.F)
    assert calls[0] == calls[1]
    assert found.lower.value > 0


def _python_loop(unfinished, body, carry, *, host=False):
    while bool(unfinished(carry)):
        carry = body(carry)
    return carry
