"""The labels that were given, as numbers of classes, and for which rows they are known to be right."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Labels(NamedTuple):
    """A label for each row."""

    given: np.ndarray
    """The number of the class."""
    known: np.ndarray
    """Whether it is known to be right."""
    n_classes: int

    def subset(self, rows: np.ndarray) -> Labels:
        """Those of some rows."""
        return Labels(self.given[rows], self.known[rows], self.n_classes)

    def one_hot(self) -> np.ndarray:
        """Soft labels that believe what was given."""
        soft = np.zeros((len(self.given), self.n_classes), np.float32)
        soft[np.arange(len(self.given)), self.given] = 1
        return soft
