"""What the user chose of a matrix completion, checked and put into one value."""

from __future__ import annotations

import warnings
from copy import copy
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np

_COUNT_EXPONENT, _COUNT_SMOOTHING = 0.25, 10.0  # of the weighted norm, chosen on MovieLens (docs/completion.md)
_EVEN = 0.1  # weights that differ by less than this, in logarithms, change next to nothing

_RENAMED = {"alike": "similarity", "directions": "n_similarity_components"}


class Effort(NamedTuple):
    """How much is tried."""

    most_radii: int
    """Of the path; 0 leaves the shrunk matrix out where factors are fitted."""
    most_factors: int
    most_entries: float
    """For which a shrunk matrix is tried beside the factors."""


EFFORTS = {
    "fast": Effort(0, 20, 0),
    "default": Effort(20, 40, 2e6),
    "best": Effort(20, 100, np.inf),
}


class Norm(NamedTuple):
    """The norm of the ball."""

    strength: float
    """Of the similarity of rows and columns with entries in the same places; 0 ignores it."""
    weighted: bool
    """Whether rows and columns are weighted by a power of their counts."""


class Options(NamedTuple):
    """The model and how it is fitted; attributes not explained here are parameters of `MatrixCompletion`."""

    radius: float | None
    """None if held-out entries choose it."""
    similarity: float | None
    """None if held-out entries choose it."""
    weighted: bool | None
    """None if held-out entries choose."""
    max_rank: int | None
    n_similarity_components: int
    effects: bool
    ridges: tuple[float, float] | None
    """Of the effects of rows and of columns; None if they are estimated."""
    lower: dict[str, Any]
    """Of the completion problem (`bx.problems.sparse_completion`)."""
    refit: bool
    effort: Effort
    clip: bool | None
    """None if the values decide."""
    validation_fraction: float
    random_state: Any
    max_steps: int
    tol: float
    time_limit: float | None
    dtype: str
    verbose: bool

    @property
    def outlier(self) -> float | None:
        """The distance beyond which the lower level gives a value less weight."""
        return self.lower.get("outlier")

    @property
    def most_factors(self) -> int:
        """The most factors of a fit without a shrunk matrix."""
        return min(self.effort.most_factors, self.max_rank or self.effort.most_factors)


def options_of(estimator: Any) -> Options:
    """The parameters of an estimator as options; a wrong one is refused by name."""
    estimator = _with_new_names(estimator)
    if estimator.effort not in EFFORTS:
        words = ", ".join(map(repr, EFFORTS))
        raise ValueError(f"MatrixCompletion: effort must be one of {words}, got {estimator.effort!r}.")
    for name in ("clip", "weighted"):
        value = getattr(estimator, name)
        if isinstance(value, str) and value != "auto":
            raise ValueError(f"MatrixCompletion: {name} must be True, False or 'auto', got {value!r}.")
    for name in ("radius", "similarity", "ridge"):
        value = getattr(estimator, name)
        if not isinstance(value, str):
            _check_number(estimator, name, 0, above=name == "radius")
        elif value != "auto":
            raise ValueError(f"MatrixCompletion: {name} must be a number or 'auto', got {value!r}.")
    _check_number(estimator, "validation_fraction", 0, above=True, most=0.5)
    _check_number(estimator, "n_similarity_components", 0, whole=True)
    if estimator.max_rank is not None:
        _check_number(estimator, "max_rank", 1, whole=True)
    _check_number(estimator, "denoise", 0)
    for name in ("coupling", "delta", "tol"):
        _check_number(estimator, name, 0, above=True)
    _check_number(estimator, "max_steps", 1, whole=True)
    for name in ("outlier", "time_limit"):
        if getattr(estimator, name) is not None:
            _check_number(estimator, name, 0, above=True)
    if estimator.dtype not in ("float32", "float64"):
        raise ValueError(f"MatrixCompletion: dtype must be 'float32' or 'float64', got {estimator.dtype!r}.")
    return Options(
        radius=None if isinstance(estimator.radius, str) else float(estimator.radius),
        similarity=None if isinstance(estimator.similarity, str) else float(estimator.similarity),
        weighted=None if isinstance(estimator.weighted, str) else bool(estimator.weighted),
        max_rank=None if estimator.max_rank is None else int(estimator.max_rank),
        n_similarity_components=int(estimator.n_similarity_components),
        effects=bool(estimator.effects),
        ridges=None if isinstance(estimator.ridge, str) else (float(estimator.ridge), float(estimator.ridge)),
        lower=_lower_level(estimator),
        refit=bool(estimator.refit)
        and isinstance(estimator.radius, str)
        and not estimator.outlier
        and not estimator.denoise,
        effort=EFFORTS[estimator.effort],
        clip=None if isinstance(estimator.clip, str) else bool(estimator.clip),
        validation_fraction=float(estimator.validation_fraction),
        random_state=estimator.random_state,
        max_steps=int(estimator.max_steps),
        tol=float(estimator.tol),
        time_limit=None if estimator.time_limit is None else float(estimator.time_limit),
        dtype=estimator.dtype,
        verbose=bool(estimator.verbose),
    )


def _with_new_names(estimator: Any) -> Any:
    """The estimator, or a copy in which parameters given by their old names have the new ones."""
    given = {old: getattr(estimator, old) for old in _RENAMED if getattr(estimator, old) != "deprecated"}
    if given:
        estimator = copy(estimator)
    for old, value in given.items():
        words = f"MatrixCompletion: {old} is now called {_RENAMED[old]}; the old name goes in version 0.3."
        warnings.warn(words, FutureWarning, stacklevel=4)
        setattr(estimator, _RENAMED[old], value)
    return estimator


def _lower_level(estimator: Any) -> dict[str, Any]:
    coupling = float(estimator.coupling)
    lower: dict[str, Any] = {"lambda1": float(estimator.denoise), "lambda2": coupling, "delta": float(estimator.delta)}
    if estimator.outlier is not None:
        lower |= {"data_loss": "pseudo-huber", "outlier": float(estimator.outlier), "lambda2": max(1.0, coupling)}
    return lower


def _check_number(
    estimator: Any, name: str, least: float, *, whole: bool = False, above: bool = False, most: float = np.inf
) -> None:
    value = getattr(estimator, name)
    kind = Integral if whole else Real
    fits = isinstance(value, kind) and not isinstance(value, (bool, np.bool_)) and least <= float(value) <= most
    if not fits or (above and value == least) or not np.isfinite(value):
        words = f"a {'whole ' if whole else ''}number {'above' if above else 'of at least'} {least:g}"
        limit = f" and at most {most:g}" if most < np.inf else ""
        raise ValueError(f"MatrixCompletion: {name} must be {words}{limit}, got {value!r}.")


def norm_weights(counts: Any, all_counts: np.ndarray) -> np.ndarray:
    """The weights in the norm of rows with these counts: a power, scaled to one in the geometric mean over entries."""
    logs = np.log(np.maximum(all_counts, 1) + _COUNT_SMOOTHING)
    centre = np.sum(all_counts * logs) / np.sum(all_counts)
    weights: np.ndarray = np.exp(_COUNT_EXPONENT * (np.log(np.maximum(counts, 1) + _COUNT_SMOOTHING) - centre))
    return weights


def weights_matter(counts: np.ndarray) -> bool:
    """Whether rows with these counts have weights that differ."""
    return bool(np.std(np.log(norm_weights(counts, counts))) > _EVEN)
