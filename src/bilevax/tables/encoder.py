"""Columns of a table as a matrix of numbers: what was decided when the encoder was fitted is used for every table."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from bilevax import memory
from bilevax.tables.encoded_columns import (
    MOST_LEVELS,
    Column,
    Levels,
    Numbers,
    column_of_plain,
    plain_of_column,
)
from bilevax.tables.fields import is_number
from bilevax.tables.table import Table, is_text, listed, missing
from bilevax.tables.text import shortened

Missing = Literal["refuse", "impute"]
_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+", re.ASCII)
_MOST_COLUMNS = 100_000


@dataclass(frozen=True)
class Encoder:
    """Turns the feature columns of a table into a matrix; `Encoder.fit` makes one.

    A column of numbers is one feature. A column of text is one feature for each of its levels, or one feature in all if
    it has two levels. Of three and more none is left out, which is right for models with a penalty.

    >>> from bilevax.tables import read_table
    >>> table = read_table({"size": [1.0, 2.0, 3.0, 4.0], "colour": ["red", "blue", "red", "blue"]})
    >>> encoder = Encoder.fit(table, ["size", "colour"])
    >>> encoder.names
    ['size', 'colour=red']
    >>> encoder.transform(table)[0].tolist()
    [1.0, 1.0]
    """

    columns: tuple[Column, ...]
    notes: tuple[str, ...] = ()
    """What the fit left out or merged, in words."""

    @classmethod
    def fit(cls, table: Table, features: Sequence[str], *, missing: Missing = "refuse", min_count: int = 2) -> Encoder:
        """Decide how each feature column is encoded.

        Args:
            features: names of columns.
            missing: "refuse" columns with missing values, or "impute" them: numbers by their median, with a feature
                that says where; a missing text is a level of its own.
            min_count: levels with fewer rows are merged into one.
        """
        if missing not in ("refuse", "impute"):
            raise ValueError(f"Encoder: missing must be 'refuse' or 'impute', got {missing!r}.")
        if isinstance(min_count, bool) or not isinstance(min_count, int) or min_count < 1:
            raise ValueError(f"Encoder: min_count must be a whole number from 1 on, got {min_count!r}.")
        table.check_has(*features)
        if missing == "refuse":
            _refuse_missing(table, features)
        columns: list[Column] = []
        notes: list[str] = []
        for name in features:
            column, note = _decide(table, name, missing == "impute", min_count)
            columns += [] if column is None else [column]
            notes += [] if note is None else [note]
        if not columns:
            reasons = f" ({'; '.join(notes)})" if notes else ""
            raise ValueError(f"{table.name}: there is no feature to learn from{reasons[:500]}.")
        return cls(tuple(columns), tuple(notes))

    @property
    def names(self) -> list[str]:
        """The names of the features, such as `size` and `colour=red`."""
        return [name for column in self.columns for name in column.names()]

    @property
    def text_columns(self) -> list[str]:
        """Columns of text, which other tables must be read with: `read_table(..., text=encoder.text_columns)`."""
        return [column.name for column in self.columns if isinstance(column, Levels)]

    def transform(self, table: Table) -> np.ndarray:
        """The features of each row, float64; a column that does not fit is refused by name."""
        table.check_has(*(column.name for column in self.columns))
        for column in self.columns:
            if fault := column.fault(table[column.name]):
                raise ValueError(f"{table.name}: column {column.name!r} {fault}.")
        width = len(self.names)
        memory.check("the matrix of features", 16.0 * len(table) * width, "drop columns with many levels")
        X = np.empty((len(table), width))
        at = 0
        for column in self.columns:
            part = column.encode(table[column.name])
            X[:, at : at + part.shape[1]] = part
            at += part.shape[1]
        return X

    def notes_on(self, table: Table) -> list[str]:
        """What `transform` does to this table that deserves a note: levels never seen, missing numbers replaced."""
        notes = (column.note(table[column.name]) for column in self.columns)
        return [note for note in notes if note is not None]

    def as_plain(self) -> dict[str, Any]:
        """The encoder as JSON values."""
        return {"columns": [plain_of_column(column) for column in self.columns]}

    @classmethod
    def of_plain(cls, plain: Any) -> Encoder:
        """The encoder of JSON values; a ValueError for others than `as_plain` makes."""
        try:
            columns = plain["columns"]
            if not isinstance(columns, list) or not 0 < len(columns) <= _MOST_COLUMNS:
                raise ValueError("it has no list of columns")
            encoder = cls(tuple(column_of_plain(column) for column in columns))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"this is not an encoder of bilevax: {str(error)[:200]}") from None
        names = [column.name for column in encoder.columns]
        if len(set(names)) < len(names) or not encoder.names:
            raise ValueError("this is not an encoder of bilevax: its columns are not distinct, or have no feature")
        return encoder


def _refuse_missing(table: Table, features: Sequence[str]) -> None:
    counts = {name: int(missing(table[name]).sum()) for name in features}
    incomplete = [f"{name!r} ({count} of {len(table)})" for name, count in counts.items() if count]
    if incomplete:
        raise ValueError(
            f"{table.name}: values are missing in {listed(incomplete, 8)}. Choose --missing impute "
            "(missing='impute') to fill them in, or drop columns with --drop."
        )


def _decide(table: Table, name: str, impute: bool, min_count: int) -> tuple[Column | None, str | None]:
    """How a column is encoded, or None if it is left out, and a note."""
    column = table[name]
    absent = missing(column)
    if absent.all():
        return None, f"column {name!r} left out, since it has no value"
    if not is_text(column):
        present = column[~absent]
        varies, misses = bool(present.min() < present.max()), bool(absent.any())
        if not varies and not misses:
            return None, f"column {name!r} left out, since it is always {present[0]:g}"
        return Numbers(name, varies, misses, float(np.median(present)) if impute else None), None
    counts = Counter(column[~absent].tolist())
    _check_levels(table, name, counts)
    kept = sorted(level for level, count in counts.items() if count >= min_count)
    merged = sorted(level for level, count in counts.items() if count < min_count)
    found = Levels(name, tuple(kept), tuple(merged), bool(absent.any()), impute)
    if len(found.groups()) < 2:
        reason = f"it is always {shortened(kept[0])}" if kept else f"every level has fewer than {min_count} rows"
        return None, f"column {name!r} left out, since {reason}"
    words = f"{len(merged)} levels of {name!r} with fewer than {min_count} rows merged into one"
    return found, words if merged else None


def _check_levels(table: Table, name: str, counts: Counter[str]) -> None:
    """Refuse text that is a key, or numbers that could not be read as such."""
    words = [level for level in counts if not is_number(level)]
    commas = sum(_DECIMAL_COMMA.fullmatch(level) is not None for level in words)
    if commas and commas == len(words):
        raise ValueError(
            f"{table.name}: column {name!r} holds text such as {shortened(words[0])}, which looks like a number with a "
            "decimal comma; write decimals with a point."
        )
    if len(counts) <= MOST_LEVELS:
        return
    if 10 * len(words) < len(counts):
        row = int(np.argmax(table[name] == words[0])) + 1
        raise ValueError(
            f"{table.name}: column {name!r} holds numbers, but also text such as {shortened(words[0])} in row {row}; "
            "correct it, leave it empty if it is missing, or drop the column with --drop."
        )
    raise ValueError(
        f"{table.name}: column {name!r} holds {len(counts)} different texts, and {MOST_LEVELS} is the limit; if it "
        "names or numbers the rows, drop it with --drop."
    )
