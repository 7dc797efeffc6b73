"""FeatureWeights against tuned l2, tuned l1 and Optuna: log loss on test rows, and how well features are ranked.

    python benchmarks/feature_weights.py [--only NAME ...] [--seeds N ...] [--json FILE]

Every contender sees the training rows of a draw only. l2 and l1 choose C by LogisticRegressionCV with five folds, on
the features as they are and, if they are dense, on standardised ones. Optuna chooses C
and a scale for each group of features by five folds, with the seconds of FeatureWeights or ten, whichever is more. The
table has the mean over the draws, and the mean and the standard error of the paired difference to FeatureWeights: above
zero means that FeatureWeights is better. "ranking" is the share of useful features among the first 20 of 500.
"""

import argparse
import json
import time
import warnings
from pathlib import Path

import numpy as np
import scipy.sparse
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.linear_model import LassoCV, LogisticRegression, LogisticRegressionCV
from sklearn.metrics import log_loss
from sklearn.model_selection import StratifiedKFold
from sklearn.multiclass import OneVsRestClassifier
from sklearn.preprocessing import StandardScaler

import bilevax as bx
from bilevax.drawing.tables import markdown

ADULT = (5, 8, 5, 16, 5, 7, 14, 6, 5, 2, 2, 2, 5, 41)
"""How many columns of a9a belong to each attribute of the people."""


def a9a(seed, rows=1000):
    train, test = bx.datasets.a9a(), bx.datasets.a9a("test")
    A, B = (np.asarray(part.X.todense()) for part in (train, test))
    d = max(A.shape[1], B.shape[1])
    A, B = (np.pad(part, [(0, 0), (0, d - part.shape[1])]) for part in (A, B))
    chosen = np.random.default_rng(seed).permutation(len(A))[:rows]
    return A[chosen], train.y[chosen], B, test.y, np.repeat(np.arange(14), ADULT)[:d]


def ijcnn1(seed, rows=500):
    table = bx.datasets.ijcnn1()
    A, y = np.asarray(table.X), np.asarray(table.y)
    order = np.random.default_rng(seed).permutation(len(A))
    return A[order[:rows]], y[order[:rows]], A[order[rows:]], y[order[rows:]], np.arange(A.shape[1])


def newsgroups(seed, rows=3000, label="y6"):
    table = bx.datasets.newsgroups()
    order, y = np.random.default_rng(seed).permutation(len(table.y6)), getattr(table, label)
    train, test = order[:rows], order[-3600:]
    tfidf = TfidfTransformer(sublinear_tf=True).fit(table.counts[train])
    A, B = (scipy.sparse.csr_matrix(tfidf.transform(table.counts[part])) for part in (train, test))
    often = np.asarray((A > 0).sum(axis=0)).ravel()
    return A, y[train], B, y[test], np.digitize(often, [1, 2, 4, 8, 16, 32, 64])


DATA = {
    "a9a, 1000 rows": a9a,
    "ijcnn1, 500 rows": ijcnn1,
    "newsgroups, 6 classes, 3000 rows": newsgroups,
    "newsgroups, 20 classes, 3000 rows": lambda seed: newsgroups(seed, label="y20"),
    "newsgroups, 6 classes, 14600 rows": lambda seed: newsgroups(seed, rows=14_600),
    "a9a, all rows": lambda seed: a9a(seed, rows=None),
    "ijcnn1, 40000 rows": lambda seed: ijcnn1(seed, rows=40_000),
}


def ours(X, y, test, groups, seed, seconds):
    model = bx.estimators.FeatureWeights(loss="logistic", random_state=seed).fit(X, y)
    return model.predict_proba(test)


def regularised(penalty, X, y, test, seed, standardised=False):
    """LogisticRegressionCV on the features as they are, or standardised."""
    folds = StratifiedKFold(5, shuffle=True, random_state=seed)
    if scipy.sparse.issparse(X) and penalty == "l1":
        return _sparse_l1(X, y, test, folds)
    if standardised:
        scale = StandardScaler().fit(X)
        X, test = scale.transform(X), scale.transform(test)
    grid = np.logspace(-4, 3, 22) if penalty == "l2" else np.logspace(-2.5, 1.5, 17)
    grid = np.logspace(0.5, 3.5, 7) if scipy.sparse.issparse(X) else grid
    kind = {"l1_ratios": (0.0,)}
    if penalty == "l1":
        kind = {"l1_ratios": (1.0,), "solver": "liblinear", "intercept_scaling": 10.0}
    options = {"scoring": "neg_log_loss", "max_iter": 2000, "use_legacy_attributes": False}
    return LogisticRegressionCV(Cs=grid, cv=folds, **kind, **options).fit(X, y).predict_proba(test)


def _sparse_l1(A, y, B, folds):
    """One l1 problem for each class: liblinear is the only solver of scikit-learn that is fast enough on text."""
    options = {"l1_ratio": 1.0, "solver": "liblinear", "intercept_scaling": 10.0}
    make = lambda C: OneVsRestClassifier(LogisticRegression(C=C, **options))  # noqa: E731
    losses = {}
    for C in np.logspace(0.5, 2.5, 5):
        held = [log_loss(y[b], make(C).fit(A[a], y[a]).predict_proba(A[b])) for a, b in list(folds.split(A, y))[:3]]
        losses[C] = np.mean(held)
    best = min(losses, key=losses.get)
    return make(best).fit(A, y).predict_proba(B)


