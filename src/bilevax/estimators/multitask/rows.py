"""The rows of all tasks in one scale, and their moments by fold and task."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bilevax.estimators.multitask.prior import Moments, Prior

_OTHER_UNITS = 2.0
"""Standard deviation of the logarithms of the variances of the target within tasks, from which on each task has units
of its own. Tasks in one unit rarely differ so much; metres and inches would differ by 7 in the logarithm."""


class Rows(NamedTuple):
    """Rows in units in which one prior suits all features; the last feature is 1 and gives the intercepts."""

    A: np.ndarray
    """rows by features"""
    b: np.ndarray
    """Targets: centred and scaled, or -1 and 1."""
    task: np.ndarray
    """The number of the task of each row, from 0."""
    weight: np.ndarray
    n_tasks: int

    def subset(self, keep: np.ndarray) -> Rows:
        """Some of the rows; the tasks are numbered as before."""
        return Rows(self.A[keep], self.b[keep], self.task[keep], self.weight[keep], self.n_tasks)


class Units(NamedTuple):
    """How the rows were centred and scaled."""

    center: np.ndarray
    scale: np.ndarray
    """A column of two values is scaled by half their distance, whatever their frequencies; others by their standard
    deviation; constant columns by infinity."""
    deviation: np.ndarray
    """The standard deviation of each feature after that, with 1 for the intercept."""
    target: tuple[np.ndarray, np.ndarray]
    """Mean and standard deviation of the target; 0 and 1 for classes."""

    # Where tasks have different features, center and scale have a first axis for the tasks; `target` also where tasks
    # have different units.

    def coefficients(self, W: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Coefficients and intercepts for rows as the user gives them."""
        mean, size = self.target
        coef = size[..., None] * W[..., :-1] / self.scale
        return coef, mean + size * W[..., -1] - np.sum(coef * self.center, axis=-1)

    @property
    def comparable(self) -> bool:
        """Whether targets of all tasks are in one unit, so that one regression for all of them makes sense."""
        return self.target[0].ndim == 0

    def deviations(self, spread: np.ndarray) -> np.ndarray:
        """Standard deviations of the coefficients from covariances, tasks by features by features."""
        variances = np.einsum("...ii->...i", spread)[..., :-1]
        return self.target[1][..., None] * np.sqrt(np.maximum(variances, 0)) / self.scale

    def standardized(self, rows: Moments) -> Moments:
        """Moments of the rows if every feature had the standard deviation 1."""
        factor = 1 / self.deviation
        return Moments(factor[:, None] * rows.G * factor, rows.h * factor, rows.const, rows.rows)

    def back(self, prior: Prior) -> Prior:
        """A prior for standardized features as one for these rows."""
        return Prior(prior.own / self.deviation**2, prior.loadings, prior.shared / self.deviation**2)


def scaled_rows(
    X: np.ndarray, y: np.ndarray, task: np.ndarray, weight: np.ndarray, n_tasks: int, *, classes: bool
) -> tuple[Rows, Units]:
    """Centre and scale. Where X is NaN, the task does not have the feature."""
    present = ~np.isnan(X)
    filled = np.where(present, X, 0.0)
    total = np.maximum(weight @ present, 1e-300)
    center = weight @ filled / total
    off = np.where(present, X - center, 0.0)
    deviation = np.sqrt(weight @ off**2 / total)
    lowest = np.min(np.where(present, X, np.inf), axis=0, initial=np.inf)
    highest = np.max(np.where(present, X, -np.inf), axis=0, initial=-np.inf)
    lowest, highest = (np.where(np.isfinite(edge), edge, 0.0) for edge in (lowest, highest))  # a task without it
    half = 0.5 * (highest - lowest)
    two = np.all((X == lowest) | (X == highest) | ~present, axis=0)
    # Rounding makes the deviation of a constant column of large numbers tiny, not zero.
    constant = (half == 0) | (deviation <= 1e-13 * np.maximum(np.abs(lowest), np.abs(highest)))
    scale = np.where(constant, np.inf, np.where(two, half, deviation))
    A = np.ones((len(X), X.shape[1] + 1))
    A[:, :-1] = off / scale
    target = (np.array(0.0), np.array(1.0)) if classes else _target_units(y, task, weight, n_tasks)
    b = (y - target[0][task]) / target[1][task] if target[0].ndim else (y - target[0]) / target[1]
    units = Units(center, scale, np.append(np.where(constant, 1.0, deviation / scale), 1.0), target)
    return Rows(A, b, task, weight, n_tasks), units


def _target_units(y: np.ndarray, task: np.ndarray, weight: np.ndarray, n_tasks: int) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of the target; those of each task if tasks seem to be measured in other units."""
    mean = weight @ y / weight.sum()
    size = np.sqrt(weight @ (y - mean) ** 2 / weight.sum())
    total, sums = np.bincount(task, weight, n_tasks), np.bincount(task, weight * y, n_tasks)
    means = sums / np.maximum(total, 1e-300)
    squares = np.bincount(task, weight * (y - means[task]) ** 2, n_tasks)
    within = squares.sum() / weight.sum()
    known = squares > 1e-12 * within * total
    variances = squares[known] / total[known]
    if len(variances) < 2 or np.std(np.log(variances)) < _OTHER_UNITS:
        return np.array(mean), np.array(size if size > 0 else 1.0)
    return means, np.sqrt(np.where(known, squares / np.maximum(total, 1e-300), np.median(variances)))


def separately_scaled_rows(
    X: np.ndarray, y: np.ndarray, task: np.ndarray, weight: np.ndarray, n_tasks: int, *, classes: bool
) -> tuple[Rows, Units]:
    """The same for tasks whose features have nothing to do with each other, and whose targets may have other units."""
    A, b, units = np.zeros((len(X), X.shape[1] + 1)), np.zeros(len(X)), []
    for t in range(n_tasks):
        own = task == t
        rows, unit = scaled_rows(X[own], y[own], task[own], weight[own], n_tasks, classes=classes)
        A[own], b[own] = rows.A, rows.b
        units.append(unit)
    center, scale = (np.array([unit[i] for unit in units]) for i in (0, 1))
    mean, size = (np.array([unit.target[i] for unit in units]) for i in (0, 1))
    return Rows(A, b, task, weight, n_tasks), Units(center, scale, np.ones(X.shape[1] + 1), (mean, size))


def moments_by_fold(rows: Rows, folds: np.ndarray, n_folds: int) -> list[Moments]:
    """The moments of the rows of each fold."""
    T, d = rows.n_tasks, rows.A.shape[1]
    G, h = np.zeros((n_folds * T, d, d)), np.zeros((n_folds * T, d))
    const, count = np.zeros(n_folds * T), np.zeros(n_folds * T)
    cell = folds * T + rows.task
    order = np.argsort(cell, kind="stable")
    starts = np.flatnonzero(np.diff(cell[order], prepend=-1))
    for chosen in np.split(order, starts[1:]):
        i, A, b, w = cell[chosen[0]], rows.A[chosen], rows.b[chosen], rows.weight[chosen]
        weighted = w[:, None] * A
        G[i], h[i], const[i], count[i] = weighted.T @ A, weighted.T @ b, w @ b**2, w.sum()
    return [Moments(*(part[k * T : (k + 1) * T] for part in (G, h, const, count))) for k in range(n_folds)]
