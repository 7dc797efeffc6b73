"""The completion problem on the observed entries alone: same functions, same numbers, a fraction of the work.

Everything that enters the direction lives on Omega = Omega1 + Omega2: both levels are sums over entries, the lower
Hessian is diagonal, and outside Omega1 the upper gradient vanishes. So y and w have one number for each observed entry,
x has its values on Omega and its factors, and the set is the nuclear ball restricted to Omega.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from bilevax import trees
from bilevax.linalg.sparse import sorted_pattern
from bilevax.problem import BilevelProblem
from bilevax.problems.completion import STRUCTURE, LowerLevel, lower_objective, setting, upper
from bilevax.sets.sampled import SampledNuclearBall
from bilevax.theory import Constants


def sparse_completion(
    rows: Any,
    cols: Any,
    values: Any,
    radius: float,
    *,
    shape: tuple[int, int] | None = None,
    omega1: Any = None,
    omega2: Any = None,
    **lower: Any,
) -> tuple[BilevelProblem, Constants]:
    """The problem for entries (rows[i], cols[i]) with these values, and its constants.

    Args:
        radius: bound on the nuclear norm.
        shape: of the matrix; by default just large enough.
        omega1, omega2: which of the entries belong to the upper and to the lower level, as masks; by default all.
        lower: the lower level, as in `matrix_completion`.
    """
    rows, cols, values = (np.asarray(v) for v in (rows, cols, values))
    if not rows.ndim == cols.ndim == values.ndim == 1 or not len(rows) == len(cols) == len(values) > 0:
        shapes = ", ".join(str(v.shape) for v in (rows, cols, values))
        raise ValueError(f"sparse_completion: rows, cols and values must be vectors of one length > 0, got {shapes}.")
    least = (int(rows.max()) + 1, int(cols.max()) + 1)
    shape = least if shape is None else (int(shape[0]), int(shape[1]))
    if min(int(rows.min()), int(cols.min())) < 0 or shape[0] < least[0] or shape[1] < least[1]:
        raise ValueError(f"sparse_completion: entries up to {least} do not fit into a matrix of shape {shape}.")
    pattern, order = sorted_pattern(rows, cols, shape)
    masks = [np.ones(len(values), bool) if mask is None else np.asarray(mask) for mask in (omega1, omega2)]
    if any(mask.shape != values.shape or mask.dtype != bool for mask in masks):
        raise ValueError(f"sparse_completion: omega1 and omega2 must be boolean masks of length {len(values)}.")
    one = masks[0][order]
    two = one if omega1 is omega2 is None else masks[1][order]
    data, constants = setting(values[order], one, radius, two, LowerLevel(**lower))
    like = trees.shapes(jnp.zeros(len(values), data["M"].dtype))
    domain = SampledNuclearBall(pattern, radius)
    return BilevelProblem(
        upper, lower_objective, domain, data, structure=STRUCTURE, x_like=like, y_like=like
    ), constants
