"""Work that a thread does while the caller computes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import jax

NAME = "bilevax reader"


def in_the_setting_of_the_caller(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function for another thread: whether JAX has 64-bit numbers is a setting of each."""
    wide = bool(jax.config.read("jax_enable_x64"))

    def call(*args: Any) -> Any:
        with jax.enable_x64(wide):
            return function(*args)

    return call


class Ahead:
    """One call in a thread of its own. The thread ends with the call, so that nobody has to stop it."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self._work = (in_the_setting_of_the_caller(function), args)
        self._value: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=NAME, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        function, args = self._work
        try:
            self._value = function(*args)
        except BaseException as error:  # raised again in the thread that asks for the value
            self._error = error

    def result(self) -> Any:
        """The value, as soon as it is there; an error of the call is raised here."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._value

    def wait(self) -> None:
        """Until the thread has ended, whatever came of it."""
        self._thread.join()
