"""Solvers, points and options as JSON and arrays, so that a run can be written down without pickle and read again.

Reading makes nothing but what is listed here: public classes of bilevax, plain containers and numbers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

import bilevax

_PLAIN = (bool, int, float, str, type(None))


class NotDescribed(TypeError):
    """An object that JSON cannot hold, such as a function."""


def describe(value: Any) -> Any:
    """A value as JSON; a `NotDescribed` for one with functions or classes that are not public in bilevax."""
    if isinstance(value, float) and not np.isfinite(value):
        return {"number": repr(value)}
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, (np.ndarray, np.generic, jax.Array)):
        array = np.asarray(value)
        return {
            "array": [describe(float(v)) for v in array.reshape(-1)],
            "dtype": str(array.dtype),
            "shape": array.shape,
        }
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return {type(value).__name__: [describe(entry) for entry in value]}
    kind = type(value)
    if isinstance(value, eqx.Module) and getattr(bilevax, kind.__name__, None) is kind:
        made = {field.name: describe(getattr(value, field.name)) for field in dataclasses.fields(value) if field.init}
        return {"class": kind.__name__, "fields": made}
    raise NotDescribed(f"{value!r} cannot be written as JSON")


def restored(text: Any) -> Any:
    """The value that `describe` described."""
    if isinstance(text, _PLAIN):
        return text
    (first, *_) = text
    if first == "number":
        return float(text["number"])
    if first == "array":
        numbers = [restored(v) for v in text["array"]]
        return jnp.asarray(np.array(numbers, np.dtype(text["dtype"])).reshape(text["shape"]))
    if first in ("list", "tuple"):
        return {"list": list, "tuple": tuple}[first](restored(entry) for entry in text[first])
    kind = getattr(bilevax, text["class"]) if text["class"] in bilevax.__all__ else None  # type: ignore[attr-defined]
    if not (isinstance(kind, type) and issubclass(kind, eqx.Module)):
        raise ValueError(f"{text['class']} is not a class of bilevax")
    return kind(**{name: restored(value) for name, value in text["fields"].items()})


def structure(tree: PyTree) -> Any:
    """The containers of a tree as JSON, with the numbers of its leaves; None if it has others than plain ones."""
    count = iter(range(10**9))

    def walk(node: Any) -> Any:
        if node is None:
            return None
        if type(node) is dict and all(isinstance(name, str) for name in node):
            return {"dict": {name: walk(node[name]) for name in sorted(node)}}
        if type(node) in (list, tuple):
            return {type(node).__name__: [walk(entry) for entry in node]}
        made: Any = jax.tree.structure(node)
        if made != jax.tree.structure(0):
            raise NotDescribed(type(node).__name__)
        return next(count)

    try:
        return walk(tree)
    except NotDescribed:
        return None


def tree_of(text: Any, leaves: list[Any]) -> PyTree:
    """The tree of a structure, with these leaves."""
    if text is None:
        return None
    if isinstance(text, int):
        return leaves[text]
    if "dict" in text:
        return {name: tree_of(entry, leaves) for name, entry in text["dict"].items()}
    kind: Callable[..., Any] = list if "list" in text else tuple
    return kind(tree_of(entry, leaves) for entry in text["list" if "list" in text else "tuple"])


def leaves_of(tree: PyTree) -> tuple[list[str], list[np.ndarray]]:
    """The paths and the numbers of all leaves; random keys as the numbers they are made of."""
    found = jax.tree_util.tree_flatten_with_path(tree)[0]
    return [jax.tree_util.keystr(path) for path, _ in found], [_numbers(leaf) for _, leaf in found]


def _numbers(leaf: Any) -> np.ndarray:
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    return np.asarray(leaf)


def filled(tree: PyTree, leaves: list[np.ndarray]) -> PyTree:
    """The tree with other leaves, each of the kind that it has there: an array of JAX or numpy, or a number."""
    old, made = jax.tree.flatten(tree)
    return jax.tree.unflatten(made, [_like(a, b) for a, b in zip(old, leaves, strict=True)])


def _like(old: Any, new: np.ndarray) -> Any:
    if isinstance(old, jax.Array):
        if jnp.issubdtype(old.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(jnp.asarray(new), impl=jax.random.key_impl(old))
        return jnp.asarray(new)
    if isinstance(old, (bool, int, float)):
        return type(old)(new)
    return np.array(new)
