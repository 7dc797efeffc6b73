"""What each column of a table is for: features, a target, and perhaps a task. Checks come before any work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from bilevax.tables.encoder import Encoder, Missing
from bilevax.tables.table import Table, is_text, listed, missing
from bilevax.tables.text import shortened
from bilevax.tables.typed import number_words

Loss = Literal["auto", "squared", "logistic"]
MOST_CLASSES = 100


@dataclass(frozen=True)
class Schema:
    """How a table becomes arrays; `schema_of` makes one, and `as_plain` is what a model file keeps.

    Args:
        encoder: of the features.
        target: the column to predict.
        task: the column that says to which task a row belongs, if any.
        labels: the classes of the target; None if the target is a number.
    """

    encoder: Encoder
    target: str
    task: str | None = None
    labels: tuple[str, ...] | None = None

    @property
    def loss(self) -> str:
        """The loss that suits the target: "squared" for numbers, "logistic" for classes."""
        return "squared" if self.labels is None else "logistic"

    @property
    def text_columns(self) -> list[str]:
        """Columns that `read_table` must read as text, so that another table looks like the first one."""
        return self.encoder.text_columns + ([] if self.task is None else [self.task])

    def features_of(self, table: Table) -> np.ndarray:
        """The matrix of features."""
        return self.encoder.transform(table)

    def tasks_of(self, table: Table) -> np.ndarray | None:
        """The task of each row as text; None if there are no tasks. A missing one is refused."""
        if self.task is None:
            return None
        _refuse_missing(table, self.task, "task")
        return np.array(as_words(table[self.task]))

    def outcomes_of(self, table: Table) -> np.ndarray:
        """The target of each row: a number, or the number of its class from 0."""
        _refuse_missing(table, self.target, "target")
        column = table[self.target]
        if self.labels is None:
            if is_text(column):
                raise ValueError(f"{table.name}: the target {self.target!r} holds text; expected numbers.")
            return column
        place = {label: float(number) for number, label in enumerate(self.labels)}
        words = as_words(column)
        if unknown := [word for word in words if word not in place]:
            raise ValueError(
                f"{table.name}: the target {self.target!r} is {shortened(unknown[0])} in {len(unknown)} rows; expected "
                f"{listed(self.labels[:-1])} or {self.labels[-1]}."
            )
        return np.array([place[word] for word in words])

    def fitted_on(self, table: Table, *, missing: Missing = "refuse", min_count: int = 2) -> Schema:
        """The same roles, with an encoder fitted on other rows of the same table."""
        features = [column.name for column in self.encoder.columns]
        return replace(self, encoder=Encoder.fit(table, features, missing=missing, min_count=min_count))

    def as_plain(self) -> dict[str, Any]:
        """The schema as JSON values."""
        labels = None if self.labels is None else list(self.labels)
        return {"encoder": self.encoder.as_plain(), "target": self.target, "task": self.task, "labels": labels}

    @classmethod
    def of_plain(cls, plain: Any) -> Schema:
        """The schema of JSON values; a ValueError for others than `as_plain` makes."""
        try:
            encoder = Encoder.of_plain(plain["encoder"])
            target, task, labels = plain["target"], plain["task"], plain["labels"]
        except (TypeError, KeyError) as error:
            raise ValueError(f"this is not a schema of bilevax: {str(error)[:200]}") from None
        if not isinstance(target, str) or not (task is None or isinstance(task, str)):
            raise ValueError("this is not a schema of bilevax: target and task are names of columns")
        if labels is not None:
            texts = isinstance(labels, list) and all(isinstance(label, str) for label in labels)
            if not texts or not 2 <= len(set(labels)) == len(labels) <= MOST_CLASSES:
                raise ValueError("this is not a schema of bilevax: labels are different texts")
            labels = tuple(labels)
        if {target, task} & {column.name for column in encoder.columns} or target == task:
            raise ValueError("this is not a schema of bilevax: a column has two roles")
        return cls(encoder, target, task, labels)


def schema_of(
    table: Table,
    *,
    target: str,
    task: str | None = None,
    features: Sequence[str] | None = None,
    drop: Sequence[str] = (),
    loss: Loss = "auto",
    most_classes: int = 2,
    missing: Missing = "refuse",
    min_count: int = 2,
) -> Schema:
    """Give each column its role, or refuse the table with a sentence.

    Args:
        target: the column to predict.
        task: the column that says to which task a row belongs.
        features: columns to learn from; by default all others.
        drop: columns to leave out.
        loss: "squared" for a target of numbers, "logistic" for classes; "auto" takes a target of text, or of two
            different numbers, for classes.
        most_classes: that the model can tell apart.
        missing: see `Encoder.fit`.
        min_count: see `Encoder.fit`.
    """
    roles = {"target": target} | ({} if task is None else {"task": task})
    table.check_has(*roles.values(), *drop, *(features or ()))
    if target == task:
        raise ValueError(f"{table.name}: {target!r} cannot be both the target and the task.")
    for role, name in roles.items():
        if name in drop:
            raise ValueError(f"{table.name}: {name!r} is the {role} and cannot be dropped.")
        if name in (features or ()):
            raise ValueError(f"{table.name}: {name!r} is the {role} and cannot be a feature.")
    taken = {*roles.values(), *drop}
    chosen = [name for name in (table.names if features is None else features) if name not in taken]
    _refuse_missing(table, target, "target")
    labels = _labels(table, target, loss, most_classes)
    if task is not None:
        _refuse_missing(table, task, "task")
        _check_tasks(table, task)
    return Schema(Encoder.fit(table, chosen, missing=missing, min_count=min_count), target, task, labels)


def describe(table: Table, schema: Schema, dropped: Sequence[str] = ()) -> str:
    """What was read, on one line."""
    encoder, y = schema.encoder, schema.outcomes_of(table)
    parts = [f"{len(table)} rows", f"{len(encoder.names)} features from {len(encoder.columns)} columns"]
    notes = [*table.notes, *([f"dropped {listed(list(dropped))}"] if dropped else []), *encoder.notes]
    tasks = schema.tasks_of(table)
    if tasks is not None:
        counts = np.unique(tasks, return_counts=True)[1]
        parts.append(f"{len(counts)} tasks of {counts.min()} to {counts.max()} rows")
        if alone := int(np.sum(counts == 1)):
            notes.insert(0, f"{alone} tasks have one row and rest on the others")
    if schema.labels is None:
        parts.append(f"target {schema.target!r} with numbers from {y.min():g} to {y.max():g}, mean {y.mean():.3g}")
    else:
        shares = 100 * np.bincount(y.astype(int), minlength=len(schema.labels)) / len(y)
        classes = [
            f"{shortened(label)[1:-1]} ({share:.3g} %)" for label, share in zip(schema.labels, shares, strict=True)
        ]
        parts.append(f"target {schema.target!r} with classes {listed(classes, 5)}")
    return "; ".join([f"{table.name}: {', '.join(parts)}", *notes]) + "."


def as_words(column: np.ndarray) -> list[str]:
    """A column without missing values as text."""
    return [entry if isinstance(entry, str) else number_words(entry) for entry in column.tolist()]


def _refuse_missing(table: Table, name: str, role: str) -> None:
    absent = missing(table[name])
    if absent.any():
        raise ValueError(
            f"{table.name}: the {role} {name!r} is missing in {int(absent.sum())} of {len(table)} rows, first in row "
            f"{int(np.argmax(absent)) + 1}; fill it in, or remove these rows."
        )


def _labels(table: Table, target: str, loss: Loss, most: int) -> tuple[str, ...] | None:
    """The classes of the target, None for numbers."""
    if loss not in ("auto", "squared", "logistic"):
        raise ValueError(f"{table.name}: loss must be 'auto', 'squared' or 'logistic', got {loss!r}.")
    column = table[target]
    distinct = sorted(set(column.tolist()))
    if len(distinct) == 1:
        word = as_words(column[:1])[0]
        raise ValueError(f"{table.name}: the target {target!r} is always {shortened(word)}, so nothing can be learned.")
    if not is_text(column):
        if loss == "squared" or (loss == "auto" and len(distinct) > 2):
            return None
    elif loss == "squared":
        raise ValueError(f"{table.name}: the target {target!r} holds text, and the squared loss needs numbers.")
    if len(distinct) > most:
        names, more = listed(as_words(np.array(distinct[:5], object))), ", ..." * (len(distinct) > 5)
        raise ValueError(
            f"{table.name}: the target {target!r} has {len(distinct)} classes ({names}{more}), and {most} is the "
            "limit; keep the rows of some classes, or predict one class against the rest."
        )
    return tuple(as_words(np.array(distinct, object)))


def _check_tasks(table: Table, task: str) -> None:
    counts = Counter(as_words(table[task]))
    if len(counts) == 1:
        only = shortened(next(iter(counts)))
        raise ValueError(f"{table.name}: the task {task!r} is always {only}; expected several tasks.")
    if max(counts.values()) == 1:
        raise ValueError(
            f"{table.name}: every task ({task!r}) has one row, and nothing can be learned; is this the right column?"
        )
