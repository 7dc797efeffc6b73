"""How well other packages complete rating matrices: the RMSE on held-out ratings, settings tuned on the rest.

    python benchmarks/completion_peers.py --data 100k [--seeds 0 1 2 3 4] [--peers NAME ...] [--json FILE]
        [--minutes N] [--like FILE [--best 3]]

Needs cmfrec, scikit-surprise, pandas and, for its own figures, myfm. A seed decides which tenth of the ratings is the
test set. Settings are chosen by the RMSE on a tenth of the other ratings, by a search along one setting at a time;
the chosen one is then fitted to all of them. Users and items that are new in the test set get what the peer predicts
by its own rule. The file is written after every figure, and figures that it already holds are not measured again.
With `--like`, only the best settings that a search has left in that file are tried, and a single one is taken as it
is. Seconds are those of one busy core.
"""

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import surprise
from cmfrec import CMF
from scipy.sparse import coo_matrix, csr_matrix, diags, hstack, identity

import bilevax as bx
from bilevax.drawing.tables import markdown

LOADERS = {
    "100k": bx.datasets.movielens_100k,
    "1m": bx.datasets.movielens_1m,
    "book-crossing": bx.datasets.book_crossing,
}
SCALES = {"100k": (1, 5), "1m": (1, 5), "book-crossing": (1, 10)}
GAIN = 2e-4
"""A search moves on only if that lowers the RMSE by this much; less is noise, and larger models cost time."""


class Known(NamedTuple):
    """Ratings with the number of all users and items, and the lowest and highest rating there is."""

    users: np.ndarray
    items: np.ndarray
    values: np.ndarray
    shape: tuple[int, int]
    scale: tuple[int, int]

    def split(self, seed):
        """The ratings without a random tenth, and that tenth."""
        held = np.random.default_rng(seed).random(len(self.values)) < 0.1
        return self._only(~held), self._only(held)

    def _only(self, keep):
        return self._replace(users=self.users[keep], items=self.items[keep], values=self.values[keep])


class Peer(NamedTuple):
    """`fit(known, **setting)` returns a function that predicts ratings from users and items.

    Each search is a pair: the values of every setting in order, and the setting it starts from.
    """

    fit: Callable
    searches: list


def fit_cmfrec(known, k, lambda_, bias_share, item_share, w_implicit, **setting):
    """Alternating least squares; shares are of the penalty on users' factors, weight 0 leaves implicit data out."""
    matrix = coo_matrix((known.values, (known.users, known.items)), known.shape)
    bias, item = bias_share * lambda_, item_share * lambda_
    model = CMF(
        k=k,
        lambda_=[bias, bias, lambda_, item, lambda_, item],  # the last two are for side data
        add_implicit_features=w_implicit > 0,
        w_implicit=w_implicit or 1.0,
        **setting,
        precompute_for_predictions=False,
        random_state=1,
        verbose=False,
        nthreads=1,
    )
    return model.fit(matrix).predict


def fit_surprise(algorithm, known, **setting):
    """Any algorithm of Surprise, named by its class."""
    frame = pd.DataFrame({"user": known.users, "item": known.items, "rating": known.values})
    reader = surprise.Reader(rating_scale=known.scale)
    model = getattr(surprise, algorithm)(verbose=False, **setting)
    model.fit(surprise.Dataset.load_from_df(frame, reader).build_full_trainset())

    def predict(users, items):
        asked = [(user, item, 0.0) for user, item in zip(users.tolist(), items.tolist(), strict=True)]
        return np.array([answer.est for answer in model.test(asked)])

    return predict


def fit_myfm(known, rank, n_iter):
    """A Bayesian factorization machine with the features of SVD++ for users and for items (package `myfm`)."""
    from myfm import MyFMRegressor, RelationBlock

    users, items = known.shape
    rated = csr_matrix((np.ones(len(known.values)), (known.users, known.items)), known.shape)

    def features(pattern, own):
        """One for itself, and for each partner one over the root of their number."""
        counts = np.maximum(np.asarray(pattern.sum(axis=1)).ravel(), 1)
        return hstack([identity(own), diags(counts**-0.5) @ pattern], format="csr")

    tables = features(rated, users), features(rated.T.tocsr(), items)

    def blocks(rows, cols):
        return [RelationBlock(index, table) for index, table in zip((rows, cols), tables, strict=True)]

    model = MyFMRegressor(rank=rank, random_seed=0)
    model.fit(
        None, known.values, X_rel=blocks(known.users, known.items), n_iter=n_iter, n_kept_samples=n_iter,
        group_shapes=[users, items, items, users],
    )  # fmt: skip
    return lambda rows, cols: model.predict(None, X_rel=blocks(rows, cols))


