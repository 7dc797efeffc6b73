"""Random quadratics on nine sets, with the solution at a vertex, inside a face or inside the set.

    f(x, y) = 1/2 |y - c|^2 + rho/2 |x|^2 + <q, x>,     g(x, y) = 1/2 y^T H y - y^T (B x + b)

ell has the Hessian Q = B^T H^-2 B + rho I. A solution x* is drawn first, together with a vector n of the normal cone at
x*. Then c is drawn near y*(x*), and q is chosen such that grad ell(x*) = -n. So grad ell(x) = Q (x - x*) - n, and x* is
optimal by construction. (With q = 0 and c alone to choose, c would be of size kappa, and so would rounding errors.)
"""

import functools

import jax.numpy as jnp
import numpy as np

import bilevax as bx
from bilevax.problems import quadratic
from families.family import Family, Instance

SIZE, SIDE, ROWS = 40, 8, 20
"""Entries of a vector, rows of a square matrix, inequalities of the polytope."""
SUPPORT, ACTIVE, RANK = 8, 5, 3
"""How many entries, inequalities or singular values are active on a face."""
KAPPAS = (10.0, 1e3, 1e5)
RIDGE = 1e-2
"""rho over the largest eigenvalue of B^T H^-2 B."""
PULL = 0.3
"""|n| over |Q (x0 - x*)|: how firmly the solution is held where it is."""


def _simplex(where, rng):
    """A domain, a start, a solution and a normal there, of any length."""
    x, n = np.zeros(SIZE), np.zeros(SIZE)
    kept = rng.permutation(SIZE)[: {"vertex": 1, "face": SUPPORT, "inside": SIZE}[where]]
    x[kept] = rng.dirichlet(np.full(len(kept), 5.0))
    n[np.setdiff1d(np.arange(SIZE), kept)] = -1
    return bx.Simplex(), np.full(SIZE, 1 / SIZE), x, n * rng.uniform(0.1, 1, SIZE)


def _l1_ball(where, rng):
    x, n = np.zeros(SIZE), rng.uniform(-0.9, 0.9, SIZE)
    kept = rng.permutation(SIZE)[: {"vertex": 1, "face": SUPPORT, "inside": SIZE}[where]]
    signs = rng.choice([-1.0, 1.0], len(kept))
    x[kept] = signs * rng.dirichlet(np.full(len(kept), 5.0))
    n[kept] = signs
    return bx.L1Ball(1.0), np.zeros(SIZE), *((0.5 * x, 0 * n) if where == "inside" else (x, n))


