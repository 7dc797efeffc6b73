"""Ratings of items by users: MovieLens and Book-Crossing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bilevax.datasets.text import match_lines
from bilevax.files import unpacked
from bilevax.limits import text_array
from bilevax.ratings.table import Ratings


def read_movielens(path: Path, separator: bytes) -> Ratings:
    """Lines of user, item, rating and time, all integers."""
    expected = f"user, item, rating and time separated by {separator.decode()!r}"
    data = match_lines(path, unpacked(path), separator.join([rb"\d{1,18}"] * 4), expected)
    users, items, values, times = np.fromstring(data.replace(separator, b" "), np.int64, sep=" ").reshape(-1, 4).T
    row_ids, rows = np.unique(users, return_inverse=True)
    col_ids, cols = np.unique(items, return_inverse=True)
    return Ratings(rows, cols, values.astype(float), times, row_ids, col_ids)


def read_book_crossing(path: Path) -> Ratings:
    r"""Quoted fields `"user";"book";"rating"` in latin-1 under a header; a few books are named `\"...\"`."""
    line = rb'"\d+";"[^"\\\r\n]*(?:\\[^\r\n][^"\\\r\n]*)*";"\d{1,2}"'
    data = match_lines(path, unpacked(path), line, 'a line "user";"book";"rating"', skip=1)
    # One flat list: a small list for each of a million lines would take most of the time.
    fields = data.decode("latin-1").replace("\r", "").replace('"\n"', '";"')[1:-2].split('";"')
    row_ids, rows = _numbered(path, fields[::3])
    col_ids, cols = _numbered(path, [book.replace('\\"', '"') for book in fields[1::3]])
    values = np.fromiter(map(float, fields[2::3]), float, len(rows))
    return Ratings(rows, cols, values, None, row_ids, col_ids)


def _numbered(path: Path, names: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """As `np.unique` with inverse, several times faster on strings."""
    distinct = sorted(set(names))
    number = {name: i for i, name in enumerate(distinct)}
    return text_array(path, distinct), np.fromiter(map(number.__getitem__, names), np.int64, len(names))
