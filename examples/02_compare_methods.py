# %% [markdown]
# # Compare methods
# Twenty data sources, each noisier than the one before: learn how far to trust each, by three methods with one call.
# `bx.compare` gives all of them the same start, key, rows and clock.

# %%
import jax
import jax.numpy as jnp

import bilevax as bx

keys = jax.random.split(jax.random.key(0), 4)
A, V = jax.random.normal(keys[0], (20, 40, 10)), jax.random.normal(keys[1], (60, 10))
truth = jax.random.normal(keys[2], (10,))
noise = jnp.linspace(0.5, 3.0, 20)[:, None] * jax.random.normal(keys[3], (20, 40))
data = {"A": A, "a": A @ truth + noise, "V": V, "v": V @ truth}


def validation(x, y, data):
    return jnp.mean((data["V"] @ y - data["v"]) ** 2)


def training(x, y, data):
    return x @ jnp.mean((data["A"] @ y - data["a"]) ** 2, axis=1) + 0.01 * jnp.sum(y**2)


problem = bx.BilevelProblem(validation, training, bx.Simplex(), data)

# %% [markdown]
# f(x, y) at the tracked y can lie below the optimum while y lags, and the methods let y lag differently. The true value
# f(x, y*(x)) is a fair yardstick. The lower level is a ridge regression, so y*(x) is one linear solve;
# `bx.exact_metrics` would find it for any problem, more slowly.


# %%
def ell(x, y, data):
    gram = jnp.einsum("s,sni,snj->ij", x, data["A"], data["A"]) / 40 + 0.01 * jnp.eye(10)
    fitted = jnp.linalg.solve(gram, jnp.einsum("s,sni,sn->i", x, data["A"], data["a"]) / 40)
    return validation(x, fitted, data)


# %% [markdown]
# IBCG tracks the adjoint by one gradient step, SBFW draws a Neumann product of random length and averages, TTSA sums
# the series and projects. There is no sampling noise here, so TTSA is told to make none of its own. The lower Hessian
# is a mean of those of the sources, weighted by x, so that its eigenvalues lie between their extremes; without
# `constants` each method would estimate them.

# %%
hessians = jnp.einsum("sni,snj->sij", A, A) / 20 + 0.02 * jnp.eye(10)
eigenvalues = jnp.linalg.eigvalsh(hessians)
constants = bx.Constants(mu_g=eigenvalues.min(), L_g=eigenvalues.max())
methods = {
    "IBCG": bx.IBCG(constants=constants),
    "SBFW": bx.SBFW(constants=constants),
    "TTSA": bx.TTSA(deterministic=True, constants=constants),
}
found = bx.compare(
    problem, methods, x0=jnp.full(20, 0.05), y0=jnp.zeros(10), steps=200, every=2, metrics={"ell": ell}, time_limit=30
)
print(found)

# %% [markdown]
# When the true value first fell to 0.002; NaN where it never did. Steps are not alike: SBFW and TTSA take many Hessian
# products in one, so that the order can change with what is counted.

# %%
steps, seconds = found.steps_to("ell", 0.002), found.seconds_to("ell", 0.002)
for name in found:
    products = found[name].trace.last["hvps"] / found[name].steps
    print(f"{name}: {steps[name]:g} steps, {seconds[name]:.2g} s; {products:.1f} Hessian products a step")
print("lowest ell at the end:", found.best("ell"))

# %% [markdown]
# Curves against oracle calls of every kind, summed; `found.save(folder)` would keep the runs and the table.

# %%
found.plot(["ell", "lower_grad_norm"], against="oracle_calls", path="compare.png")
print("curves in compare.png")
