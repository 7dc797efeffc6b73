"""What held-out rows say: errors of the model and of simple ones, and verdicts with standard errors."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bilevax.estimators.choices import Choice


class HeldOut(NamedTuple):
    """Losses on held-out rows, sums for folds and tasks."""

    linked: np.ndarray
    alone: np.ndarray
    """Of one regression for each task."""
    pooled: np.ndarray
    """Of one regression for all tasks."""
    unit: np.ndarray
    """What turns a loss of a task into units of the target."""
    rows: float
    squared: bool

    @property
    def linking_helps(self) -> bool:
        """Whether it lowers the loss by more than a standard error."""
        difference = self.alone - self.linked
        return bool(difference.sum() > _standard_error(difference))

    def errors(self, shares: bool) -> dict[str, float]:
        """Of the model, of tasks alone, and of one regression for all tasks: root mean squared errors or log losses."""
        named = {"model": self.linked if shares else self.alone, "alone": self.alone, "pooled": self.pooled}
        return {name: self._error(losses) for name, losses in named.items()}

    def choices(self, shares: bool) -> list[Choice]:
        """The verdicts in words."""
        single, every = "one regression for each task", "one regression for all tasks"
        if not shares:
            return [self._choice("links between tasks", "not used", self.alone, self.linked, "with links")]
        return [
            self._choice("links between tasks", "used", self.linked, self.alone, single),
            self._choice("differences between tasks", "kept", self.linked, self.pooled, every),
        ]

    def _error(self, losses: np.ndarray) -> float:
        mean = float(np.sum(losses * self.unit) / self.rows)
        return mean**0.5 if self.squared else mean

    def _choice(self, question: str, taken: str, losses: np.ndarray, others: np.ndarray, name: str) -> Choice:
        error, other = self._error(losses), self._error(others)
        slope = max(error + other, 1e-300) if self.squared else 1.0  # of the mean squared error by its root
        sure = _standard_error((others - losses) * self.unit) / self.rows / slope
        return Choice(question, taken, name, other - error, sure, "RMSE" if self.squared else "log loss")


def _standard_error(difference: np.ndarray) -> float:
    """Of a sum over folds and tasks."""
    count = difference.size
    return float(np.sqrt(count / max(count - 1, 1) * np.sum((difference - difference.mean()) ** 2)))
