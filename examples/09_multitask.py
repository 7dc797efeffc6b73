# %% [markdown]
# # Many schools, one model each: tasks that learn from each other
# Exam scores of pupils in London. Each school is a task with a regression of its own. Schools with few pupils cannot
# learn 27 coefficients alone, and one regression for all schools ignores how they differ. `MultiTaskRegression` is in
# between, and held-out pupils decide where.

# %%
import sys

import matplotlib.pyplot as plt
import numpy as np
from sklearn.linear_model import RidgeCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import bilevax as bx

SCHOOLS = int(sys.argv[1]) if len(sys.argv) > 1 else 30
data = bx.datasets.school()
by_size = np.argsort(np.bincount(data.task), kind="stable")
chosen = by_size[np.linspace(0, len(by_size) - 1, SCHOOLS).astype(int)]  # from the smallest to the largest
rows = np.isin(data.task, chosen)
X, y, school = data.X[rows, :-1], data.y[rows], data.task[rows]  # without the last feature, which is 1

# %% [markdown]
# Half of the pupils of each school are for the test.

# %%
random, test = np.random.default_rng(0), np.zeros(len(y), bool)
for s in chosen:
    pupils = random.permutation(np.flatnonzero(school == s))
    test[pupils[len(pupils) // 2 :]] = True
model = bx.estimators.MultiTaskRegression().fit(X[~test], y[~test], task=school[~test])
print(model)

# %% [markdown]
# The two alternatives: a ridge regression for each school, and one for all schools.


# %%
def ridge(rows):
    return make_pipeline(StandardScaler(), RidgeCV(np.geomspace(1e-2, 1e4, 30))).fit(X[rows], y[rows])


pooled, single = ridge(~test), np.zeros(len(y))
for s in chosen:
    single[school == s] = ridge(~test & (school == s)).predict(X[school == s])
predictions = {
    "a ridge for each school": single,
    "one ridge for all": pooled.predict(X),
    "MultiTaskRegression": model.predict(X, task=school),
}
errors = {name: (values - y) ** 2 for name, values in predictions.items()}
for name, error in errors.items():
    print(f"{name:24s} test RMSE {np.sqrt(error[test].mean()):.2f}")

# %% [markdown]
# Left: the most useful coefficient, in every school. Alone, many schools with few pupils get a small one; together,
# they are pulled towards the common value, and large schools move less. Right: the error by size of the school, on one
# split of the pupils.

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
j = int(np.argmax(np.abs(model.pooled_coef_) * X.std(axis=0)))
size = model.n_rows_by_task_
for n, own, blended in zip(size, model.own_coef_[:, j], model.coef_[:, j], strict=True):
    left.annotate("", (n, blended), (n, own), arrowprops={"arrowstyle": "->", "color": "lightgray"})
left.scatter(size, model.own_coef_[:, j], s=22, facecolor="white", edgecolor="tab:orange", label="each school alone")
left.scatter(size, model.coef_[:, j], s=22, color="tab:blue", label="schools together")
left.axhline(model.pooled_coef_[j], color="black", linewidth=0.8, linestyle="--", label="one regression for all")
left.set(xscale="log", xlabel="pupils to learn from", ylabel=f"coefficient of feature {j}", title="Coefficients")
ticks = [10, 20, 50, 100]
left.set_xticks(ticks, map(str, ticks))
left.legend(frameon=False, loc="lower right")
groups = np.array_split(model.tasks_[np.argsort(size, kind="stable")], 3)
for (name, error), color in zip(errors.items(), ["tab:orange", "black", "tab:blue"], strict=True):
    means = [np.sqrt(error[test & np.isin(school, group)].mean()) for group in groups]
    right.plot(range(3), means, marker="o", linestyle=":", color=color, label=name)
ranges = [np.sort(size[np.isin(model.tasks_, group)])[[0, -1]] for group in groups]
right.set_xticks(range(3), [f"{low} to {high}" for low, high in ranges])
right.set(xlabel="pupils to learn from", ylabel="test RMSE", title="Error by size of the school", xlim=(-0.3, 2.3))
right.margins(y=0.3)
right.legend(frameon=False, loc="upper center")
figure.savefig("multitask.png", dpi=120)
