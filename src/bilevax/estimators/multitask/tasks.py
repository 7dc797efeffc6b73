"""Which task a row belongs to: labels from the caller or from a column, and rows of tasks with different features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np


def split_column(X: Any, column: Any, task: Any) -> tuple[Any, Any]:
    """X without its column of task labels, and the labels; X and `task` as they are if no column is named."""
    if column is None:
        return X, task
    if task is not None:
        raise ValueError("MultiTaskRegression: give task= or task_column=, not both.")
    names = getattr(X, "columns", None)
    if names is not None and hasattr(X, "drop"):
        name = column if column in list(names) else _at(list(names), column)
        if name is None:
            raise ValueError(f"MultiTaskRegression: task_column {column!r} is none of the columns {_listed(names)}.")
        return X.drop(columns=[name]), np.asarray(X[name])
    table = np.asarray(X)
    if table.ndim != 2:
        raise ValueError(f"MultiTaskRegression: expected a table of rows and columns, got shape {table.shape}.")
    index = _at(list(range(table.shape[1])), column)
    if index is None:
        raise ValueError(
            f"MultiTaskRegression: task_column {column!r} is none of the {table.shape[1]} columns, which have no "
            f"names; give a position from 0, or a DataFrame."
        )
    return np.delete(table, index, axis=1), table[:, index]


def _at(columns: list[Any], position: Any) -> Any:
    whole = isinstance(position, (int, np.integer)) and not isinstance(position, bool)
    return columns[position] if whole and -len(columns) <= position < len(columns) else None


def _listed(names: Any) -> str:
    shown = [repr(name) for name in list(names)[:8]]
    return ", ".join(shown) + (", ..." if len(names) > 8 else "")


def checked_labels(task: Any, n_rows: int) -> np.ndarray:
    """One label for each row, numbers or text; none of them missing."""
    labels = np.asarray(task)
    if labels.shape != (n_rows,):
        raise ValueError(
            f"MultiTaskRegression: task has shape {labels.shape}; give one label for each of the {n_rows} rows."
        )
    if labels.dtype.kind == "O":
        if any(label is None or label != label for label in labels.tolist()):
            raise ValueError("MultiTaskRegression: task has missing labels; every row belongs to a task.")
        labels = labels.astype(str)
    if labels.dtype.kind == "f" and not np.isfinite(labels).all():
        raise ValueError("MultiTaskRegression: task has labels that are NaN or infinite; every row belongs to a task.")
    return labels


def positions(labels: np.ndarray, known: np.ndarray) -> np.ndarray:
    """The number of each label among the sorted known ones; -1 for one that is not known."""
    if labels.dtype.kind in "US" and known.dtype.kind not in "US":
        known = known.astype(str)
        order = np.argsort(known)
    elif labels.dtype.kind not in "US" and known.dtype.kind in "US":
        labels, order = labels.astype(str), np.arange(len(known))
    else:
        order = np.arange(len(known))
    place = np.minimum(np.searchsorted(known, labels, sorter=order), len(known) - 1)
    found = order[place]
    return np.where(known[found] == labels, found, -1)


class Stacked(NamedTuple):
    """Rows of tasks with different features in one table; NaN where a task does not have a feature."""

    X: np.ndarray
    y: np.ndarray
    task: np.ndarray
    columns: list[np.ndarray]
    """The positions of the features of each task."""
    names: np.ndarray | None
    linked: bool
    """Whether two tasks have a feature in common."""


def stack(Xs: Sequence[Any], ys: Sequence[Any]) -> Stacked:
    """One table from one for each task.

    Columns are the same feature if they have the same name in DataFrames, or if all tables are arrays with the same
    number of columns.
    """
    if len(Xs) != len(ys) or not len(Xs):
        raise ValueError(f"fit_tasks: expected a table and a target for each task, got {len(Xs)} and {len(ys)}.")
    named = all(hasattr(X, "columns") for X in Xs)
    tables = [np.asarray(X, float) for X in Xs]
    targets = [np.asarray(y) for y in ys]
    for t, (X, y) in enumerate(zip(tables, targets, strict=True)):
        if X.ndim != 2 or y.shape != (len(X),) or not len(X):
            raise ValueError(
                f"fit_tasks: task {t} has a table of shape {X.shape} and a target of shape {y.shape}; "
                f"expected (n, features) and (n,) with at least one row."
            )
        if not np.isfinite(X).all():
            raise ValueError(f"fit_tasks: the table of task {t} has NaN or infinite values; remove or replace them.")
    columns, names = _columns(Xs, tables, named)
    width = max(int(own.max(initial=-1)) for own in columns) + 1
    X = np.full((sum(map(len, tables)), width), np.nan)
    task = np.repeat(np.arange(len(tables)), [len(table) for table in tables])
    for t, (table, own) in enumerate(zip(tables, columns, strict=True)):
        X[np.ix_(task == t, own)] = table
    same_width = len({table.shape[1] for table in tables}) == 1
    linked = len(tables) > 1 and (_overlap(columns) if named else same_width)
    return Stacked(X, np.concatenate(targets), task, columns, names, linked)


def _columns(Xs: Sequence[Any], tables: list[np.ndarray], named: bool) -> tuple[list[np.ndarray], np.ndarray | None]:
    if not named:
        return [np.arange(table.shape[1]) for table in tables], None
    every = list(dict.fromkeys(str(name) for X in Xs for name in X.columns))
    number = {name: i for i, name in enumerate(every)}
    return [np.array([number[str(name)] for name in X.columns], int) for X in Xs], np.array(every, object)


def _overlap(columns: list[np.ndarray]) -> bool:
    return len(np.unique(np.concatenate(columns))) < sum(map(len, columns))
