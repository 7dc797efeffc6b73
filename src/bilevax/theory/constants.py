"""The constants of Assumptions 2.1 and 2.2, given by the user or estimated."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Scalar

from bilevax.trees import as_leaf, is_concrete


class Constants(eqx.Module):
    """The constants of Assumptions 2.1 and 2.2, in the paper's letters.

    Solvers need only `mu_g` and `L_g`; the bounds of `bilevax.theory` need the rest. `C_y_f` bounds |grad_y f| along
    (x, y*(x)): known in the bounded case, otherwise from `upper_gradient_bound`.
    """

    mu_g: Scalar | float = eqx.field(converter=as_leaf)
    """Strong convexity of g in y."""
    L_g: Scalar | float = eqx.field(converter=as_leaf)
    """Lipschitz constant of grad_y g in y."""
    estimated: bool = eqx.field(static=True, default=False)
    C_yx_g: Scalar | float = eqx.field(converter=as_leaf, default=np.nan, kw_only=True)
    """Lipschitz constant of grad_y g in x, a bound on |J|."""
    L_yx_g: Scalar | float = eqx.field(converter=as_leaf, default=np.nan, kw_only=True)
    """Lipschitz constant of J in (x, y)."""
    L_yy_g: Scalar | float = eqx.field(converter=as_leaf, default=np.nan, kw_only=True)
    """Lipschitz constant of H in (x, y)."""
    L_xx_f: Scalar | float = eqx.field(converter=as_leaf, default=np.nan, kw_only=True)
    L_xy_f: Scalar | float = eqx.field(converter=as_leaf, default=np.nan, kw_only=True)
    """Lipschitz constants of grad_x f in x and in y."""
    L_yx_f: Scalar | float = eqx.field(converter=as_leaf, default=np.nan, kw_only=True)
    L_yy_f: Scalar | float = eqx.field(converter=as_leaf, default=np.nan, kw_only=True)
    """Lipschitz constants of grad_y f in x and in y."""
    C_y_f: Scalar | float = eqx.field(converter=as_leaf, default=np.nan, kw_only=True)
    """Bound on |grad_y f(x, y*(x))|."""
    D_X: Scalar | float = eqx.field(converter=as_leaf, default=np.nan, kw_only=True)
    """Diameter of the set."""
    products: Any = eqx.field(default=0, kw_only=True)
    """Hessian products spent on estimating them."""

    def __check_init__(self) -> None:
        if self.estimated or not is_concrete((self.mu_g, self.L_g)):
            return
        if not 0 < float(self.mu_g) <= float(self.L_g) < np.inf:
            raise ValueError(
                f"Constants: need 0 < mu_g <= L_g, got mu_g={float(self.mu_g):g}, L_g={float(self.L_g):g}; "
                f"they are the extreme eigenvalues of the lower Hessian in y."
            )

    @property
    def kappa(self) -> Scalar | float:
        """The condition number L_g / mu_g."""
        return self.L_g / self.mu_g

    @property
    def beta(self) -> Scalar | float:
        """The contraction of a lower step with the step size `alpha` (Lemma 4.1)."""
        return (self.L_g - self.mu_g) / (self.L_g + self.mu_g)

    @property
    def alpha(self) -> Scalar | float:
        """The lower step size 2 / (mu_g + L_g) of the paper."""
        return 2 / (self.mu_g + self.L_g)

    @property
    def eta_limit(self) -> Scalar | float:
        """The bound (1 - beta) / mu_g on the adjoint step size; it equals `alpha`."""
        return (1 - self.beta) / self.mu_g


def required(constants: Constants, *names: str) -> list[float]:
    """The named constants as floats; a missing one is refused by name."""
    values = [float(getattr(constants, name)) for name in names]
    missing = [name for name, value in zip(names, values, strict=True) if np.isnan(value)]
    if missing:
        raise ValueError(
            f"this bound needs {', '.join(missing)}; give it to bx.Constants or estimate it with bx.diagnose."
        )
    return values
