"""Measure what each part of `bx.estimators.MatrixCompletion` is worth, and its lower level: docs/completion.md.

    python benchmarks/completion_ablation.py [--data 100k 1m] [--seeds 0 1 2 3 4] --out docs/completion.md [--json FILE]

A seed decides which tenth of the ratings is the test set. MovieLens 1M is run for the first seed only. The script
writes the JSON file after every fit, and does not repeat fits that the file already holds. Seconds are CPU seconds of
one fit, after a short one that compiles what it needs.
"""

import argparse
import json
import os
import shlex
import sys
from pathlib import Path

import numpy as np
from completion_page import write_page
from completion_variants import (
    BEST_RADIUS,
    CLEAN,
    DEFAULTS,
    LEFT_OUT,
    LOSSES,
    LOW_RANK_ONLY,
    OUTLIER_SHARES,
    RANDOM_SHARES,
    SYNTHETIC,
    Task,
    plain,
)

import bilevax as bx
from bilevax.problems import synthetic

LOADERS = {"100k": bx.datasets.movielens_100k, "1m": bx.datasets.movielens_1m}


def rated(data, seed):
    """Nine tenths of the ratings to learn from, one to predict."""
    ratings = LOADERS[data]()
    test = np.random.default_rng(seed).random(len(ratings.values)) < 0.1
    parts = (ratings.rows, ratings.cols, np.asarray(ratings.values, float))
    return Task(tuple(part[~test] for part in parts), tuple(part[test] for part in parts))


def disturbed(task, share, seed):
    """A share of the ratings to learn from made random; and which they are."""
    rows, cols, values = task.train
    rng = np.random.default_rng(1000 + seed)
    bad = rng.random(len(values)) < share
    return task._replace(train=(rows, cols, np.where(bad, rng.integers(1, 6, len(values)), values))), bad


def with_outliers(share, seed):
    """The synthetic instance with a share of the observed entries ten standard deviations off, and its radius.

    The entries to predict are those not observed, without noise.
    """
    instance = synthetic(seed)
    rng = np.random.default_rng(1000 + seed)
    rows, cols = np.nonzero(instance.observed)
    values = instance.M[rows, cols]
    signs = rng.choice([-1.0, 1.0], len(values))
    values = values + np.where(rng.random(len(values)) < share, 10 * values.std() * signs, 0)
    hidden = np.nonzero(~instance.observed)
    return Task((rows, cols, values), (*hidden, instance.truth[hidden])), instance.radius


def measure(fit, task):
    """The figures of a fit that the tables show."""
    model = fit.model
    rows, cols, values = task.test
    return {
        "rmse": float(np.sqrt(np.mean((fit.predict(rows, cols) - values) ** 2))),
        "seconds": model.cpu_seconds,
        "rank": model.rank_,
        "steps": model.n_steps_,
        "radius": model.radius_,
        "similarity": model.similarity_,
        "path": [row["rmse"] for row in model.path_],
    }


class Store:
    """Figures by name, in a file if there is one."""

    def __init__(self, path):
        """Begin with what the file holds."""
        self.path = path
        self.figures = json.loads(path.read_text()) if path is not None and path.exists() else {}

    def get(self, name, make):
        """The figures of that name; `make` is called if they are missing."""
        if name not in self.figures:
            self.figures[name] = made = make()
            print(f"{name}: RMSE {made['rmse']:.4f}, {made['seconds']:.1f} s", file=sys.stderr)
            if self.path is not None:
                self.path.write_text(json.dumps(self.figures, indent=1))
        return self.figures[name]


def run_clean(store, data, seed):
    """All variants on one split."""
    task = rated(data, seed)
    defaults = store.get(f"{data}/{seed}/{DEFAULTS}", lambda: measure(plain(task, {}), task))
    for name, variant in CLEAN.items():
        if data in variant.on:
            store.get(f"{data}/{seed}/{name}", lambda fit=variant.fit: measure(fit(task, defaults), task))


def run_disturbed(store, share, seed):
    """Both losses on ratings of which some are random."""
    clean = rated("100k", seed)
    task, bad = disturbed(clean, share, seed)
    for name, options in LOSSES.items():
        store.get(f"random {share}/{seed}/{name}", lambda o=options: measure(plain(task, {}, **o), task))
    if share > 0:
        rest = task._replace(train=tuple(part[~bad] for part in task.train))
        store.get(f"random {share}/{seed}/{LEFT_OUT}", lambda: measure(plain(rest, {}), rest))


def run_synthetic(store, share, seed):
    """Both losses on the synthetic instance."""
    task, radius = with_outliers(share, seed)
    for name, options in SYNTHETIC.items():
        radii = [radius * 2.0**-k for k in range(6)] if name == BEST_RADIUS else ["auto"]

        def best(options=options, radii=radii):
            tried = [measure(plain(task, {}, radius=r, **options, **LOW_RANK_ONLY), task) for r in radii]
            return min(tried, key=lambda figures: figures["rmse"])

        store.get(f"synthetic {share}/{seed}/{name}", best)


def main():
    """Run what is missing, write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", nargs="+", choices=list(LOADERS), default=list(LOADERS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--out", type=Path, required=True, help="the page")
    parser.add_argument("--json", type=Path, help="a file for the figures, so that an interrupted run can be resumed")
    args = parser.parse_args()
    store = Store(args.json)
    for seed in args.seeds:
        for share in OUTLIER_SHARES:
            run_synthetic(store, share, seed)
    if "100k" in args.data:
        for seed in args.seeds:
            run_clean(store, "100k", seed)
            for share in RANDOM_SHARES:
                run_disturbed(store, share, seed)
    if "1m" in args.data:
        run_clean(store, "1m", args.seeds[0])
    words = ["python", "benchmarks/completion_ablation.py", "--data", *args.data, "--seeds", *map(str, args.seeds)]
    command = shlex.join([*words, "--out", os.path.relpath(args.out)])
    args.out.write_text(write_page(store.figures, args.data, args.seeds, command))


if __name__ == "__main__":
    main()
