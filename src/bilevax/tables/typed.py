"""Tables from sources whose columns have types: Parquet, Arrow, and frames in memory.

Only what the source itself calls missing is missing here: a text "NA" stays a text.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Collection, Mapping, Sequence
from datetime import date, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np

from bilevax.tables.arrow_files import ColumnarFile, dictionary_array
from bilevax.tables.table import Table
from bilevax.tables.text import shortened


def of_file(path: Path, data: bytes, as_text: Collection[str]) -> Table:
    """The table of a Parquet or Arrow file."""
    file = ColumnarFile(path, data)
    if not file.names or not file.rows:
        raise ValueError(f"{path}: the file has {len(file.names)} columns and {file.rows} rows; nothing can be read.")
    columns = {}
    for name, column in zip(file.names, file.read(range(len(file.names))), strict=True):
        owner = f"{path}: column {shortened(name)}"
        try:
            columns[name] = _checked(owner, _of_arrow(owner, column), name in as_text)
        except file.damage as error:
            raise file.damaged(error) from error
    return Table(str(path), columns)


def of_frame(frame: Any, as_text: Collection[str]) -> Table:
    """The table of a frame of pandas, polars or pyarrow, or of a dictionary of columns."""
    if isinstance(frame, Mapping):
        names = list(frame)
    else:
        names = list(frame.column_names if hasattr(frame, "column_names") else frame.columns)
    columns: dict[str, np.ndarray] = {}
    for given in names:
        name, owner = str(given), f"the table: column {shortened(str(given))}"
        if name in columns:
            raise ValueError(f"the table: two columns are called {shortened(name)}; rename one of them.")
        columns[name] = _checked(owner, _of_column(owner, frame[given]), name in as_text)
    lengths = {len(column) for column in columns.values()}
    if len(lengths) != 1 or not min(lengths):
        raise ValueError(f"the table: expected columns of one length with rows in them, got lengths {sorted(lengths)}.")
    return Table("the table", columns)


def _of_arrow(owner: str, column: Any) -> np.ndarray:
    parts = []
    for chunk in column.chunks:
        if hasattr(chunk, "dictionary"):
            parts.append(_of_objects(owner, dictionary_array(f"{owner}: a text", chunk)))
        else:
            parts.append(_of_chunk(owner, chunk))
    if any(part.dtype == object for part in parts):  # a chunk without values is one of numbers
        parts = [part if part.dtype == object else np.full(len(part), None, object) for part in parts]
    return np.concatenate(parts) if parts else np.zeros(0)


def _of_chunk(owner: str, chunk: Any) -> np.ndarray:
    kind = str(chunk.type)
    if kind == "null":
        return np.full(len(chunk), np.nan)
    if kind.startswith(("int", "uint", "float", "double", "halffloat", "bool")):
        values = chunk.to_numpy(zero_copy_only=False)
        return values.astype(float) if values.dtype != object else _of_objects(owner, values)
    return _of_objects(owner, chunk.to_pylist())


def _of_column(owner: str, column: Any) -> np.ndarray:
    """A column of any library: an array of numbers if it can say so, else its values one by one."""
    if hasattr(column, "chunks"):  # of pyarrow
        return _of_arrow(owner, column)
    kind = getattr(getattr(column, "dtype", None), "kind", None)
    if isinstance(column, np.ndarray) and column.ndim != 1:
        raise ValueError(f"{owner} has {column.ndim} dimensions; expected one.")
    if isinstance(kind, str) and kind in "fiub" and isinstance(getattr(column, "dtype", None), np.dtype):
        return np.asarray(column, float)
    for name in ("to_list", "tolist"):
        if hasattr(column, name):
            return _of_objects(owner, getattr(column, name)())
    try:
        return _of_objects(owner, list(column))
    except TypeError:
        raise ValueError(f"{owner} is a {type(column).__name__}; expected a column of values.") from None


def _of_objects(owner: str, values: Sequence[Any] | np.ndarray) -> np.ndarray:
    """Numbers if all values are, else text; a value that is neither is refused with its row."""
    plain = [_plain(owner, row, value) for row, value in enumerate(values)]
    if not any(isinstance(value, str) for value in plain):
        return np.array([math.nan if value is None else value for value in plain], float)
    column = np.full(len(plain), None, object)
    column[:] = [value if value is None or isinstance(value, str) else number_words(value) for value in plain]
    return column


def _plain(owner: str, row: int, value: Any) -> float | str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, (numbers.Real, np.bool_, Decimal)):
        number = float(value)
        return None if math.isnan(number) else number
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if type(value).__name__ in ("NAType", "NaTType"):  # of pandas
        return None
    if isinstance(value, (date, time, timedelta)):
        return str(value)
    raise ValueError(f"{owner} holds a {type(value).__name__} in row {row + 1}; expected numbers or text.")


def number_words(number: float) -> str:
    """A number as a text column writes it: whole ones without a point."""
    return str(int(number)) if number == int(number) and abs(number) < 2**53 else repr(number)


def _checked(owner: str, column: np.ndarray, as_text: bool) -> np.ndarray:
    if column.dtype == object:
        return column
    infinite = np.flatnonzero(np.isinf(column))
    if len(infinite):
        raise ValueError(f"{owner} holds {column[infinite[0]]} in row {infinite[0] + 1}; correct or remove it.")
    if not as_text or np.isnan(column).all():
        return column
    text = np.full(len(column), None, object)
    text[:] = [None if math.isnan(number) else number_words(number) for number in column.tolist()]
    return text
