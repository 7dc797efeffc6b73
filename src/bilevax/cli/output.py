"""Predictions as text, and text on standard output or in a file."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np

from bilevax.files import write_text


def rounded(predictions: np.ndarray) -> list[str]:
    """Predictions with four decimals."""
    return [f"{prediction:.4f}" for prediction in predictions.tolist()]


def shortened_name(name: str, most: int = 18) -> str:
    """A name that has room beside an axis; the middle goes, since a level stands at the end."""
    begin = most // 2
    return name if len(name) <= most else f"{name[:begin]}…{name[len(name) - (most - begin - 1) :]}"


def deliver(text: str, file: Path | None) -> None:
    """Write the text to the file, or to standard output if there is none."""
    if file is not None:
        print(f"Saved in {write_text(file, text)}.")
        return
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader, such as `head`, has enough; what is left in the buffer goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
