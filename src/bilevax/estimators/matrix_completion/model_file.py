"""A fitted completion on disk: arrays and a JSON header, never pickle. Numbers are kept in single precision."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from bilevax import zips
from bilevax.estimators.matrix_completion.model_checks import check_arrays, check_finite, check_numbers
from bilevax.estimators.matrix_completion.new_rows import NewRows, Shrunk
from bilevax.estimators.matrix_completion.summary import describe
from bilevax.files import write_atomic
from bilevax.packed import UNEXPECTED

_FORMAT = 3
_MOST_HEADER = 40_000_000  # bytes
_ARRAYS = (
    "row_effects_",
    "col_effects_",
    "left_",
    "right_",
    "row_counts_",
    "col_counts_",
    "entry_starts_",
    "entry_cols_",
    "factor_norms_",
    "col_components_",
    "component_factors_",
)
_IN_FORMAT_1 = {
    "entry_starts_": "seen_starts_",
    "entry_cols_": "seen_cols_",
    "factor_norms_": "strengths_",
    "col_components_": "col_directions_",
    "component_factors_": "from_directions_",
    "similarity_": "alike_",
    "similarity": "alike",
    "n_similarity_components": "directions",
}
"""What a name was called in files of format 1."""
_NUMBERS = ("radius_", "similarity_", "rank_", "mean_", "range_", "path_", "n_steps_", "multiplier_")
_SINCE_3 = {"choices_": {"taken": "shrunk"}, "share_": 0.0, "ridges_": (5.0, 5.0), "weighted_": True}
"""Numbers that older files do not have, and what they mean there."""
_PARTS: dict[str, Any] = {"shrunk_": Shrunk, "new_rows_": NewRows}
"""Tuples of arrays, each array in the file by the name of both."""


def save(model: Any, path: str | Path, row_ids: Any = None, col_ids: Any = None) -> Path:
    """Write a model whole or not at all."""
    parameters = {name: value for name, value in model.get_params().items() if _plain(value) and name != "checkpoint"}
    header = {"format": _FORMAT, "kind": "bilevax matrix completion", "parameters": parameters}
    header |= {name: getattr(model, name) for name in (*_NUMBERS, *_SINCE_3)}
    arrays = {name: getattr(model, name) for name in _ARRAYS}
    if model.share_ > 0:
        for part, kind in _PARTS.items():
            arrays |= {part + name: np.asarray(getattr(getattr(model, part), name)) for name in kind._fields}
    arrays["row_ids"] = np.arange(len(model.left_)) if row_ids is None else np.asarray(row_ids)
    arrays["col_ids"] = np.arange(len(model.right_)) if col_ids is None else np.asarray(col_ids)
    for name, count in (("row_ids", len(model.left_)), ("col_ids", len(model.right_))):
        if arrays[name].shape != (count,):
            raise ValueError(f"save: {name} has shape {arrays[name].shape}; give a name for each of the {count}.")
        if arrays[name].dtype.kind == "O":
            arrays[name] = arrays[name].astype(str)
    arrays = {name: _compact(array) for name, array in arrays.items()}
    words = np.array(json.dumps(header))
    return write_atomic(path, lambda stream: np.savez_compressed(stream, header=words, **arrays), "wb")


def _compact(array: np.ndarray) -> np.ndarray:
    """Half the bytes where that changes no prediction by more than a rounding of single precision."""
    if array.dtype == np.float64 and array.ndim and np.all(np.abs(array) < np.finfo(np.float32).max):
        return array.astype(np.float32)
    fits = array.dtype == np.int64 and array.size and abs(int(array.max())) < 2**31 > abs(int(array.min()))
    return array.astype(np.int32) if fits else array


def _plain(value: Any) -> bool:
    return value is None or isinstance(value, (bool, int, float, str))


def load(path: str | Path) -> tuple[Any, np.ndarray, np.ndarray]:
    """A saved model with the names of its rows and columns.

    Files of others are read with suspicion: no pickle, no size that the file does not prove, and parts that do not fit
    together are refused with a ValueError.
    """
    path = Path(path)
    refused = f"{path} is not a model written by bilevax"
    try:
        with zips.opened(path) as archive:
            header = _header(archive)
            called = _IN_FORMAT_1 if header["format"] == 1 else {}
            names = [*_ARRAYS, "row_ids", "col_ids"]
            if header.get("share_", 0) > 0:
                names += [part + name for part, kind in _PARTS.items() for name in kind._fields]
            found = zips.read_arrays(archive, [called.get(name, name) for name in names])
        arrays = {name: found[called.get(name, name)] for name in names}
        check_finite(arrays)
        arrays = {name: array.astype(float) if array.dtype == np.float32 else array for name, array in arrays.items()}
        numbers = {name: header[called.get(name, name)] for name in _NUMBERS}
        numbers |= {name: header.get(name, value) for name, value in _SINCE_3.items()}
        check_numbers({**numbers, "parameters": header["parameters"]})
        check_arrays(arrays, numbers["share_"])
        model = _model(header["parameters"], called, numbers, arrays)
        describe(model)  # choices that cannot be put into words are not ours
    except _NewerFormat as error:
        raise ValueError(f"{path} has format {error}; this bilevax reads up to {_FORMAT}. Update bilevax.") from None
    except UNEXPECTED as error:
        raise ValueError(f"{refused}, or it is damaged: {zips.words(error)}.") from error
    return model, arrays["row_ids"], arrays["col_ids"]


class _NewerFormat(Exception):
    """The format of a file that a later version wrote."""


def _header(archive: zipfile.ZipFile) -> dict[str, Any]:
    if archive.getinfo("header.npy").file_size > _MOST_HEADER:
        raise ValueError(f"its header has more than {_MOST_HEADER} bytes")
    header = json.loads(str(zips.read_arrays(archive, ["header"])["header"]))
    if not isinstance(header, dict) or header.get("kind") != "bilevax matrix completion":
        raise ValueError("its header is not that of a model")
    if not isinstance(header["format"], int):
        raise ValueError("its format is not a number")
    if header["format"] > _FORMAT:
        raise _NewerFormat(header["format"])
    return header


def _model(parameters: dict[str, Any], called: dict[str, str], numbers: dict[str, Any], arrays: dict[str, Any]) -> Any:
    from bilevax.estimators.matrix_completion.estimator import MatrixCompletion

    renamed = {old: new for new, old in called.items()}
    if not all(_plain(value) for value in parameters.values()):
        raise ValueError("a parameter is neither a number nor text")
    model = MatrixCompletion(**{renamed.get(name, name): value for name, value in parameters.items()})
    for name, value in numbers.items():
        setattr(model, name, value)
    model.range_ = (model.range_[0], model.range_[1])
    model.weighted_ &= model.weighted is not False  # older files have only the parameter
    for name in _ARRAYS:
        setattr(model, name, arrays[name])
    model.new_rows_ = None
    model.shrunk_ = Shrunk(model.mean_, model.left_, model.right_, model.row_effects_, model.col_effects_)
    if model.share_ > 0:
        for part, kind in _PARTS.items():
            found = {name: arrays[part + name] for name in kind._fields}
            setattr(model, part, kind(**found | {"mean": float(found["mean"])}))
    return model
