"""The weighted nuclear norm of the ball: rows and columns count by their number of entries and by their similarity."""

from __future__ import annotations

import numpy as np

from bilevax.estimators.matrix_completion.options import Norm, norm_weights
from bilevax.estimators.matrix_completion.similarity import Similarity
from bilevax.linalg.sparse import Pattern
from bilevax.sets import AxisWeights


def axis_weights(
    pattern: Pattern, weights: np.ndarray, norm: Norm, similarity: Similarity | None
) -> tuple[AxisWeights, AxisWeights]:
    """The weights of rows and columns in the norm: a power of their counts, and their similarity."""
    counts = entry_counts(pattern, weights)
    scales = [1 / norm_weights(n, n) if norm.weighted else np.ones(len(n)) for n in counts]
    if similarity is None:
        return AxisWeights(scales[0]), AxisWeights(scales[1])
    # The first direction says how full the matrix is, so that the second sets the scale.
    strengths = norm.strength * np.minimum(similarity.values / similarity.values[1], 1.0)
    rows = AxisWeights(scales[0], similarity.rows, strengths)
    return rows, AxisWeights(scales[1], similarity.cols, strengths)


def entry_counts(pattern: Pattern, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """How many entries each row and each column has."""
    matrix = pattern.matrix(weights)
    return np.asarray(matrix.sum(axis=1)).ravel(), np.asarray(matrix.sum(axis=0)).ravel()
