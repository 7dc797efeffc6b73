"""MultiTaskRegression against the usual ways to link tasks, one regression for each task, and one for all tasks.

    python benchmarks/multitask.py [--only school|synthetic|libsvm|nlsy ...] [--seeds N ...] [--json FILE]

- school: 100 R^2 on a quarter of the pupils of each of 139 schools. The contenders are explained at their functions.
- synthetic: test MSE of 20 tasks with 15 rows, 30 features and coefficients of rank 2, for four sizes of the noise.
- libsvm: five data sets that have nothing to do with each other, by `fit_tasks` and filled up with zeros for `fit`.
  Both must say that there is nothing to share.
- nlsy: test MSE of incomes, with tasks by type of job and by education. A task is flagged if its mean MSE is above that
  of its own ridge by more than 3 % and two standard errors.

Every contender sees the training rows only. The table has means over the seeds, and the mean and the standard error of
the paired difference to MultiTaskRegression: above zero means that MultiTaskRegression is better.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
from sklearn.linear_model import RidgeCV
from sklearn.metrics import mean_squared_error, r2_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import bilevax as bx
from bilevax.drawing.tables import markdown
from bilevax.estimators.folds import fold_numbers
from bilevax.estimators.multitask.candidates import Candidate
from bilevax.estimators.multitask.prior import Moments, Posterior, Prior
from bilevax.estimators.multitask.rows import Rows, moments_by_fold, scaled_rows

OURS, FOLDS = "MultiTaskRegression", 5
LARGER_IS_BETTER = {"school"}
NOISE = (0.1, 0.3, 0.5, 1.0)
"""Standard deviations, relative to those of the signal."""


def split(task, seed):
    """A quarter of the rows of each task is for the test."""
    random, test = np.random.default_rng(seed), np.zeros(len(task), bool)
    for t in np.unique(task):
        rows = random.permutation(np.flatnonzero(task == t))
        test[rows[round(0.75 * len(rows)) :]] = True
    return ~test, test


def timed(row, name, run):
    began = time.perf_counter()
    found = run()
    row[f"{name} seconds"] = time.perf_counter() - began
    return found


# ---- contenders


def ridge(X, y):
    """Standardised features, the weight by leave-one-out."""
    return make_pipeline(StandardScaler(), RidgeCV(np.geomspace(1e-2, 1e5, 40))).fit(X, y)


def ridge_for_each(X, y, task, test_X, test_task):
    predicted = np.zeros(len(test_X))
    for t in np.unique(task):
        predicted[test_task == t] = ridge(X[task == t], y[task == t]).predict(test_X[test_task == t])
    return predicted


def _standardised(X, y):
    mean, size = X.mean(axis=0), X.std(axis=0)
    size = np.where(size > 0, size, 1.0)
    return lambda X: np.column_stack([(X - mean) / size, np.ones(len(X))]), (y - y.mean()) / y.std()


def linked_by_a_mean(X, y, task, test_X, test_task, slopes=True):
    """Ridge with w_t = mean + own part, standardised; five folds choose both weights from a grid of 13 x 7.

    Without `slopes` the own parts are intercepts only.
    """
    T, (table, b) = task.max() + 1, _standardised(X, y)
    rows = Rows(table(X), b, task, np.ones(len(y)), T)
    by_fold = moments_by_fold(rows, fold_numbers(task, FOLDS, 0), FOLDS)
    everything = Moments(*(np.sum(part, axis=0) for part in zip(*by_fold, strict=True)))
    d = rows.A.shape[1]
    which = np.ones(d) if slopes else np.append(np.zeros(d - 1), 1.0)
    losses = {}
    for own in np.geomspace(1e-4, 1.0, 13):
        for mean in np.geomspace(1e-4, 1e2, 7):
            prior = Prior(np.tile(own * which, (T, 1)), np.ones((T, 1)), np.full((1, d), mean))
            fits = [Posterior(everything - part, prior).coefficients for part in by_fold]
            losses[own, mean] = sum(_squares(part, W) for part, W in zip(by_fold, fits, strict=True)), prior
    _, prior = min(losses.values(), key=lambda pair: pair[0])
    W = Posterior(everything, prior).coefficients
    return y.mean() + y.std() * np.einsum("nf,nf->n", table(test_X), W[test_task])


def _squares(part, W):
    return float(np.sum(part.const - 2 * np.sum(W * part.h, axis=1) + np.einsum("ti,tij,tj->t", W, part.G, W)))


def by_likelihood(X, y, task, test_X, test_task):
    """A hierarchical Gaussian model: a mean and a variance between tasks for each feature, by EM on all rows."""
    T = task.max() + 1
    rows, units = scaled_rows(X, y, task, np.ones(len(y)), T, classes=False)
    (moments,) = moments_by_fold(rows, np.zeros(len(y), int), 1)
    links = Candidate("", 0, by_feature=True).estimate(moments, units)
    coef, intercept = units.coefficients(links.coefficients)
    return np.einsum("nf,nf->n", test_X, coef[test_task]) + intercept[test_task]


# ---- measurements; each gives rows for one seed


def school(seed):
    data = bx.datasets.school()
    X, y, task = data.X[:, :-1], data.y, data.task
    train, test = split(task, seed)
    given = X[train], y[train], task[train], X[test], task[test]
    row = {"data": "school", "seed": seed}
    model = timed(row, OURS, lambda: bx.estimators.MultiTaskRegression().fit(*given[:2], task=given[2]))
    coef, intercept = model.own_coef_, model.own_intercept_
    predicted = {
        OURS: model.predict(X[test], task=task[test]),
        "its model of schools alone": np.einsum("nf,nf->n", X[test], coef[task[test]]) + intercept[task[test]],
    }
    contenders = {
        "mean-regularised ridge": lambda: linked_by_a_mean(*given),
        "hierarchical Gaussian, EM": lambda: by_likelihood(*given),
        "one ridge, random intercepts": lambda: linked_by_a_mean(*given, slopes=False),
        "one ridge for all": lambda: ridge(*given[:2]).predict(given[3]),
        "a ridge for each task": lambda: ridge_for_each(*given),
    }
    predicted |= {name: timed(row, name, run) for name, run in contenders.items()}
    row |= {name: 100 * r2_score(y[test], values) for name, values in predicted.items()}
    return [row | {"status": model.status_, "shares": model.shares_, "mix": model.mix_}]


def synthetic(seed, tasks=20, rows=15, features=30, test_rows=200):
    measured = []
    for noise in NOISE:
        random = np.random.default_rng(seed)
        W = random.standard_normal((tasks, 2)) @ random.standard_normal((2, features))
        X, y, size = _draw(random, W, rows, noise)
        test_X, truth, _ = _draw(random, W, test_rows, noise, size)
        task, test_task = (np.repeat(np.arange(tasks), count) for count in (rows, test_rows))
        row = {"data": f"synthetic, noise {noise:g}", "seed": seed}
        model = timed(row, OURS, lambda: bx.estimators.MultiTaskRegression().fit(X, y, task=task))  # noqa: B023
        alphas = np.geomspace(1e-3, 1e4, 30)  # features have mean 0 and standard deviation 1
        single = [RidgeCV(alphas).fit(X[task == t], y[task == t]).predict(test_X[test_task == t]) for t in range(tasks)]
        row |= {
            OURS: mean_squared_error(truth, model.predict(test_X, task=test_task)),
            "a ridge for each task": mean_squared_error(truth, np.concatenate(single)),
            "one ridge for all": mean_squared_error(truth, RidgeCV(alphas).fit(X, y).predict(test_X)),
        }
        lengths = np.linalg.norm(W, axis=1)
        pairs = np.triu_indices(tasks, 1)
        cosines = (W @ W.T / np.outer(lengths, lengths))[pairs]
        better = min(row["a ridge for each task"], row["one ridge for all"])
        row |= {
            "lower by %": 100 * (1 - row[OURS] / better),
            "correlation": float(np.corrcoef(cosines, model.task_correlation_[pairs])[0, 1]),
        }
        measured.append(row | {"status": model.status_, "shares": model.shares_, "mix": model.mix_})
    return measured


def _draw(random, W, count, noise, size=None):
    X = random.standard_normal((len(W), count, W.shape[1]))
    signal = np.einsum("tnf,tf->tn", X, W)
    size = signal.std() if size is None else size
    y = signal + noise * size * random.standard_normal(signal.shape)
    return X.reshape(-1, W.shape[1]), y.ravel(), size


def libsvm(seed):
    names = bx.datasets.REGRESSION
    Xs, ys = zip(*(bx.datasets.libsvm_regression(name) for name in names), strict=True)
    d = max(X.shape[1] for X in Xs)
    X, y = np.vstack([np.pad(X, [(0, 0), (0, d - X.shape[1])]) for X in Xs]), np.concatenate(ys)
    task = np.repeat(names, [len(y) for y in ys])
    train, test = split(task, seed)
    of = {name: (train & (task == name), test & (task == name)) for name in names}
    own = {name: X[:, : part.shape[1]] for name, part in zip(names, Xs, strict=True)}
    clock = {}
    apart = timed(
        clock,
        OURS,
        lambda: bx.estimators.MultiTaskRegression().fit_tasks(
            [own[name][of[name][0]] for name in names], [y[of[name][0]] for name in names], tasks=names
        ),
    )
    padded = timed(
        clock, "filled up", lambda: bx.estimators.MultiTaskRegression().fit(X[train], y[train], task=task[train])
    )
    by_name = dict(
        zip(apart.tasks_, apart.predict_tasks([own[name][of[name][1]] for name in apart.tasks_]), strict=True)
    )
    rows = []
    for name in names:
        learn, rest = of[name]
        predicted = {
            OURS: by_name[name],
            "filled up": padded.predict(X[rest], task=task[rest]),
            "a ridge for each task": ridge(own[name][learn], y[learn]).predict(own[name][rest]),
        }
        row = {"data": f"libsvm, {name}", "seed": seed, **clock, "shares": apart.shares_ or padded.shares_}
        rows.append(row | {key: mean_squared_error(y[rest], values) for key, values in predicted.items()})
    return rows


def nlsy(seed):
    measured = []
    for column in ("typejob90", "grade90"):
        X, y, task = _incomes(column)
        train, test = split(task, seed)
        row = {"data": f"nlsy, tasks by {column}", "seed": seed}
        model = timed(
            row,
            OURS,
            lambda: bx.estimators.MultiTaskRegression().fit(X[train], y[train], task=task[train]),  # noqa: B023
        )
        predicted = {
            OURS: model.predict(X[test], task=task[test]),
            "a ridge for each task": ridge_for_each(X[train], y[train], task[train], X[test], task[test]),
        }
        tasks = {
            t: {name: mean_squared_error(y[test][task[test] == t], values[task[test] == t]) for name, values in
                predicted.items()}
            for t in np.unique(task).tolist()
        }  # fmt: skip
        row |= {name: float(np.mean([errors[name] for errors in tasks.values()])) for name in predicted}
        measured.append(row | {"tasks": tasks, "shares": model.shares_, "status": model.status_, "mix": model.mix_})
    return measured


def _incomes(column):
    """Numbers and levels of text as features; levels with fewer than 20 people are one."""
    frame = bx.datasets.nlsy79()
    features = []
    for name, values in frame.columns.items():
        if name in ("income90", "income96", "income06", column):
            continue
        if values.dtype.kind == "U":
            merged = _merged(values)
            values = (merged[:, None] == np.unique(merged)).astype(float)
        features.append(values.reshape(len(values), -1))
    return np.hstack(features), frame["income90"], _merged(frame[column])


def _merged(values):
    levels, counts = np.unique(values, return_counts=True)
    return np.where(np.isin(values, levels[counts < 20]), "other", values)


# ---- tables


def standard_error(values):
    return np.std(values, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else float("nan")


def table(rows):
    lines = []
    for name in dict.fromkeys(row["data"] for row in rows):
        part = [row for row in rows if row["data"] == name]
        sign = -1 if name in LARGER_IS_BETTER else 1
        reserved = {"seed", "lower by %", "correlation"}
        methods = [k for k, v in part[0].items() if isinstance(v, float) and k not in reserved and "seconds" not in k]
        for method in sorted(methods, key=lambda method: method != OURS):
            values = np.array([row[method] for row in part])
            versus = sign * (values - [row[OURS] for row in part])
            seconds = [row[f"{method} seconds"] for row in part if f"{method} seconds" in row]
            lines.append({
                "data": name, "method": method, "seeds": len(part), "mean": f"{values.mean():.5g}",
                "difference (standard error)": "" if method == OURS
                else f"{versus.mean():+.3g} ({standard_error(versus):.2g})",
                "seconds": f"{np.mean(seconds):.1f}" if seconds else "",
            })  # fmt: skip
    return markdown(lines)


def remarks(rows):
    """What the table has no column for."""
    for name in dict.fromkeys(row["data"] for row in rows):
        part = [row for row in rows if row["data"] == name]
        words = f"shares in {sum(row['shares'] for row in part)} of {len(part)}"
        if "status" in part[0]:
            words += f"; converged in {sum(row['status'] == 'CONVERGED' for row in part)}"
        if "correlation" in part[0]:
            lower, related = (np.mean([row[key] for row in part]) for key in ("lower by %", "correlation"))
            words += f"; MSE lower than the better ridge by {lower:.0f} %; correlation with true cosines {related:.2f}"
        if name.startswith("libsvm") and any(row["shares"] for row in part):
            words += "; WRONG: there is nothing to share"
        yield f"{name}: {words}"
        for task in part[0].get("tasks", {}):
            ours, other = (
                np.array([row["tasks"][task][key] for row in part]) for key in (OURS, "a ridge for each task")
            )
            relative, error = (ours - other).mean() / other.mean(), standard_error(ours - other) / other.mean()
            flag = "  WORSE" if relative > 0.03 + 2 * error else ""  # never with one seed
            yield f"  {task[:32]:32s} {100 * relative:+6.1f} % ({100 * error:.1f}){flag}"


MEASURE = {"school": school, "synthetic": synthetic, "libsvm": libsvm, "nlsy": nlsy}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", default=[*MEASURE], choices=[*MEASURE])
    parser.add_argument("--seeds", nargs="+", type=int, default=list(range(10)))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    for name in options.only:
        for seed in options.seeds:
            for row in MEASURE[name](seed):
                rows.append(row)
                shown = {key: round(value, 5) if isinstance(value, float) else value for key, value in row.items()}
                print(json.dumps({key: value for key, value in shown.items() if key != "tasks"}), flush=True)
            if options.json:
                options.json.write_text(json.dumps(rows, indent=1) + "\n")
    print(table(rows), *remarks(rows), sep="\n")


if __name__ == "__main__":
    main()
