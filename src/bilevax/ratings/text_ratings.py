"""Ratings and pairs parsed from text, fast; if that fails, `bad_line` reads again and names the line."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from itertools import islice

import numpy as np

from bilevax.ratings.bad_line import error_with_line
from bilevax.ratings.columns import ColumnChoice, Layout, find_layout
from bilevax.ratings.fields import NO_TIMES, integers_if_whole, parse_time
from bilevax.ratings.ids import Numbering, sorted_ids
from bilevax.ratings.table import Ratings
from bilevax.tables.text import TextFile

BLOCK_LINES = 1024  # larger blocks leave the cache, and parsing takes twice as long


def parse_ratings(text: TextFile, choice: ColumnChoice, header: bool | None) -> tuple[Ratings, list[str]]:
    """The ratings, and notes on how they were read."""
    layout = find_layout(text, choice, header)
    time = layout.positions.get("time")
    if choice["time"] is None:  # faults of a column that nobody chose are no reason to refuse the file
        layout.positions.pop("time", None)
    notes = [*layout.notes, *(["not UTF-8, read as latin-1"] if text.encoding == "latin-1" else [])]
    try:
        ratings = _ratings_without_times(text, layout)
    except (IndexError, ValueError, csv.Error) as error:
        raise error_with_line(text, layout.header, layout.positions, error) from None
    if time is not None:
        try:
            ratings = ratings._replace(times=_times(text, layout, time))
        except (IndexError, ValueError) as error:
            if "time" in layout.positions:
                raise error_with_line(text, layout.header, layout.positions, error) from None
            notes.append(NO_TIMES)
    return ratings, notes


def parse_two_columns(text: TextFile, choice: ColumnChoice, header: bool | None) -> tuple[list[str], list[str]]:
    """The two columns of the choice."""
    layout = find_layout(text, choice, header)
    left, right = layout.positions.values()
    first: list[str] = []
    second: list[str] = []
    try:
        for block in _blocks(text, layout):
            first.extend([row[left].strip() for row in block])
            second.extend([row[right].strip() for row in block])
    except (IndexError, csv.Error) as error:
        raise error_with_line(text, layout.header, layout.positions, error) from None
    if not first:
        raise ValueError(f"{text.path}: there is a header but nothing below it.")
    return first, second


def _blocks(text: TextFile, layout: Layout) -> Iterator[list[list[str]]]:
    """The lines that are not blank, without the header, a thousand at a time."""
    rows = filter(None, text.reader())
    if layout.header:
        next(rows)
    while block := list(islice(rows, BLOCK_LINES)):
        yield block


def _ratings_without_times(text: TextFile, layout: Layout) -> Ratings:
    user, item, rating = (layout.positions[role] for role in ("user", "item", "rating"))
    users, items = Numbering(), Numbering()
    rows, cols, values = [], [], []
    for block in _blocks(text, layout):
        rows.append(np.array([users[row[user]] for row in block]))
        cols.append(np.array([items[row[item]] for row in block]))
        values.append(np.array([float(row[rating]) for row in block]))
    if not values:
        raise ValueError(f"{text.path}: there is a header but no rating below it.")
    row_ids, row_number = sorted_ids(users)
    col_ids, col_number = sorted_ids(items)
    every_value = np.concatenate(values)
    if not np.isfinite(every_value).all():
        raise ValueError(f"{text.path}: a rating is not finite.")
    row_of, col_of = row_number[np.concatenate(rows)], col_number[np.concatenate(cols)]
    return Ratings(row_of, col_of, every_value, None, row_ids, col_ids)


def _times(text: TextFile, layout: Layout, position: int) -> np.ndarray:
    """The column of times, in a second reading."""
    blocks = [np.array([parse_time(row[position]) for row in block]) for block in _blocks(text, layout)]
    return integers_if_whole(np.concatenate(blocks))
