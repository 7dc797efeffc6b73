"""What the bounds need to know about a run of IBCG."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bilevax.theory.constants import Constants

Real = Any  # a float, or an array where k or gamma is one


@dataclass(frozen=True)
class Setting:
    """A run of IBCG that the bounds speak about: constants, constant step sizes, and the errors it starts with."""

    constants: Constants
    gamma: float
    eta: float
    y_error: float
    """D_0^y = |y_0 - y*(x_0)|"""
    w_error: float
    """|w_0 - v(x_0)|"""

    def __post_init__(self) -> None:
        limit = float(self.constants.eta_limit)
        if not (0 < self.gamma <= 1 and 0 < self.eta < limit * (1 + 1e-12)):
            raise ValueError(
                f"Setting: Lemma 4.1 needs 0 < gamma <= 1 and 0 < eta < (1 - beta)/mu_g = {limit:g}, "
                f"got gamma={self.gamma:g}, eta={self.eta:g}."
            )

    @property
    def rho(self) -> float:
        """The contraction 1 - eta mu_g of an adjoint step."""
        return 1 - self.eta * float(self.constants.mu_g)

    @property
    def beta(self) -> float:
        """The contraction of a lower step."""
        return float(self.constants.beta)
