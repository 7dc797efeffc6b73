"""Single fields of a line: ids, ratings and times, and what may be wrong with them."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime

import numpy as np

LONGEST_ID = 500
NO_TIMES = "the column of times was left out, since not all are numbers or ISO dates"


def is_number(field: str) -> bool:
    """Whether the field is a number, finite or not."""
    try:
        float(field)
    except ValueError:
        return False
    return True


def id_fault(name: str) -> str | None:
    """What is wrong with an id, if anything."""
    if not name:
        return "is empty"
    if "\n" in name or len(name) > LONGEST_ID:
        return f"has {len(name)} characters; is a quotation mark missing?"
    return None


def rating_fault(field: str) -> str | None:
    """What is wrong with a rating, if anything."""
    if not is_number(field):
        if re.fullmatch(r"\s*-?\d+,\d+\s*", field):
            return "not a number; write decimals with a point"
        return "not a number; correct the line, or choose another column"
    return None if math.isfinite(float(field)) else "which is not finite; correct or remove the line"


def parse_time(field: str) -> float:
    """A number as it is, an ISO date in seconds since 1970; without a zone it is UTC."""
    try:
        time = float(field)
    except ValueError:
        date = datetime.fromisoformat(field.strip())
        time = (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
    if not math.isfinite(time):
        raise ValueError(f"time {field!r} is not finite")
    return time


def integers_if_whole(times: np.ndarray) -> np.ndarray:
    """The times as integers if all of them are whole."""
    whole = bool(np.all(np.abs(times) < 2.0**62) and np.all(times == np.floor(times)))
    return times.astype(np.int64) if whole else times