def optuna_search(X, y, test, groups, seed, seconds):
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    folds = list(StratifiedKFold(5, shuffle=True, random_state=seed).split(X, y))
    names = np.unique(groups)

    def model(trial):
        scales = {g: trial.suggest_float(f"g{g}", -3.0, 3.0) for g in names}
        C = 10 ** trial.suggest_float("C", -2.0, 3.0)
        return np.exp([scales[g] for g in groups]), LogisticRegression(C=C, max_iter=300, tol=1e-3)

    def held_out(trial):
        scales, fit = model(trial)
        A = X.multiply(scales).tocsr() if scipy.sparse.issparse(X) else X * scales
        return np.mean([log_loss(y[b], fit.fit(A[a], y[a]).predict_proba(A[b])) for a, b in folds])

    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
    study.enqueue_trial({**{f"g{g}": 0.0 for g in names}, "C": 2.0 if scipy.sparse.issparse(X) else 0.0})
    study.optimize(held_out, timeout=max(10.0, seconds))
    scales, fit = model(study.best_trial)
    times = (lambda A: A.multiply(scales).tocsr()) if scipy.sparse.issparse(X) else (lambda A: A * scales)
    return fit.set_params(tol=1e-4).fit(times(X), y).predict_proba(times(test))


CONTENDERS = {
    "FeatureWeights": ours,
    "l2": lambda X, y, test, groups, seed, seconds: regularised("l2", X, y, test, seed),
    "l1": lambda X, y, test, groups, seed, seconds: regularised("l1", X, y, test, seed),
    "l2, standardised": lambda X, y, test, groups, seed, seconds: regularised("l2", X, y, test, seed, True),
    "l1, standardised": lambda X, y, test, groups, seed, seconds: regularised("l1", X, y, test, seed, True),
    "Optuna": optuna_search,
}


def measure(name, seed):
    X, y, test, truth, groups = DATA[name](seed)
    row, seconds = {"data": name, "seed": seed}, 0.0
    for contender, run in CONTENDERS.items():
        if "standardised" in contender and scipy.sparse.issparse(X):
            continue
        began = time.perf_counter()
        row[contender] = log_loss(truth, run(X, y, test, groups, seed, seconds))
        row[f"{contender} seconds"] = time.perf_counter() - began
        seconds = row["FeatureWeights seconds"]
    return row


def ranking(seed):
    """20 useful features of 500, coefficients +-1, as much noise as signal."""
    rng = np.random.default_rng(seed)
    X, useful = rng.standard_normal((600, 500)), rng.choice(500, 20, replace=False)
    signal = X[:, useful] @ rng.choice([-1.0, 1.0], 20)
    y = signal + np.sqrt(20) * rng.standard_normal(600)
    share = lambda order: float(np.isin(order[:20], useful).mean())  # noqa: E731
    row = {"data": "ranking", "seed": seed}
    for name, order in (
        ("FeatureWeights", lambda: bx.estimators.FeatureWeights(random_state=seed).fit(X, y).ranking_),
        ("l1", lambda: np.argsort(-np.abs(LassoCV(cv=5).fit(X, y).coef_))),
    ):
        began = time.perf_counter()
        row[name] = share(order())
        row[f"{name} seconds"] = time.perf_counter() - began
    return row


def table(rows):
    lines = []
    for name in dict.fromkeys(row["data"] for row in rows):
        part = [row for row in rows if row["data"] == name]
        for contender in CONTENDERS:
            values = [row[contender] for row in part if contender in row]
            if not values:
                continue
            difference = np.array([row[contender] - row["FeatureWeights"] for row in part])
            error = difference.std(ddof=1) / np.sqrt(len(part)) if len(part) > 1 else float("nan")
            seconds = np.mean([row[f"{contender} seconds"] for row in part])
            versus = "" if contender == "FeatureWeights" else f"{difference.mean():+.5f} ({error:.5f})"
            lines.append({
                "data": name, "method": contender, "draws": len(part), "loss or share": f"{np.mean(values):.5f}",
                "difference (standard error)": versus, "seconds": f"{seconds:.1f}",
            })  # fmt: skip
    return markdown(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", default=[*DATA, "ranking"], choices=[*DATA, "ranking"])
    parser.add_argument("--seeds", nargs="+", type=int, default=list(range(10)))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    warnings.filterwarnings("ignore", category=UserWarning)  # liblinear warns of fits that took all their steps
    warnings.filterwarnings("ignore", category=FutureWarning)
    rows = []
    for name in options.only:
        # Large problems are measured on fewer draws.
        seeds = options.seeds[: 10 if "500" in name or "1000" in name or name == "ranking" else 5]
        seeds = seeds[:1] if "all" in name or "40000" in name or "14600" in name else seeds
        for seed in seeds:
            rows.append(ranking(seed) if name == "ranking" else measure(name, seed))
            shown = {key: round(value, 5) if isinstance(value, float) else value for key, value in rows[-1].items()}
            print(json.dumps(shown), flush=True)
            if options.json:
                options.json.write_text(json.dumps(rows, indent=1) + "\n")
    print(table(rows))


if __name__ == "__main__":
    main()
