"""The step sizes of TTSA as the paper quotes them (appendix C.1)."""

from __future__ import annotations

from dataclasses import dataclass

from bilevax.theory.constants import Constants, required


@dataclass(frozen=True)
class TTSASteps:
    """The step sizes the paper quotes for TTSA (appendix C.1)."""

    alpha: float
    beta: float


def ttsa_steps(constants: Constants, steps: int) -> TTSASteps:
    """Both steps for a horizon of `steps`, from the constants of f and g."""
    mu_g, L_g, L_xy_f, L_yy_f, C_yx_g = required(constants, "mu_g", "L_g", "L_xy_f", "L_yy_f", "C_yx_g")
    C_y_f, L_yx_g, L_yy_g = required(constants, "C_y_f", "L_yx_g", "L_yy_g")
    L = L_xy_f + L_yy_f * C_yx_g / mu_g + C_y_f * (L_yx_g / mu_g + L_yy_g * C_yx_g / mu_g**2)
    L_y = C_yx_g / mu_g
    alpha = min(mu_g**2 / (8 * L_y * L * L_g**2), steps**-0.6 / (4 * L_y * L))
    return TTSASteps(alpha, min(mu_g / L_g**2, 2 / mu_g * steps**-0.4))
