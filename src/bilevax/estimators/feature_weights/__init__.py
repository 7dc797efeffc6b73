"""One l2 weight per feature, chosen on held-out rows."""

from bilevax.estimators.feature_weights.estimator import FeatureWeights

__all__ = ["FeatureWeights"]
