"""Figures, tables and comparisons."""

from bilevax.report.comparison import Comparison, compare
from bilevax.report.figures import plot

__all__ = ["Comparison", "compare", "plot"]
