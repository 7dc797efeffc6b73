"""Constrained bilevel optimization: projection-free, single-loop, on JAX."""

from bilevax.lazy import attach

__version__ = "0.2.0.dev0"
__getattr__, __dir__, __all__ = attach(__name__, __file__)
