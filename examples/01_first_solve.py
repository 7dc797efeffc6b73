# %% [markdown]
# # A first solve
# Five data sources, two of them with random labels. Learn weights on the simplex so that a model fitted to the
# weighted sources does well on a small clean set. This is the example of the README, with a look inside.

# %%
import jax
import jax.numpy as jnp

import bilevax as bx

keys = jax.random.split(jax.random.key(0), 4)
A, V = jax.random.normal(keys[0], (5, 40, 10)), jax.random.normal(keys[1], (60, 10))
truth = jax.random.normal(keys[2], (10,))
a = (A @ truth).at[3:].set(3 * jax.random.normal(keys[3], (2, 40)))
data = {"A": A, "a": a, "V": V, "v": V @ truth}


def validation(x, y, data):
    return jnp.mean((data["V"] @ y - data["v"]) ** 2)


def training(x, y, data):
    return x @ jnp.mean((data["A"] @ y - data["a"]) ** 2, axis=1) + 0.01 * jnp.sum(y**2)


problem = bx.BilevelProblem(validation, training, bx.Simplex(), data)

# %% [markdown]
# `tol` is the true Frank-Wolfe gap. The result is only `CONVERGED` if that gap passes with both inner problems solved.

# %%
result = bx.solve(problem, x0=jnp.full(5, 0.2), y0=jnp.zeros(10), steps=3000, tol=1e-3, metrics=bx.exact_metrics)
print(result)
print("trust:", result.x.round(2))

# %% [markdown]
# Each row of the trace is one point of the run. `upper` is f at the tracked y, `ell` the true objective.

# %%
for row in result.trace:
    print(f"step {row['step']:>4}  upper {row['upper']:.5f}  ell {row['ell']:.5f}  true gap {row['true_gap']:.1e}")

# %% [markdown]
# The same steps as a pure function can be vmapped, here over constant step sizes.

# %%
gammas = jnp.array([0.3, 0.1, 0.03])
ends = jax.vmap(lambda gamma: bx.run(problem, bx.IBCG(gamma), jnp.full(5, 0.2), jnp.zeros(10), steps=200)[0])(gammas)
for gamma, x, y in zip(gammas, ends.x, ends.y, strict=True):
    print(f"gamma {gamma:.2f}: ell = {bx.exact_hypergradient(problem, x, y).ell:.5f}")
