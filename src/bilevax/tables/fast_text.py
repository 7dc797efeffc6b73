"""Columns of a text by pyarrow, several times faster than the csv module, for files that both read alike.

pyarrow only cuts the text into fields. Where a column is all numbers, it also parses them; in every other case the
distinct fields get their meaning from `fields`, as without pyarrow.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np

from bilevax.limits import long_line
from bilevax.tables.fields import MISSING, BadField, column_of_fields
from bilevax.tables.text import TextFile

_LONGEST_LINE = 100_000  # bytes; the csv module refuses fields that are longer, and pyarrow does not
_BLOCK = 1 << 20  # bytes that stay in the cache
_QUOTE, _NEW_LINE, _RETURN = (ord(letter) for letter in '"\n\r')


def fast_columns(text: TextFile, stays: Sequence[bool]) -> list[np.ndarray] | None:
    """A column for each entry of `stays`, which says whether it is text whatever it holds; None to read it slowly."""
    try:
        arrow, compute, reader = (import_module(f"pyarrow{part}") for part in ("", ".compute", ".csv"))
    except ImportError:
        return None
    if not _read_alike(text):
        return None
    data = text.data if text.encoding == "utf-8" else text.data.decode(text.encoding).encode()
    names = [f"f{i}" for i in range(len(stays))]
    quoted = text.quoting != csv.QUOTE_NONE and b'"' in data
    try:
        table = reader.read_csv(
            arrow.BufferReader(data),
            reader.ReadOptions(autogenerate_column_names=True),
            reader.ParseOptions(
                delimiter=text.delimiter, quote_char='"' if quoted else False, newlines_in_values=quoted
            ),
            reader.ConvertOptions(column_types=dict.fromkeys(names, arrow.string()), strings_can_be_null=False),
        )
        if table.column_names != names or len(table) < 2:
            return None
        return [_column(arrow, compute, table[name].slice(1), stay) for name, stay in zip(names, stays, strict=True)]
    except (arrow.ArrowException, BadField):
        return None  # the csv module finds the same fault, and its line


def _read_alike(text: TextFile) -> bool:
    """Whether pyarrow cuts this text into the same fields as the csv module."""
    data, delimiter = text.data, text.delimiter
    if not delimiter.isascii() or text.escaped or b"\0" in data or long_line(data, _LONGEST_LINE) is not None:
        return False
    if b"\r" in data and data.count(b"\r") != data.count(b"\r\n"):
        return False
    return text.quoting == csv.QUOTE_NONE or b'"' not in data or _plainly_quoted(data, ord(delimiter))


def _plainly_quoted(data: bytes, delimiter: int) -> bool:
    """Whether quotation marks stand at both ends of fields only, first an opening one, then a closing one."""
    letters = np.frombuffer(data, np.uint8)
    blocks = range(0, len(letters), _BLOCK)
    places = np.concatenate([at + np.flatnonzero(letters[at : at + _BLOCK] == _QUOTE) for at in blocks])
    borders = np.zeros(256, bool)
    borders[[delimiter, _NEW_LINE, _RETURN]] = True
    begins = borders[letters[places - 1]]
    begins[0] |= places[0] == 0
    ends = borders[letters[np.minimum(places + 1, len(letters) - 1)]]
    ends[-1] |= places[-1] == len(letters) - 1
    opening = np.arange(len(places)) % 2 == 0
    return len(places) % 2 == 0 and bool(np.array_equal(begins, opening) and np.array_equal(ends, ~opening))


def _column(arrow: Any, compute: Any, column: Any, as_text: bool) -> np.ndarray:
    if not as_text:
        numbers = _numbers(arrow, compute, column)
        if numbers is not None:
            return numbers
    coded = column.combine_chunks().dictionary_encode()
    return column_of_fields(coded.dictionary.to_pylist(), coded.indices.to_numpy(), as_text)


def _numbers(arrow: Any, compute: Any, column: Any) -> np.ndarray | None:
    """The column as numbers if pyarrow can parse every field that is not missing; it rounds as Python does."""
    no_value = arrow.scalar(None, arrow.string())
    for present in (lambda: column, lambda: compute.if_else(compute.is_in(column, _missing(arrow)), no_value, column)):
        try:
            parsed = present().cast(arrow.float64())
        except arrow.ArrowInvalid:
            continue
        numbers = parsed.to_numpy()
        # pyarrow takes words such as "-nan" and "inf" for numbers; what they mean is said in `fields`.
        if np.isfinite(numbers).sum() == len(numbers) - parsed.null_count > 0:
            return numbers
    return None


def _missing(arrow: Any) -> Any:
    """The usual ways to write a missing value; a column with others takes the longer way."""
    return arrow.array(sorted({form(word) for word in MISSING for form in (str, str.upper)} | {"NaN", "Null"}))
