"""The commands `complete`, `predict` and `recommend`: a ratings file to a model, to predictions, to a list."""

from __future__ import annotations

import argparse
import csv
import io
import json
import math
import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bilevax.files import write_atomic
from bilevax.ratings import Ratings


class Trial(NamedTuple):
    """A fit on the training ratings and what it says about those held out; numbers of unseen ids are -1."""

    estimator: Any
    seconds: float
    held_out: np.ndarray
    predictions: np.ndarray
    baseline: np.ndarray
    unseen: int


def add_parsers(commands: Any) -> None:
    """Declare the three commands and their options."""
    complete = commands.add_parser("complete", help="learn to predict the ratings that a file does not have")
    complete.add_argument("ratings", type=Path, metavar="RATINGS", help="text, Parquet or NPZ; text may be gzipped")
    _add_columns(complete, "user", "item", "rating")
    complete.add_argument("--time-column", metavar="COL", help="times of the ratings; the latest are held out")
    complete.add_argument(
        "--test-fraction", type=float, default=0.1, metavar="F", help="share held out, 0 for none (default: 0.1)"
    )
    complete.add_argument("--radius", default="auto", help="of the ball of low-rank matrices, or auto (default: auto)")
    complete.add_argument("--seed", type=int, default=0, help="seed of the split and of the method (default: 0)")
    complete.add_argument("--zeros", choices=["keep", "drop"], help="whether a rating of zero is a rating")
    complete.add_argument("--out", type=Path, metavar="FOLDER", help="folder for metrics, path and predictions")
    complete.add_argument("--model", type=Path, metavar="FILE", help="fit again on all ratings and save the model")
    complete.add_argument("--quiet", action="store_true", help="no progress lines")

    predict = commands.add_parser("predict", help="ratings that a saved model predicts for pairs of user and item")
    predict.add_argument("model", type=Path, metavar="MODEL", help="file saved by bilevax complete --model")
    predict.add_argument("pairs", type=Path, metavar="PAIRS", help="file with a column of users and one of items")
    _add_columns(predict, "user", "item")
    predict.add_argument("--out", type=Path, metavar="FILE", help="CSV file to write (default: standard output)")

    recommend = commands.add_parser("recommend", help="items that a saved model predicts a user to rate highest")
    recommend.add_argument("model", type=Path, metavar="MODEL", help="file saved by bilevax complete --model")
    recommend.add_argument("--user", required=True, help="the user's id in the ratings file")
    recommend.add_argument("-n", type=int, default=10, metavar="N", help="how many items (default: 10)")
    recommend.add_argument(
        "--items", type=Path, metavar="FILE", help="file with a column of item ids and one of titles"
    )


def _add_columns(parser: argparse.ArgumentParser, *roles: str) -> None:
    for role in roles:
        parser.add_argument(f"--{role}", metavar="COL", help=f"column of the {role}, by name or by number from 0")


# ---- complete


def radius_of(text: str) -> float | str:
    """The option --radius: auto, or a positive number."""
    if text == "auto":
        return text
    try:
        radius = float(text)
    except ValueError:
        radius = math.nan
    if not 0 < radius < math.inf:
        raise ValueError(f"--radius must be auto or a positive number, got {text!r}.")
    return radius


def complete(options: argparse.Namespace) -> int:
    """Read ratings, hold some out, fit, tell how good it is; write and save what is asked for."""
    from bilevax.ratings import read_ratings, split, split_by_time

    estimator = _estimator(radius_of(options.radius), options)
    ratings, notes = read_ratings(
        options.ratings,
        user=options.user,
        item=options.item,
        rating=options.rating,
        time=options.time_column,
        zeros=options.zeros,
    )
    print(summary(options.ratings, ratings, notes), flush=True)
    if options.time_column is None:
        held_out = split(ratings, options.test_fraction, options.seed)
    else:
        held_out = split_by_time(ratings, options.test_fraction)
    _check_split(held_out, options.test_fraction)
    trial = run_trial(estimator, ratings, held_out)
    metrics = measured(ratings, trial, options)
    print(f"\n{report(metrics)}", flush=True)
    if options.out is not None:
        write_results(options.out, ratings, trial, metrics)
    if options.model is not None:
        save_model(options, ratings, trial)
    return 0


