"""How many threads BLAS uses."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator
from typing import Any

_LOCK = threading.Lock()
_inside = 0  # how many contexts are open, in all Python threads
_limit: Any = None


@functools.cache
def _libraries() -> Any:
    import scipy.linalg  # noqa: F401 - its BLAS is another copy than numpy's, and only what is loaded can be limited
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


@contextlib.contextmanager
def one_blas_thread() -> Iterator[None]:
    """A context in which BLAS uses one thread.

    Its threads wait for each other by spinning: on a busy machine that made small dense algebra ten times slower.
    The number belongs to the whole process. So the first context that opens sets it and the last one that closes
    restores it, whichever Python threads they are in.
    """
    global _inside, _limit
    with _LOCK:
        if _inside == 0:
            _free_control()
            _limit = _libraries().limit(limits=1, user_api="blas")
        _inside += 1
    try:
        yield
    finally:
        with _LOCK:
            _inside -= 1
            if _inside == 0:
                _free_control()
                _limit.restore_original_limits()
                _free_control()


def _free_control() -> None:
    """Newer versions of threadpoolctl let only the Python thread that set the number change it again."""
    for library in _libraries().lib_controllers:
        if hasattr(library, "clear_controlling_thread"):
            library.clear_controlling_thread(force=True)
