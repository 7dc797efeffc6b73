"""A fitted completion on disk, in the form of `bilevax.estimators.model_file`, and the names of older formats."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from bilevax.estimators.matrix_completion.model_checks import check_arrays, check_numbers
from bilevax.estimators.matrix_completion.new_rows import NewRows, Shrunk
from bilevax.estimators.matrix_completion.summary import describe
from bilevax.estimators.model_file import StoredModel, plain_parameters, write

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


class CompletionFormat:
    """What a file of a `MatrixCompletion` holds."""

    kind = "bilevax matrix completion"
    newest = 3

    def read(self, stored: StoredModel) -> tuple[Any, np.ndarray, np.ndarray]:
        """The model, the names of its rows and those of its columns."""
        header = stored.header
        called = _IN_FORMAT_1 if header["format"] == 1 else {}
        names, ids = list(_ARRAYS), ["row_ids", "col_ids"]
        if header.get("share_", 0) > 0:
            names += [part + name for part, kind in _PARTS.items() for name in kind._fields]
        found = stored.arrays([called.get(name, name) for name in names], ids)
        arrays = {name: found[called.get(name, name)] for name in (*names, *ids)}
        numbers = {name: header[called.get(name, name)] for name in _NUMBERS}
        numbers |= {name: header.get(name, value) for name, value in _SINCE_3.items()}
        check_numbers({**numbers, "parameters": header["parameters"]})
        check_arrays(arrays, numbers["share_"])
        model = _model(header["parameters"], called, numbers, arrays)
        describe(model)  # choices that cannot be put into words are not ours
        return model, arrays["row_ids"], arrays["col_ids"]


FORMAT = CompletionFormat()


def save(model: Any, path: str | Path, row_ids: Any = None, col_ids: Any = None) -> Path:
    """Write a model whole or not at all."""
    header = {name: getattr(model, name) for name in (*_NUMBERS, *_SINCE_3)}
    arrays = {name: getattr(model, name) for name in _ARRAYS}
    if model.share_ > 0:
        for part, kind in _PARTS.items():
            arrays |= {part + name: np.asarray(getattr(getattr(model, part), name)) for name in kind._fields}
    arrays["row_ids"] = np.arange(len(model.left_)) if row_ids is None else np.asarray(row_ids)
    arrays["col_ids"] = np.arange(len(model.right_)) if col_ids is None else np.asarray(col_ids)
    for name, count in (("row_ids", len(model.left_)), ("col_ids", len(model.right_))):
        if arrays[name].shape != (count,):
            raise ValueError(f"save: {name} has shape {arrays[name].shape}; give a name for each of the {count}.")
    return write(path, FORMAT, model, header, arrays)


def _model(parameters: dict[str, Any], called: dict[str, str], numbers: dict[str, Any], arrays: dict[str, Any]) -> Any:
    from bilevax.estimators.matrix_completion.estimator import MatrixCompletion

    renamed = {old: new for new, old in called.items()}
    given = plain_parameters(parameters)
    model = MatrixCompletion(**{renamed.get(name, name): value for name, value in given.items()})
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
