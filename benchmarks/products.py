"""Hessian products of `bx.auto` on ill-conditioned lower levels, against scipy's conjugate gradients.

    python benchmarks/products.py [--variables 1500] [--weights 200]

The lower level is quadratic, with a spectrum that is spaced evenly or by factors, and too large for its inverse to be
kept. Both inner systems at every point that `bx.auto` has visited are solved again by scipy from zero, to a relative
residual of 1e-6. The bar is a ratio of 1.5; warm starts and loose solves make it smaller.
"""

import argparse
import json
from pathlib import Path

import jax

jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import scipy.sparse.linalg  # noqa: E402

import bilevax as bx  # noqa: E402
from bilevax.drawing.tables import markdown  # noqa: E402


def reflect(u, v):
    """v mirrored, so that H is not diagonal."""
    return v - 2 * u * (u @ v)


def lower(x, y, data):
    """A quadratic with the spectrum h."""
    return 0.5 * jnp.sum(data["h"] * reflect(data["u"], y) ** 2) - y @ (data["B"] @ x + data["b"])


def upper(x, y, data):
    """The distance to a target."""
    return 0.5 * jnp.sum((y - data["c"]) ** 2) + 0.05 * jnp.sum(x**2)


def problem_with(spectrum, weights, seed=0):
    """Weights on a simplex, and a lower level with this spectrum."""
    rng, m = np.random.default_rng(seed), len(spectrum)
    u = rng.standard_normal(m)
    data = {
        "h": spectrum,
        "u": u / np.linalg.norm(u),
        "B": rng.standard_normal((m, weights)) / np.sqrt(weights),
        "b": rng.standard_normal(m),
        "c": rng.standard_normal(m),
    }
    return bx.BilevelProblem(upper, lower, bx.Simplex(), jax.tree.map(jnp.asarray, data)), data


def scipy_products(data, b):
    """The solution of H v = b, and the products that scipy needs for it."""
    calls, m = [], len(b)

    def product(v):
        calls.append(1)
        return reflect(data["u"], data["h"] * reflect(data["u"], v))

    operator = scipy.sparse.linalg.LinearOperator((m, m), matvec=product)
    solution, _ = scipy.sparse.linalg.cg(operator, b, rtol=1e-6, maxiter=100_000)
    return solution, len(calls)


def compare(spectrum, weights):
    """The products of both, and how the run ended."""
    problem, data = problem_with(spectrum, weights)
    x0, y0, visited = jnp.full(weights, 1 / weights), jnp.zeros(len(spectrum)), []
    tol = 1e-6 * bx.audit(problem, x0, y0).measure[1]
    keep = lambda row, state: visited.append(np.asarray(state.x))  # noqa: E731
    result = bx.solve(problem, None, x0, y0, steps=300, every=1, tol=tol, observers=keep)
    theirs = 0
    for x in visited:
        y, first = scipy_products(data, data["B"] @ x + data["b"])
        theirs += first + scipy_products(data, y - data["c"])[1]
    return result, int(result.trace["hvps"][-1]), theirs


def main():
    """One line for each spectrum."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--variables", type=int, default=1500, help="lower variables")
    parser.add_argument("--weights", type=int, default=200, help="upper variables")
    parser.add_argument("--json", help="also write the lines to this file")
    options = parser.parse_args()
    lines = []
    for name, spaced in (("by factors", np.geomspace), ("evenly", np.linspace)):
        for kappa in (1e1, 1e2, 1e3, 1e4, 1e5, 1e6):
            result, ours, theirs = compare(spaced(1.0, kappa, options.variables), options.weights)
            line = {"spectrum": name, "kappa": f"{kappa:.0e}", "status": result.status.name, "steps": result.steps}
            lines.append(line | {"products": ours, "scipy": theirs, "ratio": round(ours / theirs, 2)})
    print(markdown(lines))
    if options.json:
        Path(options.json).write_text(json.dumps(lines, indent=1))


if __name__ == "__main__":
    main()
