"""Few-shot ridge regression: learn on many small tasks the point towards which a new task's weights are shrunk.

Lower level, for every task t:  y_t = argmin 1/(2n) |A_t y - b_t|^2 + lambda/2 |y - x|^2  on five support samples.
Upper level:  x in an l2 ball minimises the loss of all y_t on the tasks' query samples.
"""

import jax

jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

import bilevax as bx  # noqa: E402

DIMENSION, SHOTS, QUERIES, LAMBDA = 20, 5, 20, 0.3


def tasks(count, rng, centre):
    """Tasks whose true weights scatter around a common centre."""
    truth = centre + 0.3 * rng.standard_normal((count, DIMENSION))
    parts = {}
    for name, size in (("support", SHOTS), ("query", QUERIES)):
        A = rng.standard_normal((count, size, DIMENSION))
        b = np.einsum("tij,tj->ti", A, truth) + 0.1 * rng.standard_normal((count, size))
        parts[name] = {"A": jnp.asarray(A), "b": jnp.asarray(b)}
    return parts


def loss(y, part):
    """Half the mean squared error of each task's weights, summed over tasks."""
    residual = jnp.einsum("tij,tj->ti", part["A"], y) - part["b"]
    return 0.5 * jnp.sum(jnp.mean(residual**2, axis=1))


def query_loss(x, y, data):
    """f: how well the adapted weights predict."""
    return loss(y, data["query"]) / len(y)


def adaptation(x, y, data):
    """g: ridge regression towards x, all tasks at once."""
    return loss(y, data["support"]) + 0.5 * LAMBDA * jnp.sum((y - x) ** 2)


def adapted_error(x, data):
    """The query error of new tasks after they were adapted from x."""
    count = len(data["support"]["b"])
    problem = bx.BilevelProblem(query_loss, adaptation, bx.L2Ball(10.0), data)
    return 2 * float(bx.audit(problem, jnp.asarray(x), jnp.zeros((count, DIMENSION))).ell)


def main():
    """Meta-learn with three methods, then look at a hundred tasks nobody has seen."""
    rng = np.random.default_rng(0)
    centre = rng.standard_normal(DIMENSION)
    seen, unseen = tasks(50, rng, centre), tasks(100, rng, centre)
    problem = bx.BilevelProblem(query_loss, adaptation, bx.L2Ball(10.0), seen)
    x0, y0 = jnp.zeros(DIMENSION), jnp.zeros((50, DIMENSION))
    methods = {"IBCG": bx.IBCG(), "SBFW": bx.SBFW("tracked"), "TTSA": bx.TTSA(deterministic=True)}
    found = bx.compare(problem, methods, x0, y0, steps=300, metrics=bx.exact_metrics)
    print(found.table(["ell", "true_gap"]))
    none = adapted_error(x0, unseen)
    print(f"\nmean squared error on 100 new tasks, {SHOTS} samples each:\n  {none:.3f}  no meta-learning (x = 0)")
    for name in methods:
        print(f"  {adapted_error(found[name].x, unseen):.3f}  {name}")
    print(f"  {adapted_error(centre, unseen):.3f}  the true centre")
    return none, {name: adapted_error(found[name].x, unseen) for name in methods}


if __name__ == "__main__":
    main()
