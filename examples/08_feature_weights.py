# %% [markdown]
# # Which features matter: one l2 weight for each
# UCI Adult: 123 binary features of people, and whether they earn more than 50,000 dollars. `FeatureWeights` learns one
# l2 weight per feature from 1,000 people. Held-out people decide how far the weights differ.

# %%
import sys

import matplotlib.pyplot as plt
import numpy as np
from sklearn.linear_model import LogisticRegressionCV
from sklearn.metrics import log_loss

import bilevax as bx

ROWS = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
people, others = bx.datasets.a9a(), bx.datasets.a9a("test")
chosen = np.random.default_rng(1).permutation(len(people.y))[:ROWS]
X, y = np.asarray(people.X.todense())[chosen], people.y[chosen]
test = np.asarray(others.X.todense())
test = np.pad(test, [(0, 0), (0, X.shape[1] - test.shape[1])])

# %% [markdown]
# The model says in words what it chose and how sure that is. Differences are in held-out log loss.

# %%
model = bx.estimators.FeatureWeights(loss="logistic").fit(X, y)
print(model)

# %% [markdown]
# The alternative: one weight for all features, also chosen by five folds.

# %%
options = {"cv": 5, "scoring": "neg_log_loss", "l1_ratios": (0.0,), "use_legacy_attributes": False, "max_iter": 1000}
plain = LogisticRegressionCV(Cs=np.logspace(-3, 2, 16), **options).fit(X, y)
losses = {"one weight": plain, "a weight per feature": model}
losses = {name: log_loss(others.y, fit.predict_proba(test)) for name, fit in losses.items()}
print("test log loss: " + ", ".join(f"{name} {loss:.4f}" for name, loss in losses.items()))

# %% [markdown]
# Useful features have small weights and keep their coefficients; the others are shrunk more than by one weight.

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
size, order = np.abs(model.coef_[0]), model.ranking_
seen = X.any(axis=0)
left.scatter(size[seen], model.weights_[seen], s=18, color="tab:blue", label="one dot per feature")
left.axhline(1 / float(plain.C_), color="tab:orange", linestyle="--", label="one weight for all")
left.set(yscale="log", xlabel="size of the coefficient", ylabel="l2 weight", title="Weights")
left.legend(frameon=False)
reach = 1.1 * max(size.max(), np.abs(plain.coef_).max())
right.plot([-reach, reach], [-reach, reach], color="lightgray", zorder=0)
right.scatter(plain.coef_[0], model.coef_[0], s=18, color="tab:blue")
for j in order[:6]:
    right.annotate(
        f"feature {j}", (plain.coef_[0, j], model.coef_[0, j]), (5, -3), textcoords="offset points", fontsize=8
    )
right.set(xlabel="coefficient with one weight", ylabel="coefficient with a weight each", title="Coefficients")
figure.savefig("feature_weights_a9a.png", dpi=120)
