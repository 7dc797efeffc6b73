"""Columns of Parquet and Arrow files, within the limits on memory. pyarrow reads them; it is not trusted with sizes.

A few bytes of Parquet can stand for a billion equal rows, or for a long text in every row. So rows are counted before
anything is read, and text is read as numbers of distinct texts, which are measured before they are put into rows.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from bilevax import limits
from bilevax.tables.arrow_claims import check_claims
from bilevax.zips import words

LONGEST_TEXT = 10_000  # characters
_ENTRY = 8  # bytes of one entry
_PARQUET, _IPC, _STREAM = b"PAR1", b"ARROW1\0\0", b"\xff\xff\xff\xff"


def is_arrow_file(data: bytes) -> bool:
    """Whether these are bytes of Parquet, or of Arrow: an IPC file, which is Feather, or an IPC stream."""
    return data.startswith((_PARQUET, _IPC, _STREAM))


class ColumnarFile:
    """A Parquet or Arrow file that was opened but not read: `names` and `kinds` of its columns, and its `rows`."""

    def __init__(self, path: Path, data: bytes):
        self.path, self.data = path, data
        self.is_parquet = data.startswith(_PARQUET)
        self.word = "Parquet" if self.is_parquet else "Arrow"
        self.arrow = _pyarrow(path, self.word)
        # pyarrow's own errors are ValueErrors, OSErrors, and others for types that it does not know.
        self.damage: tuple[type[Exception], ...] = (
            OSError, ValueError, TypeError, KeyError, IndexError, OverflowError, MemoryError, NotImplementedError,
            self.arrow.ArrowException,
        )  # fmt: skip
        try:
            schema, self.rows = self._opened_parquet() if self.is_parquet else self._opened_ipc()
            self.names: list[str] = list(schema.names)
            self.kinds = list(schema.types)
        except self.damage as error:
            raise self.damaged(error) from error

    def damaged(self, reason: Exception) -> ValueError:
        """The error for a file that cannot be read; one that already names the file is kept."""
        if str(reason).startswith(str(self.path)):
            return ValueError(str(reason))
        said = f"this {self.word} file is damaged; write or download it again ({words(reason)})"
        return ValueError(f"{self.path}: {said}.")

    def _opened_parquet(self) -> tuple[Any, int]:
        file = import_module("pyarrow.parquet").ParquetFile(io.BytesIO(self.data))
        metadata = file.metadata
        groups = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
        if min(groups, default=0) < 0 or sum(groups) != metadata.num_rows:
            raise ValueError(f"it claims {metadata.num_rows} rows in groups of {groups[:5]}")
        return file.schema_arrow, max(metadata.num_rows, 0)

    def _opened_ipc(self) -> tuple[Any, int]:
        """A file of Arrow is a stream of Arrow between two marks, and is read as one."""
        rows = check_claims(self.path, self._stream())
        return self.arrow.ipc.open_stream(self._stream()).schema, rows

    def _stream(self) -> Any:
        return self.arrow.py_buffer(self.data).slice(len(_IPC) if self.data.startswith(_IPC) else 0)

    def read(self, positions: Sequence[int]) -> list[Any]:
        """The columns at these positions as arrays of pyarrow in chunks; text comes as a dictionary."""
        wanted = [self.names[position] for position in positions]
        limits.check_size(
            self.path, _ENTRY * self.rows * len(wanted), len(self.data), f"{self.rows} rows of {len(wanted)} columns"
        )
        for name, position in zip(wanted, positions, strict=True):
            if self.names.count(name) > 1:
                raise ValueError(f"{self.path}: two columns are called {name!r}; rename one of them.")
            kind = self.kinds[position]
            if not _usable(self.arrow.types, kind):
                raise ValueError(f"{self.path}: column {name!r} holds {str(kind)[:60]}; expected numbers or text.")
        try:
            columns = self._read_parquet(wanted) if self.is_parquet else self._read_ipc(positions)
            for column in columns:
                if len(column) != self.rows:
                    raise ValueError(f"it claims {self.rows} rows and has {len(column)}")
                column.validate(full=True)
        except self.damage as error:
            raise self.damaged(error) from error
        return columns

    def _read_parquet(self, wanted: Sequence[str]) -> list[Any]:
        kinds = self.arrow.types
        text = [name for name in wanted if _is_text(kinds, self.kinds[self.names.index(name)])]
        file = import_module("pyarrow.parquet").ParquetFile(io.BytesIO(self.data), read_dictionary=text)
        table = file.read(columns=list(wanted), use_threads=False)
        return [table.column(name) for name in wanted]

    def _read_ipc(self, positions: Sequence[int]) -> list[Any]:
        table = self.arrow.ipc.open_stream(self._stream()).read_all()
        table.validate(full=True)
        kinds = self.arrow.types
        columns = [table.column(position) for position in positions]
        return [column.dictionary_encode() if _is_text(kinds, column.type) else column for column in columns]


def dictionary_array(owner: str, chunk: Any) -> np.ndarray:
    """A chunk of a dictionary as an array of its texts or numbers, None where it has no value."""
    distinct = np.array([*chunk.dictionary.to_pylist(), None], object)
    longest = max((len(entry) for entry in distinct if isinstance(entry, (str, bytes))), default=0)
    if longest > LONGEST_TEXT:
        raise ValueError(f"{owner} has {longest} characters.")
    return distinct[chunk.indices.fill_null(len(distinct) - 1).to_numpy(zero_copy_only=False)]


def _pyarrow(path: Path, word: str) -> ModuleType:
    try:
        arrow = import_module("pyarrow")
        import_module("pyarrow.ipc")
        import_module("pyarrow.parquet")
    except ImportError:
        raise ImportError(f"{path}: {word} files need pyarrow: pip install 'bilevax[files]'.") from None
    return arrow


def _is_text(kinds: Any, kind: Any) -> bool:
    return bool(kinds.is_string(kind) or kinds.is_large_string(kind) or kinds.is_binary(kind))


def _usable(kinds: Any, kind: Any) -> bool:
    """Numbers, truth, text, dates, times, and dictionaries of them."""
    if kinds.is_dictionary(kind):
        return not kinds.is_dictionary(kind.value_type) and _usable(kinds, kind.value_type)
    plain = (kinds.is_null, kinds.is_boolean, kinds.is_integer, kinds.is_floating, kinds.is_decimal, kinds.is_temporal)
    return _is_text(kinds, kind) or any(test(kind) for test in plain)
