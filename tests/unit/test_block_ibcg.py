"""BlockIBCG against accelerated projection with full decompositions, written in numpy, and closed forms."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from small_completion import COLS, OBSERVED, ROWS, M, P, Q, sides

import bilevax as bx
from bilevax.linalg import low_rank
from bilevax.problems import matrix_completion, sparse_completion

RADIUS = 15.0
I_P, I_Q = np.eye(P), np.eye(Q)


def project(matrix, radius=RADIUS):
    """The nearest matrix of the nuclear ball."""
    u, s, v = np.linalg.svd(matrix, full_matrices=False)
    if s.sum() <= radius:
        return matrix
    low, high = 0.0, s[0]
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if np.maximum(s - middle, 0).sum() > radius else (low, middle)
    return (u * np.maximum(s - high, 0)) @ v


def least_squares(left=I_P, right=I_Q, steps=4000):
    """Completion without a regularizer is least squares on the entries; X = left Z right^T, Z in the nuclear ball."""
    Z = before = np.zeros((P, Q))
    length = 1 / (np.linalg.norm(left, 2) * np.linalg.norm(right, 2)) ** 2
    for k in range(steps):
        ahead = Z + k / (k + 3) * (Z - before)
        before, Z = Z, project(ahead - length * left.T @ (OBSERVED * (left @ ahead @ right.T - M)) @ right)
    return left @ Z @ right.T


PLAIN = {"regularizer": None, "lambda2": 0.05}


def value(X):
    return float(np.sum((OBSERVED * (X - M)) ** 2)) / OBSERVED.sum() / 1.05**2


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.slow) for kind in ("weighted", "dense", "sparse")]
)
def test_it_ends_where_accelerated_projection_does(kind):
    if kind == "dense":
        problem, _ = matrix_completion(M, OBSERVED, RADIUS, **PLAIN)
        start, truth = (jnp.zeros((P, Q)), jnp.zeros((P, Q))), least_squares()
    else:
        problem, _ = sparse_completion(ROWS, COLS, M[OBSERVED], RADIUS, shape=(P, Q), **PLAIN)
        start, truth = (), least_squares()
    if kind == "weighted":
        (rows, A), (cols, B) = sides()
        problem = replace(problem, domain=replace(problem.domain, rows=rows, cols=cols))
        truth = least_squares(A, B, 3000)
    result = bx.solve(problem, bx.BlockIBCG(), *start, steps=600, every=20, tol=1e-8)
    assert result.status is bx.Status.CONVERGED, result.message
    audit = result.audit()
    assert float(audit.ell) == pytest.approx(value(truth), rel=1e-7)
    X = result.x if kind == "dense" else np.matmul(*(f.T if i else f for i, f in enumerate(result.x.factors())))
    np.testing.assert_allclose(np.asarray(X)[OBSERVED], truth[OBSERVED], atol=1e-3)
    assert bool(problem.domain.contains(result.x)) and result.state.basis.exact
    assert result.trace["projections"][-1] < 1.8 * result.steps  # steps are seldom tried in vain


@pytest.mark.slow
def test_dense_and_sparse_have_the_same_iterates_with_the_pseudo_huber_loss():
    dense, _ = matrix_completion(M, OBSERVED, RADIUS)
    sparse, _ = sparse_completion(ROWS, COLS, M[OBSERVED], RADIUS, shape=(P, Q))
    a = bx.solve(dense, bx.BlockIBCG(), jnp.zeros((P, Q)), jnp.zeros((P, Q)), steps=4)
    b = bx.solve(sparse, bx.BlockIBCG(), steps=4)
    # The first step is measured by a difference quotient, which rounding reaches.
    np.testing.assert_allclose(b.x.values, np.asarray(a.x)[OBSERVED], atol=1e-5)
    np.testing.assert_allclose(b.trace["gap"], a.trace["gap"], rtol=1e-3, atol=1e-6)


@pytest.mark.slow
def test_without_formulas_y_and_the_adjoint_are_tracked():
    solved, _ = matrix_completion(M, OBSERVED, RADIUS, lambda2=1.0)
    tracked = replace(solved, structure=bx.LowerStructure())
    start = (jnp.zeros((P, Q)), jnp.zeros((P, Q)))
    best = float(bx.solve(solved, bx.BlockIBCG(), *start, steps=200, tol=1e-9).audit().ell)
    result = bx.solve(tracked, bx.BlockIBCG(), *start, steps=100)
    assert float(result.audit().ell) == pytest.approx(best, rel=1e-5)
    assert result.trace["lower_grads"][-1] > 0 and result.trace["hvps"][-1] > 0


@pytest.mark.parametrize("eps", [0.0, 0.05])
def test_on_the_spectraplex_a_quadratic_ends_at_the_projection(eps):
    target = np.random.default_rng(3).standard_normal((12, 12))
    target = target + target.T
    domain = bx.Spectraplex(4.0, eps)
    problem = bx.BilevelProblem(
        lambda x, y, t: jnp.sum((y - t) ** 2), lambda x, y, t: jnp.sum((y - x) ** 2), domain, jnp.asarray(target)
    )
    result = bx.solve(problem, bx.BlockIBCG(), jnp.eye(12) / 3, jnp.zeros((12, 12)), steps=60)
    np.testing.assert_allclose(result.x, domain.project(jnp.asarray(target)), atol=1e-5)
    assert bool(domain.contains(result.x))


@pytest.mark.parametrize("radius", [0.5, 20.0, 1e6])
@pytest.mark.parametrize("columns", [2, 8])
def test_a_truncation_called_exact_is_that_of_a_full_decomposition(radius, columns):
    matrix = np.random.default_rng(4).standard_normal((40, 25))
    basis = np.random.default_rng(5).standard_normal((25, columns))
    ball = lambda values: low_rank.to_l1_ball(values, radius)  # noqa: E731
    found = low_rank.shrunk(low_rank.dense(matrix), basis, ball, rounds=60, verify=True)
    assert found.exact
    np.testing.assert_allclose((found.left * found.values) @ found.right.T, project(matrix, radius), atol=1e-6)


def test_the_rank_can_be_bounded():
    problem, _ = sparse_completion(ROWS, COLS, M[OBSERVED], 60.0, shape=(P, Q), **PLAIN)
    result = bx.solve(problem, bx.BlockIBCG(max_rank=2), steps=20)
    assert result.x.factors()[0].shape == (P, 2) and not result.state.basis.exact


def test_other_sets_and_run_are_refused_by_name():
    upper, lower = (lambda x, y, _: jnp.sum(y**2)), (lambda x, y, _: jnp.sum((y - x) ** 2))
    problem = bx.BilevelProblem(upper, lower, bx.Simplex())
    with pytest.raises(ValueError, match="BlockIBCG cannot move x: Simplex.* has no low-rank steps"):
        bx.solve(problem, bx.BlockIBCG(), jnp.ones(3) / 3, jnp.zeros(3))
    with pytest.raises(ValueError, match="run: BlockIBCG steps on the host"):
        bx.run(problem, bx.BlockIBCG(), jnp.ones(3) / 3, jnp.zeros(3), steps=2)
    with pytest.raises(ValueError, match="max_rank must be a whole number"):
        bx.BlockIBCG(max_rank=0)
