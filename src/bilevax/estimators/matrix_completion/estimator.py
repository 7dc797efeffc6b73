"""Matrix completion for people with ratings: give the known entries, get the others."""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import Any

import jax
import numpy as np
import scipy.sparse
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted, validate_data

from bilevax.estimators.matrix_completion import entries as forms
from bilevax.estimators.matrix_completion.effects import at
from bilevax.estimators.matrix_completion.entries import Entries
from bilevax.estimators.matrix_completion.factors import Factors
from bilevax.estimators.matrix_completion.fit import CompletionFit
from bilevax.estimators.matrix_completion.new_rows import NewRows, Shrunk, place
from bilevax.estimators.matrix_completion.options import Options, options_of
from bilevax.estimators.matrix_completion.path import Choice, choose
from bilevax.estimators.matrix_completion.refit import again_as, choose_refit, fit_refit
from bilevax.estimators.matrix_completion.similarity import PatternFeatures
from bilevax.linalg.blas import one_blas_thread
from bilevax.linalg.sparse import sample
from bilevax.runs.clock import Interrupt
from bilevax.runs.stopping import Status


class MatrixCompletion(BaseEstimator):  # type: ignore[misc]
    """Complete a matrix from some of its entries: mean, effects of rows and columns, and a matrix of low rank.

    The low-rank part minimises the upper level of the bilevel completion problem over a ball of the (weighted) trace
    norm, by `bx.BlockIBCG` on the observed entries; the effects are fitted jointly, by ridge regression.

    Args:
        radius: of the ball; "auto" follows a warm-started path of growing radii, takes the one that predicts held-out
            training entries best, and fits again on all entries.
        max_rank: the largest rank of the low-rank part; None for no limit but the radius.
        weighted: weight rows and columns in the norm by a power of their counts (weighted nuclear norm).
        similarity: strength of the similarity of rows and of columns, read from where they have entries (users who
            rate the same items have similar tastes); 0 turns it off, "auto" lets held-out entries choose 0 or 2.
        n_similarity_components: how many singular vectors describe the similarity.
        effects: fit one number for each row and each column.
        ridge: of the effects, in units of one observation.
        denoise: weight `lambda1` of the pseudo-Huber regularizer of the lower level; 0 leaves the values as they are.
        coupling: weight `lambda2` that ties the denoised values to the matrix.
        delta: scale of the pseudo-Huber regularizer.
        refit: beside the shrunk matrix also fit factors whose ridges, priors and noise are estimated from the data;
            held-out entries choose one of both, a mix, or effects alone. Not with a given radius, `denoise` or
            `outlier`, which are about the shrunk matrix. The refit is not convex: no certificate covers it.
        outlier: distance from the matrix beyond which the lower level gives a value less weight; None trusts all
            values. Choose it above the noise and well below the outliers; `coupling` is then at least 1.
        effort: "fast" fits factors only, at most 20; "default" both models; "best" both, with up to 100 factors and
            more features of where entries are. It says how much is tried, not how accurately.
        clip: keep predictions within the range of the training values; "auto" does so where both ends are values
            that occur often, as on a scale from 1 to 5.
        validation_fraction: share of the entries held out along the path.
        max_steps: the most steps at each radius.
        tol: a radius is done when a step changes the training error by at most this share.
        time_limit: seconds of stepping; when they are over, `fit` keeps the model it has.
        dtype: "float32" or "float64", of the computation; predictions are float64. Ratings need no more than float32.
        warm_start: begin the next `fit` where the last one ended, at its radius; rows and columns may be new.
        random_state: of the entries held out.
        verbose: 1 shows a progress line for each radius on standard error.

    Attributes:
        radius_, similarity_, rank_, n_steps_: what was used. path_: a dict for each radius tried.
        choices_: what held-out entries chose, the errors of the alternatives, and a standard error; radius_ is 0 where
            no shrunk matrix was asked for.
        mean_, row_effects_, col_effects_, left_, right_: the model, `mean + r_i + c_j + left_i . right_j`.
        status_, message_: how the last radius ended, as in `bx.Status`, and why: "STALLED" (the training error
            settled, the usual end), "MAX_STEPS", "TIME_LIMIT", "STOPPED" (Ctrl-C) or "NONFINITE".
        trace_: a row for each step of the whole path, a `bx.Trace`.

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
        similarity: float | str = "auto",
        n_similarity_components: int = 60,
        effects: bool = True,
        ridge: float = 5.0,
        denoise: float = 0.0,
        coupling: float = 0.05,
        delta: float = 0.9,
        outlier: float | None = None,
        refit: bool = True,
        effort: str = "default",
        clip: bool | str = "auto",
        validation_fraction: float = 0.1,
        max_steps: int = 30,
        tol: float = 1e-3,
        time_limit: float | None = None,
        dtype: str = "float32",
        warm_start: bool = False,
        random_state: Any = 0,
        verbose: int = 0,
        alike: Any = "deprecated",
        directions: Any = "deprecated",
    ):
        self.radius = radius
        self.max_rank = max_rank
        self.weighted = weighted
        self.similarity = similarity
        self.n_similarity_components = n_similarity_components
        self.effects = effects
        self.ridge = ridge
        self.denoise = denoise
        self.coupling = coupling
        self.delta = delta
        self.outlier = outlier
        self.refit = refit
        self.effort = effort
        self.clip = clip
        self.validation_fraction = validation_fraction
        self.max_steps = max_steps
        self.tol = tol
        self.time_limit = time_limit
        self.dtype = dtype
        self.warm_start = warm_start
        self.random_state = random_state
        self.verbose = verbose
        self.alike = alike
        self.directions = directions

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
        options = options_of(self)
        entries = self._entries(X, y)
        began = time.perf_counter()
        with jax.enable_x64(self.dtype == "float64"), one_blas_thread():
            self._learn(entries, options)
        self.seconds_ = time.perf_counter() - began
        return self

    @property
    def alike_(self) -> float:
        """The old name of `similarity_`."""
        warnings.warn("alike_ is now called similarity_; it goes in version 0.3.", FutureWarning, stacklevel=2)
        return self.similarity_

    def _entries(self, X: Any, y: Any) -> Entries:
        if forms.is_triple(X):
            return self._remembered(forms.valid_entries(*X))
        if forms.is_pairs(X, y):
            pairs = np.asarray(X)
            self.n_features_in_ = 2
            return self._remembered(forms.valid_entries(pairs[:, 0], pairs[:, 1], np.asarray(y)))
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

    def _learn(self, entries: Entries, options: Options) -> None:
        options = options._replace(clip=forms.has_ends(entries.values) if options.clip is None else options.clip)
        with Interrupt() as interrupt:
            fit = CompletionFit(entries, options, interrupt)
            again = self.warm_start and hasattr(self, "left_")
            if again:
                fit.start_from(*self.shrunk_.resized(entries.shape)[1:])
                choice = Choice(self.radius_, self.similarity_, [])
            else:
                choice = choose(fit)
            self.path_: list[dict[str, float]] = choice.path
            stop = fit.cut
            refit = None
            if options.refit and stop is None:
                refit = again_as(self.choices_) if again else choose_refit(fit, entries.values, choice)
            if stop is None:
                choice = choice._replace(
                    radius=options.radius or choice.radius,
                    similarity=choice.similarity if options.similarity is None else options.similarity,
                )
                stop = fit.finish(choice.radius, choice.similarity)
            factors = fit_refit(fit, entries.values, refit) if refit is not None and refit.blend.share > 0 else None
        self.radius_: float = choice.radius
        self.similarity_: float = choice.similarity
        self.status_, self.message_, self.trace_ = stop.status.name, stop.message, fit.trace
        if stop.status is Status.NONFINITE:
            warnings.warn(f"MatrixCompletion: {stop.message}.", RuntimeWarning, stacklevel=4)
        self._keep(fit, entries)
        best = min((row["rmse"] for row in self.path_), default=np.nan)
        self.choices_: dict[str, Any] = {"taken": "shrunk"} if refit is None else refit.table(best)
        self.new_rows_: NewRows | None = None
        self.share_: float = 0.0
        if factors is not None and refit is not None:
            self._mix(refit.blend.share, *factors)

    def _keep(self, fit: CompletionFit, entries: Entries) -> None:
        effects, x = fit.effects, fit.state.x
        assert effects is not None
        self.mean_, self.range_ = fit.mean, (-np.inf, np.inf)
        if fit.options.clip:
            self.range_ = float(entries.values.min()), float(entries.values.max())
        self.row_effects_, self.col_effects_ = (np.asarray(part, float) for part in (effects.rows, effects.cols))
        self.left_, self.right_ = (np.asarray(factor, float) for factor in x.factors())
        self.rank_, self.n_steps_ = fit.rank, fit.steps
        self.shrunk_ = Shrunk(self.mean_, self.left_, self.right_, self.row_effects_, self.col_effects_)
        # The multiplier of the ball: at the solution <F, x> = -multiplier * radius.
        slope = float(np.dot(np.asarray(fit.state.lower.F), np.asarray(x.values))) * fit.count / 2
        self.multiplier_ = max(-slope / self.radius_, 0.0) if self.radius_ > 0 else 0.0
        self.entry_starts_, self.entry_cols_ = np.asarray(fit.pattern.starts), np.asarray(fit.pattern.cols)
        self.row_counts_, self.col_counts_ = np.asarray(effects.row_counts), np.asarray(effects.col_counts)
        # What a new row needs, to be placed by the columns it has entries in.
        rows, similarity = fit.weights[0], fit.similarity
        unweighted = rows.solve(self.left_)
        self.factor_norms_ = np.linalg.norm(unweighted, axis=0)
        self.col_components_ = np.zeros((len(self.right_), 0))
        self.component_factors_ = np.zeros((0, self.left_.shape[1]))
        if similarity is not None and rows.strengths is not None:
            self.col_components_ = similarity.cols / similarity.values
            self.component_factors_ = rows.strengths[:, None] * (similarity.rows.T @ unweighted)

    def _mix(self, share: float, factors: Factors, features: PatternFeatures | None) -> None:
        """The factors with this share beside the shrunk matrix, in one model."""
        self.share_, self.new_rows_ = share, NewRows.of(factors, features)
        rows, cols, rest = factors.rows.factors, factors.cols.factors, 1 - share
        self.mean_ = rest * self.mean_ + share * factors.mean
        self.row_effects_ = rest * self.row_effects_ + share * rows[:, -1]
        self.col_effects_ = rest * self.col_effects_ + share * cols[:, -1]
        left, right = (self.left_, self.right_) if rest > 0 else (self.left_[:, :0], self.right_[:, :0])
        self.left_, self.right_ = np.hstack([rest * left, share * rows[:, :-1]]), np.hstack([right, cols[:, :-1]])
        self.rank_ = int(self.left_.shape[1])

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
        predictions = self.mean_ + at(self.row_effects_, rows) + at(self.col_effects_, cols)  # in double precision
        known = (rows >= 0) & (rows < len(self.left_)) & (cols >= 0) & (cols < len(self.right_))
        predictions[known] += sample(rows[known], cols[known], self.left_, self.right_)
        return self._in_range(predictions)

    def _in_range(self, values: np.ndarray) -> np.ndarray:
        return np.clip(values, *self.range_)

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
        """Effect and factor of a new row with these values in these columns, given the columns learned."""
        check_is_fitted(self, "left_")
        return place(self, np.asarray(cols, int), np.asarray(values, float))

    def score(self, X: Any, y: Any = None) -> float:
        """Minus the root of the mean squared error on the given entries; larger is better."""
        check_is_fitted(self, "left_")
        if forms.is_triple(X):
            rows, cols, values = X
            return -_rmse(self.predict(rows, cols), np.asarray(values, float))
        if forms.is_pairs(X, y):
            return -_rmse(self.predict(*np.asarray(X).T), np.asarray(y, float))
        entries = forms.of_matrix(
            validate_data(self, X, accept_sparse="csr", ensure_all_finite="allow-nan", reset=False)
        )
        return -_rmse(self.complete(X)[entries.rows, entries.cols], entries.values)

    def recommend(self, row: int, n: int = 10) -> tuple[np.ndarray, np.ndarray]:
        """The n columns with the highest predictions that the row has no entry in, and the predictions."""
        check_is_fitted(self, "left_")
        known = 0 <= row < len(self.left_)
        scores = (
            self.mean_ + self.col_effects_ + (self.row_effects_[row] + self.right_ @ self.left_[row] if known else 0)
        )
        open_ = np.ones(len(scores), bool)
        if known:
            open_[self.entry_cols_[self.entry_starts_[row] : self.entry_starts_[row + 1]]] = False
        candidates = np.nonzero(open_)[0]
        best = candidates[np.argsort(-scores[candidates], kind="stable")[:n]]
        return best, self._in_range(scores[best])

    def save(self, path: str | Path, row_ids: Any = None, col_ids: Any = None) -> Path:
        """Write the model, with the names of rows and columns if given; `bilevax.estimators.load` reads it."""
        from bilevax.estimators.matrix_completion.model_file import save

        return save(self, path, row_ids, col_ids)


def _rmse(predictions: np.ndarray, values: np.ndarray) -> float:
    return float(np.sqrt(np.mean((predictions - values) ** 2)))


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
