"""One l2 weight per feature, chosen on held-out rows, for people with a table or a sparse matrix."""

from __future__ import annotations

import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
from scipy.special import expit, softmax
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import _check_feature_names_in, _check_sample_weight, check_is_fitted, validate_data

from bilevax.estimators.choices import Choice
from bilevax.estimators.feature_weights import inputs
from bilevax.estimators.feature_weights.kept import Kept, checksum
from bilevax.estimators.feature_weights.regression import Design, Regression
from bilevax.estimators.feature_weights.stages import Plan, Search, Stage, difference, search
from bilevax.estimators.feature_weights.subspace import Folds
from bilevax.estimators.feature_weights.summary import describe
from bilevax.estimators.folds import fold_numbers
from bilevax.estimators.limits import Limits
from bilevax.estimators.magnitudes import check_features
from bilevax.linalg.blas import one_blas_thread
from bilevax.runs.interrupt import Interrupt
from bilevax.runs.stopping import Status
from bilevax.runs.trace import Trace

_LARGEST_BUDGET = 30.0


def _has_classes(model: FeatureWeights) -> bool:
    if model.loss == "squared" or (hasattr(model, "weights_") and not hasattr(model, "classes_")):
        raise AttributeError("FeatureWeights: only models with logistic loss have probabilities and scores of classes.")
    return True


