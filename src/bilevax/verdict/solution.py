"""Both inner problems solved at one x, in scaled variables, and what the solver saw of the lower Hessian."""

from __future__ import annotations

from typing import NamedTuple

from jaxtyping import PyTree


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
    cross_norm: float
    """A bound on the norm of J in z; infinite if none is known."""
    factorized: bool
    products: int
    not_convex: str = ""
    refusal: str = ""
