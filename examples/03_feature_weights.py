# %% [markdown]
# # One l2 weight for every feature
# Logistic regression with a ridge weight per feature, tuned on validation data by every method of the library.
#
#     min over x in a box of   validation loss of y(x)
#     y(x) = argmin of         training loss of y + 1/2 sum over j of exp(x_j) y_j^2
#
# `python 03_feature_weights.py a9a 60` takes the other data set and a minute for each method instead of one second.

# %%
import sys

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from scipy.optimize import minimize

import bilevax as bx

NAME = sys.argv[1] if len(sys.argv) > 1 else "ijcnn1"
SECONDS = float(sys.argv[2]) if len(sys.argv) > 2 else 1.0
BLOCKS = 100  # mini-batches in a pass; rows that do not fill a block are left out
table = {"ijcnn1": bx.datasets.ijcnn1, "a9a": bx.datasets.a9a}[NAME]()
A = np.asarray(table.X.todense() if NAME == "a9a" else table.X, np.float32)
A, b = (part[np.random.default_rng(0).permutation(len(A))] for part in (A, np.float32(table.y)))
n, m = (len(b) * quarters // 4 // BLOCKS * BLOCKS for quarters in (3, 1))
train, valid = (A[:n], b[:n]), (A[n : n + m], b[n : n + m])
whole, parts = (bx.problems.feature_weights(train, valid, blocks=blocks) for blocks in (None, BLOCKS))
start = jnp.full(A.shape[1], -3.5), jnp.zeros(A.shape[1])

# %% [markdown]
# What to compare with: L-BFGS on the exact gradient of the validation loss, with bounds.

# %%
exact = jax.jit(lambda x, y: bx.exact_hypergradient(whole, x, y))


def value_and_gradient(x):
    found = exact(jnp.float32(x), start[1])
    return float(found.ell), np.float64(found.gradient)


bounds, options = [(-7.0, 0.0)] * A.shape[1], {"gtol": 1e-7, "ftol": 1e-9}
lbfgs = minimize(value_and_gradient, start[0], jac=True, method="L-BFGS-B", bounds=bounds, options=options)
print(f"{NAME}: {n} rows to train, {m} to validate, {A.shape[1]} features")
print(f"validation loss: {value_and_gradient(start[0])[0]:.5f} at the start, {lbfgs.fun:.5f} by L-BFGS")

# %% [markdown]
# The lower Hessian lies between exp(-7) and |A|^2 / 4n + 1. Gradients in x are small, hence long steps. Neumann series
# for that condition number are too long to be of use: the methods that sum them are told a hundred. The curves show the
# loss of the y at hand, the table that of y(x).

# %%
L = np.linalg.norm(A[:n], 2) ** 2 / n / 4
told = {"constants": bx.Constants(np.exp(-7), L + 1, L_yy_f=L)}
short = {"constants": bx.Constants((L + 1) / 100, L + 1)}
rho = 1.8 / (L + 1)
accurate = {
    "IBCG": bx.IBCG(**told),
    "BA": bx.BA(1000.0, **told),
    "ABA": bx.ABA(200.0, most=20, **told),
    "PBGD": bx.PBGD(100.0, sigma=10.0, **told),
    "AIDBiO": bx.AIDBiO(1000.0, lower=20, adjoint=10, **told),
    "ITDBiO": bx.ITDBiO(1000.0, **told),
    "AmIGO": bx.AmIGO(1000.0, **told),
    "RAHGD": bx.RAHGD(1000.0, lower=20, adjoint=10, **told),
}
series = {
    "SBFW": bx.SBFW(**short),
    "TTSA": bx.TTSA(bx.Power(1000.0, 0.6), bx.Power(rho, 0.4), **short),
    "BSA": bx.BSA(bx.Power(1000.0, 0.5), lower=20, **short),
    "SUSTAIN": bx.SUSTAIN(bx.Power(300.0, 1 / 3), bx.Power(rho, 1 / 3), **short),
    "StocBiO": bx.StocBiO(bx.Power(1000.0, 0.5), factors=100, **told),
}
single = {
    "FSLA": bx.FSLA(bx.Power(300.0, 0.5), beta=rho / 2, eta=rho / 2, **told),
    "SOBA": bx.SOBA(bx.Power(300.0, 0.5), rho / 4, **told),
    "MASOBA": bx.MASOBA(bx.Power(300.0, 0.5), rho / 4, **told),
    "SABA": bx.SABA(30.0, rho / 3, **told),
    "SRBA": bx.SRBA(30.0, rho / 3, **told),
    "F2SA": bx.F2SA(bx.Power(100.0, 0.5), lam=10.0, gamma=rho / 4, **told),
    "F3SA": bx.F3SA(bx.Power(100.0, 0.5), lam=10.0, gamma=rho / 4, **told),
    "StochasticIBCG": bx.StochasticIBCG(**told),
}
groups = {"all rows": (whole, accurate, 2), "blocks, Neumann": (parts, series, 5), "blocks": (parts, single, 50)}

# %%
figure, panels = plt.subplots(1, 3, figsize=(14, 5), sharey=True, layout="constrained")
for axis, (title, (problem, methods, every)) in zip(panels, groups.items(), strict=True):
    found = bx.compare(problem, methods, *start, steps=10**9, time_limit=SECONDS, every=every)
    for name in found:
        loss = value_and_gradient(found[name].x)[0]
        print(f"{name:15s} {loss:.5f}  {100 * (loss / lbfgs.fun - 1):+6.2f} %  {found[name].steps} steps")
        axis.plot(found[name].trace["seconds"], found[name].trace["upper"], label=name)
    axis.axhline(lbfgs.fun, color="black", linestyle=":", label="L-BFGS")
    axis.set(title=title, xscale="log", xlabel="seconds", ylim=(0.98 * lbfgs.fun, 1.3 * lbfgs.fun))
    axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=3, frameon=False)
panels[0].set_ylabel("validation loss")
figure.savefig("feature_weights.png", dpi=120)
