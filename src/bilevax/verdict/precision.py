"""Audits compute in float64 whatever the run did, and measure the rounding of the functions they call."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from bilevax import trees
from bilevax.problem import BilevelProblem, Objective
from bilevax.sets import WholeSpace
from bilevax.streaming import blocks

_SHAKE = 2.0**-36
"""Relative size of the perturbation with which rounding is measured: far above it, far below everything else."""


@contextlib.contextmanager
def double() -> Iterator[None]:
    """Where float64 is computed in, whatever the run does.

    Under strict promotion a function that holds constants in float32 would refuse variables in float64.
    """
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        yield


def in_double(tree: PyTree) -> PyTree:
    """The coordinates of a tree as numpy arrays of float64."""
    return jax.tree.map(lambda v: np.asarray(v, np.float64), trees.coordinates(tree))


def plain(problem: BilevelProblem) -> BilevelProblem:
    """The two functions and the full data in float64, with derivatives from autodiff alone."""
    return BilevelProblem(problem.upper, problem.lower, WholeSpace(), data=blocks.cast(problem.data, jnp.float64))


def works_in_less(problem: BilevelProblem, x: PyTree, y: PyTree) -> bool:
    """Whether `upper` or `lower` computes in less than float64 although all its arguments are float64."""
    return _works_in_less(problem.upper, problem.lower, trees.shapes((x, y, blocks.shapes(problem.data))))


@functools.lru_cache(maxsize=512)
def _works_in_less(upper: Objective, lower: Objective, shapes: trees.Shapes) -> bool:
    found: list[Any] = []
    arguments = jax.tree.unflatten(shapes.structure, shapes.leaves)
    for function in (upper, lower):
        _visit(jax.make_jaxpr(function)(*arguments).jaxpr, found.append)
    return any(jnp.issubdtype(kind, jnp.floating) and jnp.finfo(kind).bits < 64 for kind in found)


def _visit(jaxpr: Any, see: Callable[[Any], None]) -> None:
    for equation in jaxpr.eqns:
        for value in equation.outvars:
            if hasattr(value.aval, "dtype"):
                see(value.aval.dtype)
        for inside in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda v: hasattr(v, "eqns")):
            if hasattr(inside, "eqns"):
                _visit(inside, see)
            elif hasattr(inside, "jaxpr") and hasattr(inside.jaxpr, "eqns"):
                _visit(inside.jaxpr, see)


def shaken(tree: PyTree, seed: int) -> PyTree:
    """Every floating-point entry moved by a relative 2^-36 up or down, at random; that of a stream when it is read."""
    rng = np.random.default_rng(seed)

    def one(leaf: Any) -> Any:
        if blocks.is_stream(leaf):
            return leaf.after(lambda start, column, rows: _moved(rows, np.random.default_rng((seed, start, column))))
        return _moved(leaf, rng)

    return jax.tree.map(one, tree)


def _moved(leaf: Any, rng: np.random.Generator) -> Any:
    if not jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
        return leaf
    signs = rng.integers(0, 2, np.shape(leaf), dtype=np.int8)
    return np.asarray(leaf) * (1 + _SHAKE * (2.0 * signs - 1))


def rounding(changes: Any, less: bool) -> Any:
    """What rounding may do to values that `shaken` arguments changed by this much.

    A sum of rounded terms is off as if each term were: by 2^-53 of it where the shake moved it by 2^-36. 32 times
    that covers what happens between the terms, and one random shake that moved little (seen once in 100,000 audits).
    """
    return 32 * (2.0**-24 if less else 2.0**-53) / _SHAKE * changes
