"""The observed entries of a matrix, from the forms in which people have them."""

from __future__ import annotations

import operator
import warnings
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

MANY = 2_000_000
"""From so many entries on values and factors are kept in single precision, and no sorted copy of the entries."""
_GAPS = 100
"""Rows for each entry, most of them empty, from which on they are ids that nobody numbered."""


class Entries(NamedTuple):
    """The entry (rows[i], cols[i]) of a matrix of this shape is values[i]; none is there twice."""

    rows: np.ndarray
    cols: np.ndarray
    values: np.ndarray
    shape: tuple[int, int]


def is_triple(X: Any) -> bool:
    """Whether X is `(rows, cols, values)`."""
    return isinstance(X, (tuple, list)) and len(X) == 3 and all(np.ndim(part) == 1 for part in X)


def is_pairs(X: Any, y: Any) -> bool:
    """Whether X is a table of two columns of indices and y the values of those entries."""
    if y is None or scipy.sparse.issparse(X) or np.ndim(X) != 2 or np.shape(X)[1] != 2:
        return False
    pairs = np.asarray(X)
    return pairs.dtype.kind in "iuf" and bool(np.all(np.isfinite(pairs)) and np.all(pairs == np.floor(pairs)))


def of_matrix(X: Any) -> Entries:
    """The stored entries of a sparse matrix, or those of an array that are not NaN."""
    if scipy.sparse.issparse(X):
        stored = X.tocoo()
        rows, cols, values = stored.row, stored.col, stored.data
    else:
        rows, cols = np.nonzero(~np.isnan(X))
        values = X[rows, cols]
    return valid_entries(rows, cols, values, X.shape)


def has_ends(values: np.ndarray) -> bool:
    """Whether the smallest and the largest value are the ends of a scale: each is that of at least one entry in 200."""
    least = max(2, len(values) // 200)
    return bool(np.sum(values == values.min()) >= least and np.sum(values == values.max()) >= least)


def whole(name: str, value: Any) -> int:
    """One whole number."""
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"MatrixCompletion: {name} must be one whole number, got {str(value)[:60]!r}.") from None


def indices(name: str, given: Any, count: int) -> np.ndarray:
    """Whole numbers, as many as there are values."""
    numbers = np.asarray(given)
    if numbers.shape != (count,):
        raise ValueError(f"MatrixCompletion: {name} has shape {numbers.shape} for {count} values; give one for each.")
    if numbers.dtype.kind not in "iu":
        whole = numbers.dtype.kind == "f" and np.all(np.abs(numbers) < 2.0**53)  # beyond, floats skip integers
        if not whole or not np.all(numbers == np.floor(numbers)):
            raise ValueError(
                f"MatrixCompletion: {name} must be whole numbers, got {numbers.dtype}; number the ids first."
            )
        numbers = numbers.astype(np.int64)
    return numbers


