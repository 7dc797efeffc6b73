"""What `fit` was given, checked and brought into the form that the search needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
from sklearn.utils.multiclass import check_classification_targets, type_of_target

from bilevax.estimators.feature_weights.losses import Logistic, Loss, Softmax, Squared
from bilevax.estimators.magnitudes import check_target

_MANY_CLASSES = 20
_OWNER = "FeatureWeights"


def chosen_loss(loss: Any, y: Any) -> str:
    """ "squared" or "logistic"."""
    check_target(_OWNER, np.asarray(y))
    if loss in ("squared", "logistic"):
        return str(loss)
    if loss != "auto":
        raise ValueError(f'{_OWNER}: loss must be "auto", "squared" or "logistic", got {loss!r}.')
    if type_of_target(y) not in ("binary", "multiclass"):
        return "squared"
    y = np.asarray(y)
    return "squared" if y.dtype.kind in "iuf" and len(np.unique(y)) > _MANY_CLASSES else "logistic"


class Targets(NamedTuple):
    """What the regressions fit."""

    T: np.ndarray
    loss: Loss
    strata: np.ndarray
    """Rows of one value are spread evenly over the folds."""
    classes: np.ndarray | None
    mean: float
    scale: float


def squared_targets(y: np.ndarray, rows: np.ndarray) -> Targets:
    """Numbers with mean 0 and variance 1."""
    y = np.asarray(y, float)
    mean = float(np.average(y, weights=rows))
    scale = float(np.sqrt(np.average((y - mean) ** 2, weights=rows)))
    if not scale > 1e-12 * abs(mean):
        raise ValueError(f"{_OWNER}: y is {mean:g} in every row; there is nothing to learn.")
    strata = np.zeros(len(y), int)
    return Targets(((y - mean) / scale)[:, None], Squared(), strata, None, mean, scale)


def class_targets(y: np.ndarray) -> Targets:
    """Zeros and ones: one column for two classes, otherwise one for each."""
    check_classification_targets(y)
    classes, place, counts = np.unique(y, return_inverse=True, return_counts=True)
    if len(classes) < 2:
        raise ValueError(f"{_OWNER}: y has one class, {classes[0]!s}; give rows of at least two classes.")
    if counts.min() < 2:
        rare = classes[np.argmin(counts)]
        raise ValueError(
            f"{_OWNER}: class {rare!s} has 1 row; every class needs 2, one to learn from and one to hold out. "
            f"Drop the class or merge it with another."
        )
    place = place.ravel()
    if len(classes) == 2:
        return Targets(place[:, None].astype(float), Logistic(), place, classes, 0.0, 1.0)
    return Targets(np.eye(len(classes))[place], Softmax(), place, classes, 0.0, 1.0)


class Features(NamedTuple):
    """The features as the regressions see them."""

    A: Any
    mean: np.ndarray
    """What was subtracted from each column: zeros if the matrix is sparse."""
    variance: np.ndarray


def centred(X: Any, rows: np.ndarray) -> Features:
    """Dense columns minus their means; sparse ones as they are."""
    share = rows / rows.sum()
    mean = np.asarray(X.T @ share).ravel()
    if scipy.sparse.issparse(X):
        squares = np.asarray(X.multiply(X).T @ share).ravel()
        return Features(X, np.zeros_like(mean), np.maximum(squares - mean**2, 0.0))
    A = X - mean
    variance = share @ A**2
    constant = variance <= (1e-14 * mean) ** 2 + 1e-300
    A[:, constant] = 0.0
    return Features(A, mean, np.where(constant, 0.0, variance))


def group_numbers(groups: Any, n_features: int, names: Any) -> np.ndarray | None:
    """The number of the group of each feature; None if every feature is its own."""
    if groups is None:
        return None
    if isinstance(groups, Mapping):
        known = [f"x{i}" for i in range(n_features)] if names is None else [str(name) for name in names]
        unknown = [name for name in groups if str(name) not in known]
        if unknown:
            raise ValueError(f"{_OWNER}: groups names a feature {unknown[0]!r} that X does not have.")
        by_name = {str(name): f"group {group}" for name, group in groups.items()}
        labels = np.array([by_name.get(name, f"feature {name}") for name in known])
    else:
        labels = np.asarray(groups)
        if labels.shape != (n_features,):
            raise ValueError(
                f"{_OWNER}: groups must have one label for each of the {n_features} features, got an array of shape "
                f"{labels.shape}."
            )
    return np.unique(labels, return_inverse=True)[1].ravel()


def pooling(numbers: np.ndarray | None) -> Callable[[np.ndarray], np.ndarray]:
    """A function that replaces the value of each feature by the mean of its group."""
    if numbers is None:
        return lambda values: values
    counts = np.bincount(numbers)
    return lambda values: (np.bincount(numbers, values) / counts)[numbers]


def first_weights(features: Features, pool: Callable[[np.ndarray], np.ndarray]) -> dict[str, np.ndarray]:
    """Logarithms of l2 weights to begin with: a tenth of the total variance for all, or in units of each variance."""
    d, total = len(features.variance), float(np.sum(features.variance))
    bases = {"equal weights": np.full(d, np.log(0.1 * total if total > 0 else 1.0))}
    if total > 0 and not scipy.sparse.issparse(features.A):
        usual = float(np.mean(features.variance))
        own = pool(np.where(features.variance > 0, features.variance, usual))
        if np.ptp(np.log(own)) > 0.02:
            bases["weights for standardised features"] = np.log(0.1 * d) + np.log(own)
    return bases
