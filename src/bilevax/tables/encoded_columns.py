"""How one column of a table becomes columns of numbers, and the same as plain values that a file can keep."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from bilevax.tables.table import is_text, missing
from bilevax.tables.text import shortened

MOST_LEVELS = 1000
OTHER, ABSENT = "(other)", "(missing)"


@dataclass(frozen=True)
class Numbers:
    """A column of numbers.

    Args:
        name: of the column.
        value: whether the numbers are a feature; they are not if all of them are equal.
        indicator: whether it is a feature that a number is missing.
        median: what a missing number is replaced by; None if none may be missing.
    """

    name: str
    value: bool
    indicator: bool
    median: float | None

    def names(self) -> list[str]:
        """The names of the features."""
        return [self.name] * self.value + [f"{self.name}={ABSENT}"] * self.indicator

    def encode(self, column: np.ndarray) -> np.ndarray:
        """A feature in each column."""
        absent = np.isnan(column)
        parts = [] if not self.value else [np.where(absent, self.median or 0.0, column) if absent.any() else column]
        return np.stack([*parts, *([absent.astype(float)] if self.indicator else [])], axis=1)

    def fault(self, column: np.ndarray) -> str | None:
        """Why the column cannot be encoded, if so."""
        if is_text(column):
            row = next(row for row, entry in enumerate(column) if entry is not None)
            return (
                f"held numbers when the model was fitted and holds text now, {shortened(column[row])} in row {row + 1}"
            )
        return _missing_fault(column) if self.median is None else None

    def note(self, column: np.ndarray) -> str | None:
        """What the encoder does to the column, if that deserves a note."""
        count = int(np.isnan(column).sum())
        return f"{count} missing values of {self.name!r} replaced by the median {self.median:g}" if count else None


@dataclass(frozen=True)
class Levels:
    """A column of text: each level is a feature, which is 1 in the rows with it and 0 in the others.

    Of two levels, only the second is one. With a feature for each, neither would be needed beside the other, and
    rankings of features would show neither.

    Args:
        name: of the column.
        levels: that have a feature of their own.
        merged: rare levels that share one feature.
        absent: whether it is a feature that the text is missing.
        may_miss: whether the text may be missing.
    """

    name: str
    levels: tuple[str, ...]
    merged: tuple[str, ...]
    absent: bool
    may_miss: bool

    def groups(self) -> list[str]:
        """The levels, those that are merged as one."""
        return [*self.levels, *[OTHER] * bool(self.merged), *[ABSENT] * self.absent]

    def names(self) -> list[str]:
        """The names of the features."""
        groups = self.groups()
        return [f"{self.name}={group}" for group in (groups[1:] if len(groups) == 2 else groups)]

    def encode(self, column: np.ndarray) -> np.ndarray:
        """A feature in each column; a level that the fit did not see is 0 in all of them, or 0.5 between two levels."""
        place: dict[str | None, int] = {level: number for number, level in enumerate(self.levels)}
        place |= dict.fromkeys(self.merged, len(self.levels))
        width = len(self.groups())
        if self.absent:
            place[None] = width - 1
        # One more column for what the fit did not see.
        numbers = np.fromiter((place.get(entry, width) for entry in _text(column)), np.intp, len(column))
        features = np.zeros((len(column), width + 1))
        features[np.arange(len(column)), numbers] = 1.0
        if width == 2:
            return features[:, 1:2] + 0.5 * features[:, 2:]
        return features[:, :width]

    def fault(self, column: np.ndarray) -> str | None:
        """Why the column cannot be encoded, if so."""
        if not is_text(column) and not np.isnan(column).all():
            return (
                f"held text when the model was fitted and holds numbers now; read the table with text=[{self.name!r}]"
            )
        return None if self.may_miss else _missing_fault(column)

    def note(self, column: np.ndarray) -> str | None:
        """What the encoder does to the column, if that deserves a note."""
        known = {*self.levels, *self.merged} | ({None} if self.absent else set())
        unseen = [entry for entry in _text(column) if entry not in known]
        if not unseen:
            return None
        first = "a missing value" if unseen[0] is None else shortened(unseen[0])
        return f"{len(unseen)} rows have a level of {self.name!r} that the fit did not see, such as {first}"


Column = Numbers | Levels


def plain_of_column(column: Column) -> dict[str, Any]:
    """The column as JSON values."""
    if isinstance(column, Numbers):
        return {"kind": "numbers", **asdict(column)}
    return {"kind": "text", **asdict(column), "levels": list(column.levels), "merged": list(column.merged)}


def column_of_plain(plain: Any) -> Column:
    """The column of JSON values; a ValueError, TypeError or KeyError for others than `plain_of_column` makes."""
    given = dict(plain)
    kind = given.pop("kind")
    name = given["name"]
    if not isinstance(name, str) or len(name) > 10_000:
        raise ValueError(f"a column is called {str(name)[:60]!r}")
    for option in ("value", "indicator") if kind == "numbers" else ("absent", "may_miss"):
        if not isinstance(given[option], bool):
            raise ValueError(f"{option} of column {name[:60]!r} is {str(given[option])[:60]!r}")
    if kind == "numbers":
        median = given["median"]
        if median is not None and not (isinstance(median, float) and math.isfinite(median)):
            raise ValueError(f"the median of column {name[:60]!r} is {str(median)[:60]!r}")
        return Numbers(**given)
    if kind != "text":
        raise ValueError(f"{str(kind)[:60]!r} is not a kind of column")
    levels, merged = given.pop("levels"), given.pop("merged")
    every = [*levels, *merged]
    if not (isinstance(levels, list) and isinstance(merged, list) and all(isinstance(level, str) for level in every)):
        raise ValueError(f"the levels of column {name[:60]!r} are not texts")
    if len(set(every)) < len(every) or len(every) > MOST_LEVELS:
        raise ValueError(f"the levels of column {name[:60]!r} are too many, or not distinct")
    return Levels(levels=tuple(levels), merged=tuple(merged), **given)


def _text(column: np.ndarray) -> Sequence[str | None]:
    """The entries of a text column; one without any value may have been read as numbers."""
    return column.tolist() if is_text(column) else [None] * len(column)


def _missing_fault(column: np.ndarray) -> str | None:
    absent = missing(column)
    if not absent.any():
        return None
    return (
        f"is missing in {int(absent.sum())} rows, first in row {int(np.argmax(absent)) + 1}; fill these in, or fit the "
        "model with missing='impute' (--missing impute)"
    )
