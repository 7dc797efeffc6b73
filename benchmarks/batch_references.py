"""The problems and methods of `batch_race.py`.

Each problem has its start, its grid and a function that computes h(x) = f(x, y*(x)). Each method is ours or theirs, and
both have the same step sizes, schedules and inner steps.
"""

import importlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
from batch_steps import BATCH, INNER, ijcnn1, quadratics, two_losses

import bilevax as bx
from bilevax.runs import chunks

METHODS = ("soba", "saba", "srba", "amigo", "stocbio", "fsla", "f2sa", "bsa")
PROBLEMS = ("quadratics", "ijcnn1", "mnist")
LOWER_STEPS = (1, 0.3, 0.1, 0.03, 0.01)
RATIOS = (0.01, 0.1, 1, 10)
"""The lower step over the step of x."""


class Task(NamedTuple):
    """A problem with its start, the function that computes h, and how to search."""

    problem: bx.BilevelProblem
    x: Any
    y: Any
    value: Callable[[Any], float]
    limit: float
    """The most seconds of one run, at the measured seconds per step."""
    growth: float
    """The ratio of two step counts at which h is computed."""
    steps: tuple[float, ...] = LOWER_STEPS
    ratios: tuple[float, ...] = RATIOS
    chunk: int = 64
    """The step counts at which h is computed are multiples of this, or of an eighth for methods with inner loops."""
    timed: int = 2000
    """Steps of single-loop methods in a timed chunk."""
    solve_limit: float = 10.0
    """The most seconds of `bx.solve`."""
    rounds: int = 6
    """How often the search goes on to the neighbours of the best settings."""
    cheap: bool = True
    """Whether the best settings run on all seeds in every round, not only in the last, with diagonal neighbours."""
    follow: bool = False
    """Whether the search for our steps begins at the best of theirs instead of the grid."""
    least: float = np.inf
    """A value that h can come as near as one likes, if it was computed directly."""


def quadratic_value(data):
    """h for the quadratics, in double precision, from the second moments of the rows."""
    moments = {}
    for name, part in data.items():
        a, b, c, d = (np.asarray(part[leaf], float) for leaf in "abcd")
        moments[name] = a.T @ a / len(a), b.T @ b / len(a), 0.1 * a.T @ b / len(a), c.mean(0), d.mean(0)

    def value(x):
        yy, _, yx, c, _ = moments["train"]
        y = -np.linalg.solve(yy, yx @ x + c)
        yy, xx, yx, c, d = moments["valid"]
        return 0.5 * y @ yy @ y + 0.5 * x @ xx @ x + y @ yx @ x + c @ y + d @ x

    return value


def logistic_value(data):
    """h for the weights of features, and its gradient on request; Newton's method begins at the last solution."""
    rows = {name: np.asarray(part["A"], float) * np.asarray(part["b"], float)[:, None] for name, part in data.items()}
    A, V, last = rows["train"], rows["valid"], [np.zeros(rows["train"].shape[1])]

    def value(x, slope=False):
        weights, y = np.exp(np.clip(x, -25, 50)), last[0]
        lower = lambda y: np.mean(np.logaddexp(0, -A @ y)) + 0.5 * weights @ y**2  # noqa: E731
        for _ in range(100):
            wrong = 1 / (1 + np.exp(np.clip(A @ y, -500, 500)))
            gradient = weights * y - A.T @ wrong / len(A)
            hessian = A.T @ (A * (wrong * (1 - wrong))[:, None]) / len(A) + np.diag(weights)
            if np.linalg.norm(gradient) < 1e-9:
                break
            step = np.linalg.solve(hessian, gradient)
            while lower(y - step) > lower(y) + 1e-12 and np.linalg.norm(step) > 1e-12:
                step = step / 2
            y = y - step
        last[0] = y
        h = np.mean(np.logaddexp(0, -V @ y))
        f_y = -V.T @ (1 / (1 + np.exp(np.clip(V @ y, -500, 500)))) / len(V)
        return (h, -weights * y * np.linalg.solve(hessian, f_y)) if slope else h

    return value


def least_logistic(value, n):
    """The infimum of h. It lies at infinity, so the search ends where a weight is as good as zero."""
    start, options = np.full(n, -8.0), {"maxiter": 1000, "ftol": 1e-15, "gtol": 1e-12}
    slope = lambda x: value(x, slope=True)  # noqa: E731
    found = scipy.optimize.minimize(slope, start, jac=True, method="L-BFGS-B", bounds=[(-20, 10)] * n, options=options)
    return float(found.fun)


