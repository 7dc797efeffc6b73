"""Which format a table has, and the reader for it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bilevax.tables.arrow_files import is_arrow_file
from bilevax.tables.contents import contents
from bilevax.tables.table import Table
from bilevax.tables.text import open_text
from bilevax.tables.text_table import parse_table
from bilevax.tables.typed import of_file, of_frame

_FORMATS = "text, Parquet or Arrow"


def read_table(source: Any, *, separator: str | None = None, text: Iterable[str] = ()) -> Table:
    """The table of a file, or of a frame in memory.

    A column of a text file holds numbers if all of its fields are numbers, or all are true or false. Fields that are
    empty, NA, N/A, NaN, null or ? are missing.

    Args:
        source: text with a header and any usual separator, Parquet, or Arrow (IPC, Feather), packed with gzip or not;
            or a frame of pandas, polars or pyarrow, or a dictionary of columns.
        separator: between fields of a text, " " for any run of spaces; by default guessed.
        text: names of columns that hold text even if it looks like numbers, such as codes.

    >>> read_table({"size": [1.5, None], "colour": ["red", "blue"]}).names
    ['size', 'colour']
    """
    as_text = frozenset(text)
    if isinstance(source, Table):
        return source
    if not isinstance(source, (str, os.PathLike)):
        if not isinstance(source, dict) and not hasattr(source, "columns"):
            raise TypeError(
                f"read_table: expected a path, a frame or a dictionary of columns, got {type(source).__name__}."
            )
        return of_frame(source, as_text)
    path = Path(source)
    data = contents(path)
    if is_arrow_file(data):
        return of_file(path, data, as_text)
    return parse_table(open_text(path, data, separator, 2, _FORMATS), as_text)
