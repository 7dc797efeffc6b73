"""Estimators in the manner of scikit-learn, built on the problems and methods of the layers below."""

from __future__ import annotations

from bilevax.lazy import attach

try:
    import sklearn  # noqa: F401
except ImportError as error:
    raise ImportError("bilevax.estimators needs scikit-learn: pip install 'bilevax[estimators]'.") from error

# On first use: fits of factors alone need no JAX, and load none.
__getattr__, __dir__, __all__ = attach(__name__, __file__)
