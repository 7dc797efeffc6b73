"""Numbers whose squares overflow or vanish are refused before a fit begins."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse

_LARGEST, _SMALLEST = 1e150, 1e-150
_ADVICE = "choose another unit"


def check_features(owner: str, X: Any) -> None:
    """Refuse columns with numbers that are too large; X may be sparse or hold NaN."""
    values = X.data if scipy.sparse.issparse(X) else X
    if not float(np.nanmax(np.abs(values), initial=0.0)) > _LARGEST:
        return
    if scipy.sparse.issparse(X):
        column = int(X.tocoo().col[np.argmax(np.abs(X.data))])
    else:
        column = int(np.nanargmax(np.nanmax(np.abs(X), axis=0)))
    raise ValueError(
        f"{owner}: X has numbers above {_LARGEST:g} in column {column}, whose squares overflow; {_ADVICE}."
    )


def check_target(owner: str, y: np.ndarray) -> None:
    """Refuse numbers that are too large, or that differ by too little; other targets are left alone."""
    if y.dtype.kind not in "iuf":
        return
    y = y.astype(float)  # the limits are no numbers of single precision
    if np.max(np.abs(y), initial=0.0) > _LARGEST:
        raise ValueError(f"{owner}: y has numbers above {_LARGEST:g}, whose squares overflow; {_ADVICE}.")
    if 0 < np.ptp(y) < _SMALLEST:
        raise ValueError(f"{owner}: the numbers in y differ by less than {_SMALLEST:g}, whose square is 0; {_ADVICE}.")
