"""The quadratics of the benchmarks have the solution that they claim: gaps computed densely, without the library."""

import sys
from pathlib import Path

import numpy as np
import pytest
import scipy

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
try:
    from families import quadratics
finally:
    sys.path.pop(0)


def gradient(problem, x):
    data = {name: np.asarray(value) for name, value in problem.data.items()}
    y = np.linalg.solve(data["A"], data["B"] @ x.ravel() + data["b"])
    v = np.linalg.solve(data["A"], y - data["c"])
    return (data["B"].T @ v + data["rho"] * x.ravel()).reshape(x.shape) + data["q"]


def least(name, domain, g):
    """The least inner product of g with a point of the set."""
    if name == "polytope":
        rows = domain.program.rows
        bounds = np.stack([domain.program.lower, domain.program.upper], axis=1)
        return scipy.optimize.linprog(g, A_ub=rows.matrix, b_ub=rows.right, bounds=bounds).fun
    return {
        "simplex": lambda: g.min(),
        "l1ball": lambda: -np.abs(g).max(),
        "box": lambda: -np.abs(g).sum(),
        "l2ball": lambda: -np.linalg.norm(g),
        "nuclearball": lambda: -np.linalg.norm(g, 2),
        "spectraplex": lambda: min(np.linalg.eigvalsh(g)[0], 0.0),
    }[name]()


CASES = [(name, where) for name, (_, places, _) in quadratics.SETS.items() for where in places]


@pytest.mark.parametrize("name, where", CASES)
def test_the_constructed_point_is_a_solution(name, where):
    made = quadratics.make(name, where, 1e3, quadratics.RIDGE, 0)
    problem, x, x0 = made.problem, np.asarray(made.x_star), np.asarray(made.x0)
    assert not problem.domain.violations(x) and not problem.domain.violations(x0)

    def measure(x):
        g = gradient(problem, x)
        if name in ("orthant", "wholespace"):
            moved = x - g
            return np.linalg.norm(x - (np.maximum(moved, 0) if name == "orthant" else moved))
        return np.sum(g * x) - least(name, problem.domain, g)

    assert abs(measure(x)) < 1e-9 * measure(x0)


@pytest.mark.parametrize("name, where", [("box", "face"), ("simplex", "vertex")])
def test_an_independent_solver_finds_the_constructed_point(name, where):
    made = quadratics.make(name, where, 10.0, quadratics.RIDGE, 1)
    problem, x_star = made.problem, np.asarray(made.x_star)
    Q = np.stack([gradient(problem, e) - gradient(problem, 0 * e) for e in np.eye(x_star.size)])
    linear = gradient(problem, np.zeros(x_star.size))
    limits = (-1, 1) if name == "box" else (0, 1)
    constraints = [] if name == "box" else [{"type": "eq", "fun": lambda x: x.sum() - 1, "jac": np.ones_like}]
    found = scipy.optimize.minimize(
        lambda x: 1e2 * (0.5 * x @ Q @ x + linear @ x), np.asarray(made.x0), jac=lambda x: 1e2 * (Q @ x + linear),
        bounds=[limits] * x_star.size, constraints=constraints, method="SLSQP", options={"ftol": 1e-14, "maxiter": 500},
    )  # fmt: skip
    assert np.linalg.norm(found.x - x_star) < 1e-4
