"""A fitted multi-task regression in words: what was learned, what was chosen, and how sure that is."""

from __future__ import annotations

from typing import Any

import numpy as np


def describe(model: Any) -> str:
    """One screen about a fitted `MultiTaskRegression`."""
    count, rows = len(model.tasks_), int(np.sum(model.n_rows_by_task_))
    kind = "regression" if model.classes_ is None else "logistic regression"
    tasks = f"{count} tasks" if count > 1 else "one task, so that this is a ridge regression"
    lines = [
        f"MultiTaskRegression ({kind}) of {tasks}: {rows} rows, {model.coef_.shape[1]} features",
        f"  verdict      {verdict(model)}",
    ]
    if model.shares_:
        lines.append(f"  model        {mix_words(model.mix_)}")
    lines.append(f"  held out     {error_words(model)}")
    lines += [f"  chosen       {choice.words()}" for choice in model.choices_]
    if model.shares_:
        lines.append(f"  pull         {pull_words(model)}")
    if hasattr(model, "message_"):  # not in a model that was read from a file
        lines.append(f"  ended        {model.status_} after {model.seconds_:.1f} s: {model.message_}")
    return "\n".join(lines)


def verdict(model: Any) -> str:
    """Whether tasks learn from each other."""
    if len(model.tasks_) == 1:
        return "one task, nothing to share"
    if model.shares_:
        return "tasks learn from each other"
    if not model.choices_:
        return "nothing to share: no two tasks have a feature in common; each task has a regression of its own"
    return "nothing to share: each task has a regression of its own"


def mix_words(mix: list[tuple[str, float]]) -> str:
    """The kinds of models with their weights, largest first."""
    shown = sorted((pair for pair in mix if pair[1] >= 0.005), key=lambda pair: -pair[1])
    return "; ".join(f"{100 * share:.0f} % {words}" for words, share in shown)


def error_words(model: Any) -> str:
    """Errors on held-out rows."""
    unit = "RMSE" if model.classes_ is None else "log loss"
    errors = model.held_out_
    if len(model.tasks_) == 1:
        return f"{unit} {errors['model']:.4g}"
    return (
        f"{unit} {errors['model']:.4g} (each task alone {errors['alone']:.4g}, "
        f"one regression for all tasks {errors['pooled']:.4g})"
    )


def pull_words(model: Any) -> str:
    """How far tasks moved."""
    least, middle, most = np.quantile(model.pull_, [0, 0.5, 1])
    return (
        f"from their own regression (0 %) to the one for all tasks (100 %), tasks moved {100 * least:.0f} % to "
        f"{100 * most:.0f} %, half of them more than {100 * middle:.0f} %"
    )
