"""Ids as numbers from zero: numbered while a file is read, sorted at its end."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bilevax.limits import text_array
from bilevax.ratings.fields import id_fault


class Numbering(dict[str, int]):
    """Numbers names in the order in which they are asked for."""

    def __missing__(self, name: str) -> int:
        self[name] = number = len(self)
        return number


def sorted_ids(numbering: Numbering) -> tuple[np.ndarray, np.ndarray]:
    """The sorted names, as integers if all are, and the position of each numbered name among them."""
    names = [name.strip() for name in numbering]
    suspect = "" if not all(names) else max(names, key=len) if "\n" not in "".join(names) else "\n"
    if fault := id_fault(suspect):
        raise ValueError(f"an id {fault}")
    return np.unique(_integers_if_all(names), return_inverse=True)


def _integers_if_all(names: Sequence[str]) -> np.ndarray:
    """Integers if every name is the usual form of one; "007" stays text, since it may differ from "7"."""
    try:
        numbers = [int(name) for name in names]
        if [str(number) for number in numbers] == list(names):
            return np.array(numbers, np.int64)
    except (ValueError, OverflowError):
        pass
    return text_array("the ids", names)
