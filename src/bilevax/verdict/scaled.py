"""The same problem in rescaled lower variables: y = scale * z, so that the Hessian in z has a diagonal of ones.

Nothing about x changes. Bounds in z are much tighter where the variables of y have different units, and conjugate
gradients in z are conjugate gradients in y preconditioned by the diagonal.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from bilevax.problem import BilevelProblem, Objective


class ScaledData(NamedTuple):
    """The user's data, and the scale of y."""

    data: Any
    scale: PyTree


@dataclass(frozen=True)
class _Scaled:
    """A function of the user, in z. Two of the same function are equal, so that nothing is compiled again."""

    function: Objective

    def __call__(self, x: PyTree, z: PyTree, data: ScaledData) -> Any:
        return self.function(x, jax.tree.map(jnp.multiply, data.scale, z), data.data)


def scaled(problem: BilevelProblem, scale: PyTree) -> BilevelProblem:
    """The problem in z; on one that is scaled already, another scale."""
    if isinstance(problem.data, ScaledData):
        return replace(problem, data=problem.data._replace(scale=scale))
    functions = (_Scaled(problem.upper), _Scaled(problem.lower))
    return BilevelProblem(*functions, problem.domain, data=ScaledData(problem.data, scale))


def unscaled(problem: BilevelProblem, y: PyTree) -> BilevelProblem:
    """The problem with a scale of ones, so that another scale compiles nothing again."""
    return scaled(problem, jax.tree.map(np.ones_like, y))
