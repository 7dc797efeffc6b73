"""Where numbers were made: versions, system and cores, read without loading any of the packages."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Sequence
from typing import Any


def machine() -> dict[str, Any]:
    """What a reader of the numbers needs to know about where they were made."""
    return {
        "python": platform.python_version(),
        "versions": {name: importlib.metadata.version(name) for name in ("bilevax", "jax", "jaxlib", "numpy", "scipy")},
        "system": f"{platform.system()} {platform.machine()}",
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
    }


def elsewhere(now: dict[str, Any], then: dict[str, Any], names: Sequence[str] = ("python", "system", "cores")) -> str:
    """What differs between two machines, in words: what is named, and versions of packages."""
    told = [
        f"{name} {then.get(name)} then and {now.get(name)} now" for name in names if now.get(name) != then.get(name)
    ]
    versions = now.get("versions", {}), then.get("versions", {})
    told += [f"{n} {versions[1].get(n)} then and {v} now" for n, v in versions[0].items() if v != versions[1].get(n)]
    return ", ".join(told)
