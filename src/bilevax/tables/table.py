"""The table that every reader returns: named columns of numbers or of text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bilevax.tables.text import shortened


@dataclass(frozen=True)
class Table:
    """Columns by name, in the order of the file.

    A column is a float64 array with NaN where a value is missing, or an object array of `str` with None there.

    Args:
        name: of the file, for messages.
        columns: arrays of one length.
        notes: what the reader did to the table, in words.
    """

    name: str
    columns: dict[str, np.ndarray]
    notes: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> np.ndarray:
        self.check_has(name)
        return self.columns[name]

    def __len__(self) -> int:
        """The number of rows."""
        return len(next(iter(self.columns.values())))

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return list(self.columns)

    def check_has(self, *names: str) -> None:
        """A ValueError names a column that the table does not have, and those that it has."""
        for name in names:
            if name not in self.columns:
                raise ValueError(f"{self.name}: there is no column {name!r}; the columns are {listed(self.names)}.")

    def subset(self, keep: np.ndarray) -> Table:
        """The rows where `keep` holds, or with these numbers."""
        return Table(self.name, {name: column[keep] for name, column in self.columns.items()}, self.notes)


def is_text(column: np.ndarray) -> bool:
    """Whether the column holds text; otherwise it holds numbers."""
    return bool(column.dtype == object)


def missing(column: np.ndarray) -> np.ndarray:
    """True where the column has no value."""
    if is_text(column):
        return np.fromiter((entry is None for entry in column), bool, len(column))
    return np.isnan(column)


def listed(names: Sequence[str], most: int = 20) -> str:
    """Names for a message: the first ones, in one line."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(shortened(name)[1:-1] for name in names[:most]) + more
