"""Values as JSON and arrays, and back, bit by bit, so that nothing has to be pickled.

Reading makes plain containers, numbers, text, arrays, and the classes that the reader lists; nothing else.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np


class NotEncodable(TypeError):
    """A value that cannot be written, such as a function."""


class Form(NamedTuple):
    """How the values of a class are taken apart into plain ones, and made again."""

    kind: type
    parts: Callable[[Any], Any]
    make: Callable[[Any], Any]


Forms = Callable[[str], Form | None]
"""The form of a class by its name; None for a class that is neither written nor made."""


def of_named_tuple(kind: type) -> Form:
    """The form of a class with fields in an order."""
    return Form(kind, list, lambda parts: kind(*parts))


def of_dataclass(kind: Any) -> Form:
    """The form of a class with fields that its constructor takes."""
    names = [field.name for field in dataclasses.fields(kind) if field.init]
    return Form(kind, lambda value: {name: getattr(value, name) for name in names}, lambda parts: kind(**parts))


def no_classes(name: str) -> Form | None:
    """Plain values only."""
    return None


def encode(value: Any, arrays: dict[str, np.ndarray] | None = None, forms: Forms = no_classes) -> Any:
    """JSON for a value. Its arrays are added to `arrays`; without it, they are lists of numbers in the JSON."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, (np.bool_, np.integer, int)):
        return bool(value) if isinstance(value, np.bool_) else int(value)
    if isinstance(value, (float, np.floating)):
        return float(value) if math.isfinite(value) else {"number": repr(float(value))}
    if isinstance(value, np.ndarray) or (hasattr(value, "__array__") and hasattr(value, "dtype")):
        return _encode_array(np.asarray(value), arrays)
    if isinstance(value, dict) and all(isinstance(name, str) for name in value):
        return {"dict": {name: encode(part, arrays, forms) for name, part in value.items()}}
    name = type(value).__name__
    if type(value) in (list, tuple):
        return {name: [encode(part, arrays, forms) for part in value]}
    form = forms(name)
    if form is None or form.kind is not type(value):
        raise NotEncodable(f"a value of class {name} cannot be written to a file")
    return {"class": [name, encode(form.parts(value), arrays, forms)]}


def decode(text: Any, arrays: dict[str, np.ndarray] | None = None, forms: Forms = no_classes) -> Any:
    """The value of this JSON. A KeyError, TypeError or ValueError for JSON that `encode` does not make."""
    if text is None or isinstance(text, (bool, str, int, float)):
        return text
    if not isinstance(text, dict):
        raise TypeError(f"a {type(text).__name__} stands where a value was expected")
    ((kind, content),) = text.items()
    if kind == "number":
        return float(content)
    if kind in ("array", "zeros", "numbers"):
        return _decode_array(kind, content, arrays)
    if kind == "dict":
        return {name: decode(part, arrays, forms) for name, part in content.items()}
    if kind in ("list", "tuple"):
        parts = [decode(part, arrays, forms) for part in content]
        return parts if kind == "list" else tuple(parts)
    if kind != "class":
        raise ValueError(f"{kind!r} is not a kind of value")
    name, inside = content
    form = forms(name)
    if form is None:
        raise ValueError(f"{name!r} is not a class that may be made from this file")
    return form.make(decode(inside, arrays, forms))


def _encode_array(value: np.ndarray, arrays: dict[str, np.ndarray] | None) -> Any:
    """The order of the axes in memory is kept: sums in another order differ in the last digits."""
    if arrays is None:
        return {"numbers": [value.dtype.str, list(value.shape), [encode(part) for part in value.reshape(-1).tolist()]]}
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


def _decode_array(kind: str, content: Any, arrays: dict[str, np.ndarray] | None) -> np.ndarray:
    if kind == "numbers":
        dtype, shape, numbers = content
        return np.array([decode(part) for part in numbers], np.dtype(dtype)).reshape(shape)
    if kind == "zeros":
        shape, dtype, order = content
        stored = np.zeros(tuple(shape), np.dtype(dtype))
    else:
        name, order = content
        stored = (arrays or {})[name]
    return stored.transpose([order.index(axis) for axis in range(stored.ndim)])
