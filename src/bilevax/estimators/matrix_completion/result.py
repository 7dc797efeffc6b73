"""What a fitted `MatrixCompletion` keeps: arrays and numbers, made from the parts that were learned."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from bilevax.estimators.matrix_completion.factors import Factors
from bilevax.estimators.matrix_completion.learning import Learned
from bilevax.estimators.matrix_completion.new_rows import NewRows, Shrunk
from bilevax.estimators.matrix_completion.similarity import PatternFeatures

if TYPE_CHECKING:
    from bilevax.estimators.matrix_completion.fit import CompletionFit


def attributes_of(learned: Learned) -> dict[str, Any]:
    """The attributes of a fitted model by their names."""
    entries, values = learned.entries, learned.entries.values
    starts, cols, col_counts = _places(learned)
    found: dict[str, Any] = {
        "radius_": learned.radius,
        "similarity_": learned.norm.strength,
        "weighted_": learned.norm.weighted,
        "status_": learned.stop.status.name,
        "message_": learned.stop.message,
        "path_": learned.path,
        "trace_": learned.trace,
        "n_steps_": max(len(learned.trace) - 1, 0),
        "range_": (float(values.min()), float(values.max())) if learned.options.clip else (-np.inf, np.inf),
        "entry_starts_": starts,
        "entry_cols_": cols,
        "row_counts_": np.diff(starts),
        "col_counts_": col_counts,
        "ridges_": learned.options.ridges,
        "share_": 0.0,
        "new_rows_": None,
    }
    best = min((row["rmse"] for row in learned.path), default=np.nan)
    found["choices_"] = {"taken": "shrunk"} if learned.refit is None else learned.refit.table(best)
    found |= _of_ball(learned.fit, learned.radius) if learned.fit is not None else _without_ball(entries.shape)
    if learned.factors is not None and learned.refit is not None:
        found |= _mixed(found["shrunk_"], learned.refit.blend.share, *learned.factors)
    found["rank_"] = int(found["left_"].shape[1])
    return found


def _places(learned: Learned) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Where the entries of each row start, their columns, and how many entries each column has."""
    if learned.factors is not None:  # they have sorted the entries
        by_row, by_col = learned.factors[0].observed.by_row, learned.factors[0].observed.by_col
        return np.append(by_row.starts, by_row.ends[-1:]).astype(int), by_row.index, by_col.ends - by_col.starts
    entries, (p, q) = learned.entries, learned.entries.shape
    starts = np.concatenate([[0], np.cumsum(np.bincount(entries.rows, minlength=p))])
    # A copy: the entries may be the user's own arrays.
    return starts, entries.cols.astype(np.int32), np.bincount(entries.cols, minlength=q)


def _model(shrunk: Shrunk) -> dict[str, Any]:
    names = ("mean_", "left_", "right_", "row_effects_", "col_effects_")
    return dict(zip(names, shrunk, strict=True)) | {"shrunk_": shrunk}


def _without_ball(shape: tuple[int, int]) -> dict[str, Any]:
    p, q = shape
    nothing = Shrunk(0.0, np.zeros((p, 0)), np.zeros((q, 0)), np.zeros(p), np.zeros(q))
    none = {"factor_norms_": np.zeros(0), "col_components_": np.zeros((q, 0)), "component_factors_": np.zeros((0, 0))}
    return _model(nothing) | none | {"multiplier_": 0.0}


def _of_ball(fit: CompletionFit, radius: float) -> dict[str, Any]:
    """The shrunk matrix, and what a new row needs to be placed by the columns it has entries in."""
    effects, x = fit.effects, fit.state.x
    assert effects is not None
    left, right = (np.asarray(factor, float) for factor in x.factors())
    by_row, by_col = (np.asarray(part, float) for part in (effects.rows, effects.cols))
    found = _model(Shrunk(fit.mean, left, right, by_row, by_col))
    # The multiplier of the ball: at the solution <F, x> = -multiplier * radius.
    slope = float(np.dot(np.asarray(fit.state.lower.F), np.asarray(x.values))) * fit.count / 2
    rows, similarity = fit.weights[0], fit.similarity
    unweighted = rows.solve(left)
    components, factors = np.zeros((len(right), 0)), np.zeros((0, left.shape[1]))
    if similarity is not None and rows.strengths is not None:
        components = similarity.cols / similarity.values
        factors = rows.strengths[:, None] * (similarity.rows.T @ unweighted)
    return found | {
        "multiplier_": max(-slope / radius, 0.0) if radius > 0 else 0.0,
        "factor_norms_": np.linalg.norm(unweighted, axis=0),
        "col_components_": components,
        "component_factors_": factors,
    }


def _mixed(shrunk: Shrunk, share: float, factors: Factors, features: PatternFeatures | None) -> dict[str, Any]:
    """The factors with this share beside the shrunk matrix, in one model."""
    mean, rows, cols = factors.in_units()
    rest = 1 - share
    left, right = (shrunk.left, shrunk.right) if rest > 0 else (shrunk.left[:, :0], shrunk.right[:, :0])
    return {
        "share_": share,
        "new_rows_": NewRows.of(factors, features),
        "mean_": rest * shrunk.mean + share * mean,
        "row_effects_": rest * shrunk.row_effects + share * rows[:, -1],
        "col_effects_": rest * shrunk.col_effects + share * cols[:, -1],
        "left_": np.hstack([rest * left, share * rows[:, :-1]]),
        "right_": np.hstack([right, cols[:, :-1]]),
    }
