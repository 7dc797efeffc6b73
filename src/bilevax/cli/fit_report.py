"""What every command that fits an estimator tells: how a fit ended, numbers as JSON, and where a model is."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bilevax.files import write_text

ENDED_EARLY = {
    "STOPPED": "The fit was interrupted; all results come from the model it had at that moment.",
    "TIME_LIMIT": "The fit reached its time limit; all results come from the model it had at that moment.",
}


def fit_words(words: str, status: str) -> str:
    """A sentence about the model, and another one if the fit ended early."""
    return f"{words}\n{ENDED_EARLY[status]}" if status in ENDED_EARLY else words


def write_metrics(folder: Path, metrics: Any) -> None:
    """metrics.json, in which numbers that are not finite are null."""
    write_text(folder / "metrics.json", json.dumps(_finite(metrics), indent=2) + "\n")


def drawn(command: str, file: Path, draw: Callable[[Path], bool]) -> list[str]:
    """The name of the picture if it was drawn; without matplotlib a line says that it was not."""
    try:
        return [file.name] if draw(file) else []
    except ImportError as error:
        print(f"bilevax {command}: {file.name} is not drawn: {error}", file=sys.stderr)
        return []


def tell_saved(path: Path, status: str, words: str, *, trial: str | None = None) -> None:
    """Say which fit was saved: `trial` describes that of an interrupted trial, `words` any other."""
    ended = {"STOPPED": ", which was interrupted,", "TIME_LIMIT": ", which reached its time limit,"}.get(status, "")
    print(f"{words + ended if trial is None else trial} is saved in {path}.")


def _finite(value: Any) -> Any:
    """Numbers that JSON knows: None for those that are not finite."""
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value
