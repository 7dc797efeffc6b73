"""Matrix completion. `fit` passes through entries, options, path, fit (with effects and similarity), estimator."""

from bilevax.estimators.matrix_completion.baseline import effects_only
from bilevax.estimators.matrix_completion.estimator import MatrixCompletion

__all__ = ["MatrixCompletion", "effects_only"]
