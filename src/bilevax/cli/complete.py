"""`bilevax complete`: read ratings, hold some out, fit, report, write, save."""

from __future__ import annotations

import argparse
import math
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np

from bilevax.cli import command_file
from bilevax.cli.columns import add_columns
from bilevax.cli.completion_report import compute_metrics, report, summary, write_results
from bilevax.cli.completion_trial import Trial, run_trial
from bilevax.cli.fit_options import (
    INTERRUPTED,
    add_fit_options,
    check_fit_options,
    check_results,
    check_split,
    checkpoint_part,
)
from bilevax.cli.fit_report import tell_saved
from bilevax.ratings import Ratings, read_ratings, split, split_by_time


def add(subparsers: Any) -> None:
    """Declare the command and its options."""
    parser = subparsers.add_parser("complete", help="learn to predict the ratings that a file does not have")
    parser.set_defaults(run=run)
    parser.add_argument("ratings", type=Path, metavar="RATINGS", help="text, Parquet or NPZ; text may be gzipped")
    add_columns(parser, "user", "item", "rating")
    parser.add_argument("--time-column", metavar="COL", help="times of the ratings; the latest are held out")
    parser.add_argument("--radius", default="auto", help="of the ball of low-rank matrices, or auto (default: auto)")
    parser.add_argument(
        "--effort", choices=["fast", "default", "best"], default="default", help="how much is tried (default: default)"
    )
    parser.add_argument("--zeros", choices=["keep", "drop"], help="whether a rating of zero is a rating")
    add_fit_options(parser, test_fraction=0.1, files="metrics, path and predictions", rows="ratings")


def run(options: argparse.Namespace) -> int:
    """Read, hold out, fit, report, write and save; an interrupted fit still delivers, with exit code 130."""
    check_fit_options(options, options.ratings)
    radius = _radius(options.radius)
    check_results(options)
    estimator = _estimator(radius, options)
    ratings, notes = read_ratings(
        options.ratings,
        user=options.user,
        item=options.item,
        rating=options.rating,
        time=options.time_column,
        zeros=options.zeros,
    )
    print(summary(options.ratings, ratings, notes), flush=True)
    if options.checkpoint is not None and options.arguments is not None:
        command_file.write(options.checkpoint, options.arguments)
    trial = run_trial(estimator, ratings, _held_out(ratings, options))
    metrics = compute_metrics(ratings, trial, options)
    print(f"\n{report(metrics)}", flush=True)
    if options.out is not None:
        write_results(options.out, ratings, trial, metrics)
    saved = trial.estimator if options.model is None else _save_model(options, ratings, trial)
    return INTERRUPTED if "STOPPED" in (trial.estimator.status_, saved.status_) else 0


def _radius(text: str) -> float | str:
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


def _estimator(radius: float | str, options: argparse.Namespace) -> Any:
    from bilevax.estimators import MatrixCompletion

    verbose = 0 if options.quiet else 1
    return MatrixCompletion(
        radius,
        effort=options.effort,
        time_limit=options.time_limit,
        random_state=options.seed,
        verbose=verbose,
        checkpoint=checkpoint_part(options, "trial"),
    )


def _held_out(ratings: Ratings, options: argparse.Namespace) -> np.ndarray:
    """True for the ratings that the fit must not see: a random share, or the latest."""
    fraction = options.test_fraction
    if options.time_column is None:
        held_out = split(ratings, fraction, options.seed)
    else:
        held_out = split_by_time(ratings, fraction)
    check_split(options, int(held_out.sum()), len(held_out), "ratings")
    return held_out


def _save_model(options: argparse.Namespace, ratings: Ratings, trial: Trial) -> Any:
    """Fit all ratings with what the trial chose and save that fit, which is returned.

    If nothing was held out, the trial is that fit. If the user interrupted the trial, its model is saved as it is.
    """
    estimator, learned_from, words, interrupted = trial.estimator, trial.train, "The fit", None
    if trial.interrupted:
        interrupted = f"The interrupted fit of {len(learned_from.values)} ratings"
    elif trial.held_out.any():
        estimator = copy(trial.estimator).set_params(checkpoint=checkpoint_part(options, "model"))
        estimator.fit_again((ratings.rows, ratings.cols, ratings.values))
        learned_from = ratings
        words = f"A fit of all {len(ratings.values)} ratings with the same choices"
    estimator.save(options.model, row_ids=learned_from.row_ids, col_ids=learned_from.col_ids)
    status = estimator.status_ if learned_from is ratings else ""
    tell_saved(options.model, status, words, trial=interrupted)
    return estimator
