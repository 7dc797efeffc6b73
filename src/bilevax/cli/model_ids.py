"""The ids that a saved model knows, as text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np


def id_names(ids: Any, count: int) -> list[str]:
    """The ids as text; a model saved without ids calls them 0, 1 and so on."""
    return [str(name) for name in (range(count) if ids is None else np.asarray(ids).tolist())]


def id_numbers(names: Iterable[str], ids: Any, count: int) -> np.ndarray:
    """The number of each name in the model, -1 if it has none."""
    number = {name: i for i, name in enumerate(id_names(ids, count))}
    return np.array([number.get(name, -1) for name in names])
