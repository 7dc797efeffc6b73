"""Ridge weights of features where one row in twenty is far larger than the rest, with y*(x) by numpy."""

import jax
import jax.numpy as jnp
import numpy as np

import bilevax as bx

SETS = {
    "box": (bx.Box(-5.0, 3.0), np.zeros),
    "l2ball": (bx.L2Ball(3.0), np.zeros),
    "simplex": (bx.Simplex(), lambda n: np.full(n, 1 / n)),
    "space": (bx.WholeSpace(), np.zeros),
}
"""Each set with a function that makes a start of n entries."""
LOSSES = ("squares", "logistic")


def squares(y, part):
    """Half the mean squared error."""
    return 0.5 * jnp.mean((part["A"] @ y - part["b"]) ** 2)


def logistic(y, part):
    """The logistic loss of the signs."""
    return jnp.mean(jax.nn.softplus(-jnp.sign(part["b"]) * (part["A"] @ y)))


def squares_upper(x, y, data):
    return squares(y, data["valid"])


def squares_lower(x, y, data):
    return squares(y, data["train"]) + 0.5 * jnp.sum(jnp.exp(x) * y**2)


def logistic_upper(x, y, data):
    return logistic(y, data["valid"])


def logistic_lower(x, y, data):
    return logistic(y, data["train"]) + 0.5 * jnp.sum(jnp.exp(x) * y**2)


FUNCTIONS = {"squares": (squares_upper, squares_lower), "logistic": (logistic_upper, logistic_lower)}


def regression(heavy, batch, loss="squares", domain="box", *, n=6, rows=1024, blocks=False, dtype=None, seed=0):
    """The problem with its start (x0, y0); `blocks` numbers the batches, as SABA needs."""
    rng = np.random.default_rng(seed)
    truth, data = rng.standard_normal(n) / np.sqrt(n / 6), {}
    for name in ("train", "valid"):
        scale = np.where(rng.random(rows) < 0.05, heavy, 1.0)
        A = rng.standard_normal((rows, n)) * scale[:, None]
        data[name] = {"A": A, "b": A @ truth + 2 * scale * rng.standard_normal(rows)}
    data = jax.tree.map(lambda v: jnp.asarray(v, dtype), data)
    sampler = bx.PerPart({name: (bx.Blocks if blocks else bx.Minibatch)(batch, rows) for name in data})
    chosen, start = SETS[domain]
    problem = bx.BilevelProblem(*FUNCTIONS[loss], chosen, data, sampler)
    return problem, jnp.asarray(start(n), dtype), jnp.zeros(n, dtype)


def lower_minimum(problem, loss):
    """The function x -> y*(x), in double precision: a linear system, or Newton's method with shortened steps."""
    A, b = (np.asarray(problem.data["train"][name], float) for name in "Ab")
    rows = A * np.sign(b)[:, None]

    def linear(x):
        return np.linalg.solve(A.T @ A / len(A) + np.diag(np.exp(x)), A.T @ b / len(A))

    def newton(x):
        weights, y = np.exp(x), np.zeros(len(x))
        value = lambda y: np.mean(np.logaddexp(0, -rows @ y)) + 0.5 * weights @ y**2  # noqa: E731
        for _ in range(200):
            wrong = 1 / (1 + np.exp(np.clip(rows @ y, -500, 500)))
            gradient = weights * y - rows.T @ wrong / len(rows)
            if np.linalg.norm(gradient) < 1e-9:
                break
            hessian = rows.T @ (rows * (wrong * (1 - wrong))[:, None]) / len(rows) + np.diag(weights)
            step, length = np.linalg.solve(hessian, gradient), 1.0
            while value(y - length * step) > value(y) - 0.1 * length * gradient @ step and length > 1e-9:
                length /= 2
            y = y - length * step
        return y

    return linear if loss == "squares" else newton