def fit_bias(known, reg_u, reg_i):
    """The mean, and an effect of each user and item, alternated until nothing moves."""
    return fit_surprise("BaselineOnly", known, bsl_options=baseline(reg_u, reg_i))


def fit_neighbours(known, k, min_k, shrinkage, reg_u, reg_i):
    """The nearest items by shrunk correlation, on top of the effects of users and items."""
    similarity = {"name": "pearson_baseline", "user_based": False, "shrinkage": shrinkage}
    options = {"sim_options": similarity, "bsl_options": baseline(reg_u, reg_i)}
    return fit_surprise("KNNBaseline", known, k=k, min_k=min_k, **options)


def baseline(reg_u, reg_i):
    """Options of Surprise for the effects of users and items."""
    return {"method": "als", "n_epochs": 30, "reg_u": reg_u, "reg_i": reg_i}


PENALTIES = [0.1, 0.3, 1, 2, 3, 4, 5, 7, 10, 15, 20]
CMFREC_AXES = {
    "w_implicit": [0, 0.25, 0.5, 1, 2, 4, 8],
    "k": [5, 10, 20, 40, 60, 100],
    "bias_share": [0.02, 0.05, 0.1, 0.2, 0.5, 1, 2],
    "item_share": [0.25, 0.5, 1, 2, 4],
    "niter": [2, 3, 4, 5, 7, 10, 20],
    "use_cg": [False, True],
}
CMFREC_START = {"k": 60, "bias_share": 0.2, "item_share": 1, "scale_bias_const": False, "niter": 7, "use_cg": True}
PEERS = {
    "bias only": Peer(
        fit_bias,
        [({"reg_i": PENALTIES, "reg_u": PENALTIES}, {"reg_u": 5, "reg_i": 5})],
    ),
    "cmfrec": Peer(
        fit_cmfrec,
        [
            (
                {
                    "lambda_": [0.02, 0.03, 0.05, 0.07, 0.085, 0.1, 0.12, 0.14, 0.17, 0.2, 0.3, 0.5, 1, 2, 4],
                    **CMFREC_AXES,
                    "scale_bias_const": [False, True],
                },
                {"lambda_": 0.12, "scale_lam": True, "w_implicit": 2, **CMFREC_START},
            ),
            (
                {"lambda_": [3, 5, 7, 10, 14, 20, 28, 40], **CMFREC_AXES},
                {"lambda_": 14, "scale_lam": False, "w_implicit": 1, **CMFREC_START},
            ),
        ],
    ),
    "myFM": Peer(fit_myfm, [({"rank": [8, 12, 20]}, {"rank": 12, "n_iter": 300})]),
    "Surprise SVD": Peer(
        partial(fit_surprise, "SVD", random_state=0),
        [
            (
                {
                    "reg_all": [0.02, 0.03, 0.05, 0.07, 0.085, 0.1, 0.12, 0.15],
                    "n_epochs": [20, 40, 60, 80, 120, 160],
                    "lr_all": [0.0025, 0.005, 0.01, 0.02],
                    "n_factors": [20, 50, 100, 200, 300],
                },
                {"n_factors": 200, "n_epochs": 80, "lr_all": 0.005, "reg_all": 0.085},
            )
        ],
    ),
    "Surprise SVD++": Peer(
        partial(fit_surprise, "SVDpp", random_state=0, cache_ratings=True),
        [
            (
                {
                    "n_epochs": [20, 40, 60],
                    "lr_all": [0.005, 0.01, 0.02],
                    "reg_all": [0.05, 0.07, 0.1, 0.13],
                    "n_factors": [20, 40],
                },
                {"n_factors": 20, "n_epochs": 40, "lr_all": 0.01, "reg_all": 0.1},
            )
        ],
    ),
    "Surprise KNNBaseline": Peer(
        fit_neighbours,
        [
            (
                {
                    "k": [10, 20, 30, 40, 60, 80],
                    "shrinkage": [50, 100, 200, 400, 800, 1600],
                    "min_k": [1, 3, 5, 7, 10],
                    "reg_u": PENALTIES,
                    "reg_i": PENALTIES,
                },
                {"k": 40, "shrinkage": 400, "min_k": 5, "reg_u": 5, "reg_i": 4},
            )
        ],
    ),
}


def errors(predict, held):
    """Root mean square and mean absolute error of the predictions, clipped to the scale."""
    wrong = np.clip(predict(held.users, held.items), *held.scale) - held.values
    return float(np.sqrt(np.mean(wrong**2))), float(np.mean(np.abs(wrong)))


