"""The folder of a fit that can be killed: opened for the same entries and options, refused for others."""

from __future__ import annotations

import hashlib
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.utils import check_random_state

from bilevax.estimators.matrix_completion.entries import Entries
from bilevax.estimators.matrix_completion.journal import Journal
from bilevax.estimators.matrix_completion.options import EFFORTS, Options
from bilevax.runs.checkpoint_options import as_checkpoint
from bilevax.runs.machine import elsewhere, machine

_CHUNK = 1 << 20  # entries that are converted at once for a checksum
_ANYTHING = ("time_limit", "verbose")
"""Options with which a fit may go on whatever they were: they do not change what is computed."""
_WORDS = {
    "shape": "the shape of the matrix",
    "places": "the rows or columns of the entries",
    "values": "the values of the entries",
    "start": "the earlier fit that this one begins with",
}


def open_journal(checkpoint: Any, entries: Entries, options: Options, start: Any) -> Journal:
    """The journal in the folder of `checkpoint`, which is None, a path or a `bx.Checkpoint`."""
    plan = as_checkpoint(checkpoint, "MatrixCompletion")
    if plan is None:
        return Journal()
    folder = Path(plan.path)
    about = _about(entries, options, start)
    return Journal(plan, about, lambda then: _check_same(folder, about, then))


def _about(entries: Entries, options: Options, start: Any) -> dict[str, Any]:
    """What decides the result, as JSON: checksums of what is large."""
    told = {name: value for name, value in options._asdict().items() if name not in _ANYTHING}
    lower = told.pop("lower")
    told |= {"ridge": told.pop("ridges"), "denoise": lower["lambda1"], "coupling": lower["lambda2"]}
    told |= {"delta": lower["delta"], "outlier": lower.get("outlier")}
    told["effort"] = next(name for name, effort in EFFORTS.items() if effort == told["effort"])
    told["random_state"] = _random_state(told["random_state"])
    places = hashlib.sha256()
    for part in (entries.rows, entries.cols):
        _add_array(places, part, np.int64)
    values = hashlib.sha256()
    _add_array(values, entries.values, np.float64)
    return {
        "shape": [int(n) for n in entries.shape],
        "places": places.hexdigest(),
        "values": values.hexdigest(),
        "start": None if start is None else checksum(start),
        "options": {name: repr(value) for name, value in told.items()},
        "machine": json.loads(json.dumps(machine())),
    }


def _random_state(given: Any) -> Any:
    """A seed, or the checksum of the state of a generator."""
    if given is None or isinstance(given, (int, np.integer)):
        return given if given is None else int(given)
    return checksum(check_random_state(given).get_state())


def _check_same(folder: Path, now: dict[str, Any], then: Any) -> None:
    """Refuse a folder of another fit, and name what differs."""
    if not isinstance(then, dict):
        raise ValueError(f"MatrixCompletion: {folder} does not say what it holds; give another folder.")
    other = [words for name, words in _WORDS.items() if now[name] != then.get(name)]
    options = then.get("options") or {}
    other += [
        f"{name} ({options.get(name)} then and {value} now)"
        for name, value in now["options"].items()
        if value != options.get(name)
    ]
    here, there = now["machine"], then.get("machine") or {}
    versions = elsewhere(here, there, ("python", "system"))
    other += [versions] if versions else []
    if other:
        raise ValueError(
            f"MatrixCompletion: the checkpoint in {folder} is that of another fit; different: {', '.join(other)}. "
            f"Give another folder, or delete this one."
        )
    if here["cores"] != there.get("cores"):
        words = f"{there.get('cores')} cores then and {here['cores']} now"
        warnings.warn(f"MatrixCompletion: the last digits may change: {words}.", RuntimeWarning, stacklevel=2)


def checksum(value: Any) -> str:
    """Of numbers, text, arrays, and tuples, lists and tables of them; equal numbers of different classes are equal."""
    total = hashlib.sha256()
    _add(total, value)
    return total.hexdigest()


def _add(total: Any, value: Any) -> None:
    if isinstance(value, np.ndarray):
        _add_array(total, value, value.dtype)
    elif isinstance(value, (float, np.floating)):
        total.update(f"number {float(value).hex()} ".encode())
    elif isinstance(value, (int, np.integer, np.bool_)):
        total.update(f"whole {int(value)} ".encode())
    elif isinstance(value, dict):
        _add(total, list(value.items()))
    elif isinstance(value, (tuple, list)):
        total.update(f"parts {len(value)} ".encode())
        for part in value:
            _add(total, part)
    elif value is None or isinstance(value, str):
        total.update(f"{value!r} ".encode())
    else:
        raise TypeError(f"no checksum is known for {type(value).__name__}.")


def _add_array(total: Any, array: np.ndarray, dtype: Any) -> None:
    total.update(f"array {np.dtype(dtype).str} {array.shape} ".encode())
    flat = array.reshape(-1)
    for begin in range(0, len(flat), _CHUNK):
        total.update(np.ascontiguousarray(flat[begin : begin + _CHUNK], dtype))
