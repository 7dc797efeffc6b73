"""One file per method, `auto` that chooses one, and the protocol they follow; `pieces` holds what they share."""

from bilevax.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)


def methods() -> list[str]:
    """The names of all methods."""
    return [name for name in __all__ if hasattr(__getattr__(name), "prepare") and name != "Solver"]
