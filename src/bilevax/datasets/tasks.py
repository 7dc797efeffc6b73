"""The London schools data: a MATLAB file with a cell of pupils for each school."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from bilevax.datasets.matlab import read_cells
from bilevax.files import unpacked


class Tasks(NamedTuple):
    """Rows of several tasks: features, targets, and the number of the task of each row, from 0."""

    X: np.ndarray
    y: np.ndarray
    task: np.ndarray


def read_tasks(path: Path, features: int) -> Tasks:
    """A MATLAB file with cell arrays `X` (rows by features) and `Y`, in which each task is a cell."""
    cells = read_cells(path, unpacked(path), ("X", "Y"))
    if not cells["X"] or len(cells["X"]) != len(cells["Y"]):
        raise ValueError(f"{path}: expected as many cells in X as in Y, got {len(cells['X'])} and {len(cells['Y'])}")
    for t, (X, y) in enumerate(zip(cells["X"], cells["Y"], strict=True)):
        if X.shape != (len(X), features) or y.shape != (len(X), 1):
            raise ValueError(
                f"{path}: expected {features} columns and a target for each row in task {t}, got {X.shape}, {y.shape}"
            )
    task = np.repeat(np.arange(len(cells["X"])), [len(X) for X in cells["X"]])
    return Tasks(np.vstack(cells["X"]), np.vstack(cells["Y"])[:, 0], task)
