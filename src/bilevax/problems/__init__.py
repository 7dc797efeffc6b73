"""Ready-made problems: functions that return a `BilevelProblem` and what is known about it."""

from bilevax.problems.completion import Synthetic, matrix_completion, synthetic
from bilevax.problems.coreset import Toy, toy_coreset
from bilevax.problems.quadratic import KnownQuadratic, random_quadratic

__all__ = ["KnownQuadratic", "Synthetic", "Toy", "matrix_completion", "random_quadratic", "synthetic", "toy_coreset"]
