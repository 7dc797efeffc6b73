"""What a run looked like: one row per `every` steps, kept as columns."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bilevax.files import write_atomic, write_csv
from bilevax.limits import read_bytes
from bilevax.packed import DamagedFile
from bilevax.zips import words

Row = dict[str, float | int]
_MOST_BYTES = 500_000_000  # of a file; a trace has a hundred rows or so


class Trace:
    """A table that grows by rows and is read by columns.

    >>> import bilevax as bx
    >>> trace = bx.Trace([{"step": 0, "gap": 2.0}, {"step": 10, "gap": 0.5}])
    >>> trace["gap"].tolist(), len(trace)
    ([2.0, 0.5], 2)
    """

    def __init__(self, rows: list[Row] | None = None):
        self._rows: list[Row] = []
        self._late: dict[str, Callable[[], list[float]]] = {}
        for row in rows or []:
            self.append(row)

    def append(self, row: Mapping[str, float | int]) -> None:
        """Add a row; every row has the columns of the first."""
        if self._rows and list(row) != list(self._rows[0]):
            raise ValueError(f"this row has columns {list(row)}, the trace has {list(self._rows[0])}.")
        self._rows.append(dict(row))

    def compute_late(self, name: str, values: Callable[[], list[float]]) -> None:
        """Compute a column when it is first asked for: until then its values in the rows stand."""
        self._late[name] = values

    def __getstate__(self) -> dict[str, Any]:
        """Pickled without columns that were not asked for, since they need the run; they are NaN then."""
        return {**self.__dict__, "_late": {}}

    def _settle(self, *names: str) -> None:
        for name in names:
            if name in self._late:
                for row, value in zip(self._rows, self._late.pop(name)(), strict=True):
                    row[name] = value

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return list(self._rows[0]) if self._rows else []

    @property
    def last(self) -> Row:
        """The newest row."""
        return self._rows[-1]

    @property
    def first(self) -> Row:
        """The oldest row."""
        return self._rows[0]

    def row(self, i: int) -> Row:
        """One row by its number; negative numbers count from the newest."""
        return self._rows[i]

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Row]:
        self._settle(*self.columns)
        return iter(self._rows)

    def __contains__(self, name: str) -> bool:
        return name in self.columns

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self:
            raise KeyError(f"the trace has no column {name!r}; it has {', '.join(self.columns)}.")
        self._settle(name)
        return np.array([row[name] for row in self._rows])

    def __repr__(self) -> str:
        return f"Trace({len(self)} rows: {', '.join(self.columns)})"

    def to_csv(self, path: str | Path) -> Path:
        """Write comma-separated values, with numbers that read back exactly."""
        self._settle(*self.columns)
        return write_csv(path, self.columns, ([repr(value) for value in row.values()] for row in self._rows))

    def to_json(self, path: str | Path) -> Path:
        """Write one JSON object of columns; NaN and infinities become null."""
        self._settle(*self.columns)
        table = {name: [row[name] if math.isfinite(row[name]) else None for row in self._rows] for name in self.columns}
        return write_atomic(path, lambda stream: json.dump(table, stream))

    def to_dataframe(self) -> Any:
        """The trace as a pandas DataFrame (needs pandas: `pip install bilevax[all]`)."""
        try:
            import pandas
        except ImportError:
            raise ImportError("to_dataframe needs pandas: pip install 'bilevax[all]'.") from None
        return pandas.DataFrame({name: self[name] for name in self.columns})

    @classmethod
    def from_csv(cls, path: str | Path) -> Trace:
        """Read what `to_csv` wrote."""
        try:
            text = read_bytes(Path(path), _MOST_BYTES).decode()
        except UnicodeDecodeError as error:
            raise DamagedFile(f"{path} is not a trace of bilevax: {error}.") from None
        return cls.from_text(text, path)

    @classmethod
    def from_text(cls, text: str, name: object = "the text") -> Trace:
        """Read the content of a file that `to_csv` wrote; `name` is for messages."""
        trace, reader = cls(), csv.reader(io.StringIO(text), strict=True)
        try:
            columns = next(reader, [])
            if len(set(columns)) < len(columns):
                raise ValueError("two columns have the same name")
            for row in reader:
                if row and len(row) != len(columns):
                    raise ValueError(f"{len(row)} numbers for {len(columns)} columns")
                if row:
                    trace._rows.append({name: _number(entry) for name, entry in zip(columns, row, strict=True)})
        except (ValueError, csv.Error) as error:
            raise DamagedFile(f"{name} is not a trace of bilevax: line {reader.line_num}: {words(error)}.") from None
        return trace


def _number(text: str) -> float | int:
    try:
        return int(text)
    except ValueError:
        return float(text)
