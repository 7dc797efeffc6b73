"""Figures and tables."""

from bilevax.report.figures import plot

__all__ = ["plot"]
