"""Convex sets: see `contract.py` for what each of them can do."""

from bilevax.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
