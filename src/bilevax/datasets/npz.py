"""The term counts of 20 Newsgroups, kept as the parts of a sparse matrix in an NPZ file."""

from __future__ import annotations

import io
import zipfile
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_array


class Newsgroups(NamedTuple):
    """Counts, documents by terms; classes 1 to 20 and their groups 1 to 6."""

    counts: csr_array
    y20: np.ndarray
    y6: np.ndarray


def read_newsgroups(path: Path) -> Newsgroups:
    """Counts as floats, labels as integers."""
    try:
        # NumPy leaves a file it cannot read open, hence bytes.
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as parts:
            matrix = (parts["data"].astype(float), parts["indices"], parts["indptr"])
            counts = csr_array(matrix, shape=tuple(map(int, parts["shape"])))
            y20, y6 = parts["y20"].astype(np.int64), parts["y6"].astype(np.int64)
    except (KeyError, ValueError, EOFError, TypeError, AttributeError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(
            f"{path}: expected an NPZ file with data, indices, indptr, shape, y20 and y6 ({error})"
        ) from error
    if not len(y20) == len(y6) == counts.shape[0]:
        raise ValueError(f"{path}: expected a label for each of {counts.shape[0]} documents, got {len(y20)}, {len(y6)}")
    counts.sort_indices()
    return Newsgroups(counts, y20, y6)
