"""Where data files are looked for and where downloads go."""

from __future__ import annotations

import os
import sys
from pathlib import Path

DATA, CACHE = "BILEVAX_DATA", "BILEVAX_CACHE"


def data_folder() -> Path | None:
    """The folder that BILEVAX_DATA names; never written to."""
    value = os.environ.get(DATA)
    if not value:
        return None
    folder = Path(value).expanduser()
    if not folder.is_dir():
        raise NotADirectoryError(
            f"{DATA} is {value!r}, which is not a folder; "
            "set it to the folder that holds e.g. ml-100k/u.data, or unset it."
        )
    return folder


def cache_folder() -> Path:
    """The folder for downloads and compiled code: BILEVAX_CACHE, or `bilevax` in the cache of the platform."""
    value = os.environ.get(CACHE)
    folder = Path(value).expanduser() if value else _platform_cache() / "bilevax"
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"the cache {str(folder)!r} is not a folder; set {CACHE} to a folder for downloads.")
    return folder


def _platform_cache() -> Path:
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def folders() -> list[Path]:
    """Where to look, in this order."""
    data, cache = data_folder(), cache_folder()
    return [cache] if data is None else [data, cache]