def _estimator(radius: float | str, options: argparse.Namespace) -> Any:
    from bilevax.estimators import MatrixCompletion

    return MatrixCompletion(radius, random_state=options.seed, verbose=0 if options.quiet else 1)


def summary(path: Path, ratings: Ratings, notes: Sequence[str]) -> str:
    """What was read, on one line."""
    (users, items), values = ratings.shape, ratings.values
    share = len(values) / (users * items)
    text = (
        f"{path}: {users} users, {items} items, {len(values)} ratings ({100 * share:.2g} % of all pairs), "
        f"mean {values.mean():.3g}, from {values.min():g} to {values.max():g}"
    )
    return "; ".join([text, *notes]) + "."


def _check_split(held_out: np.ndarray, fraction: float) -> None:
    count = int(held_out.sum())
    if fraction > 0 and count == 0:
        raise ValueError(f"--test-fraction {fraction:g} of {len(held_out)} ratings holds out none; give a larger one.")
    if len(held_out) - count < 2:
        raise ValueError(f"--test-fraction {fraction:g} leaves {len(held_out) - count} ratings to learn from.")


def run_trial(estimator: Any, ratings: Ratings, held_out: np.ndarray) -> Trial:
    """Fit on what is not held out, and predict what is."""
    from bilevax.estimators import effects_only

    train = ratings.subset(~held_out)
    rows = _places(ratings.rows, held_out)
    cols = _places(ratings.cols, held_out)
    known = train.rows, train.cols, train.values
    began = time.perf_counter()
    estimator.fit(known)
    seconds = time.perf_counter() - began
    unseen = int(np.sum((rows < 0) | (cols < 0)))
    if not len(rows):
        return Trial(estimator, seconds, held_out, np.zeros(0), np.zeros(0), unseen)
    baseline = effects_only(*known).predict(rows, cols)
    return Trial(estimator, seconds, held_out, np.asarray(estimator.predict(rows, cols)), np.asarray(baseline), unseen)


def _places(numbers: np.ndarray, held_out: np.ndarray) -> np.ndarray:
    """The held-out numbers as `Ratings.subset` renumbers the others, -1 for those that have no training rating."""
    place = np.full(numbers.max() + 1, -1)
    trained = np.unique(numbers[~held_out])
    place[trained] = np.arange(len(trained))
    return place[numbers[held_out]]


def measured(ratings: Ratings, trial: Trial, options: argparse.Namespace) -> dict[str, Any]:
    """Everything that metrics.json holds."""
    truth = ratings.values[trial.held_out]
    errors = {"completion": trial.predictions - truth, "effects only": trial.baseline - truth}
    return {
        "ratings": options.ratings.name,
        "users": ratings.shape[0],
        "items": ratings.shape[1],
        "training_ratings": len(ratings.values) - len(truth),
        "held_out": len(truth),
        "held_out_by": "random" if options.time_column is None else "time",
        "held_out_unseen": trial.unseen,
        "seed": options.seed,
        "errors": {name: _error(error) for name, error in errors.items()} if len(truth) else None,
        "radius": float(trial.estimator.radius_),
        "radius_chosen_by": "validation" if options.radius == "auto" else "user",
        "rank": int(trial.estimator.rank_),
        "steps": int(trial.estimator.n_steps_),
        "seconds": trial.seconds,
    }


def _error(error: np.ndarray) -> dict[str, float]:
    return {"rmse": float(np.sqrt(np.mean(error**2))), "mae": float(np.mean(np.abs(error)))}


