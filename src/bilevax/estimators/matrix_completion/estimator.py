"""Matrix completion for people with ratings: give the known entries, get the others."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted, validate_data

from bilevax import memory
from bilevax.estimators.matrix_completion import entries as forms
from bilevax.estimators.matrix_completion.checkpoint import open_journal
from bilevax.estimators.matrix_completion.entries import Entries, at
from bilevax.estimators.matrix_completion.journal import Journal
from bilevax.estimators.matrix_completion.learning import Start, learn
from bilevax.estimators.matrix_completion.new_rows import Shrunk, place
from bilevax.estimators.matrix_completion.options import Norm, Options, options_of
from bilevax.estimators.matrix_completion.refit import again_as
from bilevax.estimators.matrix_completion.result import attributes_of
from bilevax.estimators.matrix_completion.summary import describe
from bilevax.linalg.blas import one_blas_thread
from bilevax.linalg.row_blocks import sample
from bilevax.runs.interrupt import Interrupt
from bilevax.runs.stopping import Status


class MatrixCompletion(BaseEstimator):  # type: ignore[misc]
    """Complete a matrix from some of its entries: mean, effects of rows and columns, and a matrix of low rank.

    The low-rank part is a product of factors whose ridges are estimated from the data, or a shrunk matrix, or a mix of
    both. The shrunk matrix minimises the upper level of the bilevel completion problem over a ball of the (weighted)
    nuclear norm, by `bx.BlockIBCG` on the observed entries. Held-out entries choose; `print(model)` says what.

    Args:
        radius: of the ball; "auto" searches for the one that predicts held-out training entries best, and fits again
            on all entries.
        max_rank: the largest rank of the low-rank part; None for no limit but the radius.
        weighted: weight rows and columns in the norm by a power of their counts (weighted nuclear norm); with "auto",
            held-out entries choose below 20,000 entries and if effort is "best", and otherwise it is True.
        similarity: strength of the similarity of rows and of columns, read from where they have entries (users who
            rate the same items have similar tastes); 0 turns it off, "auto" lets held-out entries choose 0 or 2.
        n_similarity_components: how many singular vectors describe the similarity.
        effects: fit one number for each row and each column.
        ridge: of the effects beside the shrunk matrix, in units of one observation; "auto" estimates one for rows and
            one for columns.
        denoise: weight `lambda1` of the pseudo-Huber regularizer of the lower level; 0 leaves the values as they are.
        coupling: weight `lambda2` that ties the denoised values to the matrix.
        delta: scale of the pseudo-Huber regularizer.
        refit: beside the shrunk matrix also fit factors whose ridges, priors and noise are estimated from the data;
            held-out entries choose one of both, a mix, or effects alone. Not with a given radius, `denoise` or
            `outlier`, which are about the shrunk matrix. The refit is not convex: no certificate covers it.
        outlier: distance from the matrix beyond which the lower level gives a value less weight; None trusts all
            values. Choose it above the noise and well below the outliers; `coupling` is then at least 1.
        effort: "fast" fits factors only, at most 20; "default" both models with at most 40 factors, the shrunk matrix
            up to 2 million entries; "best" both at any size, with at most 100 factors.
        clip: keep predictions within the range of the training values; "auto" does so where both ends are values
            that occur often, as on a scale from 1 to 5.
        validation_fraction: share of the entries held out along the path.
        max_steps: the most steps at each radius.
        tol: a radius is done when a step changes the training error by at most this share.
        time_limit: in seconds; when they are over, `fit` keeps the model it has.
        dtype: "float32" or "float64", of the shrunk matrix; ratings need no more than float32. Factors are computed in
            float64 up to 2 million entries. Predictions are float64.
        warm_start: begin the next `fit` where the last one ended, at its radius; rows and columns may be new.
        random_state: decides which entries are held out; from 2 million entries on, so does their order.
        verbose: 1 shows a line for each number of factors and for each radius on standard error.
        checkpoint: a folder, or a `bx.Checkpoint`, in which `fit` saves its work every ten seconds. After a crash,
            Ctrl-C or SIGKILL the same `fit` goes on from there and ends with the same bits. A fit that had ended gives
            its model again. A folder with other entries or options is refused. See docs/reliability.md.

    Attributes:
        rank_, radius_, similarity_, weighted_: what was used; radius_ is 0 where the model has no shrunk matrix.
        n_steps_: of the shrunk matrix. path_: a dict for each radius tried.
        choices_: what held-out entries chose, the errors of the alternatives, and standard errors; `print(model)` shows
            them in words.
        mean_, row_effects_, col_effects_, left_, right_: the model, `mean + r_i + c_j + left_i . right_j`.
        status_, message_: how the fit ended, as in `bx.Status`, and why: "STALLED" (nothing changed any more, the usual
            end), "MAX_STEPS", "TIME_LIMIT", "STOPPED" (Ctrl-C) or "NONFINITE".
        trace_: a row for each step of the shrunk matrix over the whole path, a `bx.Trace`.

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
        weighted: bool | str = "auto",
        similarity: float | str = "auto",
        n_similarity_components: int = 60,
        effects: bool = True,
        ridge: float | str = "auto",
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
        checkpoint: Any = None,
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
        self.checkpoint = checkpoint
        self.alike = alike
        self.directions = directions

    def __str__(self) -> str:
        """In words once it is fitted; before, its parameters."""
        return describe(self) if hasattr(self, "left_") else repr(self)

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
        again = self.warm_start and hasattr(self, "left_")
        return self._learn(X, y, self._start(self.shrunk_) if again else None)

    def fit_again(self, X: Any, y: Any = None) -> MatrixCompletion:
        """Learn from other entries with what the last fit chose; nothing is held out, and nothing is chosen anew.

        A trial on some entries may choose for a fit of all of them. Rows and columns need not be the same.
        """
        check_is_fitted(self, "left_")
        return self._learn(X, y, self._start(None))

    def _options(self) -> Options:
        return options_of(self)

    def _start(self, shrunk: Shrunk | None) -> Start:
        return Start(
            shrunk, self.radius_, Norm(self.similarity_, self.weighted_), again_as(self.choices_), self.ridges_
        )

    def _learn(self, X: Any, y: Any, start: Start | None) -> MatrixCompletion:
        options = self._options()
        entries = self._entries(X, y)
        forms.check_range(entries.values, np.dtype(self.dtype))
        options = options._replace(clip=forms.has_ends(entries.values) if options.clip is None else options.clip)
        with open_journal(self.checkpoint, entries, options, start) as journal:
            found = journal.finished(options.time_limit)
            if found is None:
                found = self._computed(entries, options, start, journal)
        for name, value in found.items():
            setattr(self, name, value)
        if self.status_ == Status.NONFINITE.name:
            warnings.warn(f"MatrixCompletion: {self.message_}.", RuntimeWarning, stacklevel=3)
        return self

    def _computed(self, entries: Entries, options: Options, start: Start | None, journal: Journal) -> dict[str, Any]:
        """The attributes of the fitted model, which the journal keeps unless the user interrupted the fit."""
        with one_blas_thread(), Interrupt(saved=journal.on) as interrupt:
            learned = learn(entries, options, interrupt, start, journal)
            found = {**attributes_of(learned), "seconds_": journal.seconds}
            if learned.stop.status is not Status.STOPPED:
                over = learned.stop.status is Status.TIME_LIMIT
                journal.finish(found, options.time_limit if over else None)
        return found

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
            size = 3 * 8.0 * len(self.left_) * len(self.right_)
            memory.check("the whole matrix", size, "predict(rows, cols) gives the entries that you need")
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
        return place(self, *forms.new_row(cols, values, len(self.right_)))

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
        row, n = (forms.whole(name, value) for name, value in (("row", row), ("n", n)))
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
