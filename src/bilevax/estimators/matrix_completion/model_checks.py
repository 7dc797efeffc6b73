"""Whether the parts of a model file fit together, so that a model that was read does not fail later or read amiss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from bilevax.estimators.model_file import check_shapes, is_number

# The sizes of each array, by letters: p rows, q columns, k columns of left_ and right_, n entries.
_SHAPES = {
    "row_effects_": "p",
    "col_effects_": "q",
    "left_": "pk",
    "right_": "qk",
    "row_counts_": "p",
    "col_counts_": "q",
    "entry_starts_": "s",
    "entry_cols_": "n",
    "factor_norms_": "r",
    "col_components_": "qc",
    "component_factors_": "cr",
    "row_ids": "p",
    "col_ids": "q",
    "shrunk_mean": "",
    "shrunk_left": "pr",
    "shrunk_right": "qr",
    "shrunk_row_effects": "p",
    "shrunk_col_effects": "q",
    "new_rows_mean": "",
    "new_rows_cols": "qf",
    "new_rows_ridge": "f",
    "new_rows_slopes": "gf",
    "new_rows_scales": "e",
    "new_rows_counts": "2",
    "new_rows_components": "qe",
}
_WHOLE = ("row_counts_", "col_counts_", "entry_starts_", "entry_cols_")
_NAMES = ("row_ids", "col_ids")


def check_arrays(arrays: Mapping[str, np.ndarray], share: float) -> None:
    """A ValueError says which array does not fit."""
    slopes = arrays.get("new_rows_slopes", np.zeros((1, 1)))
    fitting = {name: array for name, array in arrays.items() if len(slopes) or array is not slopes}
    sizes = check_shapes(fitting, _SHAPES, dict.fromkeys(_WHOLE, "iu") | dict.fromkeys(_NAMES, "biufSU"))
    if slopes.ndim != 2 or slopes.dtype.kind not in "iuf":  # without features, it has no rows to multiply
        raise ValueError(f"new_rows_slopes holds {slopes.dtype}{slopes.shape}")
    starts, cols = arrays["entry_starts_"], arrays["entry_cols_"]
    rows, columns, features = sizes["p"], sizes["q"], sizes.get("e", 0) + 2
    if sizes["s"] != rows + 1 or starts[0] != 0 or starts[-1] != len(cols) or np.any(starts[1:] < starts[:-1]):
        raise ValueError("entry_starts_ does not say where the entries of each row begin")
    if cols.size and (cols.min() < 0 or cols.max() >= columns):
        raise ValueError("entry_cols_ names columns that the model does not have")
    placed = (sizes["r"] if share < 1 else 0) + (sizes["f"] - 1 if share > 0 else 0)
    if placed != sizes["k"] or sizes.get("g", 0) not in (0, features):
        raise ValueError("the factors of new rows are not those of the model")


def check_numbers(header: Mapping[str, Any]) -> None:
    """A ValueError says which number is none."""
    for name in ("radius_", "similarity_", "rank_", "mean_", "n_steps_", "multiplier_", "share_"):
        if not is_number(header[name]):
            raise ValueError(f"{name} is {str(header[name])[:60]!r}")
    for name in ("range_", "ridges_"):
        pair = header[name]
        if not (isinstance(pair, (list, tuple)) and len(pair) == 2 and all(map(is_number, pair))):
            raise ValueError(f"{name} is {str(pair)[:60]!r}")
    if not 0 <= header["share_"] <= 1 or not header["range_"][0] <= header["range_"][1]:
        raise ValueError("share_ or range_ is out of range")
    for name, kind in (("path_", list), ("choices_", dict), ("weighted_", bool), ("parameters", dict)):
        if not isinstance(header[name], kind):
            raise ValueError(f"{name} is {str(header[name])[:60]!r}")
