"""Which rows, and which columns, are similar: read from where the matrix has entries, not from their values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bilevax.estimators.matrix_completion.observed import Observed
from bilevax.linalg import low_rank
from bilevax.linalg.low_rank import Operator

if TYPE_CHECKING:  # it writes what this module defines
    from bilevax.estimators.matrix_completion.journal import Journal


class Similarity(NamedTuple):
    """The leading singular triplets of the scaled pattern: rows with entries in the same places have like vectors."""

    rows: np.ndarray
    values: np.ndarray
    cols: np.ndarray


def leading_similarity(
    counted: Operator, counts: tuple[np.ndarray, np.ndarray], components: int, dtype: Any
) -> Similarity | None:
    """The singular triplets of the pattern, its rows and columns divided by the fourth root of their counts.

    None where there is nothing to learn: a full matrix has one direction only, which says how full it is.
    """
    if components < 2 or min(counted.shape) < 3:
        return None
    by_row, by_col = (damped(count).astype(dtype)[:, None] for count in counts)
    operator = Operator(
        counted.shape,
        lambda block: by_row * counted.matvec(by_col * block),
        lambda block: by_col * counted.rmatvec(by_row * block),
    )
    triplets = Similarity(*low_rank.leading(operator, min(components, min(counted.shape) - 1), dtype=dtype))
    rank = int(np.sum(triplets.values > 1e-2 * triplets.values[0]))
    if rank < 2:
        return None
    return Similarity(triplets.rows[:, :rank], triplets.values[:rank], triplets.cols[:, :rank])


class AxisFeatures(NamedTuple):
    """What the places of its entries say of each row: its vector, how many entries it has, and a constant."""

    matrix: np.ndarray
    scales: np.ndarray
    """Of the vectors."""
    centre: float
    width: float
    """Of the logarithm of the count."""

    def of(self, vector: np.ndarray, count: int) -> np.ndarray:
        """The features of a new row."""
        return np.concatenate([self.scales * vector, [(np.log(count + 1.0) - self.centre) / self.width, 1.0]])


class PatternFeatures(NamedTuple):
    """The features of rows and of columns."""

    rows: AxisFeatures
    cols: AxisFeatures
    similarity: Similarity


def pattern_features(
    similarity: Similarity, counts: tuple[np.ndarray, np.ndarray], dtype: Any = float
) -> PatternFeatures:
    """Features from the singular vectors of the pattern; those of large singular values count more."""
    found = []
    for vectors, count in zip((similarity.rows, similarity.cols), counts, strict=True):
        scales = similarity.values / np.sqrt(np.mean(np.sum((vectors * similarity.values) ** 2, axis=1)))
        logs = np.log(count + 1.0)
        centre, width = float(logs.mean()), float(logs.std()) or 1.0
        columns = [vectors * scales, ((logs - centre) / width)[:, None], np.ones((len(logs), 1))]
        found.append(AxisFeatures(np.hstack(columns).astype(dtype), scales, centre, width))
    return PatternFeatures(found[0], found[1], similarity)


def features_of(observed: Observed, components: int, journal: Journal) -> PatternFeatures | None:
    """The features of the entries to learn from; None where their pattern says nothing."""
    counts = observed.by_row.counts(), observed.by_col.counts()
    # Single precision is plenty for features, and half of the time and memory.
    similarity = journal.compute(
        f"similarity of {observed.count} entries",
        lambda: leading_similarity(observed.operator(observed.ones(np.float32)), counts, components, np.float32),
    )
    return None if similarity is None else pattern_features(similarity, counts, observed.dtype)


def place_in_pattern(cols: np.ndarray, col_counts: np.ndarray, components: np.ndarray) -> np.ndarray:
    """The singular vector of a new row with entries in these columns; `components` are those of columns over values."""
    vector: np.ndarray = (damped(np.asarray(len(cols))) * damped(col_counts[cols])) @ components[cols]
    return vector


def damped(counts: np.ndarray) -> np.ndarray:
    """The factor for the pattern of a row or column with so many entries."""
    factor: np.ndarray = (counts + 5.0) ** -0.25
    return factor
