"""Multi-task learning against numpy, scipy, autodiff, finite differences and limits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

import bilevax as bx
from bilevax.problems import multitask
from bilevax.problems.multitask import Part, Task, multi_task, pad, ridge, ridge_tuned, split

T, D = 3, 4
KINDS = ("train", "valid", "test")


def tasks_of(seed=0, features=(4, 4, 3), samples=(30, 25, 20)):
    """Tasks of unlike sizes; the last one lacks a feature, so that its Gram matrix is singular."""
    rng = np.random.default_rng(seed)
    made = []
    for i, (d, n) in enumerate(zip(features, samples, strict=True)):
        A = rng.standard_normal((n, d))
        made.append(split(f"task {i}", A, A @ rng.standard_normal(d) + 0.3 * rng.standard_normal(n), rng))
    return pad(made)


def planted(seed, *, T=6, d=12, n=40):
    """Tasks whose weights are multiples of one vector, up to a tenth, with a dozen noisy training samples each."""
    rng = np.random.default_rng(seed)
    W = np.outer(rng.standard_normal(d), rng.choice([-1.0, 1.0], T) * rng.uniform(0.7, 1.3, T))
    W += 0.1 * rng.standard_normal((d, T))
    draws = [rng.standard_normal((n, d)) for _ in range(T)]
    labels = [A @ w + 0.5 * rng.standard_normal(n) for A, w in zip(draws, W.T, strict=True)]
    return [split(f"task {i}", A, b, rng, (0.3, 0.2)) for i, (A, b) in enumerate(zip(draws, labels, strict=True))]


def random_omega(rng, trace=2.0, floor=0.0, rank=T):
    """A symmetric matrix of that trace and rank (up to the floor), strictly inside the set or on its boundary."""
    factor = rng.standard_normal((T, rank))
    inner = factor @ factor.T
    return floor * np.eye(T) + (trace - T * floor) * inner / np.trace(inner)


def system(tasks, omega, lambda1=0.1, lambda2=0.1):
    """H and 2h on columns of W stacked task by task, written down in numpy without Gram matrices of the module."""
    blocks = scipy.linalg.block_diag(*(2 * t.train.A.T @ t.train.A / len(t.train.b) for t in tasks))
    H = blocks + 2 * lambda1 * np.eye(len(blocks)) + 2 * lambda2 * np.kron(np.linalg.inv(omega), np.eye(D))
    return H, np.concatenate([2 * t.train.A.T @ t.train.b / len(t.train.b) for t in tasks])


def stacked(W):
    return np.asarray(W).T.ravel()


def test_objectives_are_the_printed_ones():
    tasks, rng = tasks_of(), np.random.default_rng(1)
    problem = multi_task(tasks, 2.0, eps=0.1, lambda1=0.3, lambda2=0.7).problem
    omega, W = random_omega(rng), rng.standard_normal((D, T))
    losses = {
        k: [np.mean((getattr(t, k).A @ W[:, i] - getattr(t, k).b) ** 2) for i, t in enumerate(tasks)] for k in KINDS
    }
    g = sum(losses["train"]) + 0.3 * np.sum(W**2) + 0.7 * np.trace(W @ np.linalg.inv(omega) @ W.T)
    np.testing.assert_allclose(
        problem.upper_value(jnp.asarray(omega), jnp.asarray(W)), sum(losses["valid"]), rtol=1e-12
    )
    np.testing.assert_allclose(problem.lower_value(jnp.asarray(omega), jnp.asarray(W)), g, rtol=1e-12)
    np.testing.assert_allclose(multitask.task_errors(W, tasks), losses["test"], rtol=1e-12)


@pytest.mark.parametrize("kind", ["start", "random", "flat", "not symmetric"])
def test_formulas_agree_with_autodiff(kind):
    rng = np.random.default_rng(2)
    known = multi_task(tasks_of(), 2.0, eps=0.01)
    omega = {
        "start": np.asarray(known.omega0),
        "random": random_omega(rng),
        "flat": random_omega(rng, floor=0.01, rank=1),
        "not symmetric": random_omega(rng) + 0.05 * rng.standard_normal((T, T)),
    }[kind]
    W = jnp.asarray(rng.standard_normal((D, T)))
    errors = bx.check_derivatives(known.problem, jnp.asarray(omega), W, jax.random.key(0))
    assert set(errors) == {"hvp", "cross", "solve_lower", "solve_adjoint"}
    assert max(errors.values()) < 1e-12


def test_cross_agrees_with_finite_differences():
    rng = np.random.default_rng(3)
    problem = multi_task(tasks_of(), 2.0, eps=0.1).problem
    omega, W, w = random_omega(rng, floor=0.3), rng.standard_normal((D, T)), rng.standard_normal((D, T))
    change, step = rng.standard_normal((T, T)), 1e-5

    def slope(at):
        return float(jnp.sum(problem.lower_grad(jnp.asarray(at), jnp.asarray(W)) * w))

    wanted = (slope(omega + step * change) - slope(omega - step * change)) / (2 * step)
    J = problem.lower_cross(jnp.asarray(omega), jnp.asarray(W), jnp.asarray(w))
    np.testing.assert_allclose(np.sum(np.asarray(J) * change), wanted, rtol=1e-7)
    np.testing.assert_array_equal(J, J.T)


def test_solves_agree_with_the_stationarity_system_and_a_minimiser():
    tasks, rng = tasks_of(), np.random.default_rng(4)
    problem = multi_task(tasks, 2.0, eps=0.1).problem
    omega, b = random_omega(rng), rng.standard_normal((D, T))
    H, h = system(tasks, omega)
    W = multitask.solve_lower(jnp.asarray(omega), jnp.zeros((D, T)), problem.data)
    v = multitask.solve_adjoint(jnp.asarray(omega), W, jnp.asarray(b), problem.data)
    np.testing.assert_allclose(stacked(W), np.linalg.solve(H, h), rtol=1e-10)
    np.testing.assert_allclose(stacked(v), np.linalg.solve(H, stacked(b)), rtol=1e-10)
    inverse = np.linalg.inv(omega)

    def g(flat):
        W = flat.reshape(D, T)
        fit = sum(np.mean((t.train.A @ W[:, i] - t.train.b) ** 2) for i, t in enumerate(tasks))
        return fit + 0.1 * np.sum(W**2) + 0.1 * np.trace(W @ inverse @ W.T)

    found = scipy.optimize.minimize(g, np.zeros(D * T), method="BFGS", options={"gtol": 1e-7})
    np.testing.assert_allclose(W, found.x.reshape(D, T), atol=1e-6)


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_solves_at_a_singular_omega_are_the_limit(rank):
    tasks, rng = tasks_of(), np.random.default_rng(5)
    data = multi_task(tasks, 2.0).problem.data
    omega = random_omega(rng, rank=rank) if rank else np.zeros((T, T))
    b = rng.standard_normal((D, T))
    W = multitask.solve_lower(jnp.asarray(omega), jnp.zeros((D, T)), data)
    v = multitask.solve_adjoint(jnp.asarray(omega), W, jnp.asarray(b), data)
    for eps in (1e-4, 1e-6):
        H, h = system(tasks, omega + eps * np.eye(T))
        assert np.abs(stacked(W) - np.linalg.solve(H, h)).max() < 100 * eps
        assert np.abs(stacked(v) - np.linalg.solve(H, stacked(b))).max() < 100 * eps
    assert np.linalg.matrix_rank(W, tol=1e-10) == rank


@pytest.mark.parametrize("rank", [1, T])
def test_the_true_objective_can_be_differentiated_where_omega_is_singular_or_a_multiple_of_the_identity(rank):
    rng = np.random.default_rng(6)
    known = multi_task(tasks_of(), 2.0)
    omega = random_omega(rng, rank=1) if rank == 1 else np.asarray(known.omega0)

    def ell(omega):
        return multitask.upper(omega, multitask.solve_lower(omega, known.w0, known.problem.data), known.problem.data)

    gradient = np.asarray(jax.grad(ell)(jnp.asarray(omega)))
    change, step = rng.standard_normal((T, T)), 1e-6
    wanted = (ell(jnp.asarray(omega + step * change)) - ell(jnp.asarray(omega - step * change))) / (2 * step)
    np.testing.assert_allclose(np.sum(gradient * change), wanted, rtol=1e-6)
    if rank == T:
        exact = bx.exact_hypergradient(known.problem, jnp.asarray(omega), known.w0)
        np.testing.assert_allclose(exact.gradient, gradient, rtol=1e-9, atol=1e-12)


def points(known, eps, trace=2.0, count=60):
    """Points of the floored set, many on its boundary, and W in the ball that the constants speak about."""
    rng = np.random.default_rng(7)
    h = np.linalg.norm(known.problem.data["train"]["h"])
    for i in range(count):
        omega = random_omega(rng, trace if i % 2 else trace / 2, eps, rank=1 + i % T)
        W = rng.standard_normal((D, T))
        yield omega, W * 2 * h / float(known.constants.mu_g) / np.linalg.norm(W) * rng.choice([0.3, 1.0])


def test_constants_hold_on_the_floored_set():
    tasks, eps = tasks_of(), 0.1
    known = multi_task(tasks, 2.0, eps=eps)
    problem, c = known.problem, known.constants
    seen = list(points(known, eps))
    least, most = np.inf, 0.0
    for omega, _ in seen:
        assert not problem.domain.violations(jnp.asarray(omega))
        spectrum = np.linalg.eigvalsh(system(tasks, omega)[0])
        least, most = min(least, spectrum[0]), max(most, spectrum[-1])
        W = multitask.solve_lower(jnp.asarray(omega), known.w0, problem.data)
        assert np.linalg.norm(problem.upper_grads(jnp.asarray(omega), W)[1]) <= c.C_y_f
        assert np.linalg.norm(W) <= 2 * np.linalg.norm(problem.data["train"]["h"]) / c.mu_g
    assert c.mu_g <= least <= 2 * c.mu_g, "a bound, and not an idle one"
    assert 0.5 * c.L_g <= most <= c.L_g
    J = jax.jit(jax.jacrev(lambda omega, W: problem.lower_grad(omega, W)))
    H = jax.jit(jax.jacrev(lambda omega, W: problem.lower_grad(omega, W), argnums=1))
    norm = lambda M: np.linalg.norm(np.reshape(M, (D * T, -1)), 2)  # noqa: E731
    parts = [
        (omega, W, J(jnp.asarray(omega), jnp.asarray(W)), H(jnp.asarray(omega), jnp.asarray(W))) for omega, W in seen
    ]
    assert max(norm(part[2]) for part in parts) <= c.C_yx_g
    for (omega, W, J1, H1), (omega2, W2, J2, H2) in zip(parts, parts[1:], strict=False):
        along = np.hypot(np.linalg.norm(omega - omega2), np.linalg.norm(W - W2))
        assert norm(J1 - J2) <= c.L_yx_g * along
        assert norm(H1 - H2) <= c.L_yy_g * np.linalg.norm(omega - omega2)
    # Small moves at the floor, where the bounds are nearly reached.
    omega, W = eps * np.eye(T), seen[1][1]
    for change in (1e-4 * np.eye(T), 1e-4 * np.diag([1.0, 0.0, 0.0])):
        there = jnp.asarray(omega + change)
        ratio = norm(H(there, jnp.asarray(W)) - H(jnp.asarray(omega), jnp.asarray(W))) / np.linalg.norm(change)
        assert 0.5 * c.L_yy_g <= ratio <= c.L_yy_g
    f_yy = np.asarray(jax.jacrev(lambda W: problem.upper_grads(jnp.asarray(omega), W)[1])(jnp.asarray(W)))
    np.testing.assert_allclose(np.linalg.norm(f_yy.reshape(D * T, D * T), 2), c.L_yy_f, rtol=1e-10)
    assert c.L_xx_f == c.L_xy_f == c.L_yx_f == 0
    np.testing.assert_allclose(c.D_X, (2.0 - T * eps) * np.sqrt(2))


def test_lower_steps_stay_in_the_ball_of_the_constants():
    known = multi_task(tasks_of(), 2.0, eps=0.1)
    radius = 2 * np.linalg.norm(known.problem.data["train"]["h"]) / float(known.constants.mu_g)
    for omega, W in points(known, 0.1, count=20):
        moved = W - float(known.constants.alpha) * np.asarray(
            known.problem.lower_grad(jnp.asarray(omega), jnp.asarray(W))
        )
        assert np.linalg.norm(moved) <= radius


def test_without_a_floor_the_constants_hold_at_the_start():
    tasks = tasks_of()
    known = multi_task(tasks, 2.0)
    spectrum = np.linalg.eigvalsh(system(tasks, np.asarray(known.omega0))[0])
    assert known.constants.mu_g <= spectrum[0]
    np.testing.assert_allclose(known.constants.L_g, spectrum[-1], rtol=1e-12)
    np.testing.assert_allclose(known.constants.L_yy_g, 0.2 / (2 / 3) ** 2, rtol=1e-12)
    np.testing.assert_allclose(known.omega0, 2 / 3 * np.eye(T))
    assert known.w0.shape == (D, T) and not np.any(known.w0)


def test_as_printed_the_lower_level_does_not_exist_at_a_vertex_but_its_solution_does():
    known = multi_task(tasks_of(), 2.0)
    direction = jnp.diag(jnp.array([-1.0, 0.0, 0.0]))
    vertex, _ = known.problem.domain.lmo(direction, known.problem.domain.start(direction))
    np.testing.assert_allclose(vertex, np.diag([2.0, 0.0, 0.0]), atol=1e-12)
    vertex = jnp.round(vertex)
    assert not np.isfinite(known.problem.lower_value(vertex, jnp.ones((D, T))))
    W = multitask.solve_lower(vertex, known.w0, known.problem.data)
    np.testing.assert_allclose(W[:, :1], ridge(known.tasks, 0.1 + 0.1 / 2.0)[:, :1], atol=1e-12)
    np.testing.assert_array_equal(W[:, 1:], 0)


@pytest.mark.slow
def test_ibcg_reduces_the_true_objective():
    known = multi_task(tasks_of(), 2.0, eps=0.05)
    result = bx.solve(known.problem, bx.IBCG(constants=known.constants), steps=600)
    before, after = bx.audit(known.problem, known.omega0, known.w0), result.audit()
    assert after.ell < before.ell and after.gap < 0.1 * before.gap
    assert bool(known.problem.domain.contains(result.x))


@pytest.mark.parametrize("seeds", [pytest.param(n, marks=pytest.mark.slow) for n in (5, 20)])
def test_learning_related_tasks_together_beats_ridge_regression(seeds):
    ratios = []
    for seed in range(seeds):
        tasks = planted(seed)
        known = multi_task(tasks, 30.0, eps=0.1)
        result = bx.solve(known.problem, bx.IBCG(constants=known.constants), steps=500)
        found = [
            multitask.task_errors(W, tasks).mean() for W in (result.audit().y, ridge(tasks), ridge_tuned(tasks)[0])
        ]
        ratios.append([found[0] / found[1], found[0] / found[2]])
    alone, tuned = np.array(ratios).T
    assert alone.max() < 0.8
    # Eight validation samples per task can also mislead: one draw of the twenty is lost against tuned weights.
    assert np.median(tuned) < 0.8 and np.sum(tuned < 1) >= 0.9 * seeds


def test_other_data_of_the_same_shape_compile_nothing_again():
    traced = []

    @jax.jit
    def ell(problem, omega, W):
        traced.append(1)
        return problem.upper_value(omega, problem.structure.solve_lower(omega, W, problem.data))

    for seed, options in ((0, {}), (1, {"eps": 0.1, "lambda1": 0.5, "lambda2": 0.2, "trace": 3.0})):
        known = multi_task(tasks_of(seed), **options)
        ell(known.problem, known.omega0, known.w0)
    assert len(traced) == 1


def test_split_deals_every_sample_once_and_pad_appends_zeros():
    A, b = np.arange(22.0).reshape(11, 2), np.arange(11.0)
    task = split("eleven", A, b, np.random.default_rng(0))
    assert [len(p.b) for p in (task.train, task.valid, task.test)] == [7, 2, 2]
    np.testing.assert_array_equal(np.sort(np.concatenate([p.b for p in (task.train, task.valid, task.test)])), b)
    for part in (task.train, task.valid, task.test):
        np.testing.assert_array_equal(part.A, A[part.b.astype(int)])
    again = split("eleven", A, b, np.random.default_rng(0))
    np.testing.assert_array_equal(again.train.b, task.train.b)
    other = split("wide", np.ones((10, 4)), np.ones(10), np.random.default_rng(0))
    small, wide = pad([task, other])
    np.testing.assert_array_equal(small.train.A, np.hstack([task.train.A, np.zeros((7, 2))]))
    np.testing.assert_array_equal(wide.train.A, other.train.A)
    assert small.name == "eleven" and pad([]) == ()


def test_ridge_is_the_minimiser_and_tuning_picks_the_best_of_the_grid():
    tasks = tasks_of()
    W = ridge(tasks, 0.3)
    for i, (_, train, _, _) in enumerate(tasks):
        augmented = np.vstack([train.A / np.sqrt(len(train.b)), np.sqrt(0.3) * np.eye(D)])
        wanted = np.linalg.lstsq(augmented, np.r_[train.b / np.sqrt(len(train.b)), np.zeros(D)], rcond=None)[0]
        np.testing.assert_allclose(W[:, i], wanted, atol=1e-12)
    grid = [10.0, 0.1, 1e-3]
    tuned, weights = ridge_tuned(tasks, grid)
    for i, task in enumerate(tasks):
        errors = [np.mean((task.valid.A @ ridge(tasks, lam)[:, i] - task.valid.b) ** 2) for lam in grid]
        assert weights[i] == grid[int(np.argmin(errors))]
        np.testing.assert_array_equal(tuned[:, i], ridge(tasks, weights[i])[:, i])


def test_one_unrelated_task_each_is_ridge_regression():
    tasks = tasks_of()
    known = multi_task(tasks, 1.5)
    W = multitask.solve_lower(known.omega0, known.w0, known.problem.data)
    np.testing.assert_allclose(W, ridge(tasks, 0.1 + 0.1 * T / 1.5), atol=1e-12)


def broken(part="train", **changes):
    """Three good tasks of which the second is spoilt."""
    first, second, third = tasks_of()
    return [first, second._replace(**{part: getattr(second, part)._replace(**changes)}), third]


@pytest.mark.parametrize(
    ("tasks", "words"),
    [
        (tasks_of()[:1], "one task alone .'task 0'.* at least two"),
        ([], "no task"),
        (broken(A=np.ones((18, 5)), b=np.ones(18)), r"call pad.tasks. first: .*'task 1' has 4 and 5"),
        (broken("valid", A=np.ones((0, D)), b=np.ones(0)), "validation part of task 'task 1' is empty"),
        (broken("test", b=np.full(5, np.nan)), "test part of task 'task 1' holds a NaN"),
        (broken("train", b=np.ones((15, 1))), r"training part of task 'task 1': need A of shape .n, d. .* \(15, 1\)"),
        (broken("train", b=np.ones(3)), "training part of task 'task 1': need A of shape"),
    ],
)
def test_bad_tasks_are_refused_by_name(tasks, words):
    with pytest.raises(ValueError, match=words):
        multi_task(tasks)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"trace": 0.2, "eps": 0.1}, "is empty for 3 x 3 matrices"),
        ({"trace": -1.0}, "trace must be"),
        ({"eps": -0.1}, "eps must be"),
        ({"lambda1": 0.0}, "lambda1 > 0"),
        ({"lambda2": np.nan}, "lambda2 > 0"),
    ],
)
def test_bad_numbers_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        multi_task(tasks_of(), **options)


def test_other_calls_refuse_bad_input():
    tasks, rng = tasks_of(), np.random.default_rng(0)
    with pytest.raises(ValueError, match="task 'tiny' has 2 samples, too few"):
        split("tiny", np.ones((2, 3)), np.ones(2), rng)
    with pytest.raises(ValueError, match="must leave some for the test"):
        split("all", np.ones((20, 3)), np.ones(20), rng, (0.8, 0.2))
    with pytest.raises(ValueError, match="task 'hole' holds a NaN"):
        split("hole", np.full((20, 3), np.inf), np.ones(20), rng)
    with pytest.raises(ValueError, match="training part of task 'flat': need A of shape"):
        pad([Task("flat", *[Part(np.ones(3), np.ones(3))] * 3)])
    with pytest.raises(ValueError, match=r"one column per task, shape \(4, 3\), got \(3, 4\)"):
        multitask.task_errors(np.zeros((T, D)), tasks)
    with pytest.raises(ValueError, match="lam must be a positive number"):
        ridge(tasks, 0.0)
    with pytest.raises(ValueError, match="grid is empty"):
        ridge_tuned(tasks, [])
