"""A table from text: the header, then every column, with pyarrow where it gives the same answer, else without.

Both ways give the same table; `fast_text` declines a file that pyarrow might read in another way.
"""

from __future__ import annotations

import csv
from collections.abc import Collection

import numpy as np

from bilevax.tables.fast_text import fast_columns
from bilevax.tables.fields import is_number
from bilevax.tables.slow_text import slow_columns
from bilevax.tables.table import Table, listed
from bilevax.tables.text import TextFile, shortened

MOST_COLUMNS = 20_000


def parse_table(text: TextFile, as_text: Collection[str]) -> Table:
    """The table of a text file with a header; the columns `as_text` stay text whatever they hold."""
    names = _header(text)
    stays = [name in as_text for name in names]
    arrays = fast_columns(text, stays)
    if arrays is None:
        arrays = slow_columns(text, names, stays)
    notes = ["not UTF-8, read as latin-1"] if text.encoding == "latin-1" else []
    columns = dict(zip(names, arrays, strict=True))
    if counting := [name for name in names if not name and _counts_rows(columns[name])]:
        del columns[counting[0]]
        notes.append("a column without a name that counts the rows was left out")
    elif "" in columns:
        raise ValueError(f"{text.path}: column {names.index('') + 1} of the header has no name; give it one.")
    if not columns:
        raise ValueError(f"{text.path}: no column is left.")
    return Table(str(text.path), columns, tuple(notes))


def _header(text: TextFile) -> list[str]:
    """The names in the first line that is not blank."""
    reader = text.reader()
    try:
        names = [name.strip() for name in next(filter(None, reader), [])]
    except csv.Error as error:
        raise ValueError(f"{text.path}, line {reader.line_num}: {error}; is a quotation mark missing?") from None
    if len(names) > MOST_COLUMNS:
        raise ValueError(f"{text.path}: {len(names)} columns, and {MOST_COLUMNS} is the limit; is this the right file?")
    if all(is_number(name) for name in names if name):
        raise ValueError(
            f"{text.path}: the first line holds numbers ({shortened(listed(names, 5))[1:-1]}), and a table needs a "
            "header; add a first line with the names of the columns."
        )
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ValueError(f"{text.path}: two columns are called {shortened(name)}; rename one of them.")
        seen.add(name)
    return names


def _counts_rows(column: np.ndarray) -> bool:
    """Whether the column is 0, 1, 2 and so on, or 1, 2, 3, as pandas and R write it."""
    return column.dtype == float and any(np.array_equal(column, np.arange(len(column)) + first) for first in (0.0, 1.0))
