"""Columns of a text by the csv module, which reads every file; a line with a fault is named.

Columns of numbers are parsed block by block, so that their text is not kept. A column that turns out to hold text is
read in a second pass.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np

from bilevax.tables.fields import BadField, block_of_numbers, column_of_fields
from bilevax.tables.text import STAND_IN, TextFile, shortened

_BLOCK_LINES = 1024


def slow_columns(text: TextFile, names: Sequence[str], stays: Sequence[bool]) -> list[np.ndarray]:
    """A column for each name; `stays` says whether it is text whatever it holds."""
    numeric: dict[int, list[np.ndarray]] = {i: [] for i, stay in enumerate(stays) if not stay}
    rows = 0
    for block in _blocks(text, len(names)):
        columns = list(zip(*block, strict=True))
        for i in list(numeric):
            numbers = block_of_numbers(columns[i])
            if numbers is None:
                del numeric[i]
            else:
                numeric[i].append(numbers)
        rows += len(block)
    if not rows:
        raise ValueError(f"{text.path}: there is a header but no row below it.")
    found = {i: np.concatenate(parts) for i, parts in numeric.items()}
    found |= _distinct_columns(text, names, [i for i in range(len(names)) if i not in found], stays)
    return [found[i] for i in range(len(names))]


def _distinct_columns(
    text: TextFile, names: Sequence[str], wanted: Sequence[int], stays: Sequence[bool]
) -> dict[int, np.ndarray]:
    """The columns that hold more than numbers, from their distinct fields."""
    fields = {i: _numbering() for i in wanted}
    numbers: dict[int, list[np.ndarray]] = {i: [] for i in wanted}
    for block in _blocks(text, len(names)) if wanted else ():
        for i in wanted:
            number = fields[i]
            numbers[i].append(np.array([number[row[i]] for row in block], np.int32))
    found = {}
    for i in wanted:
        of_rows, distinct = np.concatenate(numbers[i]), list(fields[i])
        try:
            found[i] = column_of_fields(distinct, of_rows, stays[i])
        except BadField as error:
            line = _line(text, int(np.argmax(of_rows == error.number)))
            held = f"column {shortened(names[i])} holds {shortened(distinct[error.number].strip())}"
            raise ValueError(f"{text.path}, line {line}: {held}, which {error}.") from None
    return found


def _blocks(text: TextFile, width: int) -> Iterator[list[list[str]]]:
    """The lines below the header that are not blank, a thousand at a time; all of them have `width` fields."""
    reader = text.reader()
    rows = filter(None, reader)
    try:
        next(rows)
        while block := list(islice(rows, _BLOCK_LINES)):
            if any(len(row) != width for row in block):
                raise _fault(text, width)
            yield block
    except csv.Error:
        raise _fault(text, width) from None


def _numbering() -> defaultdict[str, int]:
    """Numbers fields in the order in which they are asked for."""
    numbering: defaultdict[str, int] = defaultdict()
    numbering.default_factory = numbering.__len__
    return numbering


def _line(text: TextFile, row: int) -> int:
    """The line that ends a row, counted from 0 below the header."""
    reader = text.reader()
    next(islice(filter(None, reader), row + 1, None))
    return int(reader.line_num)


def _fault(text: TextFile, width: int) -> ValueError:
    """The error for the first line that cannot be parsed, in a second reading."""
    reader = text.reader()
    try:
        for row in reader:
            if row and len(row) != width:
                received = shortened(("" if text.delimiter == STAND_IN else text.delimiter).join(row))
                return ValueError(
                    f"{text.path}, line {reader.line_num}: expected {width} fields separated by {text.separator}, as "
                    f"in the header, got {len(row)}: {received}."
                )
    except csv.Error as error:
        return ValueError(f"{text.path}, line {reader.line_num}: {error}; is a quotation mark missing?")
    return ValueError(f"{text.path}: the lines do not have the {width} fields of the header.")
