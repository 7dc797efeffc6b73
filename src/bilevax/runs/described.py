"""Solvers, points and options as JSON and arrays, so that a run can be written down without pickle and read again.

Reading makes nothing but what is listed here: public classes of bilevax, plain containers and numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

import bilevax
from bilevax.encoding import Form, NotEncodable, decode, encode, of_dataclass


def describe(solver: Any) -> Any:
    """A solver as JSON; None for one with functions or classes that are not public in bilevax."""
    try:
        return encode(solver, forms=_public)
    except NotEncodable:
        return None


def restored(text: Any) -> Any:
    """The solver that `describe` described."""
    solver = decode(text, forms=_public)
    return jax.tree.map(lambda leaf: jnp.asarray(leaf) if isinstance(leaf, np.ndarray) else leaf, solver)


def _public(name: str) -> Form | None:
    kind = getattr(bilevax, name) if name in dir(bilevax) else None
    return of_dataclass(kind) if isinstance(kind, type) and issubclass(kind, eqx.Module) else None


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
        if not jax.tree_util.all_leaves([node]):
            raise NotEncodable(type(node).__name__)
        return next(count)

    try:
        return walk(tree)
    except NotEncodable:
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
