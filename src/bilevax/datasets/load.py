"""The data sets as arrays. Each function finds or fetches its files and verifies them first."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bilevax.datasets.fetching import load
from bilevax.datasets.frames import Frame
from bilevax.datasets.libsvm import SparseTable, Table
from bilevax.datasets.npz import Newsgroups
from bilevax.datasets.tasks import Tasks
from bilevax.ratings.table import Ratings

REGRESSION = ("bodyfat", "housing", "mg", "mpg", "space_ga")


class Images(NamedTuple):
    """Grey images, bytes of shape (n, 28, 28), and their digits."""

    images: np.ndarray
    labels: np.ndarray


def _check_split(name: str, split: str) -> None:
    if split not in ("train", "test"):
        raise ValueError(f"{name}: split must be 'train' or 'test', got {split!r}.")


def movielens_100k() -> Ratings:
    """100,000 ratings from 1 to 5 of 1,682 movies by 943 users, with times in seconds."""
    return load("movielens-100k", "ratings")


def movielens_1m() -> Ratings:
    """1,000,209 ratings from 1 to 5 of 3,706 movies by 6,040 users, with times in seconds."""
    return load("movielens-1m", "ratings")


def book_crossing(explicit: bool = True) -> Ratings:
    """Ratings from 1 to 10 of books by users; with `explicit=False` also the implicit ones, whose value is 0."""
    ratings: Ratings = load("book-crossing", "ratings")
    return ratings.subset(ratings.values > 0) if explicit else ratings


def libsvm_regression(name: str) -> Table:
    """bodyfat, housing, mg, mpg or space_ga: features scaled to [-1, 1], target as published."""
    if name not in REGRESSION:
        raise ValueError(f"libsvm_regression: name must be one of {', '.join(REGRESSION)}, got {name!r}.")
    return load(name, "table")


def nlsy79() -> Frame:
    """The NLSY79 table of the R package fairml: 4,908 people, 18 columns of numbers or text, outcome `income90`."""
    return Frame(load("nlsy79", "table"), "income90")


def nlsy79_labor_income() -> Frame:
    """An NLSY79 extract of 12,686 people and 18 numeric columns with missing values, outcome `laborinc07`."""
    return Frame(load("nlsy79-labor-income", "table"), "laborinc07")


def mnist(split: str = "train") -> Images:
    """Handwritten digits, 60,000 to train on and 10,000 to test."""
    _check_split("mnist", split)
    return Images(load("mnist", f"{split}-images"), load("mnist", f"{split}-labels"))


def a9a(split: str = "train") -> SparseTable:
    """UCI Adult as 123 binary features, labels -1 and 1."""
    _check_split("a9a", split)
    return load("a9a", split)


def ijcnn1() -> Table:
    """The training part of the IJCNN 2001 challenge: 49,990 rows of 22 features, labels -1 and 1."""
    return load("ijcnn1", "table")


def newsgroups() -> Newsgroups:
    """Term counts of 18,221 messages, their class (1 to 20) and its group (1 to 6)."""
    return load("20newsgroups", "counts")


def school() -> Tasks:
    """Exam scores of 15,362 pupils in 139 London schools, with 28 features; the last feature is 1."""
    return load("school", "pupils")
