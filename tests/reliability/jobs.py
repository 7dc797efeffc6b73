"""Runs that are killed and continued: one for each kind of method."""

from functools import cache

import jax.numpy as jnp
import numpy as np
import zoo
from small_completion import COLS, OBSERVED, ROWS, M, P, Q

import bilevax as bx
from bilevax.problems import sparse_completion


def _curved():
    A = jnp.asarray(np.random.default_rng(0).standard_normal((40, 10)))
    return bx.BilevelProblem(
        lambda x, y, d: 0.5 * jnp.sum((d @ y - 1) ** 2),
        lambda x, y, d: jnp.sum(jnp.logaddexp(0.0, d @ y)) + 0.5 * jnp.sum(jnp.exp(x) * y**2),
        bx.Box(-3.0, 3.0),
        A,
    )


def _on_rows(solver):
    return zoo.finite_sum(8, blocks=True)[0], solver, jnp.array([0.1, 0.2, 0.3, 0.4]), jnp.ones(4)


def _on_simplex():
    known = zoo.known_problem("Simplex").problem
    return known, bx.IBCG(), jnp.asarray(known.domain.vertex(known.x_like)), jnp.ones(6)


JOBS = {
    "IBCG": (_on_simplex, 400),
    "SBFW": (lambda: _on_rows(bx.SBFW()), 60),
    "SABA": (lambda: _on_rows(bx.SABA()), 300),
    "SampledIBCG": (lambda: _on_rows(bx.SampledIBCG(passes=2000.0)), 30),
    "BlockIBCG": (
        lambda: (sparse_completion(ROWS, COLS, M[OBSERVED], 10.0, shape=(P, Q))[0], bx.BlockIBCG(), None, None),
        12,
    ),
    "AdaptiveIBCG": (lambda: (_curved(), bx.AdaptiveIBCG(), jnp.zeros(10), jnp.zeros(10)), 40),
    "ProjectedIBCG": (lambda: (_curved(), bx.ProjectedIBCG(), jnp.zeros(10), jnp.zeros(10)), 12),
}
"""What makes a run, and its steps."""


@cache
def uninterrupted(name):
    """The end of a run that nobody disturbs."""
    make, steps = JOBS[name]
    return bx.solve(*make(), steps=steps)


def same(a, b):
    """Whether two results agree in every bit, time apart."""
    columns = [name for name in a.trace.columns if name not in ("seconds", "gap_bound")]
    assert [a.status, a.message, a.steps] == [b.status, b.message, b.steps]
    assert a.trace.columns == b.trace.columns
    for name in columns:
        np.testing.assert_array_equal(a.trace[name], b.trace[name], err_msg=name)
    for one, other in zip(*(map(np.asarray, _leaves(result)) for result in (a, b)), strict=True):
        np.testing.assert_array_equal(one, other)
    return True


def _leaves(result):
    from bilevax.runs.described import leaves_of

    return leaves_of((result.x, result.y, result.state, result.solver))[1]
