"""The paper's theory as functions: what each statement bounds, with the constants it needs.

Where the print disagrees with its own proof we follow the proof; the printed form stands beside it under a name that
ends in `_as_printed`. `docs/theory.md` lists every difference and shows where a printed bound is violated.

All functions are plain floating-point arithmetic on the host, vectorised over the step index k.
"""

from bilevax.theory.as_printed import (
    adjoint_tracking_as_printed,
    convex_bound_as_printed,
    hypergradient_error_as_printed,
    nonconvex_bound_as_printed,
)
from bilevax.theory.constants import Constants
from bilevax.theory.convergence import convex_bound, nonconvex_bound, one_step_excess
from bilevax.theory.corollaries import convex_iterations, convex_step, nonconvex_iterations, nonconvex_step
from bilevax.theory.lipschitz import (
    adjoint_lipschitz,
    adjoint_sensitivity,
    direction_sensitivity,
    hypergradient_lipschitz,
    lower_solution_lipschitz,
    upper_gradient_bound,
)
from bilevax.theory.setting import Real, Setting
from bilevax.theory.tracking import (
    adjoint_tracking,
    adjoint_tracking_step,
    hypergradient_error,
    lower_tracking,
    lower_tracking_constant,
)
from bilevax.theory.ttsa import TTSASteps, ttsa_steps

__all__ = [
    "Constants",
    "Real",
    "Setting",
    "TTSASteps",
    "adjoint_lipschitz",
    "adjoint_sensitivity",
    "adjoint_tracking",
    "adjoint_tracking_as_printed",
    "adjoint_tracking_step",
    "convex_bound",
    "convex_bound_as_printed",
    "convex_iterations",
    "convex_step",
    "direction_sensitivity",
    "hypergradient_error",
    "hypergradient_error_as_printed",
    "hypergradient_lipschitz",
    "lower_solution_lipschitz",
    "lower_tracking",
    "lower_tracking_constant",
    "nonconvex_bound",
    "nonconvex_bound_as_printed",
    "nonconvex_iterations",
    "nonconvex_step",
    "one_step_excess",
    "ttsa_steps",
    "upper_gradient_bound",
]
