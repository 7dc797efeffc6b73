"""Estimators in the manner of scikit-learn, built on the problems and methods of the layers below."""

from __future__ import annotations

try:
    import sklearn  # noqa: F401
except ImportError as error:
    raise ImportError("bilevax.estimators needs scikit-learn: pip install 'bilevax[estimators]'.") from error

from bilevax.estimators.feature_weights import FeatureWeights
from bilevax.estimators.matrix_completion import MatrixCompletion, effects_only
from bilevax.estimators.multitask import MultiTaskRegression
from bilevax.estimators.saved import load

__all__ = ["FeatureWeights", "MatrixCompletion", "MultiTaskRegression", "effects_only", "load"]
