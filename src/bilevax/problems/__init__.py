"""Ready-made problems: functions that return a `BilevelProblem` and what is known about it."""

from bilevax.problems.completion import Synthetic, matrix_completion, synthetic
from bilevax.problems.coreset import Toy, toy_coreset
from bilevax.problems.known import (
    KnownProblem,
    known_nonconvex,
    known_quadratic,
    known_robust_lower,
    known_robust_upper,
)
from bilevax.problems.linked_classifiers import linked_classifiers
from bilevax.problems.linked_tasks import LinkedTasks, linked_tasks
from bilevax.problems.logistic import feature_weights
from bilevax.problems.minimax import minimax
from bilevax.problems.multitask import MultiTask, Part, Task, multi_task
from bilevax.problems.quadratic import KnownQuadratic, random_quadratic
from bilevax.problems.row_weights import RowWeights, row_weights
from bilevax.problems.sparse_completion import sparse_completion

__all__ = [
    "KnownProblem",
    "KnownQuadratic",
    "LinkedTasks",
    "MultiTask",
    "Part",
    "RowWeights",
    "Synthetic",
    "Task",
    "Toy",
    "feature_weights",
    "known_nonconvex",
    "known_quadratic",
    "known_robust_lower",
    "known_robust_upper",
    "linked_classifiers",
    "linked_tasks",
    "matrix_completion",
    "minimax",
    "multi_task",
    "random_quadratic",
    "row_weights",
    "sparse_completion",
    "synthetic",
    "toy_coreset",
]
