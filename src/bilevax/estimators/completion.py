"""Matrix completion for people with ratings: give the known entries, get the others."""

from __future__ import annotations

import sys
import time
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import jax
import numpy as np
import scipy.sparse
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from bilevax.estimators import entries as forms
from bilevax.estimators.course import Course, Options, damped, norm_weights
from bilevax.estimators.effects import at
from bilevax.estimators.entries import Entries
from bilevax.linalg.low_rank import one_blas_thread
from bilevax.linalg.sparse import sample

_GROWTH = 2.0  # from one radius of the path to the next
_LONGEST = 20  # radii of a path at most
_STRENGTHS = (0.0, 2.0)
_WORTH = 3e-4  # the relative gain from a larger radius for which the path goes on


class MatrixCompletion(BaseEstimator):  # type: ignore[misc]
    """Complete a matrix from some of its entries: mean, effects of rows and columns, and a matrix of low rank.

    The low-rank part minimises the upper level of the bilevel completion problem over a ball of the (weighted) trace
    norm, by `bx.BlockIBCG` on the observed entries; the effects are fitted jointly, by ridge regression.

    Args:
        radius: of the ball; "auto" follows a warm-started path of growing radii, takes the one that predicts held-out
            training entries best, and fits again on all entries.
        max_rank: of the low-rank part; None for as many as the radius asks for.
        weighted: weight rows and columns by a power of their counts (weighted trace norm).
        alike: how strongly rows with entries in the same places are taken to be alike, and columns too (who rates the
            same items has similar tastes); 0 ignores it, "auto" lets the held-out entries choose between 0 and 2.
        directions: how many directions of likeness are looked for.
        effects: fit effects of rows and columns.
        ridge: of the effects, in units of one observation.
        denoise: weight `lambda1` of the pseudo-Huber regularizer of the lower level; 0 leaves the values as they are.
        coupling: weight `lambda2` that ties the denoised values to the matrix; delta: scale of the pseudo-Huber loss.
        outlier: how far a value may be from the matrix before the lower level lets go of it; None trusts all values.
            Choose it above the noise and well below the outliers; `coupling` is then at least 1.
        clip: keep predictions within the range of the training values.
        validation_fraction: share of the entries held out along the path.
        max_steps: for each radius.
        tol: relative change of the training error at which a radius is done.
        dtype: "float32" or "float64", of the work; predictions are float64. Ratings need no more than the first.
        warm_start: begin the next `fit` where the last one ended, at its radius; new rows and columns may have come.
        random_state: of the entries held out.
        verbose: 1 prints a line for each radius on standard error.

    Attributes:
        radius_, alike_, rank_, n_steps_: what was used. path_: a dict for each radius tried.
        mean_, row_effects_, col_effects_, left_, right_: the model, `mean + r_i + c_j + left_i . right_j`.

    >>> import numpy as np
    >>> from bilevax.estimators import MatrixCompletion
    >>> X = np.array([[5.0, 4.0, np.nan, 1.0], [4.0, np.nan, 1.0, 1.0], [np.nan, 5.0, 2.0, 1.0], [1.0, 1.0, 5.0, 4.0]])
    >>> model = MatrixCompletion(radius=5.0).fit(X)
    >>> bool(model.predict([0], [2]) < model.predict([3], [2]))
    True
    """

    def __init__(
        self,
        radius: float | str = "auto",
        *,
        max_rank: int | None = 100,
        weighted: bool = True,
        alike: float | str = "auto",
        directions: int = 60,
        effects: bool = True,
        ridge: float = 5.0,
        denoise: float = 0.0,
        coupling: float = 0.05,
        delta: float = 0.9,
        outlier: float | None = None,
        clip: bool = True,
        validation_fraction: float = 0.1,
        max_steps: int = 30,
        tol: float = 1e-3,
        dtype: str = "float32",
        warm_start: bool = False,
        random_state: Any = 0,
        verbose: int = 0,
    ):
        self.radius = radius
        self.max_rank = max_rank
        self.weighted = weighted
        self.alike = alike
        self.directions = directions
        self.effects = effects
        self.ridge = ridge
        self.denoise = denoise
        self.coupling = coupling
        self.delta = delta
        self.outlier = outlier
        self.clip = clip
        self.validation_fraction = validation_fraction
        self.max_steps = max_steps
        self.tol = tol
        self.dtype = dtype
        self.warm_start = warm_start
        self.random_state = random_state
        self.verbose = verbose

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.sparse = True
        return tags

    def fit(self, X: Any, y: Any = None) -> MatrixCompletion:
        """Learn from the known entries.

        Args:
            X: a sparse matrix, whose stored entries are the known ones; an array with NaN where nothing is known; a
                triple `(rows, cols, values)`; or, with the values in `y`, a table of two columns, row and column.
        """
        self._check_options()
        entries = self._entries(X, y)
        began = time.perf_counter()
        with jax.enable_x64(self.dtype == "float64"), one_blas_thread():
            self._learn(entries)
        self.seconds_ = time.perf_counter() - began
        return self

    def _check_options(self) -> None:
        def number(name: str, least: float, *, whole: bool = False, above: bool = False, most: float = np.inf) -> None:
            value = getattr(self, name)
            kind = Integral if whole else Real
            fits = isinstance(value, kind) and not isinstance(value, (bool, np.bool_)) and least <= float(value) <= most
            if not fits or (above and value == least) or not np.isfinite(value):
                words = f"a {'whole ' if whole else ''}number {'above' if above else 'of at least'} {least:g}"
                limit = f" and at most {most:g}" if most < np.inf else ""
                raise ValueError(f"MatrixCompletion: {name} must be {words}{limit}, got {value!r}.")

        for name in ("radius", "alike"):
            if not isinstance(getattr(self, name), str):
                number(name, 0, above=name == "radius")
            elif getattr(self, name) != "auto":
                raise ValueError(f"MatrixCompletion: {name} must be a number or 'auto', got {getattr(self, name)!r}.")
        number("validation_fraction", 0, above=True, most=0.5)
        number("directions", 0, whole=True)
        if self.max_rank is not None:
            number("max_rank", 1, whole=True)
        for name in ("ridge", "denoise"):
            number(name, 0)
        for name in ("coupling", "delta", "tol"):
            number(name, 0, above=True)
        number("max_steps", 1, whole=True)
        if self.outlier is not None:
            number("outlier", 0, above=True)
        if self.dtype not in ("float32", "float64"):
            raise ValueError(f"MatrixCompletion: dtype must be 'float32' or 'float64', got {self.dtype!r}.")

    def _entries(self, X: Any, y: Any) -> Entries:
        if forms.is_triple(X):
            return self._remembered(forms.checked(*X))
        if forms.is_pairs(X, y):
            pairs = np.asarray(X)
            self.n_features_in_ = 2
            return self._remembered(forms.checked(pairs[:, 0], pairs[:, 1], np.asarray(y)))
        X = validate_data(
            self, X, accept_sparse="csr", ensure_all_finite="allow-nan", dtype=float, ensure_min_samples=2
        )
        return forms.of_matrix(X)

    def _remembered(self, entries: Entries) -> Entries:
        """With a warm start, a shape that has room for the rows and columns learned before."""
        if not (self.warm_start and hasattr(self, "left_")):
            return entries
        shape = (max(entries.shape[0], len(self.left_)), max(entries.shape[1], len(self.right_)))
        return entries._replace(shape=shape)

    def _options(self) -> Options:
        lower: dict[str, Any] = {"lambda1": float(self.denoise), "lambda2": float(self.coupling)}
        lower["delta"] = float(self.delta)
        if self.outlier is not None:
            robust = {"data_loss": "pseudo-huber", "outlier": float(self.outlier)}
            lower |= {**robust, "lambda2": max(1.0, lower["lambda2"])}
        return Options(
            max_rank=None if self.max_rank is None else int(self.max_rank),
            exponent=0.25 if self.weighted else 0.0,
            smoothing=10.0,
            effects=bool(self.effects),
            ridge=float(self.ridge),
            directions=int(self.directions),
            lower=lower,
        )

    def _learn(self, entries: Entries) -> None:
        course = Course(entries, self._options())
        again = self.warm_start and hasattr(self, "left_")
        if again:
            course.start_from(*self._resized(entries.shape))
        self.path_: list[dict[str, float]] = []
        radius, alike = self._chosen(course) if not again else (self.radius_, self.alike_)
        self.radius_: float = radius if isinstance(self.radius, str) else float(self.radius)
        self.alike_: float = alike if isinstance(self.alike, str) else float(self.alike)
        course.observe(np.ones(course.known.size), self.alike_)
        course.widen(self.radius_)
        steps = course.run(self.max_steps, self.tol)
        self._say(f"radius {self.radius_:.4g}: all {course.known.size} entries, rank {course.rank}, {steps} steps")
        self._keep(course, entries)

    def _chosen(self, course: Course) -> tuple[float, float]:
        """Radius and likeness that predict held-out entries best, along a path of growing radii."""
        n = course.known.size
        strengths = _STRENGTHS if isinstance(self.alike, str) else (float(self.alike),)
        if not isinstance(self.radius, str) and len(strengths) == 1:
            return float(self.radius), strengths[0]
        held = check_random_state(self.random_state).random(n) < self.validation_fraction
        if n < 20 or not held.any():
            return float(np.sqrt(n) * np.std(course.values)) or 1.0, 0.0  # too few entries to hold any out
        begun = {}
        for strength in strengths:
            course.state = None
            course.observe(~held, strength)
            spread = float(np.sqrt(np.mean(course.residual()[~held] ** 2)))
            first = 1.5 * max(float(np.sqrt(n)) * spread, 1e-6) / (1 + strength)
            row = self._tried(course, first if isinstance(self.radius, str) else float(self.radius), held)
            begun[strength] = (row, course.state.x)
        strength = min(begun, key=lambda one: begun[one][0]["rmse"])
        row, x = begun[strength]
        self.path_ = [row]
        if strength != strengths[-1]:
            course.observe(~held, strength, x)
        while isinstance(self.radius, str) and len(self.path_) < _LONGEST:
            if len(self.path_) > 1 and self.path_[-1]["rmse"] >= self.path_[-2]["rmse"] * (1 - _WORTH):
                break
            self.path_.append(self._tried(course, _GROWTH * self.path_[-1]["radius"], held))
        return _best_radius(self.path_), strength

    def _tried(self, course: Course, radius: float, held: np.ndarray) -> dict[str, float]:
        """A row of the path."""
        began = time.perf_counter()
        course.widen(radius)
        best = min((row["rmse"] for row in self.path_), default=np.inf)
        errors: list[float] = []

        def hopeless() -> bool:
            """Whether held-out entries were predicted better at another radius, and ever worse at this one."""
            errors.append(self._held_out_rmse(course, held))
            return len(errors) > 2 and errors[-1] > errors[-2] > errors[-3] > best

        steps = course.run(self.max_steps, self.tol, hopeless)
        rmse = errors[-1]
        seconds = time.perf_counter() - began
        likeness = "" if course.alike is None else " with likeness"
        self._say(f"radius {radius:.4g}{likeness}: held-out RMSE {rmse:.4f}, rank {course.rank}, {seconds:.1f} s")
        return {"radius": radius, "rmse": rmse, "rank": course.rank, "steps": steps, "seconds": seconds}

    def _held_out_rmse(self, course: Course, held: np.ndarray) -> float:
        residual, values = course.residual()[held], course.values[held]
        if self.clip:
            residual = np.clip(residual + values, course.values.min(), course.values.max()) - values
        return float(np.sqrt(np.mean(residual**2)))

    def _resized(self, shape: tuple[int, int]) -> tuple[np.ndarray, ...]:
        """The model of the last fit with zeros for new rows and columns."""

        def grown(array: np.ndarray, count: int) -> np.ndarray:
            return np.concatenate([array, np.zeros((count - len(array), *array.shape[1:]))])[:count]

        p, q = shape
        return (grown(self.left_, p), grown(self.right_, q), grown(self.row_effects_, p), grown(self.col_effects_, q))

    def _keep(self, course: Course, entries: Entries) -> None:
        x = course.state.x
        self.mean_, self.range_ = course.mean, (float(entries.values.min()), float(entries.values.max()))
        self.row_effects_, self.col_effects_ = (
            np.asarray(effects, float) for effects in (course.effects.rows, course.effects.cols)
        )
        self.left_, self.right_ = (np.asarray(factor, float) for factor in x.factors())
        self.rank_, self.n_steps_ = course.rank, course.steps
        self.row_counts_ = np.asarray(course.effects.row_counts)
        # The multiplier of the ball: at the solution <F, x> = -multiplier * radius.
        slope = float(np.dot(np.asarray(course.state.seen.F), np.asarray(x.values))) * course.count / 2
        self.multiplier_ = max(-slope / self.radius_, 0.0)
        self.seen_starts_, self.seen_cols_ = np.asarray(course.known.starts), np.asarray(course.known.cols)
        self.col_counts_ = np.asarray(course.effects.col_counts)
        # What a new row needs, to be placed by the columns it has entries in.
        rows, alike = course.sides[0], course.alike
        inside = rows.undo(self.left_)
        self.strengths_ = np.linalg.norm(inside, axis=0)
        self.col_directions_ = np.zeros((len(self.right_), 0))
        self.from_directions_ = np.zeros((0, self.left_.shape[1]))
        if alike is not None and rows.strengths is not None:
            self.col_directions_ = alike.cols / alike.values
            self.from_directions_ = rows.strengths[:, None] * (alike.rows.T @ inside)

    def predict(self, rows: Any, cols: Any = None) -> np.ndarray:
        """The entries (rows[i], cols[i]); rows or columns never seen, or negative, have only known effects.

        Without `cols`: a table of pairs if the model learned from pairs, otherwise a matrix to complete.
        """
        check_is_fitted(self, "left_")
        if cols is None:
            if forms.is_pairs(rows, ()) and getattr(self, "n_features_in_", None) == 2:
                rows, cols = np.asarray(rows).T
            else:
                return self.complete(rows)
        rows, cols = np.atleast_1d(rows), np.atleast_1d(cols)
        rows, cols = forms.indices("rows", rows, len(cols)), forms.indices("cols", cols, len(cols))
        found = self.mean_ + at(self.row_effects_, rows) + at(self.col_effects_, cols)  # in double precision
        known = (rows >= 0) & (rows < len(self.left_)) & (cols >= 0) & (cols < len(self.right_))
        found[known] += sample(rows[known], cols[known], self.left_, self.right_)
        return self._in_range(found)

    def _in_range(self, values: np.ndarray) -> np.ndarray:
        return np.clip(values, *self.range_) if self.clip else values

    def complete(self, X: Any = None) -> np.ndarray:
        """The whole matrix; or a prediction for every entry of the rows of X from those of its entries that are known.

        Rows of X need not be rows of the training data: each gets its own effect and factor, by ridge regression on
        the columns learned.
        """
        check_is_fitted(self, "left_")
        if X is None:
            whole = self.left_ @ self.right_.T + self.row_effects_[:, None] + self.col_effects_ + self.mean_
            return self._in_range(whole)
        X = validate_data(
            self, X, accept_sparse="csr", ensure_all_finite="allow-nan", dtype=float, reset=False, ensure_min_samples=1
        )
        return np.stack([self._row(*part) for part in _rows(X)])

    def _row(self, cols: np.ndarray, values: np.ndarray) -> np.ndarray:
        effect, factor = self.fold_in(cols, values)
        return self._in_range(self.mean_ + effect + self.col_effects_ + self.right_ @ factor)

    def fold_in(self, cols: Any, values: Any) -> tuple[float, np.ndarray]:
        """Effect and factor of a new row with these values in these columns, given the columns learned.

        Its factor is that of rows with entries in the same places plus its own, by ridge regression: at the solution
        of the ball the ridge of each singular direction is the multiplier over the singular value.
        """
        check_is_fitted(self, "left_")
        cols, values = np.asarray(cols, int), np.asarray(values, float)
        place = (damped(np.asarray(len(cols))) * damped(self.col_counts_[cols])) @ self.col_directions_[cols]
        shared = place @ self.from_directions_
        scale = 1 / norm_weights(len(cols), self.row_counts_, self._options()) if self.weighted else 1.0
        features = scale * self.right_[cols]
        target = values - self.mean_ - self.col_effects_[cols] - features @ shared
        design = np.column_stack([features, np.ones(len(cols))])
        strengths = np.maximum(self.strengths_, 1e-12 * self.strengths_.max(initial=1e-300))
        ridge = np.append(self.multiplier_ / strengths, self.ridge if self.effects else 1e12)
        solution = np.linalg.solve(design.T @ design + np.diag(ridge + 1e-9), design.T @ target)
        return float(solution[-1]), scale * (shared + solution[:-1])

    def score(self, X: Any, y: Any = None) -> float:
        """Minus the root of the mean squared error on the given entries; larger is better."""
        check_is_fitted(self, "left_")
        if forms.is_triple(X):
            rows, cols, values = X
            return -_rmse(self.predict(rows, cols), np.asarray(values, float))
        if forms.is_pairs(X, y):
            return -_rmse(self.predict(*np.asarray(X).T), np.asarray(y, float))
        found = forms.of_matrix(validate_data(self, X, accept_sparse="csr", ensure_all_finite="allow-nan", reset=False))
        return -_rmse(self.complete(X)[found.rows, found.cols], found.values)

    def recommend(self, row: int, n: int = 10) -> tuple[np.ndarray, np.ndarray]:
        """The n columns with the highest predictions that the row has no entry in, and the predictions."""
        check_is_fitted(self, "left_")
        known = 0 <= row < len(self.left_)
        scores = (
            self.mean_ + self.col_effects_ + (self.row_effects_[row] + self.right_ @ self.left_[row] if known else 0)
        )
        open_ = np.ones(len(scores), bool)
        if known:
            open_[self.seen_cols_[self.seen_starts_[row] : self.seen_starts_[row + 1]]] = False
        candidates = np.nonzero(open_)[0]
        best = candidates[np.argsort(-scores[candidates], kind="stable")[:n]]
        return best, self._in_range(scores[best])

    def save(self, path: str | Path, row_ids: Any = None, col_ids: Any = None) -> Path:
        """Write the model, with the names of rows and columns if given; `bilevax.estimators.load` reads it."""
        from bilevax.estimators.model_file import save

        return save(self, path, row_ids, col_ids)

    def _say(self, words: str) -> None:
        if self.verbose:
            print(words, file=sys.stderr, flush=True)


def _rmse(found: np.ndarray, values: np.ndarray) -> float:
    return float(np.sqrt(np.mean((found - values) ** 2)))


def _rows(X: Any) -> Any:
    """The known columns and values of each row."""
    if scipy.sparse.issparse(X):
        X = X.tocsr()
        for begin, end in zip(X.indptr[:-1], X.indptr[1:], strict=True):
            yield X.indices[begin:end], X.data[begin:end]
    else:
        for row in X:
            cols = np.nonzero(~np.isnan(row))[0]
            yield cols, row[cols]


def _best_radius(path: list[dict[str, float]]) -> float:
    """Between the radii: the lowest point of the parabola through the best one and its neighbours, on a log scale."""
    best = min(range(len(path)), key=lambda i: path[i]["rmse"])
    if best in (0, len(path) - 1):
        return path[best]["radius"]
    x = np.log([path[i]["radius"] for i in (best - 1, best, best + 1)])
    curve = np.polyfit(x - x[1], [path[i]["rmse"] for i in (best - 1, best, best + 1)], 2)
    lowest = -curve[1] / (2 * curve[0]) if curve[0] > 0 else 0.0
    return float(np.exp(x[1] + np.clip(lowest, x[0] - x[1], x[2] - x[1])))
