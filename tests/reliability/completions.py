"""Fits of a small matrix that are killed and continued."""

from functools import cache

import numpy as np

from bilevax.estimators import MatrixCompletion

P, Q = 60, 40


def _matrix():
    rng = np.random.default_rng(4)
    left = rng.standard_normal((P, 10)) * np.exp(-np.arange(10) / 4)
    M = 0.5 * left @ rng.standard_normal((10, Q)) + rng.standard_normal((P, 1)) + 0.5 * rng.standard_normal((P, Q))
    return np.where(rng.random((P, Q)) < 0.5, M, np.nan)


X = _matrix()
JOBS = {
    "both": {"max_steps": 6},  # factors, averages over the posterior, and a ball
    "ball": {"refit": False, "max_steps": 12, "similarity": "auto"},
    "factors": {"effort": "fast", "max_rank": 3},
}


@cache
def uninterrupted(name):
    """The fit that nobody disturbs, without a checkpoint."""
    return MatrixCompletion(**JOBS[name]).fit(X)


def same(a, b):
    """Whether two models agree in every bit, time apart."""
    for name in ("left_", "right_", "row_effects_", "col_effects_", "entry_cols_", "col_counts_", "factor_norms_"):
        one, other = getattr(a, name), getattr(b, name)
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other, err_msg=name)
    for name in ("mean_", "radius_", "rank_", "similarity_", "weighted_", "n_steps_", "status_", "message_", "range_"):
        assert getattr(a, name) == getattr(b, name), name
    np.testing.assert_equal(a.choices_, b.choices_)
    np.testing.assert_equal(_without_seconds(a.path_), _without_seconds(b.path_))
    assert a.trace_.columns == b.trace_.columns
    np.testing.assert_equal(_without_seconds(a.trace_), _without_seconds(b.trace_))
    np.testing.assert_array_equal(a.complete(), b.complete())
    np.testing.assert_array_equal(a.complete(X[:3]), b.complete(X[:3]))
    return True


def _without_seconds(rows):
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]
