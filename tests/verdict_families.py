"""Problems made to deceive an audit, each with its true gradient from extended precision in numpy."""

from dataclasses import dataclass
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg

import bilevax as bx

Long = np.longdouble


def upper(x, y, d):
    return 0.5 * jnp.sum((y - d["c"]) ** 2) + x @ (d["C"] @ y) + 0.5 * d["rho"] * jnp.sum(x**2) + d["q"] @ x


def quadratic(x, y, d):
    return 0.5 * y @ (d["A"] @ y) - y @ (d["B"] @ x + d["b"])


def least_squares(x, y, d):
    """A ridge regression on features of different units; x shifts what they explain."""
    return 0.5 * jnp.sum((d["A"] @ y - d["a"] - d["B"] @ x) ** 2) + 0.5 * d["mu"] * jnp.sum(y**2)


def logistic(x, y, d):
    return jnp.mean(jax.nn.softplus(-d["a"] * (d["A"] @ y))) - y @ (d["B"] @ x) + 0.5 * d["mu"] * jnp.sum(y**2)


def pseudo_huber(x, y, d):
    z = y - d["B"] @ x
    return jnp.sum(d["s"] * (jnp.sqrt(1 + z**2) - 1)) + 0.5 * d["mu"] * jnp.sum(y**2)


@dataclass(frozen=True)
class Case:
    """A problem, and what numpy knows of it."""

    problem: bx.BilevelProblem
    kappa: float
    parts: object
    """x, y -> g_y, H, and J as an n x m matrix, in extended precision."""

    def truth(self, x):
        """The gradient of ell, the size |f_x| + |J v| against which rounding counts, and y*."""
        d = {name: np.asarray(v, Long) for name, v in self.problem.data.items()}
        x = np.asarray(x, Long)
        y = self._minimiser(d, x)
        at = self.parts(d, x, y)
        f_x, f_y = d["C"] @ y + d["rho"] * x + d["q"], y - d["c"] + d["C"].T @ x
        Jv = at.cross(refined(at, f_y))
        return f_x - Jv, float(np.linalg.norm(f_x) + np.linalg.norm(Jv)), y

    def _minimiser(self, d, x):
        if self.parts is huber_parts:
            return bisected(d, x)
        y = np.zeros(len(d["c"]), Long)
        best = np.inf
        for _ in range(200):
            at = self.parts(d, x, y)
            size = np.linalg.norm(at.g_y)
            if not size < 0.9 * best and best < 1e-12 * (1 + np.linalg.norm(at.product(y))):
                break
            best = min(best, size)
            step, t = refined(at, at.g_y), Long(1)
            while t > 1e-8 and not np.linalg.norm(self.parts(d, x, y - t * step).g_y) < (1 - 1e-4 * t) * size:
                t /= 2
            if t <= 1e-8:
                break
            y = y - t * step
        return y


class Parts:
    """Derivatives of the lower level at one point, in extended precision; the Hessian as a matrix in float64."""

    def __init__(self, g_y, hessian, product, cross):
        self.g_y, self.hessian, self.product, self.cross = g_y, hessian, product, cross


def bisected(d, x):
    """The minimiser of the pseudo-Huber family, entry by entry."""
    shift = d["B"] @ x
    slope = lambda y: d["s"] * (y - shift) / np.sqrt(1 + (y - shift) ** 2) + d["mu"] * y  # noqa: E731
    low, high = np.minimum(shift, 0), np.maximum(shift, 0)
    for _ in range(120):
        middle = (low + high) / 2
        above = slope(middle) > 0
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    return (low + high) / 2


def refined(at, b):
    """`H^-1 b` by a float64 factorization and refinement in extended precision."""
    factor = scipy.linalg.lu_factor(at.hessian())
    v = np.asarray(scipy.linalg.lu_solve(factor, b.astype(float)), Long)
    for _ in range(4):
        v = v + scipy.linalg.lu_solve(factor, (b - at.product(v)).astype(float))
    return v


def quadratic_parts(d, x, y):
    A, B = d["A"], d["B"]
    return Parts(A @ y - B @ x - d["b"], lambda: A.astype(float), lambda v: A @ v, lambda v: -(v @ B))


