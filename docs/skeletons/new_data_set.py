"""Skeleton of a data set: the reader goes to a file in src/bilevax/datasets/, the entry to registry.py there, the
function to load.py.

The example is a file of numbers, one on each line. CONTRIBUTING.md lists what else a new data set needs.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from bilevax.datasets.fetching import load
from bilevax.datasets.registry import DataFile, Entry


def read_numbers(path: Path) -> np.ndarray:
    """One number on each line; the first bad line is named."""
    numbers = []
    for place, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        try:
            numbers.append(float(line))
        except ValueError:
            raise ValueError(f"{path}, line {place}: expected a number, got {line[:60]!r}") from None
    return np.array(numbers)


ENTRY = Entry(
    name="numbers",
    files=(
        DataFile(
            role="numbers",
            path="numbers/numbers.txt",
            sha256="0" * 64,  # of the file: sha256sum numbers.txt
            content="0" * 64,  # of what the reader returns: bilevax.datasets.fingerprint
            read=read_numbers,
            url="https://example.org/numbers.txt",
        ),
    ),
    shape="how many numbers",
    source="https://example.org/",
    terms="the publisher's terms, in one sentence",
    by_hand="download numbers.txt and put it into the folder numbers",
)


def numbers() -> np.ndarray:
    """What the data are, in one sentence."""
    values: np.ndarray = load("numbers", "numbers")
    return values
