"""What a checkpoint keeps of a `CompletionFit`: between two steps all of its state, after a radius the matrix only."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp

from bilevax.runs.described import filled, leaves_of
from bilevax.sets.sampled import Sampled, Term

if TYPE_CHECKING:
    from bilevax.estimators.matrix_completion.fit import CompletionFit


def between_steps(fit: CompletionFit) -> dict[str, Any]:
    """All that the next step needs, and what the steps at this radius began with."""
    paths, leaves = leaves_of(fit.state)
    return {
        "paths": paths,
        "leaves": leaves,
        "first_step": fit.first_step,
        "first_error": fit.first_error,
        **_both(fit),
    }


def go_on(fit: CompletionFit, state: dict[str, Any]) -> None:
    """Put a fit that is about to take the first step at this radius where `between_steps` was."""
    run, leaves = fit.run, state["leaves"]
    assert run is not None
    run.state = filled(run.state, leaves)
    fit.first_step, fit.first_error = state["first_step"], state["first_error"]
    _put_both(fit, state)


def fits(fit: CompletionFit, state: Any) -> bool:
    """Whether a state has the parts and types that this fit needs."""
    if state is None or fit.run is None:
        return False
    paths, leaves = leaves_of(fit.state)
    return paths == state["paths"] and [a.dtype for a in leaves] == [b.dtype for b in state["leaves"]]


def after_radius(fit: CompletionFit) -> dict[str, Any]:
    """The matrix without its sampled values, which are computed again, and the effects; momentum starts anew anyway."""
    x = fit.state.x
    return {"terms": [tuple(term) for term in x.terms], "lost": float(x.lost), "rank": fit.rank, **_both(fit)}


def at_end(fit: CompletionFit, state: dict[str, Any]) -> None:
    """Put a fit where `after_radius` was."""
    run = fit.run
    assert run is not None
    (term,) = (Term(*term) for term in state["terms"])
    before = run.state.x
    values = jnp.asarray(fit.pattern.sample(term.left, term.right))
    x = Sampled(values, (term,), state["lost"], before.limit, before.rank)
    run.state = replace(run.state, x=x, previous=x, basis=run.state.basis._replace(rank=state["rank"]))
    _put_both(fit, state)


def keeps_matrix(fit: CompletionFit) -> bool:
    """Whether the terms of the matrix tell its sampled values: where they are one term that a step has made."""
    terms = fit.state.x.terms
    return len(terms) == 1 and terms[0].share == 1.0


def _both(fit: CompletionFit) -> dict[str, Any]:
    run, effects = fit.run, fit.effects
    assert run is not None and effects is not None
    return {
        "rows": effects.rows,
        "cols": effects.cols,
        "training_error": fit.training_error,
        "step": run.k,
        "next_row": run.next_row,
        "counts": dict(run.counts),
        "seconds": run.clock.seconds,
        "compiling": run.clock.compiling,
        "trace": [run.trace.row(i) for i in range(fit.first_row, len(run.trace))],
    }


def _put_both(fit: CompletionFit, state: dict[str, Any]) -> None:
    run, effects = fit.run, fit.effects
    assert run is not None and effects is not None
    effects.move_to(state["rows"], state["cols"])
    fit.training_error = state["training_error"]
    fit.set_offset()
    run.use(fit.problem)
    run.k, run.next_row, run.counts = state["step"], state["next_row"], dict(state["counts"])
    run.clock.seconds, run.clock.compiling = state["seconds"], state["compiling"]
    for row in state["trace"]:
        run.trace.append(row)
