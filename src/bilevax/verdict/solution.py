"""Both inner problems solved at one x, in scaled variables, and what the solver saw of the lower Hessian."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import PyTree

PROBES = 8
"""Random directions in which norms are measured."""


class Solution(NamedTuple):
    """y and w as `scale * z` and `scale * w`."""

    z: PyTree
    w: PyTree
    scale: PyTree
    mu: float
    """A lower bound on the curvature in z, or an estimate of one with a margin; 0 where there is none."""
    mu_source: str
    lowest: float
    """A curvature in y that occurs: the smallest one is no larger."""
    products: int
    proved: bool = False
    """Whether a factorization proved that `mu` is a lower bound."""
    solved: np.ndarray | None = None
    """The inverse of the Hessian in z times standard normal vectors, as rows; None where it is not reliable."""
    not_convex: str = ""
    refusal: str = ""