class FeatureWeights(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Ridge or logistic regression with one l2 weight per feature; K-fold held-out rows choose the weights.

    A bilevel problem: the upper level is the held-out loss of all folds, the lower level the K regressions. The weights
    follow a profile with two parameters, a level and an adaptivity: the more useful a feature was in an earlier fit of
    the same fold, the smaller its weight. A third one, the moderation, says how far a probability moves towards the
    middle where the coefficients are uncertain. Free weights fitted to held-out rows predict worse.

    Args:
        loss: "squared", "logistic" (two or more classes), or "auto": logistic for labels, squared for numbers.
        groups: features of one group share a weight: a label for each feature, or a dict from names of features to
            labels. None gives every feature its own weight.
        budget: how far logarithms of weights may be from those of equal weights, up to a common level. With 0 the model
            is plain l2.
        budget_kind: "box" limits the largest distance, "l1" the mean of all distances.
        n_folds: every row is held out by one of so many fits.
        max_steps: the most steps of each run of `bx.solve`.
        tol: the Frank-Wolfe gap of the upper level at which a run ends, in units of the loss (squared: of a target with
            variance 1).
        time_limit: in seconds; when they are over, `fit` ends with the best weights so far.
        random_state: decides which rows a fold holds out.
        verbose: 1 writes a line for each stage to standard error.
        checkpoint: a folder, or a `bx.Checkpoint`, in which `fit` keeps its regressions. After a crash or Ctrl-C the
            same `fit` goes on from there, to the same answer.

    Attributes:
        weights_: the l2 weight of each feature: `coef_` minimises the sum of the losses + 1/2 sum of weight * coef^2.
        ranking_: the numbers of the features, the most useful first.
        coef_, intercept_, classes_: the fit on all rows, as in scikit-learn; classes_ for logistic loss only.
        choices_: what held-out rows chose, against what, by how much, with standard errors.
        held_out_loss_: of the chosen weights, half the squared error or the log loss; a little too low, since they were
            chosen by it.
        stages_: a dict for each stage that was tried, with its held-out loss and its difference to the chosen one.
        adaptivity_, moderation_: the chosen parameters; 0 is plain l2, and plain probabilities.
        status_, message_: how the search ended, as in `bx.Status`, and why.
        trace_: the rows of the last run of `bx.solve` in the chosen stage, a `bx.Trace`; None if there was none.
        n_iter_: steps of all runs. seconds_: the time of the fit.

    >>> import numpy as np
    >>> from bilevax.estimators import FeatureWeights
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((60, 8))
    >>> y = 2 * X[:, 3] + 0.1 * rng.standard_normal(60)
    >>> int(FeatureWeights().fit(X, y).ranking_[0])
    3
    """

    def __init__(
        self,
        *,
        loss: str = "auto",
        groups: Any = None,
        budget: float = 12.0,
        budget_kind: str = "box",
        n_folds: int = 5,
        max_steps: int = 50,
        tol: float = 1e-4,
        time_limit: float | None = None,
        random_state: Any = 0,
        verbose: int = 0,
        checkpoint: Any = None,
    ):
        self.loss = loss
        self.groups = groups
        self.budget = budget
        self.budget_kind = budget_kind
        self.n_folds = n_folds
        self.max_steps = max_steps
        self.tol = tol
        self.time_limit = time_limit
        self.random_state = random_state
        self.verbose = verbose
        self.checkpoint = checkpoint

    def __str__(self) -> str:
        """In words once it is fitted; before, its parameters."""
        return self.describe() if hasattr(self, "weights_") else repr(self)

    def describe(self, names: Any = None) -> str:
        """One screen about the fitted model; `names` of the features, if X had none."""
        check_is_fitted(self, "weights_")
        return describe(self, names)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.target_tags.required = True
        if self.loss == "logistic" or hasattr(self, "classes_"):
            from sklearn.utils import ClassifierTags

            tags.estimator_type, tags.classifier_tags = "classifier", ClassifierTags()
        elif self.loss == "squared" or hasattr(self, "weights_"):
            from sklearn.utils import RegressorTags

            tags.estimator_type, tags.regressor_tags = "regressor", RegressorTags()
        return tags

    def fit(self, X: Any, y: Any, *, sample_weight: Any = None) -> FeatureWeights:
        """Choose the weights and fit on all rows."""
        began = time.perf_counter()
        self._check_parameters()
        if y is None:
            raise ValueError("FeatureWeights: requires y to be passed, but the target y is None.")
        squared = inputs.chosen_loss(self.loss, y) == "squared"
        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=np.float64, y_numeric=squared, ensure_min_samples=2)
        check_features("FeatureWeights", X)
        rows = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        if np.any(rows == 0):
            X, y, rows = X[rows > 0], y[rows > 0], rows[rows > 0]
        unit = float(rows.mean())
        rows = rows / unit
        targets = inputs.squared_targets(y, rows) if squared else inputs.class_targets(y)
        features = inputs.centred(X, rows)
        numbers = inputs.group_numbers(self.groups, X.shape[1], getattr(self, "feature_names_in_", None))
        pool = inputs.pooling(numbers)
        folds = self._folds(features, targets, rows)
        about = lambda: checksum(  # noqa: E731
            features.A,
            targets.T,
            rows,
            numbers,
            folds.number,
            float(self.budget),
            self.budget_kind,
            float(self.tol),
            self.max_steps,
        )
        with one_blas_thread(), Kept(self.checkpoint, about) as kept, Interrupt(saved=kept.on) as interrupt:
            limits = Limits(began, self.time_limit, interrupt)
            budget = min(float(self.budget), _LARGEST_BUDGET)
            plan = Plan(limits, int(self.max_steps), float(self.tol), budget, self.budget_kind)
            bases = inputs.first_weights(features, pool)
            found = search(folds, bases, pool, plan, kept, self._report)
            log_weights = found.chosen.log_weights(-1)
            start = np.mean(found.chosen.point.fits[:, 0], axis=0)
            P = folds.regressions[-1].fit(log_weights, start, 1e-9)
            spread = folds.regressions[-1].spread(P, log_weights)
        self._keep(found, folds, features, targets, P, spread, log_weights, unit)
        self._say_how_it_ended(found)
        self.seconds_ = time.perf_counter() - began
        return self

    def _check_parameters(self) -> None:
        checks = {
            "n_folds": (self.n_folds, lambda v: int(v) == v and v >= 2, "an integer of at least 2"),
            "max_steps": (self.max_steps, lambda v: int(v) == v and v >= 1, "an integer of at least 1"),
            "tol": (self.tol, lambda v: v > 0, "positive"),
            "budget": (self.budget, lambda v: v >= 0, "at least 0"),
            "budget_kind": (self.budget_kind, lambda v: v in ("box", "l1"), 'one of "box", "l1"'),
            "time_limit": (self.time_limit, lambda v: v is None or v > 0, "None or positive"),
        }
        for name, (value, good, words) in checks.items():
            try:
                right = bool(good(value))
            except (TypeError, ValueError):
                right = False
            if not right:
                raise ValueError(f"FeatureWeights: {name} must be {words}, got {value!r}.")

    def _folds(self, features: inputs.Features, targets: inputs.Targets, rows: np.ndarray) -> Folds:
        number = fold_numbers(targets.strata, min(int(self.n_folds), len(rows)), self.random_state)
        design = Design(features.A)
        held = [np.where(number == k, 0.0, rows) for k in range(number.max() + 1)]
        regressions = [Regression(design, targets.loss, targets.T, part) for part in (*held, rows)]
        return Folds(regressions, number, rows / rows.sum())

    def _report(self, stage: Stage) -> None:
        if self.verbose:
            print(f"FeatureWeights: {stage.name}: held-out loss {stage.value:.5g}", file=sys.stderr, flush=True)

    def _keep(
        self, found: Search, folds: Folds, features: inputs.Features, targets: inputs.Targets, P: np.ndarray,
        spread: Any, log_weights: np.ndarray, unit: float,
    ) -> None:  # fmt: skip
        """Set the attributes of the model."""
        chosen = found.chosen
        W, b = targets.scale * P[:-1], targets.mean + targets.scale * P[-1]
        b = b - features.mean @ W
        self.weights_ = unit * np.exp(log_weights)
        if targets.classes is None:
            self.coef_, self.intercept_ = W[:, 0], float(b[0])
            self.__dict__.pop("classes_", None)
        else:
            self.coef_, self.intercept_, self.classes_ = W.T.copy(), b.copy(), targets.classes
        dispersion = chosen.profile.dispersion
        variance, prior = dispersion * spread.diagonal[:-1], dispersion / np.exp(log_weights)[:, None]
        # The coefficient without the pull of its own weight, over its standard error.
        from_rows = np.maximum(1 / variance - 1 / prior, 1e-12 / variance)
        strength = np.sqrt(np.sum((P[:-1] / variance) ** 2 / from_rows, axis=1))
        self.ranking_ = np.argsort(-strength, kind="stable")
        self.adaptivity_ = chosen.point.adaptivity if chosen.profile.adaptive else 0.0
        self.moderation_ = chosen.moderation if chosen.spread is not None else 0.0
        self._spread, self._mean = chosen.spread, features.mean
        self.stages_: list[dict[str, Any]] = []
        for stage in found.stages:
            mean, error = difference(folds, stage, chosen)
            self.stages_.append({
                "weights": stage.name, "chosen": stage is chosen, "held_out_loss": stage.value * targets.scale**2,
                "difference": mean * targets.scale**2, "standard_error": error * targets.scale**2,
                "adaptivity": stage.point.adaptivity if stage.profile.adaptive else 0.0, "moderation": stage.moderation,
            })  # fmt: skip
        measure = "squared loss" if targets.classes is None else "log loss"
        self.held_out_loss_ = chosen.value * targets.scale**2
        self.choices_ = [
            Choice(
                "model with", chosen.name, str(tried["weights"]), tried["difference"], tried["standard_error"], measure
            )
            for tried in self.stages_
            if not tried["chosen"]
        ]
        runs = [stage.result for stage in found.stages if stage.result is not None]
        self.n_iter_ = sum(run.steps for run in runs)
        self.trace_ = None if chosen.result is None else _without_bounds(chosen.result.trace)
        self.gap_ = chosen.gap

    def _say_how_it_ended(self, found: Search) -> None:
        chosen = found.chosen
        if found.stop is not None:
            self.status_, self.message_ = found.stop.status.name, found.stop.message
        elif chosen.result is None or not np.all(np.isfinite(self.coef_)):
            self.status_, self.message_ = Status.NONFINITE.name, "a fit has values that are not finite"
            warnings.warn(f"FeatureWeights: {self.message_}.", RuntimeWarning, stacklevel=3)
        elif chosen.result.success and chosen.gap <= self.tol:
            certified = chosen.result.certified or "not bounded"
            self.status_ = Status.CONVERGED.name
            self.message_ = (
                f"gap {chosen.gap:.1e} from exact fits is at most {self.tol:g}; that in their span is {certified}"
            )
        else:
            self.status_ = Status.STALLED.name if chosen.result.success else chosen.result.status.name
            self.message_ = f"gap {chosen.gap:.1e} from exact fits is above {self.tol:g}; {chosen.result.message}"

    def _checked(self, X: Any) -> Any:
        check_is_fitted(self, "weights_")
        return validate_data(self, X, accept_sparse="csr", dtype=np.float64, reset=False)

    def _scores(self, X: Any) -> np.ndarray:
        return np.asarray(X @ self.coef_.T) + self.intercept_

    @available_if(_has_classes)  # type: ignore[untyped-decorator]
    def decision_function(self, X: Any) -> np.ndarray:
        """The linear scores of rows; for two classes, positive means the second one."""
        X = self._checked(X)
        scores = self._scores(X)
        return scores[:, 0] if len(self.classes_) == 2 else scores

    @available_if(_has_classes)  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> np.ndarray:
        """The probabilities of the classes; they account for the uncertainty of the coefficients if moderation_ > 0."""
        X = self._checked(X)
        Z = self._scores(X)
        if self.moderation_ > 0 and self._spread is not None:
            centred = X if scipy.sparse.issparse(X) and not np.any(self._mean) else _dense(X) - self._mean
            variance = np.mean(self._spread.of_rows(Design(centred)), axis=1, keepdims=True)
            Z = Z / np.sqrt(1 + self.moderation_ * np.pi / 8 * variance)
        if len(self.classes_) > 2:
            return np.asarray(softmax(Z, axis=1))
        second = expit(Z[:, 0])
        return np.column_stack([1 - second, second])

    @available_if(_has_classes)  # type: ignore[untyped-decorator]
    def predict_log_proba(self, X: Any) -> np.ndarray:
        """The logarithms of the probabilities."""
        return np.log(np.maximum(self.predict_proba(X), np.finfo(float).tiny))

    def predict(self, X: Any) -> np.ndarray:
        """The value or the most likely class of each row."""
        X = self._checked(X)
        scores = self._scores(X)
        if not hasattr(self, "classes_"):
            return scores
        place = (scores[:, 0] > 0).astype(int) if len(self.classes_) == 2 else np.argmax(scores, axis=1)
        return np.asarray(self.classes_[place])

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The accuracy for classes, R^2 for numbers."""
        predicted = self.predict(X)
        measure = accuracy_score if hasattr(self, "classes_") else r2_score
        return float(measure(y, predicted, sample_weight=sample_weight))

    def transform(self, X: Any) -> Any:
        """Columns divided by the square root of their weight: plain l2 with weight 1 is then the same model."""
        X = self._checked(X)
        scale = self.weights_**-0.5
        return X.multiply(scale).tocsr() if scipy.sparse.issparse(X) else X * scale

    def save(self, path: str | Path, schema: Any = None) -> Path:
        """Write the model to a file that `bx.estimators.load` reads; `schema` says how a table becomes X."""
        check_is_fitted(self, "weights_")
        from bilevax.estimators.feature_weights.model_format import FORMAT  # which needs this class

        return FORMAT.save(self, path, schema)

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Those of the features that were fitted."""
        check_is_fitted(self, "weights_")
        return np.asarray(_check_feature_names_in(self, input_features))


def _dense(X: Any) -> np.ndarray:
    return X.toarray() if scipy.sparse.issparse(X) else X


def _without_bounds(trace: Trace) -> Trace:
    """The rows without `gap_bound`, which a trace computes later, from the whole problem: a model must be small."""
    names = [name for name in trace.columns if name != "gap_bound"]
    columns = {name: trace[name] for name in names}
    return Trace([{name: columns[name][i].item() for name in names} for i in range(len(trace))])
