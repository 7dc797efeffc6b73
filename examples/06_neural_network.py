# %% [markdown]
# # A neural network below, where the theory ends
# MNIST in ten sources of 1,000 rows; the labels of source i are random with probability i / 10. The weights of the
# sources in a simplex are tuned on 1,000 validation rows, and a network with one hidden layer is fitted to them.
#
#     min over x in the simplex of   validation loss of y(x)
#     y(x) = argmin of               loss of the network y on the sources, weighted by x + 0.0005 |y|^2
#
# The lower level is not convex in y. It has many minimisers, so y*(x) is not defined, no gap can be bounded, and no run
# may be called converged. What still works is the step: near one minimiser the hypergradient says how it moves with x.

# %%
import sys

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import bilevax as bx

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 8
SOURCES, ROWS, HIDDEN = 10, 1000, 32
rng, (images, digits), (tests, answers) = np.random.default_rng(0), bx.datasets.mnist(), bx.datasets.mnist("test")
order = rng.permutation(len(images))[: (SOURCES + 1) * ROWS]
inputs, tests = ((part - images.mean(0)).reshape(-1, 784).astype(np.float32) / 255 for part in (images[order], tests))
labels, source = digits[order].astype(int), np.arange(len(order)) // ROWS
random = (rng.random(len(order)) < source / SOURCES) & (source < SOURCES)
labels[random] = rng.integers(0, 10, random.sum())
mixed, held = rng.permutation(SOURCES * ROWS), np.arange(SOURCES * ROWS, len(order))
data = {
    name: {"inputs": jnp.asarray(inputs[r]), "labels": jnp.asarray(labels[r]), "source": jnp.asarray(source[r])}
    for name, r in (("train", mixed), ("valid", held))
}


def scores(y, inputs):
    return jnp.tanh(inputs @ y["first"] + y["bias"]) @ y["second"] + y["offset"]


def losses(y, part):
    s = scores(y, part["inputs"])
    return jax.nn.logsumexp(s, axis=1) - jnp.take_along_axis(s, part["labels"][:, None], axis=1)[:, 0]


def upper(x, y, data):
    return jnp.mean(losses(y, data["valid"]))


def lower(x, y, data):  # equal weights make this the mean over all rows
    weighted = SOURCES * x[data["train"]["source"]] * losses(y, data["train"])
    return jnp.mean(weighted) + 0.0005 * sum(jnp.sum(leaf**2) for leaf in y.values())


# %% [markdown]
# We name `bx.SampledIBCG` and stop after eight steps, which are 512 mini-batches: on all rows it would solve the lower
# level by Newton's method, which takes long where the level is not convex. Baselines are fitted by Adam, 2,000 batches.

# %%
shapes = {"first": (784, HIDDEN), "bias": (HIDDEN,), "second": (HIDDEN, 10), "offset": (10,)}
y0 = {name: jnp.asarray(0.05 * rng.standard_normal(shape, np.float32)) for name, shape in shapes.items()}
x0 = jnp.full(SOURCES, 1 / SOURCES)
sampler = bx.PerPart({"train": bx.Blocks(50, SOURCES * ROWS), "valid": bx.Blocks(50, ROWS)})
problem = bx.BilevelProblem(upper, lower, bx.Simplex(), data, sampler=sampler)
result = bx.solve(problem, bx.SampledIBCG(), x0=x0, y0=y0, steps=STEPS, every=1)
print(f"{result.status.name} after {result.steps} steps: {result.message}")
print("weights:", *(f"{weight:.2f}" for weight in result.x))


# %%
def step(carry, key):
    y, mean, square, x = carry
    batch = jax.random.randint(key, (50,), 0, SOURCES * ROWS)
    g = jax.grad(lower, 1)(x, y, {"train": jax.tree.map(lambda leaf: leaf[batch], data["train"])})
    mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mean, g)
    square = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g**2, square, g)
    return (jax.tree.map(lambda y, m, v: y - 1e-3 * m / (jnp.sqrt(v) + 1e-6), y, mean, square), mean, square, x), None


@jax.jit
def fit(x, keys):
    zero = jax.tree.map(jnp.zeros_like, y0)
    return jax.lax.scan(step, (y0, zero, zero, x), keys)[0][0]


error = lambda y: np.mean(np.argmax(scores(y, tests), axis=1) != answers)  # noqa: E731
keys = jax.random.split(jax.random.key(0), 2000)
kinds = {"equal weights": x0, "the clean source only": jnp.eye(SOURCES)[0], "learned weights": result.x}
fits = {name: error(fit(x, keys)) for name, x in kinds.items()}
print("test error of a network with", *(f"  {e:6.2%}  {name}" for name, e in fits.items()), sep="\n")
print(f"  {error(result.y):6.2%}  learned weights, the y of the run itself (another method than Adam)")
# Noisy sources lose their weight. The gain over equal weights is small, and this is one seed.
figure, axis = plt.subplots(figsize=(6, 3.5), layout="constrained")
axis.bar(np.arange(SOURCES) * 10, result.x, width=7, label="learned weights")
axis.axhline(1 / SOURCES, color="black", linestyle=":", label="equal weights")
axis.set(xlabel="random labels in the source, percent", ylabel="weight")
figure.legend(loc="outside upper right", ncols=2, frameon=False)
figure.savefig("neural_network.png", dpi=120)