def report(metrics: Mapping[str, Any]) -> str:
    """The table of errors and a line about the fit."""
    from bilevax.drawing.tables import markdown

    fit = f"Radius {metrics['radius']:.4g}, rank {metrics['rank']}, {metrics['seconds']:.1f} s."
    if metrics["errors"] is None:
        return f"{fit} Nothing was held out, so there is no error to tell."
    names = {"effects only": "user and item effects only", "completion": "matrix completion"}
    rows = [
        {"method": name, **{key.upper(): f"{value:.4f}" for key, value in metrics["errors"][key_of].items()}}
        for key_of, name in names.items()
    ]
    which = "the latest" if metrics["held_out_by"] == "time" else f"at random, seed {metrics['seed']}"
    counts = (
        f"{metrics['held_out']} ratings held out ({which}), {metrics['held_out_unseen']} of them with a user or item"
    )
    return f"{markdown(rows)}\n\n{counts} not seen in training.\n{fit}"


def write_results(folder: Path, ratings: Ratings, trial: Trial, metrics: Mapping[str, Any]) -> None:
    """metrics.json, path.csv, path.png and predictions.csv, each whole or not at all."""
    _write(folder / "metrics.json", json.dumps(metrics, indent=2) + "\n")
    written = ["metrics.json"]
    path = list(trial.estimator.path_)
    if path:
        _write(folder / "path.csv", _csv(list(path[0]), (list(point.values()) for point in path)))
        written.append("path.csv")
    if metrics["held_out"]:
        held = ratings.subset(trial.held_out)
        users, items = held.row_ids[held.rows].tolist(), held.col_ids[held.cols].tolist()
        values = [f"{value:g}" for value in held.values.tolist()]
        lines = zip(users, items, values, _rounded(trial.predictions), strict=True)
        _write(folder / "predictions.csv", _csv(["user", "item", "rating", "prediction"], lines))
        written.append("predictions.csv")
    try:
        if draw_path(folder / "path.png", path, metrics["radius"], metrics["rank"]):
            written.append("path.png")
    except ImportError as error:
        print(f"bilevax complete: path.png is not drawn: {error}", file=sys.stderr)
    print(f"Written to {folder}: {', '.join(written)}.")


def save_model(options: argparse.Namespace, ratings: Ratings, trial: Trial) -> None:
    """Fit all ratings at the radius of the trial and save; without held-out ratings the trial is that fit."""
    estimator, words = trial.estimator, "The fit"
    if trial.held_out.any():
        radius = float(trial.estimator.radius_)
        estimator = _estimator(radius, options).set_params(similarity=float(trial.estimator.similarity_))
        estimator.fit((ratings.rows, ratings.cols, ratings.values))
        words = f"A fit of all {len(ratings.values)} ratings at radius {radius:.4g}"
    estimator.save(options.model, row_ids=ratings.row_ids, col_ids=ratings.col_ids)
    print(f"{words} is saved in {options.model}.")


