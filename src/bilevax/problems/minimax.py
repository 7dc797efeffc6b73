"""Min-max problems as bilevel ones: the paper's example (ii) after Lemma 4.1."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jaxtyping import PyTree, Scalar

from bilevax.problem import BilevelProblem, Objective


@dataclass(frozen=True)
class _Negative:
    """-f as a function that equals itself: a second `minimax` of the same f compiles nothing again."""

    function: Callable[..., Scalar]

    def __call__(self, x: PyTree, y: PyTree, data: Any) -> Scalar:
        return -self.function(x, y, data)


def minimax(f: Objective, domain: Any, data: Any = None, **options: Any) -> BilevelProblem:
    """min over x in the set of max over y of f(x, y, data), for f strongly concave in y.

    It is the bilevel problem with g = -f. At y*(x) the gradient of f in y vanishes, so that the adjoint is zero and
    the direction is f_x alone (Danskin). ell is convex if f is convex in x.

    >>> import jax.numpy as jnp, bilevax as bx
    >>> game = bx.minimax(lambda x, y, _: x @ y - 0.5 * jnp.sum(y**2), bx.Simplex())  # max over y is |x|^2 / 2
    >>> result = bx.solve(game, x0=jnp.array([1.0, 0.0]), y0=jnp.zeros(2), steps=500, tol=1e-2)
    >>> [round(float(v), 1) for v in result.x]
    [0.5, 0.5]
    """
    return BilevelProblem(f, _Negative(f), domain, data, **options)
