"""The references of `completion_families.py`: other ways to complete a matrix, tuned or with knowledge of the truth.

Every reference takes an `Instance` and returns a completed matrix with the settings it used. Tuned references choose
their settings on a random tenth of the observed entries and then fit all of them. Needs cmfrec.
"""

from contextlib import nullcontext
from itertools import product
from typing import NamedTuple
from unittest import mock

import numpy as np
from cmfrec import CMF
from scipy.sparse import coo_matrix

from bilevax.estimators import effects_only

RIDGES, SWEEPS = 9, 60
THRESHOLDS, SMALLEST_THRESHOLD, WORSE_IN_A_ROW = 20, 1e-3, 2
CMFREC_GRID = {"k": [2, 3, 5, 10, 15, 20], "penalty": [0.01, 0.05, 0.25, 1.0, 4.0, 16.0], "biases": [False, True]}
FIRST_PENALTIES, WHOLE_GRID_UP_TO = (0.05, 1.0), 60_000
"""With more entries, cmfrec is tuned by a search that begins with these penalties, and not on the whole grid."""


class Instance(NamedTuple):
    """A matrix to complete: its noiseless truth, and noisy values that are known only where `observed` is true."""

    truth: np.ndarray
    values: np.ndarray
    observed: np.ndarray
    rank: int
    noise: float
    """The standard deviation of the noise."""
    outlying: np.ndarray
    """The observed entries that are outliers."""

    def entries(self):
        """Rows, columns and values of the observed entries."""
        rows, cols = np.nonzero(self.observed)
        return rows, cols, self.values[rows, cols]

    def filled(self):
        """The values, with zeros where none is observed."""
        return np.where(self.observed, self.values, 0.0)

    def split(self):
        """The instance without a random tenth of its observed entries, and the mask of that tenth."""
        held = self.observed & (np.random.default_rng(1).random(self.observed.shape) < 0.1)
        return self._replace(observed=self.observed & ~held), held

    def error(self, completed):
        """The RMSE on the unobserved entries, against the truth."""
        return rmse(completed, self.truth, ~self.observed)


def rmse(completed, values, where):
    """The root mean square error on some entries."""
    return float(np.sqrt(np.mean((completed[where] - values[where]) ** 2)))


def effects_alone(made):
    """The mean, and a number for each row and column, by ridge regression with ridge 5."""
    rows, cols = np.indices(made.observed.shape)
    completed = effects_only(*made.entries(), ridge=5.0).predict(rows.ravel(), cols.ravel())
    return completed.reshape(made.observed.shape), {"ridge": 5.0}


def ridge_als(made):
    """Alternating ridge regressions at the true rank; the ridge with the smallest error on the truth is taken.

    The path begins at half the last singular value that the start keeps, since larger ridges remove components. It ends
    at a tenth of the ridge that corresponds to the distribution of the true factors.
    """
    filled, mask = made.filled(), made.observed.astype(float)
    u, s, v = np.linalg.svd(filled, full_matrices=False)
    scale = np.sqrt(s[: made.rank])
    left, right = u[:, : made.rank] * scale, v[: made.rank].T * scale
    largest, smallest = 0.5 * s[made.rank - 1], max(0.1 * made.rank**0.5 * made.noise**2, 1e-7)
    best = None, np.inf, {}
    for ridge in np.geomspace(largest, smallest, RIDGES):
        for _ in range(SWEEPS):
            before = left
            left = _ridge_regressions(mask, filled, right, ridge)
            right = _ridge_regressions(mask.T, filled.T, left, ridge)
            if np.linalg.norm(left - before) < 1e-4 * np.linalg.norm(left):
                break
        completed = left @ right.T
        if made.error(completed) < best[1]:
            best = completed, made.error(completed), {"ridge": float(ridge)}
    return best[0], best[2]


def _ridge_regressions(mask, filled, right, ridge):
    """The best factors of all rows, given those of the columns."""
    rank = right.shape[1]
    a, b = np.triu_indices(rank)
    grams = np.empty((len(mask), rank, rank))
    grams[:, a, b] = grams[:, b, a] = mask @ (right[:, a] * right[:, b])
    grams[:, range(rank), range(rank)] += ridge
    return np.linalg.solve(grams, (filled @ right)[..., None])[..., 0]


def soft_impute(made):
    """Nuclear-norm regularization: a warm-started path of thresholds, one of them chosen on held-out entries."""
    train, held = made.split()
    top = np.linalg.norm(made.filled(), 2)
    thresholds = top * np.geomspace(1.0, SMALLEST_THRESHOLD, THRESHOLDS)
    errors = []
    for completed in _soft_impute_path(train, thresholds):
        errors.append(rmse(completed, made.values, held))
        if len(errors) - 1 - np.argmin(errors) >= WORSE_IN_A_ROW:
            break
    chosen = int(np.argmin(errors))
    for completed in _soft_impute_path(made, thresholds[: chosen + 1]):  # noqa: B007
        pass
    return completed, {"threshold": float(thresholds[chosen]), "place": chosen}


