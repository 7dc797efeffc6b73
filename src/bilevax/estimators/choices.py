"""What an estimator chose, and how sure that is: one form of words for all of them."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np


class Choice(NamedTuple):
    """A choice between two ways, made by their errors on held-out data.

    Args:
        question: what was to be decided.
        taken: the answer.
        other: what the answer is compared with.
        gain: how much lower the error is than with the other; negative if it is higher.
        standard_error: of the gain; NaN if it is not known.
        unit: the measure of error.

    >>> print(Choice("similarity of tasks", "used", "one model per task", 0.0123, 0.002).words())
    similarity of tasks used; RMSE lower than one model per task by 0.012 (standard error 0.002)
    """

    question: str
    taken: str
    other: str
    gain: float
    standard_error: float
    unit: str = "RMSE"

    def words(self) -> str:
        """The choice and its gain."""
        return f"{self.question} {self.taken}; {self.difference()}"

    def difference(self) -> str:
        """The gain in words."""
        side, size = ("lower", self.gain) if self.gain >= 0 else ("higher", -self.gain)
        sure = f" (standard error {self.standard_error:.1g})" if math.isfinite(self.standard_error) else ""
        return f"{self.unit} {side} than {self.other} by {size:.2g}{sure}"

    def as_plain(self) -> dict[str, Any]:
        """The choice as JSON values."""
        numbers = ("gain", "standard_error")
        known = {name: getattr(self, name) for name in numbers}
        return self._asdict() | {name: float(v) if math.isfinite(v) else None for name, v in known.items()}

    @classmethod
    def of_plain(cls, plain: Any) -> Choice:
        """The choice of JSON values; a ValueError or KeyError for others than `as_plain` makes."""
        if not isinstance(plain, dict):
            raise ValueError(f"a choice is {str(plain)[:60]!r}")
        question, taken, other, unit = words = [plain[name] for name in ("question", "taken", "other", "unit")]
        numbers = [plain[name] for name in ("gain", "standard_error")]
        if not all(isinstance(word, str) for word in words):
            raise ValueError("the words of a choice are not text")
        if not all(number is None or isinstance(number, float) for number in numbers):
            raise ValueError("the numbers of a choice are none")
        gain, error = (math.nan if number is None else number for number in numbers)
        return cls(question, taken, other, gain, error, unit)


def root_gain(squares: np.ndarray, others: np.ndarray) -> tuple[float, float]:
    """How much lower the root of the mean of `squares` is than that of `others` on the same rows, and its error."""
    rmse, other = (float(np.sqrt(part.mean())) for part in (squares, others))
    return other - rmse, standard_error(others - squares) / max(rmse + other, 1e-300)


def standard_error(differences: np.ndarray) -> float:
    """Of the mean of the differences."""
    return float(np.std(differences) / np.sqrt(len(differences)))
