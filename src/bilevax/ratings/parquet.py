"""Columns of a Parquet file, within the limits on memory.

A few bytes of Parquet can stand for a billion equal rows, or for a long text in every row. So rows are counted before
anything is read, and text is read as numbers of distinct texts, which are measured before they are put into rows.
"""

from __future__ import annotations

import io
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from bilevax import limits
from bilevax.ratings.columns import ColumnChoice, find_positions
from bilevax.ratings.fields import LONGEST_ID
from bilevax.zips import words

_ENTRY = 8  # bytes of one entry
_LONGEST_TEXT = 20 * LONGEST_ID


def parquet_columns(path: Path, data: bytes, choice: ColumnChoice) -> dict[str, np.ndarray]:
    """The column of each role, without missing entries."""
    try:
        arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError:
        raise ImportError(f"{path}: Parquet files need pyarrow: pip install 'bilevax[files]'.") from None
    # pyarrow's own errors are ValueErrors, OSErrors, and others for types that it does not know.
    damage = (OSError, ValueError, TypeError, KeyError, IndexError, OverflowError, MemoryError, arrow.ArrowException)
    damaged = f"{path}: this Parquet file is damaged; write or download it again"
    try:
        file = parquet.ParquetFile(io.BytesIO(data))
        metadata, schema = file.metadata, file.schema_arrow
        groups = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
    except damage as error:
        raise ValueError(f"{damaged} ({words(error)}).") from error
    if min(groups, default=0) < 0 or sum(groups) != metadata.num_rows:
        raise ValueError(f"{damaged} (it claims {metadata.num_rows} rows in groups of {groups[:5]}).")
    names = schema.names
    positions, _ = find_positions(path, names, len(names), choice)
    rows = max(metadata.num_rows, 0)
    limits.check_size(path, _ENTRY * rows * len(positions), len(data), f"{rows} rows of {len(positions)} columns")
    wanted = [names[position] for position in positions.values()]
    if repeated := [name for name in wanted if names.count(name) > 1]:
        raise ValueError(f"{path}: two columns are called {repeated[0]!r}; rename one of them.")
    kinds = arrow.types
    for name in wanted:
        if kinds.is_nested(schema.field(name).type):
            raise ValueError(f"{path}: column {name!r} holds {schema.field(name).type}; expected numbers or text.")
    try:
        text = [name for name in wanted if _is_text(kinds, schema.field(name).type)]
        table = parquet.ParquetFile(io.BytesIO(data), read_dictionary=text).read(columns=wanted, use_threads=False)
    except damage as error:
        raise ValueError(f"{damaged} ({words(error)}).") from error
    if len(table) != rows:
        raise ValueError(f"{damaged} (it claims {rows} rows and has {len(table)}).")
    arrays = {}
    for role, position in positions.items():
        column = table.column(names[position])
        if column.null_count:
            entry = column.is_null().to_pylist().index(True) + 1
            raise ValueError(f"{path}, entry {entry}: the {role} (column {names[position]!r}) is missing.")
        try:
            arrays[role] = _array(path, role, column)
        except damage as error:
            if str(error).startswith(str(path)):
                raise
            raise ValueError(f"{damaged} ({words(error)}).") from error
    return arrays


def _is_text(kinds: Any, kind: Any) -> bool:
    return bool(kinds.is_string(kind) or kinds.is_large_string(kind) or kinds.is_binary(kind))


def _array(path: Path, role: str, column: Any) -> np.ndarray:
    parts = []
    for chunk in column.chunks:
        if hasattr(chunk, "dictionary"):
            distinct = np.array(chunk.dictionary.to_pylist(), object)
            longest = max((len(str(text)) for text in distinct), default=0)
            if longest > _LONGEST_TEXT:
                raise ValueError(f"{path}: a text in the column of the {role} has {longest} characters.")
            parts.append(distinct[chunk.indices.to_numpy(zero_copy_only=False)])
        else:
            parts.append(chunk.to_numpy(zero_copy_only=False))
    return np.concatenate(parts) if parts else column.to_numpy()