def _soft_impute_path(made, thresholds, steps=100, tol=1e-4):
    """Accelerated proximal gradient steps at each threshold, with a restart where the momentum points uphill."""
    filled, missing = made.filled(), ~made.observed
    x, basis = np.zeros_like(filled), np.zeros((filled.shape[1], 0))
    for threshold in thresholds:
        ahead, momentum = x, 1.0
        for _ in range(steps):
            before = x
            x, basis = _shrink(filled + missing * ahead, threshold, basis)
            change = x - before
            if np.vdot(ahead - x, change) > 0:
                momentum = 1.0
            grown = (1 + np.sqrt(1 + 4 * momentum**2)) / 2
            ahead, momentum = x + (momentum - 1) / grown * change, grown
            if np.linalg.norm(change) <= tol * np.linalg.norm(x):
                break
        yield x


def _shrink(matrix, threshold, basis, spare=8):
    """Subtract the threshold from the singular values; also return right singular vectors, for the next call.

    Large matrices get two steps of subspace iteration, which starts from the given vectors and a few random ones.
    """
    while True:
        width = basis.shape[1] + spare
        if 3 * width > min(matrix.shape):
            u, s, v = np.linalg.svd(matrix, full_matrices=False)
        else:
            random = np.random.default_rng(0).standard_normal((matrix.shape[1], spare))
            q = np.linalg.qr(matrix @ np.hstack([basis, random]))[0]
            q = np.linalg.qr(matrix @ (matrix.T @ q))[0]
            w, s, v = np.linalg.svd(q.T @ matrix, full_matrices=False)
            u = q @ w
        rank = int(np.sum(s > threshold))
        if rank < len(s) or len(s) == min(matrix.shape):
            return (u[:, :rank] * (s[:rank] - threshold)) @ v[:rank], v[:rank].T
        basis = v.T


def cmfrec(made):
    """Alternating least squares of cmfrec; held-out entries choose its size, its penalty, and whether it has biases.

    Penalties are in units of the standard deviation of the observed values. With few entries, every setting in the
    grid is tried. Otherwise all sizes are tried with two penalties and without biases; from the best of these, a search
    changes one setting at a time to the next value in the grid, until no such change lowers the error.
    """
    train, held = made.split()
    tried = {}

    def score(setting):
        if setting not in tried:
            error = rmse(_fit_cmfrec(train, *setting), made.values, held)
            tried[setting] = error if np.isfinite(error) else np.inf  # a comparison with NaN would never end the search
        return tried[setting]

    sizes, penalties, biases = CMFREC_GRID.values()
    if np.sum(made.observed) <= WHOLE_GRID_UP_TO:
        best = min(product(sizes, penalties, biases), key=score)
    else:
        best = _search(score, min(product(sizes, FIRST_PENALTIES, [False]), key=score))
    setting = dict(zip(CMFREC_GRID, best, strict=True))
    return _fit_cmfrec(made, *best), {**setting, "tried": len(tried)}


def _search(score, best):
    """Change one setting at a time to the next value in the grid, until no such change lowers the score."""
    moved = True
    while moved:
        moved = False
        for part, values in enumerate(CMFREC_GRID.values()):
            for direction in (1, -1):
                at = values.index(best[part]) + direction
                while 0 <= at < len(values):
                    other = (*best[:part], values[at], *best[part + 1 :])
                    if score(other) >= score(best):
                        break
                    best, moved, at = other, True, at + direction
    return best


def _fit_cmfrec(made, k, penalty, biases):
    rows, cols, values = made.entries()
    model = CMF(
        k=k,
        lambda_=penalty * float(values.std()),
        user_bias=biases,
        item_bias=biases,
        use_cg=False,
        use_float=False,  # without noise, single precision fails at small penalties
        niter=20,
        precompute_for_predictions=False,
        random_state=1,
        verbose=False,
        nthreads=1,
    )
    # At every iteration cmfrec asks threadpoolctl for the threads of all libraries, which takes longer than the rest.
    quiet = {"threadpool_limits": lambda **_: nullcontext(), "threadpool_info": list}
    with mock.patch.multiple("threadpoolctl", **quiet):
        model.fit(coo_matrix((values, (rows, cols)), made.observed.shape))
    completed = model.glob_mean_ + model.A_ @ model.B_.T
    return completed + model.user_bias_[:, None] + model.item_bias_ if biases else completed
