"""The run directory, one layout for every run that is written to disk.

config.json    versions, machine, cores, options, constants, how the run ended
trace.csv      one row per `every` steps
state-*.npz    checkpoints: arrays with a JSON header (not written yet)
report.html    on request (not written yet)
"""

from __future__ import annotations

import importlib.metadata
import json
import math
import os
import platform
from pathlib import Path
from typing import Any

from bilevax.files import write_atomic
from bilevax.runs.trace import Trace

FORMAT = 1
CONFIG, TRACE = "config.json", "trace.csv"


def machine() -> dict[str, Any]:
    """What a reader of the numbers needs to know about where they were made."""
    return {
        "python": platform.python_version(),
        "versions": {name: importlib.metadata.version(name) for name in ("bilevax", "jax", "jaxlib", "numpy", "scipy")},
        "system": f"{platform.system()} {platform.machine()}",
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
    }


def save(path: str | Path, config: dict[str, Any], trace: Trace) -> Path:
    """Write a run; each file appears whole or not at all."""
    folder = Path(path)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; give the path of a folder for the run.")
    trace.to_csv(folder / TRACE)
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
    config = json.loads((folder / CONFIG).read_text())
    if config.get("format") != FORMAT:
        raise ValueError(f"{folder} was written in format {config.get('format')}; this version reads format {FORMAT}.")
    return config, Trace.from_csv(folder / TRACE)
