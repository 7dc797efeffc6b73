"""Multi-task regression."""

from __future__ import annotations

from bilevax.estimators.multitask.estimator import MultiTaskRegression

__all__ = ["MultiTaskRegression"]
