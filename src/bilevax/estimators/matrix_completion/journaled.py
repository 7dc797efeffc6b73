"""Sweeps and averages of factors that a journal keeps: known results are taken from it, others are computed."""

from __future__ import annotations

from bilevax.estimators.matrix_completion.deadline import Deadline
from bilevax.estimators.matrix_completion.factors import Factors
from bilevax.estimators.matrix_completion.posterior import posterior_mean


def settle(factors: Factors, most: int, tol: float, late: Deadline, more: int = 0) -> None:
    """Add so many factors, then sweep as `Factors.go` does; a checkpoint may be written after each sweep."""
    journal = late.journal
    call = journal.call(f"sweeps of {factors.rank + more} factors, {factors.observed.count} entries")
    if call.found:
        factors.put(call.result)
        return
    done = 0
    if call.running is not None:
        done = int(call.running["sweeps"])
        factors.put(call.running["factors"])
    elif more:
        factors.grow(more)
    while done < most:
        change, done = factors.sweep(), done + 1
        if change <= tol or factors.noise <= factors.least:
            break
        state = {"sweeps": done, "factors": factors.state()}
        journal.state = lambda state=state: state
        if late():  # which saves this state
            break
        journal.save_if_due()
    journal.keep(call, factors.state())


def posterior_average(factors: Factors, most_factors: int, late: Deadline) -> Factors:
    """The posterior mean. It is tried where entries are few, so that a killed one begins anew."""
    call = late.journal.call(f"average over the posterior from {factors.rank} factors")
    if call.found:
        mean = factors.copy()
        mean.put(call.result)
        return mean
    mean = posterior_mean(factors, most_factors, late)
    late.journal.keep(call, mean.state())
    return mean