def softmax_value(problem):
    """h for the cleaning of labels, by L-BFGS from the last solution in coordinates that equalise the curvature."""
    inputs = np.asarray(problem.data["train"]["inputs"])
    variances, basis = np.linalg.eigh(inputs.T @ inputs / len(inputs))
    lower = jax.jit(jax.value_and_grad(problem.lower, argnums=1))
    upper, shape = jax.jit(problem.upper), (inputs.shape[1], -1)
    last = [np.zeros(10 * inputs.shape[1], np.float32)]

    def value(x):
        x = jnp.asarray(x)
        # The weights scale the curvature of the losses; 0.09 is that of ten equal probabilities.
        scale = (0.4 + 0.09 * float(jnp.mean(jax.nn.sigmoid(x))) * np.maximum(variances, 0))[:, None] ** -0.5

        def function(z):
            loss, gradient = lower(x, jnp.asarray((basis @ (scale * z.reshape(shape))).ravel(), jnp.float32), data)
            return float(loss), (scale * (basis.T @ np.asarray(gradient).reshape(shape))).ravel().astype(float)

        data = problem.data
        z = (basis.T @ last[0].reshape(shape) / scale).ravel()
        size = np.linalg.norm(function(np.zeros_like(z))[1])
        options = {"gtol": 1e-4 * size / len(z) ** 0.5, "ftol": 0, "maxiter": 100, "maxcor": 20}
        z = scipy.optimize.minimize(function, z, jac=True, method="L-BFGS-B", options=options).x
        last[0] = (basis @ (scale * z.reshape(shape))).ravel().astype(np.float32)
        return float(upper(x, jnp.asarray(last[0]), data))

    return value


def softmax_losses(y, part):
    """The cross-entropy of every row; y holds a column of coefficients for each class, flat."""
    scores = part["inputs"] @ y.reshape(part["inputs"].shape[1], -1)
    return jax.nn.logsumexp(scores, axis=1) - jnp.sum(scores * part["labels"], axis=1)


def weighted_loss(x, y, data):
    """The loss of the training rows, each with the weight sigmoid(x of its row), and a ridge."""
    part = data["train"]
    return jnp.mean(jax.nn.sigmoid(x[part["row"]]) * softmax_losses(y, part)) + 0.2 * jnp.sum(y**2)


def mnist(rows=20_000, held=5_000):
    """MNIST with half of the training labels random; rows that do not fill a batch are left out."""
    table, rng = bx.datasets.mnist(), np.random.default_rng(0)
    order = rng.permutation(60_000)[: rows + held]
    inputs = np.asarray(table.images).reshape(len(table.images), -1)[order].astype(np.float32)
    labels = np.asarray(table.labels)[order].astype(int)
    mean, deviation = inputs[:rows].mean(0), inputs[:rows].std(0)
    inputs = (inputs - mean) / np.where(deviation == 0, 1, deviation)
    wrong = np.flatnonzero(rng.random(rows) < 0.5)
    labels[wrong] = rng.integers(0, 10, len(wrong))
    parts = {"train": slice(0, rows - rows % BATCH), "valid": slice(rows, rows + held - held % BATCH)}
    data = {
        name: {"inputs": jnp.asarray(inputs[part]), "labels": jax.nn.one_hot(labels[part], 10)}
        for name, part in parts.items()
    }
    data["train"]["row"] = jnp.arange(parts["train"].stop)
    like = jnp.zeros(parts["train"].stop), jnp.zeros(10 * inputs.shape[1])
    upper = lambda x, y, data: jnp.mean(softmax_losses(y, data["valid"]))  # noqa: E731
    return bx.BilevelProblem(upper, weighted_loss, bx.WholeSpace(), data, x_like=like[0], y_like=like[1])


def make_task(name):
    if name == "quadratics":
        problem = quadratics()
        return Task(
            problem, jnp.zeros(100), jnp.zeros(100), quadratic_value(problem.data), limit=2.0, growth=1.3, chunk=16
        )
    if name == "ijcnn1":
        problem = ijcnn1()
        value = logistic_value(problem.data)
        zeros, least = jnp.zeros(22), least_logistic(value, 22)
        grid = {"steps": (1, 0.3, 0.1), "ratios": (1e-5, 1e-4, 1e-3, 0.01), "follow": True}
        return Task(problem, zeros, zeros, value, limit=1.0, growth=1.4, chunk=128, least=least, **grid)
    problem = mnist()
    x, y = jnp.full(len(problem.data["train"]["row"]), -2.0), jnp.zeros(7840)
    grid = {"steps": (0.3, 0.1, 0.03, 0.01), "ratios": (1e-6, 1e-5, 1e-4, 1e-3), "follow": True}
    return Task(
        problem,
        x,
        y,
        softmax_value(problem),
        limit=8.0,
        growth=2.0,
        timed=400,
        solve_limit=30.0,
        rounds=3,
        cheap=False,
        **grid,
    )


def rows_of(problem):
    """The numbers of rows to train and to validate on."""
    return [len(next(iter(problem.data[part].values()))) for part in ("train", "valid")]


