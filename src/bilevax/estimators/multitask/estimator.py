"""Regressions for several tasks at once: each has its own coefficients, and they share what helps to predict."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import expit
from scipy.stats import norm
from sklearn.base import BaseEstimator
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils import ClassifierTags, RegressorTags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import type_of_target
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from bilevax.estimators.limits import Limits
from bilevax.estimators.magnitudes import check_features, check_target
from bilevax.estimators.multitask import tasks as labels_of
from bilevax.estimators.multitask.learning import Learned, learn
from bilevax.estimators.multitask.options import Options, options_of
from bilevax.estimators.multitask.rows import Units, scaled_rows, separately_scaled_rows
from bilevax.estimators.multitask.summary import describe
from bilevax.linalg.blas import one_blas_thread
from bilevax.runs.interrupt import Interrupt
from bilevax.runs.stopping import Status


def _is_logistic(model: Any) -> bool:
    if model.loss == "squared" or getattr(model, "classes_", ()) is None:
        raise AttributeError("probabilities are for two classes; this model predicts numbers")
    return True


def _as_numbers(y: np.ndarray) -> np.ndarray:
    """An array of Python objects as numbers where all of them are numbers."""
    if y.dtype.kind != "O":
        return y
    try:
        return y.astype(float)
    except (TypeError, ValueError):
        return y.astype(str)


class MultiTaskRegression(BaseEstimator):  # type: ignore[misc]
    """Linear regressions for several tasks (schools, shops, users, ...) that learn from each other.

    The coefficients of a task are the sum of a part of its own and of parts that all tasks share. How large these parts
    are is chosen at the upper level, by the error on held-out rows of K folds, together with the weights of a few kinds
    of such models. Where sharing does not help, every task gets a regression of its own, and `print(model)` says so.

    Args:
        loss: "squared" for numbers, "logistic" for two classes; "auto" looks at the target.
        task_column: position or name of the column of X that holds the task, for Pipelines; otherwise give `task` to
            `fit` and `predict`.
        n_folds: how many folds choose.
        max_steps, tol: of the upper level; it has converged when its verified gap is at most `tol`, in units of half
            the variance of the noise.
        time_limit: in seconds; when they are over, `fit` keeps the model it has.
        random_state: decides which rows are in which fold.
        verbose: 1 shows a progress line.
        checkpoint: a folder, or a `bx.Checkpoint`, in which `fit` saves the upper level every ten seconds. After a
            crash or Ctrl-C the same `fit` goes on from there.

    Attributes:
        tasks_: the labels of the tasks, sorted.
        coef_, intercept_: tasks by features, and one for each task.
        coef_std_: standard deviations of the coefficients given the data; `coef_intervals` makes intervals of them.
        own_coef_, own_intercept_: a regression of each task alone.
        pooled_coef_, pooled_intercept_: one regression for all tasks, which an unknown task gets.
        pull_: how far each task was pulled, from 0 (its own regression) to 1 (the one for all tasks).
        task_covariance_, task_correlation_: expected products of the slopes of two tasks, in units of scaled features;
            the correlation is 1 for tasks with the same slopes and 0 for tasks that have nothing in common.
        shares_: whether tasks share anything.
        mix_: kinds of models with their weights.
        choices_: what held-out rows chose, against what, by how much, with standard errors.
        held_out_: error on held-out rows of the model, of tasks alone, and of one regression for all.
        status_, message_, trace_, n_iter_, seconds_: how the upper level ended, as in `bx.solve`.
        result_: what `bx.solve` returned, with the certificate; not saved with the model.

    >>> import numpy as np
    >>> from bilevax.estimators import MultiTaskRegression
    >>> rng = np.random.default_rng(0)
    >>> X, task = rng.standard_normal((80, 4)), np.repeat(["a", "b", "c", "d"], 20)
    >>> y = X @ [1.0, 2.0, 0.0, 0.0] + (task == "d") * X[:, 2] + 0.1 * rng.standard_normal(80)
    >>> model = MultiTaskRegression().fit(X, y, task=task)
    >>> (model.coef_[:, 2] > 0.5).tolist()
    [False, False, False, True]
    """

    def __init__(
        self,
        *,
        loss: str = "auto",
        task_column: Any = None,
        n_folds: int = 5,
        max_steps: int = 200,
        tol: float = 1e-3,
        time_limit: float | None = None,
        random_state: Any = 0,
        verbose: int = 0,
        checkpoint: Any = None,
    ):
        self.loss = loss
        self.task_column = task_column
        self.n_folds = n_folds
        self.max_steps = max_steps
        self.tol = tol
        self.time_limit = time_limit
        self.random_state = random_state
        self.verbose = verbose
        self.checkpoint = checkpoint

    def __str__(self) -> str:
        """In words once it is fitted; before, its parameters."""
        return describe(self) if hasattr(self, "coef_") else repr(self)

    def fit(self, X: Any, y: Any, *, task: Any = None, sample_weight: Any = None) -> MultiTaskRegression:
        """Learn from rows of all tasks.

        Args:
            X: rows by features.
            y: numbers, or two classes.
            task: a label for each row; without it and without `task_column` all rows are one task, a ridge regression.
            sample_weight: weights of the rows.
        """
        began, options = time.perf_counter(), options_of(self)
        X, task = labels_of.split_column(X, self.task_column, task)
        X, y = validate_data(self, X, y, dtype=float, y_numeric=self.loss == "squared", ensure_min_samples=2)
        labels = np.zeros(len(y), int) if task is None else labels_of.checked_labels(task, len(y))
        weight = _check_sample_weight(sample_weight, X, ensure_non_negative=True)
        self.columns_by_task_: list[np.ndarray] | None = None
        return self._learn(X, y, labels, weight, options, began, linked=True)

    def fit_tasks(self, Xs: Sequence[Any], ys: Sequence[Any], tasks: Any = None) -> MultiTaskRegression:
        """Learn from one table for each task; their features may differ.

        Columns of DataFrames are the same feature if they have the same name. Columns of arrays are the same if all
        arrays have the same number of columns; otherwise tasks have nothing to share, and each is fitted alone.

        Args:
            Xs, ys: for each task a table and a target.
            tasks: labels; by default 0, 1, 2, ...
        """
        began, options = time.perf_counter(), options_of(self)
        stacked = labels_of.stack(Xs, ys)
        names = np.arange(len(Xs)) if tasks is None else labels_of.checked_labels(tasks, len(Xs))
        if len(np.unique(names)) < len(names):
            raise ValueError("fit_tasks: two tasks have the same label; give every task its own.")
        order = np.argsort(names)
        self.columns_by_task_ = [stacked.columns[i] for i in order]
        self.n_features_in_ = stacked.X.shape[1]
        if stacked.names is not None:
            self.feature_names_in_ = stacked.names
        weight = np.ones(len(stacked.y))
        return self._learn(stacked.X, stacked.y, names[stacked.task], weight, options, began, linked=stacked.linked)

    def _learn(
        self,
        X: np.ndarray,
        y: np.ndarray,
        labels: np.ndarray,
        weight: np.ndarray,
        options: Options,
        began: float,
        *,
        linked: bool,
    ) -> MultiTaskRegression:
        check_features("MultiTaskRegression", X)
        target = self._target(np.asarray(y))
        tasks, number = np.unique(labels, return_inverse=True)
        with one_blas_thread(), Interrupt(saved=options.checkpoint is not None) as interrupt:
            scaled = scaled_rows if linked else separately_scaled_rows
            classes = self.classes_ is not None
            rows, units = scaled(X, target, number, weight, len(tasks), classes=classes)
            limits = Limits(began, options.time_limit, interrupt)
            learned = learn(rows, units, options, limits, classes=classes, linked=linked)
        self.tasks_ = tasks
        self.n_rows_by_task_ = np.bincount(number, minlength=len(tasks))
        self._keep(learned, units)
        self.seconds_ = time.perf_counter() - began
        if self.status_ in (Status.NONFINITE.name, Status.NOT_STRONGLY_CONVEX.name):
            warnings.warn(f"MultiTaskRegression: {self.message_}.", RuntimeWarning, stacklevel=3)
        return self

    def _target(self, y: np.ndarray) -> np.ndarray:
        """Numbers, or -1 and 1 for two classes."""
        y = _as_numbers(y)
        check_target("MultiTaskRegression", y)
        kind, numbers = type_of_target(y, input_name="y"), y.dtype.kind in "iuf"
        logistic = self.loss == "logistic" or (self.loss == "auto" and not numbers)
        classes = np.unique(y)
        self.classes_ = classes if logistic else None
        if not logistic:
            if y.dtype.kind not in "biuf":
                raise ValueError(f"MultiTaskRegression: the squared loss needs numbers as target, got {y[0]!r}.")
            y = y.astype(float)
            if np.ptp(y) == 0:
                raise ValueError(
                    f"MultiTaskRegression: the target is {y[0]:g} in all {len(y)} rows; there is nothing to learn."
                )
            return y
        if kind.startswith("continuous"):
            raise ValueError(
                f"MultiTaskRegression: the logistic loss needs two classes, got {kind} numbers. Unknown label type."
            )
        if len(classes) != 2:
            words = ", ".join(map(str, classes[:5]))
            raise ValueError(
                f"MultiTaskRegression: the logistic loss needs two classes, got {len(classes)} class"
                f"{'es' * (len(classes) != 1)} ({words}). Only binary classification is supported."
            )
        return np.where(y == classes[1], 1.0, -1.0)

    def _keep(self, learned: Learned, units: Units) -> None:
        """The attributes of the fitted model."""
        self.coef_, self.intercept_ = units.coefficients(learned.blended.W)
        self.coef_std_ = units.deviations(learned.blended.spread)
        self.own_coef_, self.own_intercept_ = units.coefficients(learned.own.W)
        if units.comparable:
            self.pooled_coef_, self.pooled_intercept_ = units.coefficients(learned.pooled)
        else:  # tasks are in different units, or their features have nothing to do with each other
            self.pooled_coef_, self.pooled_intercept_ = np.zeros(self.coef_.shape[1]), np.mean(units.target[0])
        self.pull_ = learned.pull
        self.task_covariance_ = products = learned.blended.products
        size = np.sqrt(np.maximum(np.diag(products), 1e-300))
        self.task_correlation_ = products / np.outer(size, size)
        self.shares_, self.mix_ = learned.shares, learned.mix
        self.choices_ = learned.held_out.choices(learned.shares) if len(self.tasks_) > 1 and learned.linked else []
        self.held_out_ = learned.held_out.errors(learned.shares)
        result = learned.result
        self.status_, self.message_, self.trace_ = result.status.name, result.message, result.trace
        self.n_iter_, self.result_ = result.steps, result

    @available_if(_is_logistic)  # type: ignore[untyped-decorator]
    def decision_function(self, X: Any, *, task: Any = None) -> np.ndarray:
        """Above 0 for the second class."""
        return self._values(X, task)

    def _values(self, X: Any, task: Any) -> np.ndarray:
        """The linear function of the task of each row; a row of a task that `fit` has not seen gets the pooled one."""
        check_is_fitted(self, "coef_")
        X, task = labels_of.split_column(X, self.task_column, task)
        X = validate_data(self, X, dtype=float, reset=False)
        if task is None:
            if len(self.tasks_) > 1:
                raise ValueError(
                    f"MultiTaskRegression: the model has {len(self.tasks_)} tasks; give task=, a label for each row."
                )
            number = np.zeros(len(X), int)
        else:
            number = labels_of.positions(labels_of.checked_labels(task, len(X)), self.tasks_)
        coef = np.vstack([self.coef_, self.pooled_coef_])  # -1 is the last one
        intercept = np.append(self.intercept_, self.pooled_intercept_)
        values: np.ndarray = np.einsum("nf,nf->n", X, coef[number]) + intercept[number]
        return values

    def predict(self, X: Any, *, task: Any = None) -> np.ndarray:
        """Numbers, or classes; `task` is as in `fit`."""
        values = self._values(X, task)
        if self.classes_ is None:
            return values
        predicted: np.ndarray = self.classes_[(values > 0).astype(int)]
        return predicted

    @available_if(_is_logistic)  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any, *, task: Any = None) -> np.ndarray:
        """The probabilities of both classes."""
        second = expit(self._values(X, task))
        return np.column_stack([1 - second, second])

    def predict_tasks(self, Xs: Sequence[Any]) -> list[np.ndarray]:
        """Predictions for one table for each task, in the order of `tasks_` and with the features of `fit_tasks`."""
        check_is_fitted(self, "coef_")
        if self.columns_by_task_ is None:
            raise ValueError("predict_tasks: this model was not fitted by fit_tasks; use predict(X, task=...).")
        if len(Xs) != len(self.tasks_):
            raise ValueError(f"predict_tasks: expected {len(self.tasks_)} tables, one for each task, got {len(Xs)}.")
        predictions = []
        for t, (X, columns) in enumerate(zip(Xs, self.columns_by_task_, strict=True)):
            table = np.asarray(X, float)
            if table.ndim != 2 or table.shape[1] != len(columns):
                words = f"task {self.tasks_[t]} needs {len(columns)} columns"
                raise ValueError(f"predict_tasks: {words}, got a table of shape {table.shape}.")
            values = table @ self.coef_[t, columns] + self.intercept_[t]
            predictions.append(values if self.classes_ is None else self.classes_[(values > 0).astype(int)])
        return predictions

    def coef_intervals(self, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper ends of intervals that hold each coefficient with this probability, given the model."""
        check_is_fitted(self, "coef_")
        if not 0 < level < 1:
            raise ValueError(f"coef_intervals: level must lie between 0 and 1, got {level!r}.")
        width = norm.ppf(0.5 + level / 2) * self.coef_std_
        return self.coef_ - width, self.coef_ + width

    def score(self, X: Any, y: Any, *, task: Any = None, sample_weight: Any = None) -> float:
        """R^2 of numbers, accuracy of classes."""
        measure = r2_score if getattr(self, "classes_", None) is None else accuracy_score
        return float(measure(y, self.predict(X, task=task), sample_weight=sample_weight))

    def save(self, path: str | Path, schema: Any = None) -> Path:
        """Write the model to a file that `bx.estimators.load` reads; `schema` says how a table becomes X."""
        check_is_fitted(self, "coef_")
        from bilevax.estimators.multitask.model_format import FORMAT  # which needs this class

        return FORMAT.save(self, path, schema)

    def __getstate__(self) -> dict[str, Any]:
        """Without the run, which holds compiled functions: pickle and `joblib` get the fitted model."""
        state = dict(super().__getstate__())
        state.pop("result_", None)
        return state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        if self.loss == "logistic":
            tags.estimator_type, tags.classifier_tags = "classifier", ClassifierTags(multi_class=False)
        else:
            tags.estimator_type, tags.regressor_tags = "regressor", RegressorTags()
        return tags
