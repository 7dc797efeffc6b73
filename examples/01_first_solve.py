# %% [markdown]
# # A first solve
# Five data sources, two of them with random labels. Learn weights that add up to 1, so that a model fitted to the
# weighted sources does well on a small clean set. This is the example of the README, with a look inside.

# %%
import jax
import jax.numpy as jnp
import numpy as np

import bilevax as bx

random = np.random.default_rng(4)
inputs, clean_inputs = random.standard_normal((5, 40, 10), "f"), random.standard_normal((60, 10), "f")
truth, noise = random.standard_normal(10, "f"), random.standard_normal((5, 40), "f")
labels = np.where(np.arange(5)[:, None] < 3, inputs @ truth + 0.5 * noise, 3 * noise)
data = {"sources": (inputs, labels), "clean": (clean_inputs, clean_inputs @ truth)}


def validation(x, y, data):  # upper level: the error of model y on clean data
    inputs, labels = data["clean"]
    return jnp.mean((inputs @ y - labels) ** 2)


def training(x, y, data):  # lower level: model y is fitted to the sources, weighted by x
    inputs, labels = data["sources"]
    return x @ jnp.mean((inputs @ y - labels) ** 2, axis=1) + 0.01 * jnp.sum(y**2)


problem = bx.BilevelProblem(upper=validation, lower=training, domain=bx.Simplex(), data=data)

# %% [markdown]
# `tol` bounds the true gap. The status is `CONVERGED` only if that gap passes with the model fitted again, accurately.
# `metrics=bx.exact_metrics` computes the true objective and the true gap for each row of the trace.

# %%
x0, y0 = jnp.full(5, 0.2), jnp.zeros(10)
result = bx.solve(problem, x0=x0, y0=y0, tol=1e-5, every=1, metrics=bx.exact_metrics)
print(result)
print("weights:", *(f"{w:.2f}" for w in result.x))

# %% [markdown]
# Each row of the trace is one point of the run. `upper` is the validation error of the tracked model y, `ell` is that
# of the accurately fitted model.

# %%
for row in result.trace:
    print(f"step {row['step']:>4}  upper {row['upper']:.5f}  ell {row['ell']:.5f}  true gap {row['true_gap']:.1e}")

# %% [markdown]
# A picture of the run; `path="run.png"` would save it.

# %%
figure = bx.plot(result, ["ell", "true_gap"], against="step")

# %% [markdown]
# Any method is a pure function too and can be vmapped: here IBCG, the method of the paper, over constant step sizes.

# %%
gammas = jnp.array([0.3, 0.1, 0.03])
ends = jax.vmap(lambda gamma: bx.run(problem, bx.IBCG(gamma), x0, y0, steps=200)[0])(gammas)
for gamma, x, y in zip(gammas, ends.x, ends.y, strict=True):
    print(f"gamma {gamma:.2f}: ell = {bx.exact_hypergradient(problem, x, y).ell:.5f}")