def _box(where, rng):
    x, side = rng.uniform(-0.8, 0.8, SIZE), rng.choice([-1.0, 1.0], SIZE)
    held = np.arange(SIZE) < {"vertex": SIZE, "face": SIZE // 2, "inside": 0}[where]
    return bx.Box(-1.0, 1.0), np.zeros(SIZE), np.where(held, side, x), held * side * rng.uniform(0.1, 1, SIZE)


def _orthant(where, rng):
    x = rng.uniform(0.2, 2, SIZE)
    held = np.arange(SIZE) < {"vertex": SIZE, "face": SIZE // 2, "inside": 0}[where]
    return bx.Box(0.0, np.inf), np.ones(SIZE), np.where(held, 0.0, x), -1 * held * rng.uniform(0.1, 1, SIZE)


def _whole_space(where, rng):
    return bx.WholeSpace(), np.zeros(SIZE), rng.standard_normal(SIZE), np.zeros(SIZE)


def _l2_ball(where, rng):
    x = rng.standard_normal(SIZE)
    x /= np.linalg.norm(x)
    return bx.L2Ball(1.0), np.zeros(SIZE), *((0.5 * x, 0 * x) if where == "inside" else (x, x))


def _polytope(where, rng):
    """Twenty inequalities in the box from -1 to 1; all of them hold at zero, the start."""
    x, A = rng.uniform(-0.8, 0.8, SIZE), rng.standard_normal((ROWS, SIZE))
    A *= np.where(A @ x >= 0, 1, -1)[:, None] / np.linalg.norm(A, axis=1)[:, None]
    slack = np.where(np.arange(ROWS) < (ACTIVE if where == "face" else 0), 0.0, rng.uniform(0.1, 0.5, ROWS))
    domain = bx.Polytope(A, A @ x + slack, lower=-1.0, upper=1.0)
    if where == "vertex":
        n = rng.standard_normal(SIZE)
        x = np.asarray(domain.lmo(jnp.asarray(-n), domain.start(jnp.asarray(n)))[0])
    else:
        n = (rng.uniform(0.1, 1, ROWS) * (slack == 0)) @ A
    return domain, np.zeros(SIZE), x, n


def _orthogonal(rng):
    return np.linalg.qr(rng.standard_normal((SIDE, SIDE)))[0]


def _nuclear_ball(where, rng):
    left, right, rank = _orthogonal(rng), _orthogonal(rng), {"vertex": 1, "face": RANK, "inside": SIDE}[where]
    values, slopes = np.zeros(SIDE), rng.uniform(0, 0.9, SIDE)
    values[:rank], slopes[:rank] = rng.dirichlet(np.full(rank, 5.0)), 1.0
    x, n = (left * values) @ right.T, (left * slopes) @ right.T
    return bx.NuclearBall(1.0), np.zeros((SIDE, SIDE)), *((0.5 * x, 0 * n) if where == "inside" else (x, n))


def _spectraplex(where, rng):
    vectors, rank = _orthogonal(rng), {"vertex": 1, "face": RANK, "inside": SIDE}[where]
    values, slopes = np.zeros(SIDE), rng.uniform(-0.5, 0.9, SIDE)
    values[:rank], slopes[:rank] = rng.dirichlet(np.full(rank, 5.0)), 1.0
    x, n = (vectors * values) @ vectors.T, (vectors * slopes) @ vectors.T
    start = np.eye(SIDE) / SIDE
    return bx.Spectraplex(1.0), start, *((0.5 * x, 0 * n) if where == "inside" else (x, n))


PROJECTED = ("fista", "implicit")
BOXED = ("fista", "implicit", "lbfgsb")
SETS = {
    "simplex": (_simplex, ("vertex", "face", "inside"), PROJECTED),
    "l1ball": (_l1_ball, ("vertex", "face", "inside"), PROJECTED),
    "box": (_box, ("vertex", "face", "inside"), BOXED),
    "orthant": (_orthant, ("vertex", "face", "inside"), BOXED),
    "wholespace": (_whole_space, ("inside",), BOXED),
    "l2ball": (_l2_ball, ("face", "inside"), PROJECTED),
    "polytope": (_polytope, ("vertex", "face", "inside"), ("slsqp",)),
    "nuclearball": (_nuclear_ball, ("vertex", "face", "inside"), PROJECTED),
    "spectraplex": (_spectraplex, ("vertex", "face", "inside"), PROJECTED),
}


def make(set_name, where, kappa, ridge, seed):
    """The problem, its start and its solution."""
    rng = np.random.default_rng([seed, *set_name.encode(), *where.encode()])
    domain, x0, x_star, normal = SETS[set_name][0](where, rng)
    n = x0.size
    m = n + n // 2
    basis = np.linalg.qr(rng.standard_normal((m, m)))[0]
    spectrum = np.geomspace(1.0, kappa, m)
    H, inverse = (basis * spectrum) @ basis.T, (basis / spectrum) @ basis.T
    B, b = rng.standard_normal((m, n)) / np.sqrt(m), rng.standard_normal(m)
    if set_name == "spectraplex":  # only the symmetric part of x counts, so that gradients are symmetric
        B = 0.5 * (B + B.reshape(m, SIDE, SIDE).transpose(0, 2, 1).reshape(m, n))
    Q = B.T @ inverse @ inverse @ B
    rho = ridge * np.linalg.norm(Q, 2)
    if np.any(normal):
        pull = np.linalg.norm(Q @ (x0 - x_star).ravel() + rho * (x0 - x_star).ravel())
        normal = PULL * pull / np.linalg.norm(normal) * normal
    away = 0.1 * rng.standard_normal(m)
    c = inverse @ (B @ x_star.ravel() + b) + away
    q = (B.T @ inverse @ away - rho * x_star.ravel()).reshape(x0.shape) - normal
    given = {"A": 0.5 * (H + H.T), "B": B, "b": b, "c": c, "rho": np.asarray(rho), "q": q}
    data = {name: jnp.asarray(value, float) for name, value in given.items()}
    problem = bx.BilevelProblem(quadratic.upper, quadratic.lower, domain, data)
    return Instance(problem, jnp.asarray(x0), jnp.zeros(m), x_star)


def _family(set_name, where, kappa, ridge=RIDGE):
    name = f"quadratic-{set_name}-{where}-{kappa:.0e}".replace("e+0", "e")
    make_one = functools.partial(make, set_name, where, kappa, ridge)
    quick = bool(ridge) and kappa == 1e3 and where == _usual(set_name)
    return Family(name if ridge else name + "-flat", "convex", make_one, SETS[set_name][2], quick)


def _usual(set_name):
    """A face, where the set has one."""
    return "face" if "face" in SETS[set_name][1] else "inside"


FAMILIES = [_family(s, where, kappa) for s in SETS for where in SETS[s][1] for kappa in KAPPAS]
FAMILIES += [_family(s, _usual(s), 1e3, ridge=0.0) for s in SETS]
