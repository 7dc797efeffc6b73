"""How many threads BLAS uses."""

from __future__ import annotations

import functools
from typing import Any


@functools.cache
def _libraries() -> Any:
    import scipy.linalg  # noqa: F401 - its BLAS is another copy than numpy's, and only what is loaded can be limited
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def one_blas_thread() -> Any:
    """A context in which BLAS uses one thread.

    Its threads wait for each other by spinning: on a busy machine that made small dense algebra ten times slower.
    """
    return _libraries().limit(limits=1, user_api="blas")
