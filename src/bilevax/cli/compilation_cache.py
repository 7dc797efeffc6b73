"""Compiled code that is kept between two calls of the command, in JAX's persistent compilation cache."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

LARGEST = 500_000_000
"""Bytes. JAX has a limit of its own, but with it every write reads the whole folder, and it needs `filelock`."""


def keep_compiled_code() -> None:
    """Let JAX keep compiled code in the cache folder, unless the user chose another place or none."""
    import jax

    settings: Any = jax.config
    if settings.jax_compilation_cache_dir or not settings.jax_enable_compilation_cache:
        return
    try:
        folder = _writable_folder()
        remove_oldest(folder, LARGEST)
    except (OSError, RuntimeError):  # RuntimeError: the user has no home folder
        return  # the command works without the folder; it only compiles again
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    # After a full disk or a damaged entry JAX compiles again; the user need not know.
    warnings.filterwarnings("ignore", message="Error (reading|writing) persistent compilation cache entry")


def remove_oldest(folder: Path, largest: int) -> None:
    """Remove the files that were not used for longest, until the rest takes at most half of `largest` bytes."""
    files = [(entry.stat(), Path(entry.path)) for entry in os.scandir(folder) if entry.is_file()]
    total = sum(status.st_size for status, _ in files)
    if total <= largest:
        return
    for status, path in sorted(files, key=lambda file: file[0].st_atime):
        path.unlink(missing_ok=True)
        total -= status.st_size
        if total <= largest / 2:
            return


def _writable_folder() -> Path:
    from bilevax.datasets.folders import cache_folder

    folder = cache_folder() / "compiled"
    folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(f"{folder} cannot be written to.")
    return folder