def new_row(cols: Any, values: Any, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The columns and values of a row to place among `count` columns."""
    values = np.atleast_1d(np.asarray(values, float))
    cols = indices("cols", np.atleast_1d(np.asarray(cols)), len(values)) if len(values) else np.zeros(0, int)
    if not np.all(np.isfinite(values)):
        raise ValueError("MatrixCompletion: a value of the new row is not finite; leave such entries out.")
    if len(cols) and not (0 <= cols.min() and cols.max() < count):
        raise ValueError(f"MatrixCompletion: cols of a new row must be from 0 to {count - 1}.")
    return cols, values


def valid_entries(rows: Any, cols: Any, values: Any, shape: tuple[int, ...] | None = None) -> Entries:
    """Entries that can be learned from, sorted unless there are many; of those given twice the last one."""
    values = np.asarray(values)
    if values.ndim != 1 or values.dtype.kind not in "iufb":
        raise ValueError(f"MatrixCompletion: values must be a vector of numbers, got {values.dtype}{values.shape}.")
    if not len(values):
        raise ValueError("MatrixCompletion: there is no observed entry.")
    values = values.astype(float, copy=False)
    rows, cols = indices("rows", rows, len(values)), indices("cols", cols, len(values))
    if not np.isfinite(values.sum()) and not np.all(np.isfinite(values)):
        first = int(np.nonzero(~np.isfinite(values))[0][0])
        raise ValueError(f"MatrixCompletion: the value at position {first} is {values[first]}; leave such entries out.")
    if min(rows.min(), cols.min()) < 0:
        raise ValueError("MatrixCompletion: rows and cols are counted from zero, got a negative one.")
    for name, numbers in (("rows", rows), ("cols", cols)):
        if numbers.max() >= _GAPS * len(values) + 1_000_000:  # the model keeps numbers for each row, used or not
            raise ValueError(
                f"MatrixCompletion: {name} go up to {numbers.max()} for {len(values)} entries; number the ids without "
                f"gaps, for example with numpy.unique(..., return_inverse=True)."
            )
    size = (int(rows.max()) + 1, int(cols.max()) + 1) if shape is None else (int(shape[0]), int(shape[1]))
    entries = Entries(rows, cols, values, size)
    return entries if len(values) >= MANY and _none_twice(entries) else in_order(entries)


def _none_twice(entries: Entries) -> bool:
    ones = np.ones(len(entries.values), np.int8)  # less memory than the values
    return bool(scipy.sparse.coo_matrix((ones, entries[:2]), entries.shape).tocsr().nnz == len(ones))


def in_order(entries: Entries) -> Entries:
    """The entries by row and then by column, none twice; those that are so already keep their memory."""
    rows, cols, values, shape = entries
    if _increasing(rows, cols):
        return entries
    matrix = scipy.sparse.coo_matrix((values, (rows, cols)), shape).tocsr()  # in linear time
    if matrix.nnz == len(values):
        counts = np.diff(matrix.indptr)
        return Entries(np.repeat(np.arange(shape[0], dtype=np.int32), counts), matrix.indices, matrix.data, shape)
    flat = rows.astype(np.int64) * shape[1] + cols
    order = np.argsort(flat, kind="stable")
    last = np.append(flat[order][1:] != flat[order][:-1], True)
    warnings.warn(
        f"{int(np.sum(~last))} entries are given more than once; the last value of each is kept.", stacklevel=6
    )
    keep = order[last]
    return Entries(rows[keep], cols[keep], values[keep], shape)


def _increasing(rows: np.ndarray, cols: np.ndarray, chunk: int = 1 << 20) -> bool:
    for begin in range(0, len(rows) - 1, chunk):
        r, c = rows[begin : begin + chunk + 1], cols[begin : begin + chunk + 1]
        if not np.all((r[1:] > r[:-1]) | ((r[1:] == r[:-1]) & (c[1:] > c[:-1]))):
            return False
    return True


def at(effects: np.ndarray, index: Any) -> np.ndarray:
    """The numbers at these places, zero where there are none."""
    index = np.asarray(index)
    known = (index >= 0) & (index < len(effects))
    values = np.zeros(index.shape, effects.dtype)
    values[known] = effects[index[known]]
    return values


def check_range(values: np.ndarray, dtype: np.dtype[Any]) -> None:
    """Refuse values whose squares overflow."""
    with np.errstate(over="ignore"):
        mean = float(values.mean())
        largest = max(abs(float(values.min()) - mean), abs(float(values.max()) - mean))
    # Half the exponent for the square, and room for sums over all entries.
    if not largest < 1e-6 * np.sqrt(float(np.finfo(dtype).max)):
        wider = ", or use dtype='float64'" if dtype == np.float32 else ""
        raise ValueError(
            f"MatrixCompletion: values of size {largest:.3g} are too large for {dtype}, in which their squares "
            f"overflow; divide them by a constant{wider}."
        )