def least_squares_parts(d, x, y):
    A, B, mu = d["A"], d["B"], d["mu"]
    A64 = A.astype(float)
    return Parts(
        (A @ y - d["a"] - B @ x) @ A + mu * y,
        lambda: A64.T @ A64 + float(mu) * np.eye(len(y)),
        lambda v: (A @ v) @ A + mu * v,
        lambda v: -((A @ v) @ B),
    )


def logistic_parts(d, x, y):
    A, a, B, mu = d["A"], d["a"], d["B"], d["mu"]
    p = 0.5 * (1 - np.tanh(0.5 * a * (A @ y)))
    weights, A64 = p * (1 - p) / len(a), A.astype(float)
    return Parts(
        -(a * p) @ A / len(a) - B @ x + mu * y,
        lambda: (A64.T * weights.astype(float)) @ A64 + float(mu) * np.eye(len(y)),
        lambda v: (weights * (A @ v)) @ A + mu * v,
        lambda v: -(v @ B),
    )


def huber_parts(d, x, y):
    z = y - d["B"] @ x
    root = np.sqrt(1 + z**2)
    curvature = d["s"] / root**3
    diagonal = curvature + d["mu"]
    return Parts(
        d["s"] * z / root + d["mu"] * y,
        lambda: np.diag(diagonal.astype(float)),
        lambda v: diagonal * v,
        lambda v: -((curvature * v) @ d["B"]),
    )


FAMILIES = {
    "quadratic": (quadratic, quadratic_parts),
    "least squares": (least_squares, least_squares_parts),
    "logistic": (logistic, logistic_parts),
    "pseudo-Huber": (pseudo_huber, huber_parts),
}


@cache
def basis(m, seed):
    """One of a few orthogonal matrices: making them is most of the time of a problem."""
    return np.linalg.qr(np.random.default_rng([m, seed]).standard_normal((m, m)))[0]


def case(family, m, rng, domain=None, n=5, kappa=None, single=False):
    """A random problem of a family with `m` lower variables."""
    kappa = 10 ** rng.uniform(0, 8) if kappa is None else kappa
    scale = 10 ** rng.uniform(-2, 2)
    d = {
        "B": rng.standard_normal((m, n)) * scale,
        "c": rng.standard_normal(m) * 10 ** rng.uniform(-1, 1),
        "C": rng.standard_normal((n, m)) * rng.choice([0.0, 0.1, 1.0]) / np.sqrt(m),
        "rho": 10 ** rng.uniform(-3, 0),
        "q": rng.standard_normal(n) * rng.choice([0.0, 1.0]),
    }
    spectrum = np.geomspace(1 / kappa, 1.0, m) if rng.random() < 0.5 else np.r_[1 / kappa, rng.uniform(0.1, 1, m - 1)]
    if family == "quadratic":
        Q = basis(m, int(rng.integers(3))) if rng.random() < 0.7 else np.eye(m)
        A = (Q * spectrum) @ Q.T
        d |= {"A": 0.5 * (A + A.T), "b": rng.standard_normal(m)}
        if rng.random() < 0.5:  # J sees stiff directions more than soft ones, or is blind to them
            d["B"] = Q @ (spectrum[:, None] ** rng.choice([0.5, 1.0]) * d["B"])
    elif family == "least squares":
        units = np.sqrt(rng.permutation(spectrum))  # columns of different units
        d |= {"A": rng.standard_normal((2 * m, m)) * units / np.sqrt(m), "a": rng.standard_normal(2 * m)}
        d |= {"mu": 1 / kappa, "B": rng.standard_normal((2 * m, n)) * scale}
    elif family == "logistic":
        units = np.sqrt(rng.permutation(spectrum))
        A = rng.standard_normal((3 * m, m)) * units
        d |= {"A": A, "a": np.sign(A @ rng.standard_normal(m) + rng.standard_normal(3 * m)), "mu": 1 / kappa}
        d["B"] = d["B"] * 1e-2 * units[:, None] / scale
    else:
        d |= {"s": rng.permutation(spectrum), "mu": 1 / kappa}
    kind = np.float32 if single else np.float64
    d = {name: jnp.asarray(np.asarray(v, kind)) for name, v in d.items()}
    lower, parts = FAMILIES[family]
    return Case(bx.BilevelProblem(upper, lower, bx.Simplex() if domain is None else domain, d), kappa, parts)
