"""What the caller of `solve` or `compare` asked for, checked before any work."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from bilevax.runs.checkpoint_options import Checkpoint, as_checkpoint
from bilevax.runs.stopping import Rule, gap_below

Metrics = Mapping[str, Callable[..., Any]] | Callable[..., Mapping[str, Any]]


class Plan(NamedTuple):
    """The options of `bx.solve` in one form, every one of them checked."""

    steps: int
    every: int
    early: bool
    """Whether there are rows at the steps 1, 2, 4, 8, ... before those: fast methods end among them."""
    time_limit: float
    key: Array
    rules: list[Rule]
    metrics: list[Metrics]
    observers: list[Callable[..., Any]]
    progress: bool | str
    checkpoint: Checkpoint | None
    options: dict[str, Any]
    """What `bx.resume` must know of them: numbers, and how many functions there were."""
    compute_gap: bool
    """Whether a row calls the lmo for a method that has no gap of its own."""


def make_plan(
    *,
    steps: int = 1000,
    tol: float | None = None,
    stop: Rule | Iterable[Rule] = (),
    time_limit: float | None = None,
    key: Array | None = None,
    metrics: Metrics | Iterable[Metrics] | None = None,
    observers: Callable[..., Any] | Iterable[Callable[..., Any]] = (),
    every: int | None = None,
    checkpoint: Any = None,
    progress: bool | str = False,
    compute_gap: bool = True,
) -> Plan:
    """The plan for these options, which `bx.solve` explains."""
    steps = _whole("steps", steps, "a whole number")
    if time_limit is not None and not time_limit > 0:
        raise ValueError(f"solve: time_limit must be a positive number of seconds, got {time_limit!r}.")
    if tol is not None and not (isinstance(tol, (int, float, np.number)) and 0 < tol < np.inf):
        raise ValueError(f"solve: tol must be a positive number, the true gap to reach, got {tol!r}.")
    return Plan(
        steps=steps,
        every=_whole("every", max(1, steps // 100) if every is None else every, "a whole number of steps per row,"),
        early=every is None,
        time_limit=np.inf if time_limit is None else float(time_limit),
        key=jax.random.key(0) if key is None else _random_key(key),
        rules=([] if tol is None else [gap_below(float(tol))]) + _functions("stop", stop),
        metrics=_functions("metrics", metrics),
        observers=_functions("observers", observers),
        progress=progress,
        checkpoint=as_checkpoint(checkpoint),
        options={
            "steps": steps,
            "tol": None if tol is None else float(tol),
            "every": every,
            "time_limit": None if time_limit is None else float(time_limit),
            "stop": len(_functions("stop", stop)),
            "metrics": len(_functions("metrics", metrics)),
        },
        compute_gap=compute_gap,
    )


def _whole(name: str, value: Any, words: str) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        separator = "" if words.endswith(",") else " of"
        raise ValueError(f"solve: {name} must be {words}{separator} at least 1, got {value!r}.")
    return int(value)


def _functions(name: str, given: Any) -> list[Any]:
    """One function, several or none, as a list that every run reads from its beginning."""
    if given is None:
        return []
    several = isinstance(given, Iterable) and not callable(given) and not isinstance(given, (str, Mapping))
    listed = list(given) if several else [given]
    for one in listed:
        if not (callable(one) or (name == "metrics" and isinstance(one, Mapping))):
            words = "{name: function}, a function" if name == "metrics" else "a function"
            raise TypeError(f"solve: {name}= takes {words} or several of them, got {listed if several else given!r}.")
        for metric, function in one.items() if isinstance(one, Mapping) else ():
            if not callable(function):
                raise TypeError(f"solve: the metric {metric!r} must be a function of (x, y, data), got {function!r}.")
    return listed


def _random_key(key: Any) -> Array:
    if isinstance(key, jax.Array) and (jnp.issubdtype(key.dtype, jax.dtypes.prng_key) or key.dtype == np.uint32):
        return key
    raise TypeError(f"solve: key must be a JAX random key, got {key!r}; write jax.random.key({key!r}).")
