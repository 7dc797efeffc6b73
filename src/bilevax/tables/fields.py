"""What the fields of a text mean: numbers, true or false, missing, or text. A column has one meaning for all of them.

Every reader of text hands over the distinct fields of a column and the number of each row's field among them. So
the rules stand in one place, and a field that occurs a million times is parsed once.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

MISSING = frozenset({"", "na", "n/a", "nan", "null", "?"})
"""Fields without a value, in lower case."""
LONGEST_FIELD = 10_000  # characters
_TRUTH = {"true": 1.0, "True": 1.0, "TRUE": 1.0, "false": 0.0, "False": 0.0, "FALSE": 0.0}
_NUMBER = re.compile(r"[+-]?((\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|inf|infinity)", re.ASCII | re.IGNORECASE)


class BadField(ValueError):
    """A field that no column may hold; `number` is its place among the distinct fields."""

    def __init__(self, number: int, fault: str):
        super().__init__(fault)
        self.number = number


def column_of_fields(distinct: Sequence[str], numbers: np.ndarray, as_text: bool) -> np.ndarray:
    """The column whose row i holds `distinct[numbers[i]]`: numbers if all of its fields are, else text.

    `as_text` keeps fields that look like numbers as they are written.
    """
    fields = [field.strip() for field in distinct]
    for number, field in enumerate(fields):
        if len(field) > LONGEST_FIELD:
            raise BadField(number, f"has {len(field)} characters; is a quotation mark missing?")
    present = [number for number, field in enumerate(fields) if field.lower() not in MISSING]
    if not as_text or not present:
        for parsed in (_numbers, _truth):
            values = parsed([fields[number] for number in present])
            if values is not None:
                return _numeric(len(fields), present, values)[numbers]
    text = np.full(len(fields), None, object)
    text[present] = [fields[number] for number in present]
    return text[numbers]


def block_of_numbers(fields: Sequence[str]) -> np.ndarray | None:
    """The fields as numbers, NaN where they are missing; None if one of them is neither, or is not finite."""
    whole = "".join(fields)
    if whole.isascii() and "_" not in whole:  # the only numbers of Python that are none here
        try:
            numbers = np.array([float(field) for field in fields])
            if np.isfinite(numbers).all():
                return numbers
        except ValueError:
            pass
    distinct = {field: number for number, field in enumerate(dict.fromkeys(fields))}
    present = [field for field in distinct if field.strip().lower() not in MISSING]
    if not all(is_number(field.strip()) for field in present):
        return None
    numbers = np.full(len(distinct), np.nan)
    numbers[[distinct[field] for field in present]] = [float(field) for field in present]
    return None if np.isinf(numbers).any() else numbers[[distinct[field] for field in fields]]


def is_number(field: str) -> bool:
    """Whether the field is a number, finite or not."""
    return _NUMBER.fullmatch(field) is not None


def _numbers(fields: Sequence[str]) -> list[float] | None:
    return [float(field) for field in fields] if all(map(is_number, fields)) else None


def _truth(fields: Sequence[str]) -> list[float] | None:
    return [_TRUTH[field] for field in fields] if all(field in _TRUTH for field in fields) else None


def _numeric(count: int, present: Sequence[int], values: Sequence[float]) -> np.ndarray:
    column = np.full(count, np.nan)
    column[present] = values
    infinite = np.flatnonzero(np.isinf(column))
    if len(infinite):
        raise BadField(int(infinite[0]), f"is {column[infinite[0]]}; correct it, or leave it empty if it is missing")
    return column