def search(score, axes, start):
    """Change one setting at a time to the value next to it, until no such change lowers the score."""
    best, moved = start, True
    while moved:
        moved = False
        for name, values in axes.items():
            for direction in (1, -1):
                at = values.index(best[name]) + direction
                while 0 <= at < len(values) and score({**best, name: values[at]}) < score(best) - GAIN:
                    best, moved = {**best, name: values[at]}, True
                    at += direction


def tune(peer, known, seed, settings=None, minutes=math.inf):
    """Pairs of RMSE and setting, best first; of these settings if given, else of those a search comes across."""
    if settings and len(settings) == 1:
        return [(None, settings[0])]
    train, held = known.split(1000 + seed)
    tried, deadline = {}, time.process_time() + 60 * minutes

    def score(setting):
        key = json.dumps(setting, sort_keys=True)
        if key not in tried and time.process_time() > deadline:
            return math.inf  # so that the search finds nothing better, and ends
        if key not in tried:
            tried[key] = errors(peer.fit(train, **setting), held)[0]
            print(f"  {tried[key]:.4f} {key}", flush=True)
        return tried[key]

    if settings:
        for setting in settings:
            score(setting)
    else:
        for axes, start in peer.searches:
            search(score, axes, start)
    return sorted(((rmse, json.loads(key)) for key, rmse in tried.items()), key=lambda pair: pair[0])


def measure(data, seed, name, settings=None, minutes=math.inf):
    """One record: the tuned peer on the test set of this seed, and the best settings its tuning has met."""
    ratings, peer = LOADERS[data](), PEERS[name]
    known, test = Known(ratings.rows, ratings.cols, ratings.values, ratings.shape, SCALES[data]).split(seed)
    began = time.process_time()
    ranking = tune(peer, known, seed, settings, minutes)
    tuned = time.process_time()
    predict = peer.fit(known, **ranking[0][1])
    fitted = time.process_time()
    rmse, mae = errors(predict, test)
    return {
        "data": data,
        "seed": seed,
        "peer": name,
        "setting": ranking[0][1],
        "rmse": rmse,
        "mae": mae,
        "fit_seconds": fitted - tuned,
        "tuning_seconds": tuned - began,
        "settings_tried": len(ranking),
        "best_settings": [{"rmse": rmse, "setting": setting} for rmse, setting in ranking[:3]],
    }


def shortlist(file, name, best):
    """The best settings of this peer in the record of the file whose tuning has tried most."""
    records = [record for record in json.loads(file.read_text()) if record["peer"] == name]
    widest = max(records, key=lambda record: record["settings_tried"])
    return [choice["setting"] for choice in widest["best_settings"][:best]]


def summary(records):
    """A row for each peer and data set: mean and standard deviation over the seeds."""
    rows = []
    for data, name in dict.fromkeys((record["data"], record["peer"]) for record in records):
        found = [record for record in records if (record["data"], record["peer"]) == (data, name)]
        rmse, mae, fit, tuning = (
            [record[part] for record in found] for part in ("rmse", "mae", "fit_seconds", "tuning_seconds")
        )
        rows.append(
            {
                "data": data,
                "peer": name,
                "seeds": len(found),
                "RMSE": f"{statistics.mean(rmse):.4f}",
                "spread": f"{statistics.stdev(rmse):.4f}" if len(rmse) > 1 else "",
                "MAE": f"{statistics.mean(mae):.4f}",
                "fit s": statistics.median(fit),
                "longest tuning s": max(tuning),
            }
        )
    return markdown(rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", choices=LOADERS, default="100k")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS))
    parser.add_argument("--json", type=Path, help="write the records to this file, and add to what it holds")
    parser.add_argument("--minutes", type=float, default=math.inf, help="end a search after so long")
    parser.add_argument("--like", type=Path, help="try only the best settings in this file")
    parser.add_argument("--best", type=int, default=3, help="how many of them")
    options = parser.parse_args()
    records = json.loads(options.json.read_text()) if options.json and options.json.exists() else []
    for name in options.peers:
        for seed in options.seeds:
            if any((r["data"], r["seed"], r["peer"]) == (options.data, seed, name) for r in records):
                continue
            print(f"{options.data}, seed {seed}, {name}", flush=True)
            settings = shortlist(options.like, name, options.best) if options.like else None
            records.append(measure(options.data, seed, name, settings, options.minutes))
            print(f"  test {records[-1]['rmse']:.4f}", flush=True)
            if options.json:
                options.json.write_text(json.dumps(records, indent=2) + "\n")
    print(summary(records))


if __name__ == "__main__":
    main()