def draw_path(file: Path, path: Sequence[Mapping[str, Any]], radius: float, rank: int) -> bool:
    """Validation error and rank against the radius, the chosen one marked; False if there is no path to draw."""
    from bilevax.drawing.figures import PALETTE, new_figure, save

    points = sorted(path, key=lambda point: point["radius"])
    if len(points) < 2:
        return False
    radii = [point["radius"] for point in points]
    shown = radii[:: -(-len(radii) // 8)]  # more than eight labels would run into each other
    figure, axes = new_figure(2)
    for axis, key, colour in zip(axes, ("rmse", "rank"), PALETTE, strict=False):
        axis.plot(radii, [point[key] for point in points], color=colour, marker="o", markersize=4, linewidth=1.6)
        axis.axvline(radius, color="#555555", linewidth=0.9, linestyle=(0, (4, 3)), zorder=0)
        axis.set_xlabel("radius")
        axis.set_xscale("log")
        axis.set_xticks(shown, [f"{tick:.0f}" if tick >= 100 else f"{tick:.3g}" for tick in shown])
        axis.minorticks_off()
    axes[0].set_ylabel("RMSE on validation ratings")
    axes[1].set_ylabel("rank of the solution")
    axes[1].plot(
        radius, rank, "o", markersize=8, markerfacecolor="none", color="black", label="fit of all training ratings"
    )
    axes[1].legend(frameon=False, loc="upper left")
    figure.suptitle(f"Chosen: radius {radius:.4g}, rank {rank}", fontsize=11)
    figure.get_layout_engine().set(wspace=0.08)
    save(figure, file)
    return True


# ---- predict and recommend


def predict(options: argparse.Namespace) -> int:
    """Predictions for a file of pairs, as CSV."""
    from bilevax.estimators import load
    from bilevax.ratings import read_pairs

    estimator, row_ids, col_ids = load(options.model)
    users, items = read_pairs(options.pairs, user=options.user, item=options.item)
    rows, cols = _found(users, row_ids, estimator.row_effects_), _found(items, col_ids, estimator.col_effects_)
    predictions = _rounded(np.asarray(estimator.predict(rows, cols)))
    _deliver(_csv(["user", "item", "prediction"], zip(users, items, predictions, strict=True)), options.out)
    no_user, no_item = int(np.sum(rows < 0)), int(np.sum(cols < 0))
    if no_user or no_item:
        print(
            f"bilevax predict: of {len(rows)} pairs, {no_user} have an unknown user and {no_item} an unknown item; "
            "their predictions come from the known effects only.",
            file=sys.stderr,
        )
    return 0


def recommend(options: argparse.Namespace) -> int:
    """A table of the items with the highest predictions among those that the user has not rated."""
    from bilevax.drawing.tables import markdown
    from bilevax.estimators import load
    from bilevax.ratings import read_titles

    estimator, row_ids, col_ids = load(options.model)
    titles = None if options.items is None else read_titles(options.items)
    names = _names(row_ids, estimator.row_effects_)
    if options.user not in names:
        raise ValueError(
            f"user {options.user!r} is not among the {len(names)} users of {options.model}, which are called "
            f"{', '.join(names[:3])} and so on; give one of them, or fit a model to ratings of this user."
        )
    cols, scores = estimator.recommend(names.index(options.user), options.n)
    items = _names(col_ids, estimator.col_effects_)
    rows: list[dict[str, Any]] = [
        {"item": items[col], "predicted": f"{score:.2f}"} for col, score in zip(cols, scores, strict=True)
    ]
    if titles is not None:
        rows = [{**row, "title": titles.get(row["item"], "")} for row in rows]
        if not any(row["title"] for row in rows):
            print(f"bilevax recommend: {options.items} has no title of these items.", file=sys.stderr)
    print(markdown(rows) if rows else f"User {options.user} has rated every item.")
    return 0


def _names(ids: Any, effects: Sequence[float]) -> list[str]:
    """The ids as text; a model saved without ids calls them 0, 1 and so on."""
    return [str(name) for name in (range(len(effects)) if ids is None else np.asarray(ids).tolist())]


def _found(names: Iterable[str], ids: Any, effects: Sequence[float]) -> np.ndarray:
    """The number of each name in the model, -1 if it has none."""
    number = {name: i for i, name in enumerate(_names(ids, effects))}
    return np.array([number.get(name, -1) for name in names])


# ---- files


def _rounded(predictions: np.ndarray) -> list[str]:
    return [f"{prediction:.4f}" for prediction in predictions.tolist()]


def _csv(names: Sequence[str], lines: Iterable[Sequence[Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows(lines)
    return text.getvalue()


def _write(path: Path, text: str) -> None:
    """Always UTF-8, whatever the computer's own encoding."""
    write_atomic(path, lambda stream: stream.write(text.encode()), mode="wb")


def _deliver(text: str, file: Path | None) -> None:
    if file is not None:
        _write(file, text)
        print(f"Saved in {file}.")
        return
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader, such as `head`, has enough; what is left in the buffer goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
