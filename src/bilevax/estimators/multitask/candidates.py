"""Kinds of priors that the upper level averages."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from bilevax.estimators.multitask.empirical_bayes import Links, estimate_links
from bilevax.estimators.multitask.prior import Moments, Prior
from bilevax.estimators.multitask.rows import Units

_TOL = 1e-4


class Candidate(NamedTuple):
    """A kind of prior."""

    words: str
    n_shared: int | None
    """Shared parts besides the mean of the tasks; None for tasks alone."""
    by_feature: bool = False
    """Whether each feature has its own variance between tasks; otherwise slopes have one, and intercepts another."""
    standardized: bool = False
    """Whether every feature is scaled to the standard deviation 1, also columns of two values."""

    def estimate(self, rows: Moments, units: Units, **how: Any) -> Links:
        """The prior of this kind that makes the rows most likely; `how` is for `estimate_links`."""
        d = rows.h.shape[1]
        groups = np.arange(d) if self.by_feature else np.append(np.zeros(d - 1, int), min(d - 1, 1))
        if not self.standardized:
            return estimate_links(rows, self.n_shared, groups, tol=_TOL, **how)
        links = estimate_links(units.standardized(rows), self.n_shared, groups, tol=_TOL, **how)
        return links._replace(prior=units.back(links.prior), coefficients=links.coefficients / units.deviation)


ALONE = Candidate("tasks alone", None)
MEAN = Candidate("a common mean", 0)


def with_parts(count: int) -> Candidate:
    """So many shared parts besides the mean."""
    return Candidate(f"a common mean and {count} more shared part{'s' * (count > 1)}", count)


def candidates(n_tasks: int, units: Units, n_parts: int) -> list[Candidate]:
    """The kinds to average; tasks alone is the last one."""
    if n_tasks == 1:
        return [ALONE]
    kinds = [MEAN]
    if len(units.deviation) > 2:
        kinds.append(Candidate("a common mean, with a variance for each feature", 0, by_feature=True))
    if n_parts:
        kinds.append(with_parts(n_parts))
    if np.any(np.abs(units.deviation - 1) > 0.1):
        kinds.append(Candidate("a common mean, all features scaled to standard deviation 1", 0, standardized=True))
    return [*kinds, ALONE]


def padded(prior: Prior, n_shared: int) -> Prior:
    """With shared parts that no task uses, so that all kinds have the same number."""
    T, d = prior.own.shape
    more = n_shared - prior.loadings.shape[1]
    loadings = np.column_stack([prior.loadings, np.zeros((T, more))])
    return Prior(prior.own, loadings, np.concatenate([prior.shared, np.full((more, d), prior.own.mean())]))
