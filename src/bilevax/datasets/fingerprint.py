"""A checksum of arrays, equal for copies of a data set whose files differ only in packing or notation."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from scipy.sparse import csr_array


def fingerprint(content: Any) -> str:
    """The sha256 of arrays, sparse matrices, and tuples and dictionaries of them, on every kind of machine."""
    digest = hashlib.sha256()
    for array in _arrays(content):
        plain = _plain(array)
        digest.update(f"{plain.dtype.str}{plain.shape}".encode())
        digest.update(np.ascontiguousarray(plain).tobytes())
    return digest.hexdigest()


def _arrays(content: Any) -> Iterator[np.ndarray]:
    if isinstance(content, csr_array):
        yield from (np.array(content.shape), content.indptr, content.indices, content.data)
    elif isinstance(content, Mapping):
        yield np.array(list(content))
        for value in content.values():
            yield from _arrays(value)
    elif isinstance(content, tuple):
        for value in content:
            yield from _arrays(value)
    elif content is not None:
        yield np.asarray(content)


def _plain(array: np.ndarray) -> np.ndarray:
    """One width and byte order for each kind; one zero and one NaN. Bytes stay bytes, since images are large."""
    if array.dtype.kind == "f":
        return np.where(np.isnan(array), np.nan, array + 0.0).astype("<f8")
    if array.dtype.kind in "iu" and array.dtype != np.uint8:
        return array.astype("<i8")
    if array.dtype.kind == "U" or array.dtype == np.uint8:
        return array.astype(array.dtype.newbyteorder("<"))
    raise TypeError(f"fingerprint: expected numbers or text, got an array of {array.dtype}.")
