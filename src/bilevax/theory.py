"""The paper's constants and the step sizes they give."""

from __future__ import annotations

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PyTree, Scalar

from bilevax import linalg, trees
from bilevax.problem import BilevelProblem, LowerStructure
from bilevax.sets.contract import known, number

LANCZOS_STEPS = 24


class Constants(eqx.Module):
    """Assumption 2.2: the lower level is `mu_g`-strongly convex with an `L_g`-Lipschitz gradient in y."""

    mu_g: Scalar | float = eqx.field(converter=number)
    L_g: Scalar | float = eqx.field(converter=number)
    estimated: bool = eqx.field(static=True, default=False)

    def __check_init__(self) -> None:
        if known((self.mu_g, self.L_g)) and not self.estimated and not 0 < float(self.mu_g) <= float(self.L_g) < np.inf:
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


def estimate_constants(problem: BilevelProblem, x: PyTree, y: PyTree, key: Array) -> Constants:
    """mu_g and L_g from Lanczos runs on the lower Hessian at two points.

    Ritz values lie inside the spectrum, and the Hessian differs elsewhere: L_g is therefore raised by a tenth.
    """
    if problem.structure.host:  # its formulas cannot be traced; autodiff of the lower level always can
        problem = replace(problem, structure=LowerStructure())
    flat, back = ravel_pytree(y)

    def extremes(point: tuple[PyTree, PyTree, Array]) -> tuple[Scalar, Scalar]:
        x, y, key = point
        hvp = problem.linearize_lower(x, y).hvp
        return linalg.extreme_eigenvalues(
            lambda v: ravel_pytree(hvp(back(v)))[0], jnp.zeros_like(flat), key, steps=LANCZOS_STEPS
        )

    # The second point: halfway to an extreme point of the set, and from y by the best step along the gradient.
    here, there = jax.random.split(key)
    extreme, _ = problem.domain.lmo(trees.random_like(x, there), problem.domain.start(x))
    far = trees.move(x, extreme, jnp.asarray(0.5, flat.dtype))
    g_y = problem.lower_grad(far, y)
    curvature = trees.inner(g_y, problem.lower_hvp(far, y, g_y))
    length = jnp.where(curvature > 0, trees.inner(g_y, g_y) / jnp.where(curvature > 0, curvature, 1), 0)
    points = [(x, y, here), (far, trees.axpy(-length, g_y, y), there)]
    lows, highs = jax.lax.map(extremes, jax.tree.map(lambda *v: jnp.stack(v), *points))
    return Constants(jnp.min(lows), 1.1 * jnp.max(highs), estimated=True)
