"""The three entry points, and what is the same for files of every format."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from bilevax.ratings import arrays, text_ratings
from bilevax.ratings.columns import ColumnChoice
from bilevax.ratings.table import Ratings
from bilevax.tables.contents import contents
from bilevax.tables.text import open_text

Zeros = Literal["drop", "keep"]
FORMATS = "text, Parquet or NPZ"


def read_ratings(
    path: str | Path,
    *,
    user: str | int | None = None,
    item: str | int | None = None,
    rating: str | int | None = None,
    time: str | int | None = None,
    header: bool | None = None,
    separator: str | None = None,
    zeros: Zeros | None = None,
) -> tuple[Ratings, tuple[str, ...]]:
    """Ratings of a text, Parquet or NPZ file, packed with gzip or not, and notes on what the reader did to them.

    Args:
        path: text with one rating a line, a Parquet file, or NPZ (`scipy.sparse.save_npz`, or rows, cols and values).
        user: the column, by name or by position from 0; by default a column with a usual name, else the first.
        item: likewise; else the second.
        rating: likewise; else the third.
        time: likewise; numbers or ISO dates. By default a column with a usual name, else none.
        header: whether the first line holds names; by default guessed.
        separator: between fields, " " for any run of spaces; by default guessed.
        zeros: "drop" or "keep" ratings of zero; None refuses a file where most are zero.
    """
    path = Path(path)
    if zeros not in (None, "drop", "keep"):
        raise ValueError(f"read_ratings: zeros must be None, 'drop' or 'keep', got {zeros!r}.")
    choice = {"user": user, "item": item, "rating": rating, "time": time}
    data = contents(path)
    if arrays.is_array_file(data):
        columns = arrays.read_columns(path, data, choice)
        ratings, notes = arrays.ratings_of_arrays(path, columns, time_chosen=time is not None)
    else:
        ratings, notes = text_ratings.parse_ratings(open_text(path, data, separator, 3, FORMATS), choice, header)
    return _cleaned(path, ratings, zeros, notes)


def read_pairs(
    path: str | Path,
    *,
    user: str | int | None = None,
    item: str | int | None = None,
    header: bool | None = None,
    separator: str | None = None,
) -> tuple[list[str], list[str]]:
    """Users and items of a file of pairs, as the file writes them; arguments as in `read_ratings`."""
    return _two_columns(Path(path), {"user": user, "item": item}, header, separator)


def read_titles(path: str | Path) -> dict[str, str]:
    """Titles of items by their id, from a file with a column of ids and one of titles."""
    items, titles = _two_columns(Path(path), {"item": None, "title": None}, None, None)
    return dict(zip(items, titles, strict=True))


def _two_columns(
    path: Path, choice: ColumnChoice, header: bool | None, separator: str | None
) -> tuple[list[str], list[str]]:
    """The two columns of the choice, as text."""
    data = contents(path)
    if arrays.is_array_file(data):
        columns = arrays.read_columns(path, data, choice)
        first, second = (arrays.column_as_text(path, role, column) for role, column in columns.items())
        return first, second
    return text_ratings.parse_two_columns(open_text(path, data, separator, 2, FORMATS), choice, header)


def _cleaned(
    path: Path, ratings: Ratings, zeros: Zeros | None, notes: Sequence[str]
) -> tuple[Ratings, tuple[str, ...]]:
    """The ratings without unwanted zeros and repeated pairs; a table from which nothing can be learnt is refused."""
    notes = list(notes)
    total, is_zero = len(ratings.values), ratings.values == 0
    count = int(is_zero.sum())
    if zeros == "drop" and count:
        if count == total:
            raise ValueError(f"{path}: all {count} ratings are zero, and none is left without them.")
        ratings = ratings.subset(~is_zero)
        notes.append(f"{count} ratings of zero left out")
    elif zeros is None and total >= 100 and total / 2 < count < total and ratings.values.min() == 0:
        raise ValueError(
            f"{path}: {count} of {total} ratings are zero, which looks like 'no rating given'; "
            "choose --zeros drop (zeros='drop') to leave them out or --zeros keep (zeros='keep') if they are ratings."
        )
    last = _last_of_each_pair(ratings)
    if repeated := len(ratings.values) - len(last):
        notes.append(f"{repeated} repeated ratings of a pair left out, the last one is kept")
        ratings = ratings.subset(last)
    _check_enough(path, ratings)
    return ratings, tuple(notes)


def _last_of_each_pair(ratings: Ratings) -> np.ndarray:
    """Positions of the ratings that no later one of the same user and item replaces."""
    pair = ratings.rows.astype(np.int64) * ratings.shape[1] + ratings.cols
    _, from_end = np.unique(pair[::-1], return_index=True)
    return np.sort(len(pair) - 1 - from_end)


def _check_enough(path: Path, ratings: Ratings) -> None:
    for role, ids in (("user", ratings.row_ids), ("item", ratings.col_ids)):
        if len(ids) == 1:
            raise ValueError(
                f"{path}: all ratings have the same {role}, {str(ids[0])!r}; completion needs at least two. "
                f"Is the column of the {role} the right one?"
            )
    if ratings.values.min() == ratings.values.max():
        raise ValueError(
            f"{path}: all {len(ratings.values)} ratings are {ratings.values[0]:g}, so there is nothing to learn; "
            "completion needs ratings that differ. Is the column of the rating the right one?"
        )
