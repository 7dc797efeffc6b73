"""What a run depends on, in a few numbers, so that going on with other data, functions or options is noticed."""

from __future__ import annotations

import hashlib
import warnings
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from bilevax import packed, trees
from bilevax.estimation import extreme_point
from bilevax.problem import BilevelProblem
from bilevax.runs.checkpoint import Saved
from bilevax.runs.described import describe, leaves_of
from bilevax.runs.machine import elsewhere, machine
from bilevax.runs.plan import Plan
from bilevax.runs.stage import on_first_window
from bilevax.solvers.protocol import Solver
from bilevax.streaming.blocks import is_stream
from bilevax.streaming.stream import Stream

_ROWS = 1000
"""Of a stream, so many rows at its start and at its end are looked at."""

NAMES = {
    "data": "the data",
    "set": "the set",
    "solver": "the solver or its numbers",
    "sampler": "the sampler",
    "key": "the random key",
    "precision": "the precision of x, y or JAX",
}
"""What must be the same, in words."""


def fingerprint(problem: BilevelProblem, solver: Solver, x: PyTree, y: PyTree, key: Array) -> dict[str, Any]:
    """JSON that is the same for the same run, and f, g and their gradients at two points."""
    return {
        "data": _data(problem.data),
        "set": [repr(problem.domain), *_sums(problem.domain)],
        "solver": [type(solver).__name__, *_sums(solver)],
        "sampler": repr(problem.sampler),
        "key": np.asarray(jax.random.key_data(key)).tolist(),
        "precision": [str(trees.dtype(x)), str(trees.dtype(y)), bool(jax.config.read("jax_enable_x64"))],
        "functions": _values(problem, x, y),
        "machine": machine(),
    }


def about_run(problem: BilevelProblem, solver: Solver, x: PyTree, y: PyTree, plan: Plan) -> dict[str, Any]:
    """What a checkpoint says of the run it belongs to."""
    return {
        "solver": describe(solver),
        "method": type(solver).__name__,
        "options": plan.options,
        "fingerprint": fingerprint(problem, solver, x, y, plan.key),
    }


def check_same(about: dict[str, Any], saved: Saved) -> None:
    """Refuse to go on with another run than that of the checkpoint; warn where only the last digits may change."""
    try:
        other, where = differences(about["fingerprint"], saved.header["fingerprint"])
    except packed.UNEXPECTED as error:
        raise packed.DamagedFile(f"{saved.path}: its fingerprint lacks {error} or has it in another form.") from None
    if other:
        raise ValueError(f"resume: this is not the run of the checkpoint; different: {other}.")
    if where:
        warnings.warn(f"resume: the last digits may change: {where}.", RuntimeWarning, stacklevel=4)


def _sums(tree: PyTree) -> list[str]:
    return [f"{path} {array.dtype} {array.shape} {_sum(array)}" for path, array in zip(*leaves_of(tree), strict=True)]


def _sum(array: np.ndarray) -> str:
    content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)  # numpy cannot show the bytes of bfloat16 itself
    return hashlib.sha256(content.data).hexdigest()[:32]


def _data(data: PyTree) -> list[str]:
    found, told = jax.tree_util.tree_flatten_with_path(data, is_leaf=is_stream)[0], []
    for path, leaf in found:
        name = jax.tree_util.keystr(path)
        if not is_stream(leaf):
            told += [name + one for one in _sums(leaf)]
        elif leaf.resumable:
            told += [f"{name} {len(leaf)} rows", *(name + one for part in _ends(leaf) for one in _sums(part))]
    return told


def _ends(stream: Stream) -> list[PyTree]:
    rows = len(stream)
    return [stream.read(0, min(_ROWS, rows)), stream.read(max(0, rows - _ROWS), rows)]


def _values(problem: BilevelProblem, x: PyTree, y: PyTree) -> list[float]:
    """f, g and their gradients at the start and at a point that only the shapes decide."""
    problem = replace(on_first_window(problem), sampler=None)
    rng = np.random.default_rng(20_24)
    direction = jax.tree.map(lambda v: jnp.asarray(v, trees.dtype(x)), trees.drawn_like(trees.coordinates(x), rng))
    away = trees.axpy(0.3, jax.tree.map(lambda v: jnp.asarray(v, trees.dtype(y)), trees.drawn_like(y, rng)), y)
    points = [(x, y)]
    if not isinstance(x, trees.Point):
        s = extreme_point(problem.domain, x, direction)
        points.append((trees.move(x, s, jnp.asarray(0.37, trees.dtype(x))), away))
    else:
        points.append((x, away))
    return [float(value) for x, y in points for value in _at(problem, x, y)]


def _at(problem: BilevelProblem, x: PyTree, y: PyTree) -> list[Any]:
    x = trees.coordinates(x)
    f, (f_x, f_y) = problem.upper_value_and_grads(x, y)
    g_y = problem.lower_grad(x, y)
    g = problem.lower_value(x, y)
    return [f, g, *(value for tree in (f_x, f_y, g_y) for value in (trees.norm(tree), trees.sum_all(tree)))]


def differences(now: dict[str, Any], then: dict[str, Any]) -> tuple[str, str]:
    """What forbids to go on, in words, and what may only change the last digits; empty if nothing does."""
    other = [words for name, words in NAMES.items() if now[name] != then.get(name)]
    where = elsewhere(now["machine"], then.get("machine", {}))
    wide = now["precision"][1] == "float64"
    tolerance = (1e-6 if wide else 1e-2) if where else (1e-12 if wide else 1e-4)
    a, b = (np.asarray(of.get("functions", []), float) for of in (now, then))
    if "data" not in (name for name in NAMES if now[name] != then.get(name)) and not _close(a, b, tolerance):
        other.append("upper or lower, whose values and gradients differ at the points that were looked at")
    return ", ".join(other), where


def _close(a: np.ndarray, b: np.ndarray, tolerance: float) -> bool:
    return a.shape == b.shape and bool(np.allclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True))
