"""Estimators in the manner of scikit-learn, built on the problems and methods of the layers below."""

from bilevax.estimators.feature_weights import FeatureWeights as FeatureWeights
from bilevax.estimators.matrix_completion import MatrixCompletion as MatrixCompletion
from bilevax.estimators.matrix_completion import effects_only as effects_only
from bilevax.estimators.multitask import MultiTaskRegression as MultiTaskRegression
from bilevax.estimators.saved import load as load
