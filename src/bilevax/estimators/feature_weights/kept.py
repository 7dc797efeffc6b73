"""The exact fits of a search, on disk, so that a search that was killed goes on to the same answer.

A search makes a fixed sequence of fits, and everything else follows from them in little time. With a checkpoint, each
fit is a file. A search that starts again passes through the same code and reads the fits that it finds.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from bilevax import packed
from bilevax.runs.checkpoint_options import as_checkpoint
from bilevax.runs.lock import Lock

_KIND = "bilevax feature weights checkpoint, format 1"


def checksum(*parts: Any) -> str:
    """Of arrays, sparse matrices and plain values."""
    total = hashlib.sha256()
    for part in parts:
        arrays = [part.data, part.indices, part.indptr] if scipy.sparse.issparse(part) else [part]
        for array in arrays:
            plain = np.ascontiguousarray(array) if isinstance(array, np.ndarray) else None
            total.update(repr(array).encode() if plain is None else str((plain.dtype, plain.shape)).encode())
            if plain is not None:
                total.update(plain.tobytes())
    return total.hexdigest()


class Kept:
    """Calls whose results are kept in the folder of `checkpoint`, or nowhere if that is None."""

    def __init__(self, checkpoint: Any = None, about: Callable[[], str] = str):
        plan = as_checkpoint(checkpoint, "FeatureWeights")
        self._folder = None if plan is None else Path(plan.path)
        self._about, self._number, self._lock = "", 0, None
        if self._folder is not None:
            if self._folder.exists() and not self._folder.is_dir():
                raise ValueError(f"FeatureWeights: checkpoint {self._folder} is a file; give the path of a folder.")
            self._about, self._lock = about(), Lock(self._folder)

    @property
    def on(self) -> bool:
        """Whether there is a folder."""
        return self._folder is not None

    def __enter__(self) -> Kept:
        return self

    def __exit__(self, *_: Any) -> None:
        if self._lock is not None:
            self._lock.release()

    def __call__(self, name: str, make: Callable[[], tuple[Any, ...]]) -> tuple[Any, ...]:
        """The result of `make`, a tuple of numbers and arrays, from the folder if it is there."""
        if self._folder is None:
            return make()
        path = self._folder / f"fit-{self._number:04d}.npz"
        self._number += 1
        found = self._read(path, name)
        if found is None:
            found = make()
            arrays = {f"part{i}": np.asarray(part) for i, part in enumerate(found)}
            packed.write(path, {"kind": _KIND, "name": name, "about": self._about}, arrays)
        return tuple(float(part) if np.ndim(part) == 0 else part for part in found)

    def _read(self, path: Path, name: str) -> tuple[Any, ...] | None:
        try:
            header, arrays = packed.read(path)
        except FileNotFoundError:
            return None
        except (packed.DamagedFile, OSError) as error:
            warnings.warn(f"FeatureWeights: {error} The fit is computed again.", RuntimeWarning, stacklevel=2)
            return None
        if header.get("kind") != _KIND or header.get("about") != self._about or header.get("name") != name:
            raise ValueError(
                f"FeatureWeights: {path.parent} holds a fit of other data or with other parameters; give another "
                f"folder, or delete this one."
            )
        return tuple(arrays[f"part{i}"] for i in range(len(arrays)))
