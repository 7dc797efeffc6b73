"""Columns of ratings in a Parquet file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from bilevax.ratings.columns import ColumnChoice, find_positions
from bilevax.tables.arrow_files import ColumnarFile, dictionary_array


def parquet_columns(path: Path, data: bytes, choice: ColumnChoice) -> dict[str, np.ndarray]:
    """The column of each role, without missing entries."""
    file = ColumnarFile(path, data)
    positions, _ = find_positions(path, file.names, len(file.names), choice)
    arrays = {}
    for (role, position), column in zip(positions.items(), file.read(list(positions.values())), strict=True):
        if column.null_count:
            entry = column.is_null().to_pylist().index(True) + 1
            raise ValueError(f"{path}, entry {entry}: the {role} (column {file.names[position]!r}) is missing.")
        try:
            arrays[role] = _array(f"{path}: a text in the column of the {role}", column)
        except file.damage as error:
            raise file.damaged(error) from error
    return arrays


def _array(owner: str, column: Any) -> np.ndarray:
    parts = [
        dictionary_array(owner, chunk) if hasattr(chunk, "dictionary") else chunk.to_numpy(zero_copy_only=False)
        for chunk in column.chunks
    ]
    return np.concatenate(parts) if parts else column.to_numpy()
