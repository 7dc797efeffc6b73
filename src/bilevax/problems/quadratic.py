"""Random quadratic bilevel problems whose solution is known, on any set.

    f(x, y) = 1/2 |y - c|^2 + rho/2 |x|^2 + <q, x>,     g(x, y) = 1/2 y^T A y - y^T (B x + b)

so that y*(x) = A^-1 (B x + b) and ell is a convex quadratic. The linear term q is chosen last, such that a point
x* drawn beforehand satisfies the optimality condition: -grad ell(x*) lies in the normal cone of the set at x*.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PyTree, Scalar

from bilevax import trees
from bilevax.problem import BilevelProblem
from bilevax.sets import ConvexSet
from bilevax.theory import Constants


def upper(x: PyTree, y: Array, data: dict[str, Any]) -> Scalar:
    """f(x, y)."""
    near = 0.5 * jnp.sum((y - data["c"]) ** 2)
    return near + 0.5 * data["rho"] * trees.inner(x, x) + trees.inner(data["q"], x)


def lower(x: PyTree, y: Array, data: dict[str, Any]) -> Scalar:
    """g(x, y)."""
    return 0.5 * y @ (data["A"] @ y) - y @ (data["B"] @ ravel_pytree(x)[0] + data["b"])


class KnownQuadratic(NamedTuple):
    """A problem together with everything known about it in closed form (numpy, independent of autodiff)."""

    problem: BilevelProblem
    x_star: PyTree
    ell_star: float
    constants: Constants

    def lower_solution(self, x: PyTree) -> np.ndarray:
        """y*(x)."""
        data = self.problem.data
        return np.linalg.solve(data["A"], data["B"] @ np.asarray(ravel_pytree(trees.coordinates(x))[0]) + data["b"])

    def adjoint(self, x: PyTree) -> np.ndarray:
        """v(x) = H^-1 f_y at y*(x)."""
        return np.linalg.solve(self.problem.data["A"], self.lower_solution(x) - self.problem.data["c"])

    def ell(self, x: PyTree) -> float:
        """f(x, y*(x))."""
        data, flat = self.problem.data, np.asarray(ravel_pytree(trees.coordinates(x))[0])
        linear = np.asarray(ravel_pytree(data["q"])[0])
        near = 0.5 * np.sum((self.lower_solution(x) - data["c"]) ** 2)
        return float(near + 0.5 * data["rho"] * flat @ flat + linear @ flat)

    def gradient(self, x: PyTree) -> PyTree:
        """The gradient of ell, with the structure of x."""
        data = self.problem.data
        flat, back = ravel_pytree(trees.coordinates(x))
        return back(data["B"].T @ self.adjoint(x) + data["rho"] * flat + ravel_pytree(data["q"])[0])


def random_quadratic(
    domain: ConvexSet,
    x_like: PyTree,
    m: int,
    key: Array,
    *,
    kappa: float = 10.0,
    rho: float = 0.1,
    slope: float = 1.0,
) -> KnownQuadratic:
    """A random problem over `domain` with `m` lower variables, condition number `kappa` and a known solution.

    On a set with a projection the solution lies on a random face, and `slope` scales how firmly; on other sets it is
    a vertex.
    """
    zeros = trees.shapes(x_like).zeros()
    dtype = trees.dtype(zeros)
    n = trees.size(zeros)
    parts = iter(jax.random.split(key, 6))
    basis, _ = jnp.linalg.qr(jax.random.normal(next(parts), (m, m), dtype))
    spectrum = jnp.asarray(np.geomspace(1.0, kappa, m) if m > 1 else [1.0], dtype)
    A = (basis * spectrum) @ basis.T
    data: dict[str, Any] = {
        "A": 0.5 * (A + A.T),
        "B": jax.random.normal(next(parts), (m, n), dtype) / math.sqrt(n),
        "b": jax.random.normal(next(parts), (m,), dtype),
        "c": jax.random.normal(next(parts), (m,), dtype),
        "rho": jnp.asarray(rho, dtype),
        "q": zeros,
    }
    domain = trees.cast(domain, dtype)
    x_star, wanted = _optimality(domain, zeros, next(parts), slope)
    constants = Constants(float(spectrum[0]), float(spectrum[-1]))
    plain = KnownQuadratic(BilevelProblem(upper, lower, domain, data), x_star, 0.0, constants)
    data["q"] = jax.tree.map(lambda v: jnp.asarray(v, dtype), trees.sub(wanted, plain.gradient(x_star)))
    problem = BilevelProblem(upper, lower, domain, data, x_like=zeros, y_like=data["b"])
    known = KnownQuadratic(problem, x_star, 0.0, constants)
    return known._replace(ell_star=known.ell(x_star))


def _optimality(domain: ConvexSet, zeros: PyTree, key: Array, slope: float) -> tuple[PyTree, PyTree]:
    """A point of the set and a gradient with which it is optimal."""
    far = trees.random_like(zeros, key)
    width = float(domain.diameter(zeros).value)
    far = trees.scale((width if np.isfinite(width) else 2.0) / trees.norm(far), far)
    far = trees.add(domain.vertex(zeros), far)
    try:
        x_star = domain.project(far)
    except NotImplementedError:
        wanted = trees.random_like(zeros, key)
        return domain.lmo(wanted, domain.start(zeros))[0], wanted
    return x_star, trees.scale(jnp.asarray(slope, trees.dtype(zeros)), trees.sub(x_star, far))
