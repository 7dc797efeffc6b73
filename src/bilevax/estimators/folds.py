"""K folds: every row is held out once. Held-out rows get the weight 0, so that all folds have arrays of one shape."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils import check_random_state


def fold_numbers(groups: np.ndarray, n_folds: int, random_state: Any) -> np.ndarray:
    """The fold of each row, from 0. The rows of a group, such as a task or a class, are spread evenly over the folds.

    The next group begins where the last one ended, so that groups of few rows do not all begin with fold 0.
    """
    shuffled = check_random_state(random_state).permutation(len(groups))
    in_order = shuffled[np.argsort(groups[shuffled], kind="stable")]
    folds = np.empty(len(groups), int)
    folds[in_order] = np.arange(len(groups)) % n_folds
    return folds
