"""The slow second reading of a text file that could not be parsed: it names the first line with a fault."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence

from bilevax.ratings.fields import id_fault, parse_time, rating_fault
from bilevax.tables.text import STAND_IN, TextFile, shortened


def error_with_line(text: TextFile, header: bool, positions: Mapping[str, int], error: Exception) -> ValueError:
    """The error to raise instead of `error`, which came from fast parsing and does not know its line."""
    reader = text.reader()
    skip = header
    try:
        for row in reader:
            if row and not skip and (fault := _line_fault(text, positions, row)):
                return ValueError(f"{text.path}, line {reader.line_num}: {fault}")
            skip = skip and not row
    except csv.Error as wrong:
        return ValueError(f"{text.path}, line {reader.line_num}: {wrong}; is a quotation mark missing?")
    words = str(error)
    return ValueError(words if str(text.path) in words else f"{text.path}: {words}")


def _line_fault(text: TextFile, positions: Mapping[str, int], row: Sequence[str]) -> str | None:
    """What is wrong with a line, if anything."""
    last = max(positions.values(), default=-1)
    if len(row) <= last:
        received = shortened(("" if text.delimiter == STAND_IN else text.delimiter).join(row))
        return f"expected at least {last + 1} fields separated by {text.separator}, got {len(row)}: {received}."
    for role, position in positions.items():
        field = row[position]
        if role in ("user", "item") and (fault := id_fault(field.strip())):
            return f"the {role} (column {position}, from 0) {fault.rstrip('.')}."
        if role == "rating" and (fault := rating_fault(field)):
            return f"the rating (column {position}, from 0) is {shortened(field)}, {fault}."
        if role == "time":
            try:
                parse_time(field)
            except ValueError:
                return f"the time (column {position}, from 0) is {shortened(field)}; expected a number or an ISO date."
    return None
