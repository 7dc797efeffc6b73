"""What the file of a `FeatureWeights` holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from bilevax.estimators.feature_weights.estimator import FeatureWeights
from bilevax.estimators.feature_weights.regression import Spread
from bilevax.estimators.model_file import ModelFormat, set_attributes


def _derived(model: Any) -> dict[str, Any]:
    """Variances are kept only where probabilities need them."""
    needed = model._spread if model.moderation_ > 0 else None
    roots = None if needed is None else needed.roots
    return {
        "mean": model._mean,
        "variances": None if needed is None or roots is not None else needed.diagonal,
        "roots": roots,
    }


def _restore(model: Any, values: Mapping[str, Any]) -> None:
    kept = dict(values)
    mean, variances, roots = (kept.pop(name, None) for name in ("mean", "variances", "roots"))
    set_attributes(model, kept)
    model._mean = mean
    model._spread = None
    if roots is not None:
        model._spread = Spread(np.sum(roots**2, axis=2).T, roots)
    elif variances is not None:
        model._spread = Spread(variances, None)


def _check(model: Any) -> None:
    """What predictions rely on, and what `print(model)` needs."""
    d = len(model.weights_)
    if d != model.n_features_in_ or not np.all(model.weights_ > 0):
        raise ValueError(f"it has {d} weights for {model.n_features_in_} features, or some are not positive")
    if np.any(np.sort(model.ranking_) != np.arange(d)):
        raise ValueError("its ranking is not one of its features")
    classes = getattr(model, "classes_", None)
    outputs = np.shape(model.coef_)[:-1]
    if (classes is None) != (outputs == ()) or (
        classes is not None and outputs[0] != (len(classes), 1)[len(classes) == 2]
    ):
        raise ValueError("its coefficients are not those of its classes")
    if model.moderation_ > 0 and model._spread is None:
        raise ValueError("it lacks the variances of its coefficients")
    if model._spread is not None and model._spread.diagonal.shape != (d + 1, *outputs):
        raise ValueError("its variances are not those of its coefficients")
    str(model)  # numbers that cannot be put into words are not ours


FORMAT: ModelFormat = ModelFormat(
    kind="bilevax feature weights",
    estimator=FeatureWeights,
    numbers={
        "adaptivity_": float,
        "moderation_": float,
        "held_out_loss_": float,
        "n_features_in_": int,
        "n_iter_": int,
        "seconds_": float,
        "status_": str,
    },
    arrays={
        "weights_": "f",
        "ranking_": "f",
        "coef_": "f|cf",
        "intercept_": "|c",
        "mean": "f",
        "variances": "pc",
        "roots": "cpq",
    },
    labels={"classes_": "k", "feature_names_in_": "f"},
    optional=frozenset({"classes_", "feature_names_in_", "variances", "roots"}),
    derived=_derived,
    restore=_restore,
    check=_check,
)
