"""The term counts of 20 Newsgroups, kept as the parts of a sparse matrix in an NPZ file."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_array

from bilevax import zips


class Newsgroups(NamedTuple):
    """Counts, documents by terms; classes 1 to 20 and their groups 1 to 6."""

    counts: csr_array
    y20: np.ndarray
    y6: np.ndarray


def read_newsgroups(path: Path) -> Newsgroups:
    """Counts as floats, labels as integers."""
    try:
        with zips.opened(path) as archive:
            parts = zips.read_arrays(archive, ("data", "indices", "indptr", "shape", "y20", "y6"))
        matrix = (parts["data"].astype(float), parts["indices"], parts["indptr"])
        rows, cols = (int(size) for size in parts["shape"])
        zips.check_positions(parts["indices"], parts["indptr"], rows, cols)
        counts = csr_array(matrix, shape=(rows, cols))
        y20, y6 = (_labels(parts[name]) for name in ("y20", "y6"))
    except (ValueError, TypeError, OverflowError, IndexError) as error:
        raise ValueError(
            f"{path}: expected an NPZ file with data, indices, indptr, shape, y20 and y6 ({zips.words(error)})"
        ) from error
    if not len(y20) == len(y6) == counts.shape[0]:
        raise ValueError(f"{path}: expected a label for each of {counts.shape[0]} documents, got {len(y20)}, {len(y6)}")
    counts.sort_indices()
    return Newsgroups(counts, y20, y6)


def _labels(array: np.ndarray) -> np.ndarray:
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ValueError(f"labels are a vector of whole numbers, got {array.dtype}{array.shape}")
    return array.astype(np.int64)
