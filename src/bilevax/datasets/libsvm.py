"""The LIBSVM format: a target and `index:value` pairs per line, indices ascending from one."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_array

from bilevax.datasets.matlab import read_matrices
from bilevax.datasets.text import match_lines
from bilevax.files import unpacked
from bilevax.limits import check_size

NUMBER = rb"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?"
LINE = NUMBER + rb"(?:[ \t]+\d{1,9}:" + NUMBER + rb")*[ \t]*"


class Table(NamedTuple):
    """Features, one row per example, and targets."""

    X: np.ndarray
    y: np.ndarray


class SparseTable(NamedTuple):
    """Features as a sparse matrix, one row per example, and targets."""

    X: csr_array
    y: np.ndarray


def _parse(path: Path, text: bytes, features: int) -> SparseTable:
    data = match_lines(path, text, LINE, "a target and index:value pairs")
    characters = np.frombuffer(data, np.uint8)
    colons, ends = (np.flatnonzero(characters == ord(sign)) for sign in ":\n")
    indptr = np.concatenate([[0], np.searchsorted(colons, ends)])
    numbers = np.fromstring(data.replace(b":", b" "), sep=" ")
    targets = np.arange(len(ends)) + 2 * indptr[:-1]
    pairs = np.delete(numbers, targets).reshape(-1, 2)
    indices = pairs[:, 0].astype(np.int64) - 1
    ascending = np.concatenate([[True], np.diff(indices) > 0])
    ascending[indptr[:-1][indptr[:-1] < len(indices)]] = True
    wrong = np.flatnonzero((indices < 0) | (indices >= features) | ~ascending[: len(indices)])
    if wrong.size:
        line = np.searchsorted(indptr, wrong[0], side="right")
        raise ValueError(
            f"{path}, line {line}: expected ascending indices from 1 to {features}, got {indices[wrong[0]] + 1}"
        )
    X = csr_array((pairs[:, 1], indices, indptr), shape=(len(ends), features))
    # Some copies write a zero for the last feature to show how many there are.
    X.eliminate_zeros()
    return SparseTable(X, numbers[targets])


def read_sparse(path: Path, features: int) -> SparseTable:
    """A LIBSVM file as a sparse table."""
    return _parse(path, unpacked(path), features)


def read_dense(path: Path, features: int) -> Table:
    """A LIBSVM file, or a MATLAB file with `X` and `y`, as a dense table."""
    data = unpacked(path)
    if data.startswith(b"MATLAB"):
        return _matlab(path, data, features)
    X, y = _parse(path, data, features)
    check_size(path, 8 * len(y) * features, what=f"a table of {len(y)} x {features}")
    return Table(X.toarray(), y)


def _matlab(path: Path, data: bytes, features: int) -> Table:
    arrays = read_matrices(path, data, ("X", "y"))
    X, y = np.ascontiguousarray(arrays["X"]), arrays["y"].ravel()
    if X.shape != (len(y), features):
        raise ValueError(f"{path}: expected X with {features} columns and a y for each row, got {X.shape}, {y.shape}")
    return Table(X, y)
