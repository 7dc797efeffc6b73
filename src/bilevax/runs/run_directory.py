"""The run directory, one layout for every run that is written to disk.

config.json    versions, machine, cores, options, constants, how the run ended
trace.csv      one row per `every` steps
result.npz     x and y at the end
state-*.npz    checkpoints: arrays with a JSON header
rows.csv       the rows of the trace up to the newest checkpoint, and perhaps some more
lock           names the process that writes here
report.html    on request (not written yet)
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import PyTree

from bilevax import packed
from bilevax.files import write_atomic
from bilevax.limits import read_bytes
from bilevax.runs.described import leaves_of, structure, tree_of
from bilevax.runs.machine import machine as machine
from bilevax.runs.trace import Trace

FORMAT = 1
CONFIG, TRACE, POINTS, ROWS = "config.json", "trace.csv", "result.npz", "rows.csv"
_MOST_CONFIG = 10_000_000  # bytes


def save(path: str | Path, config: dict[str, Any], trace: Trace, points: dict[str, PyTree] | None = None) -> Path:
    """Write a run; each file appears whole or not at all."""
    folder = Path(path)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; give the path of a folder for the run.")
    trace.to_csv(folder / TRACE)
    if points:
        arrays: dict[str, np.ndarray] = {}
        told = {}
        for name, tree in points.items():
            paths, leaves = leaves_of(tree)
            arrays |= {f"{name}{i}": leaf for i, leaf in enumerate(leaves)}
            told[name] = {"paths": paths, "structure": structure(tree)}
        packed.write(folder / POINTS, {"kind": "bilevax result", "format": FORMAT, "points": told}, arrays)
    contents = _finite({"format": FORMAT, **machine(), **config})
    write_atomic(folder / CONFIG, lambda stream: json.dump(contents, stream, indent=2, allow_nan=False))
    return folder


def _finite(value: Any) -> Any:
    """JSON knows no NaN and no infinity; they become null."""
    if isinstance(value, dict):
        return {name: _finite(entry) for name, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def load(path: str | Path) -> tuple[dict[str, Any], Trace]:
    """Read what `save` wrote."""
    folder = Path(path)
    if not (folder / CONFIG).is_file():
        raise FileNotFoundError(f"{folder} is not a run directory: it has no {CONFIG}.")
    try:
        config = json.loads(read_bytes(folder / CONFIG, _MOST_CONFIG))
        if not isinstance(config, dict):
            raise ValueError("it is not a table")
    except (ValueError, RecursionError) as error:
        raise packed.DamagedFile(f"{folder / CONFIG} cannot be read: {error}.") from None
    if config.get("format") != FORMAT:
        raise ValueError(f"{folder} was written in format {config.get('format')}; this version reads format {FORMAT}.")
    if not (folder / TRACE).is_file():
        raise FileNotFoundError(f"{folder} is not a run directory: it has no {TRACE}.")
    return config, Trace.from_csv(folder / TRACE)


def load_points(path: str | Path) -> dict[str, PyTree]:
    """x and y of a run; those made of classes that files do not know as a table of their arrays."""
    header, arrays = packed.read(Path(path) / POINTS)
    found = {}
    try:
        for name, told in header["points"].items():
            leaves = [arrays[f"{name}{i}"] for i in range(len(told["paths"]))]
            plain = told["structure"] is not None
            found[name] = tree_of(told["structure"], leaves) if plain else dict(zip(told["paths"], leaves, strict=True))
    except packed.UNEXPECTED as error:
        raise packed.DamagedFile(f"{Path(path) / POINTS} lacks {error} or has it in another form.") from None
    return found
