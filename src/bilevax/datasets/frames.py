"""Tables with named columns of numbers or text, from CSV files."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bilevax.files import unpacked
from bilevax.limits import check_lines, text_array


@dataclass(frozen=True)
class Frame:
    """Columns by name: floats, NaN where missing, or strings. `outcome` names the column to predict."""

    columns: dict[str, np.ndarray]
    outcome: str

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self.columns:
            raise KeyError(f"no column {name!r}; there are {', '.join(self.columns)}")
        return self.columns[name]

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return len(next(iter(self.columns.values()))), len(self.columns)

    def complete(self) -> Frame:
        """The rows without a missing value."""
        missing = [np.isnan(c) if c.dtype.kind == "f" else c == "" for c in self.columns.values()]
        keep = ~np.any(missing, axis=0)
        return Frame({name: column[keep] for name, column in self.columns.items()}, self.outcome)


def read_csv(path: Path) -> dict[str, np.ndarray]:
    """The columns of a CSV file with a header; a column is numeric if all its entries are numbers or empty."""
    try:
        reader = csv.reader(check_lines(path, unpacked(path)).decode().splitlines(), strict=True)
        names, rows = next(reader, []), []
        for row in reader:
            if len(row) != len(names):
                raise ValueError(
                    f"{path}, line {reader.line_num}: expected {len(names)} fields as in the header, got {len(row)}"
                )
            rows.append(row)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 text ({error})") from error
    except csv.Error as error:
        raise ValueError(f"{path}, line {reader.line_num}: {error}") from error
    if not rows or len(set(names)) < len(names):
        raise ValueError(f"{path}: expected a header of distinct names and at least one row, got {str(names)[:200]}")
    return {name: _column(path, entries) for name, entries in zip(names, zip(*rows, strict=True), strict=True)}


def _column(path: Path, entries: tuple[str, ...]) -> np.ndarray:
    try:
        return np.array([float(entry) if entry else np.nan for entry in entries])
    except ValueError:
        return text_array(path, entries)
