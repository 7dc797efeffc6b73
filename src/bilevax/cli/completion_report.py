"""What `bilevax complete` tells about ratings and a trial: sentences, a table of errors, and files."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bilevax.cli.completion_trial import Trial
from bilevax.cli.fit_report import drawn, fit_words, write_metrics
from bilevax.cli.output import rounded
from bilevax.cli.path_picture import draw_path
from bilevax.files import write_csv
from bilevax.ratings import Ratings


def summary(path: Path, ratings: Ratings, notes: Sequence[str]) -> str:
    """What was read, on one line."""
    (users, items), values = ratings.shape, ratings.values
    share = len(values) / (users * items)
    text = (
        f"{path}: {users} users, {items} items, {len(values)} ratings ({100 * share:.2g} % of all pairs), "
        f"mean {values.mean():.3g}, from {values.min():g} to {values.max():g}"
    )
    return "; ".join([text, *notes]) + "."


def compute_metrics(ratings: Ratings, trial: Trial, options: argparse.Namespace) -> dict[str, Any]:
    """Everything that metrics.json holds."""
    from bilevax.estimators.matrix_completion.summary import model_words

    truth = ratings.values[trial.held_out]
    errors = {"completion": trial.predictions - truth, "effects only": trial.baseline - truth}
    return {
        "ratings": options.ratings.name,
        "users": ratings.shape[0],
        "items": ratings.shape[1],
        "training_ratings": len(ratings.values) - len(truth),
        "held_out": len(truth),
        "held_out_by": "random" if options.time_column is None else "time",
        "held_out_unseen": trial.cold_start,
        "seed": options.seed,
        "errors": {name: _rmse_and_mae(error) for name, error in errors.items()} if len(truth) else None,
        "radius": float(trial.estimator.radius_),
        "radius_chosen_by": "validation" if options.radius == "auto" else "user",
        "rank": int(trial.estimator.rank_),
        "choices": {name: value for name, value in trial.estimator.choices_.items() if name != "ranks"},
        "model": model_words(trial.estimator),
        "steps": int(trial.estimator.n_steps_),
        "seconds": trial.seconds,
        "status": trial.estimator.status_,
    }


def report(metrics: Mapping[str, Any]) -> str:
    """The table of errors and a line about the fit."""
    from bilevax.drawing.tables import markdown

    fit = fit_words(f"Model: {metrics['model']}. Fitted in {metrics['seconds']:.1f} s.", metrics["status"])
    if metrics["errors"] is None:
        return f"{fit} Nothing was held out, so there is no error to tell."
    names = {"effects only": "user and item effects only", "completion": "matrix completion"}
    rows = [
        {"method": name, **{measure.upper(): f"{value:.4f}" for measure, value in metrics["errors"][key].items()}}
        for key, name in names.items()
    ]
    which = "the latest" if metrics["held_out_by"] == "time" else f"at random, seed {metrics['seed']}"
    counts = (
        f"{metrics['held_out']} ratings held out ({which}), {metrics['held_out_unseen']} of them with a user or item"
    )
    return f"{markdown(rows)}\n\n{counts} not seen in training.\n{fit}"


def write_results(folder: Path, ratings: Ratings, trial: Trial, metrics: Mapping[str, Any]) -> None:
    """metrics.json, path.csv, path.png and predictions.csv, each whole or not at all."""
    write_metrics(folder, metrics)
    written = ["metrics.json"]
    path = list(trial.estimator.path_)
    if path:
        write_csv(folder / "path.csv", list(path[0]), (list(point.values()) for point in path))
        written.append("path.csv")
    if metrics["held_out"]:
        held = ratings.subset(trial.held_out)
        users, items = held.row_ids[held.rows].tolist(), held.col_ids[held.cols].tolist()
        values = [f"{value:g}" for value in held.values.tolist()]
        lines = zip(users, items, values, rounded(trial.predictions), strict=True)
        write_csv(folder / "predictions.csv", ["user", "item", "rating", "prediction"], lines)
        written.append("predictions.csv")
    radius, rank = metrics["radius"], trial.estimator.shrunk_.left.shape[1]
    written += drawn("complete", folder / "path.png", lambda file: draw_path(file, path, radius, rank))
    print(f"Written to {folder}: {', '.join(written)}.")


def _rmse_and_mae(error: np.ndarray) -> dict[str, float]:
    return {"rmse": float(np.sqrt(np.mean(error**2))), "mae": float(np.mean(np.abs(error)))}
