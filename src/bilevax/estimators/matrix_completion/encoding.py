"""Values as JSON and arrays, and back, bit by bit. Reading makes nothing but what is listed here."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from bilevax.estimators.matrix_completion.new_rows import NewRows, Shrunk
from bilevax.estimators.matrix_completion.similarity import Similarity
from bilevax.runs.trace import Trace

_CLASSES: dict[str, Any] = {kind.__name__: kind for kind in (Shrunk, NewRows, Similarity)}
"""The tuples with names that may be written and made again."""


def encode(value: Any, arrays: dict[str, np.ndarray]) -> Any:
    """JSON for a value; its arrays are added to `arrays`."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, (np.bool_, np.integer, int)):
        return bool(value) if isinstance(value, np.bool_) else int(value)
    if isinstance(value, (float, np.floating)):
        return float(value) if math.isfinite(value) else {"number": repr(float(value))}
    if isinstance(value, np.ndarray):
        return _encode_array(value, arrays)
    if isinstance(value, Trace):
        return {"trace": encode(list(value), arrays)}
    if isinstance(value, dict) and all(isinstance(name, str) for name in value):
        return {"dict": {name: encode(part, arrays) for name, part in value.items()}}
    name = type(value).__name__
    if type(value) in (list, tuple) or _CLASSES.get(name) is type(value):
        return {name: [encode(part, arrays) for part in value]}
    raise TypeError(f"a value of class {name} cannot be written to a checkpoint.")


def decode(text: Any, arrays: dict[str, np.ndarray]) -> Any:
    """The value of this JSON. A KeyError, TypeError or ValueError for JSON that `encode` does not make."""
    if text is None or isinstance(text, (bool, str, int, float)):
        return text
    if not isinstance(text, dict):
        raise TypeError(f"a {type(text).__name__} stands where a value was expected")
    ((kind, content),) = text.items()
    if kind == "number":
        return float(content)
    if kind in ("array", "zeros"):
        return _decode_array(kind, content, arrays)
    if kind == "trace":
        return Trace(decode(content, arrays))
    if kind == "dict":
        return {name: decode(part, arrays) for name, part in content.items()}
    parts = [decode(part, arrays) for part in content]
    if kind == "list":
        return parts
    return tuple(parts) if kind == "tuple" else _CLASSES[kind](*parts)


def _encode_array(value: np.ndarray, arrays: dict[str, np.ndarray]) -> Any:
    """The order of the axes in memory is kept: sums in another order differ in the last digits."""
    axes = sorted(range(value.ndim), key=lambda axis: -abs(value.strides[axis])) if value.size else range(value.ndim)
    if value.flags.c_contiguous:
        axes = range(value.ndim)
    order = list(axes)
    stored = np.asarray(value.transpose(order), order="C")
    if stored.ndim and not stored.reshape(-1).view(np.uint8).any():  # priors without features are all zero
        return {"zeros": [list(stored.shape), stored.dtype.str, order]}
    name = f"a{len(arrays)}"
    arrays[name] = stored
    return {"array": [name, order]}


def _decode_array(kind: str, content: Any, arrays: dict[str, np.ndarray]) -> np.ndarray:
    if kind == "zeros":
        shape, dtype, order = content
        stored = np.zeros(tuple(shape), np.dtype(dtype))
    else:
        name, order = content
        stored = arrays[name]
    return stored.transpose([order.index(axis) for axis in range(stored.ndim)])