def sampled(problem, replacement=True, equal=False):
    """The problem with batches of 64 rows; `equal` makes as many batches of the validation rows, for SABA's table."""
    train, valid = rows_of(problem)
    sizes = {"train": (BATCH, train), "valid": (valid // (train // BATCH) if equal else BATCH, valid)}
    parts = {name: bx.Blocks(size, rows, replacement=replacement) for name, (size, rows) in sizes.items()}
    return replace(problem, sampler=bx.PerPart(parts))


class Theirs:
    """One of their solvers; it is compiled once, because the step sizes are part of its state."""

    spent = 0
    """The first state costs as much as so many steps."""

    def __init__(self, name, task):
        """Make the solver and tell it the problem."""
        module = importlib.import_module(f"solvers.{name}")
        self.name, self.solver = name, module.Solver()
        for option, values in module.Solver.parameters.items():
            setattr(self.solver, option, values[0])
        self.solver.batch_size = BATCH
        self.solver.run_once = lambda *_: None  # the warm-up of benchopt
        self.solver.set_objective(*two_losses(task.problem), *rows_of(task.problem), task.y, task.x)
        self.samplers = {name: getattr(self.solver, name) for name in ("state_inner_sampler", "state_outer_sampler")}

    def start(self, step, ratio, seed):
        """The first state. Their first pass takes the batches in order; here the seed decides that order too."""
        self.solver.step_size, self.solver.outer_ratio, self.solver.random_state = step, ratio, seed
        for (name, state), key in zip(self.samplers.items(), jax.random.split(jax.random.PRNGKey(seed)), strict=True):
            order = jax.random.permutation(jax.random.fold_in(key, 0), state["batch_order"])
            setattr(self.solver, name, {**state, "key": key, "batch_order": order})
        return self.solver.init()

    def advance(self, state, done, steps):
        """The state after further steps."""
        if self.name == "saba":
            memory, carry = state
            return self.solver.one_epoch(carry, memory, steps)
        return self.solver.one_epoch(state, steps, *([done] if self.name == "srba" else []))

    def x(self, state):
        """The upper variable."""
        return (state[1] if self.name == "saba" else state)["outer_var"]


def our_solver(name, step, outer, period):
    """Our method with the step sizes, schedules and inner steps of theirs."""
    told = {"constants": bx.Constants(1 / step, 1 / step)}  # of which AmIGO, StocBiO and BSA make lower steps
    lower, upper = bx.Power(step, 0.5), bx.Power(outer, 0.5)
    match name:
        case "soba":
            return bx.SOBA(upper, lower, **told)
        case "saba":
            return bx.SABA(outer, step, **told)
        case "srba":
            return bx.SRBA(outer, step, q=period, **told)
        case "amigo":
            return bx.AmIGO(outer, lower=INNER, adjoint=INNER, **told)
        case "stocbio":
            return bx.StocBiO(outer, lower=INNER, factors=INNER, **told)
        case "fsla":
            return bx.FSLA(upper, beta=lower, eta=lower, theta=lower, **told)
        case "f2sa":  # the penalty begins at 1 and grows as theirs does, by 0.1 k^(-1/7) in a step
            penalty = bx.Power(0.7 / 6, -6 / 7, (6 / 0.7) ** (7 / 6))
            return bx.F2SA(bx.Power(outer, 4 / 7), gamma=bx.Power(step, 4 / 7), lam=penalty, lower=INNER, **told)
        case "bsa":
            return bx.BSA(upper, lower=INNER, budget=INNER, **told)
    raise ValueError(f"no method is called {name!r}; there are {', '.join(METHODS)}.")


class Ours:
    """One of our solvers; it is compiled once, because the step sizes are numbers in it."""

    prepare, init = staticmethod(jax.jit(chunks.prepare)), staticmethod(jax.jit(chunks.init))

    def __init__(self, name, task, replacement=True):
        """Keep the problem with its batches."""
        self.name, self.task = name, task
        self.problem = sampled(task.problem, replacement, equal=name == "saba")
        self.spent = rows_of(task.problem)[0] // BATCH if name == "saba" else 0  # a pass over the batches
        self.period = sum(rows_of(task.problem)) // (2 * BATCH)

    def start(self, step, ratio, seed):
        """The first state."""
        solver = our_solver(self.name, step, step / ratio, self.period)
        problem, solver = chunks.cast_numbers(self.problem, solver, jnp.float32)
        key = jax.random.key(seed)
        self.solver, self.key = self.prepare(problem, solver, self.task.x, self.task.y, key), key
        return self.init(problem, self.solver, self.task.x, self.task.y)[0]

    def advance(self, state, done, steps):
        """The state after further steps."""
        return chunks.advance(self.problem, self.solver, state, self.key, np.asarray(steps, np.int32)).state

    def x(self, state):
        """The upper variable."""
        return state.x
