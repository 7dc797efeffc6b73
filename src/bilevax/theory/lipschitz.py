"""Lipschitz constants and bounds that follow from the assumptions: Lemmas 2.1 and A.1, and C_1, C_2 of Lemma 4.1."""

from __future__ import annotations

from bilevax.theory.constants import Constants, required


def lower_solution_lipschitz(constants: Constants) -> float:
    """Lemma 2.1 (I): y*(x) is Lipschitz with L_y = C_yx_g / mu_g."""
    C_yx_g, mu_g = required(constants, "C_yx_g", "mu_g")
    return C_yx_g / mu_g


def upper_gradient_bound(constants: Constants, at_solution: float) -> float:
    """Lemma 2.1 (II): C_y_f bounds |grad_y f(x, y*(x))| on the set, given that norm at x* (or any point of the set)."""
    L_yx_f, L_yy_f, D_X = required(constants, "L_yx_f", "L_yy_f", "D_X")
    return (L_yx_f + L_yy_f * lower_solution_lipschitz(constants)) * D_X + at_solution


def adjoint_lipschitz(constants: Constants) -> float:
    """Lemma A.1: v(x) is Lipschitz with C_v. Its order is kappa^4 where C_y_f is of order kappa, not kappa^3."""
    mu_g, L_yx_f, L_yy_f, C_y_f, L_yy_g = required(constants, "mu_g", "L_yx_f", "L_yy_f", "C_y_f", "L_yy_g")
    L_y = lower_solution_lipschitz(constants)
    return (L_yx_f + L_yy_f * L_y) / mu_g + C_y_f * L_yy_g / mu_g**2 * (1 + L_y)


def hypergradient_lipschitz(constants: Constants) -> float:
    """Lemma 2.1 (III): the gradient of ell is Lipschitz with L_ell."""
    mu_g, C_yx_g, L_yx_g = required(constants, "mu_g", "C_yx_g", "L_yx_g")
    L_xx_f, L_xy_f, C_y_f = required(constants, "L_xx_f", "L_xy_f", "C_y_f")
    L_y = lower_solution_lipschitz(constants)
    direct = L_xx_f + L_xy_f * L_y + C_yx_g * adjoint_lipschitz(constants)
    return direct + C_y_f / mu_g * L_yx_g * (1 + L_y)


def adjoint_sensitivity(constants: Constants) -> float:
    """C_1 of Lemma 4.1: how an error in y disturbs the adjoint step."""
    L_yy_g, C_y_f, mu_g, L_yy_f = required(constants, "L_yy_g", "C_y_f", "mu_g", "L_yy_f")
    return L_yy_g * C_y_f / mu_g + L_yy_f


def direction_sensitivity(constants: Constants) -> float:
    """C_2 of Lemma 4.1: how an error in y disturbs the direction."""
    L_xy_f, L_yx_g, C_y_f, mu_g = required(constants, "L_xy_f", "L_yx_g", "C_y_f", "mu_g")
    return L_xy_f + L_yx_g * C_y_f / mu_g
