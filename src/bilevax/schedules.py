"""Step sizes as functions of the step index k, counted from 0."""

from __future__ import annotations

import abc
import math
import warnings
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Scalar

from bilevax.trees import as_leaf, is_concrete


class Schedule(eqx.Module):
    """A step size for every step; its numbers are array leaves, so another value compiles nothing."""

    @abc.abstractmethod
    def __call__(self, k: Int[Array, ""]) -> Scalar:
        """The step size of step `k`."""


class Constant(Schedule):
    """The same step size always."""

    value: Scalar | float = eqx.field(converter=as_leaf)

    def __call__(self, k: Int[Array, ""]) -> Scalar:
        return jnp.asarray(self.value)

    def __repr__(self) -> str:
        return f"{float(self.value):.6g}" if is_concrete(self.value) else "Constant"


class Estimated(Constant):
    """A step of x that a method chose from the curvature at the start; it becomes shorter where ell curves more."""


class Travelled(Constant):
    """A step of x that a method finds while it runs (`pieces/travel.py`); the value is the distance it begins with."""


class Power(Schedule):
    """`scale / (k + shift)^exponent`."""

    scale: Scalar | float = eqx.field(converter=as_leaf)
    exponent: Scalar | float = eqx.field(converter=as_leaf)
    shift: Scalar | float = eqx.field(converter=as_leaf, default=1.0)

    def __call__(self, k: Int[Array, ""]) -> Scalar:
        scale = jnp.asarray(self.scale)  # whose precision decides: it may be a measured one
        shift, exponent = (jnp.asarray(v, scale.dtype) for v in (self.shift, self.exponent))
        return scale * (k.astype(scale.dtype) + shift) ** -exponent


class Cut(Power):
    """A step of x that a method chose for noisy directions; those that are much larger than usual are cut."""


class OpenLoop(Schedule):
    """`lead / (k + lead)`, Frank-Wolfe's classical step for `lead = 2`; needs no horizon."""

    lead: Scalar | float = eqx.field(converter=as_leaf, default=2.0)

    def __call__(self, k: Int[Array, ""]) -> Scalar:
        lead = jnp.asarray(self.lead)
        return lead / (k.astype(lead.dtype) + lead)

    def __repr__(self) -> str:
        return f"{float(self.lead):g}/(k+{float(self.lead):g})" if is_concrete(self.lead) else "OpenLoop"


class Custom(Schedule):
    """A user's function of `k`, for example an optax schedule; static, so a new one compiles again."""

    function: Callable[[Any], Any] = eqx.field(static=True)

    def __call__(self, k: Int[Array, ""]) -> Scalar:
        # 64-bit integers, where JAX has them, so that 1 / (k + 1) is not rounded to 32 bits.
        return jnp.asarray(self.function(k.astype(jnp.result_type(int))))


def as_schedule(given: Any) -> Any:
    """A schedule from a number, a schedule or a function of `k`; None stays None."""
    if given is None or isinstance(given, Schedule):
        return given
    if callable(given):
        return Custom(given)
    if np.ndim(given) or not isinstance(given, (int, float, np.generic, np.ndarray, jax.Array)):
        raise TypeError(f"a step size must be a number, a schedule or a function of k, got {given!r}.")
    return Constant(as_leaf(given))


def check_fraction(owner: str, name: str, schedule: Schedule) -> None:
    """For steps that must lie in [0, 1]: refuse a constant outside, warn of a power that exceeds 1 for long."""
    if not is_concrete(schedule):
        return
    if isinstance(schedule, Constant) and not 0 <= float(schedule.value) <= 1:
        raise ValueError(f"{owner}: {name} must lie between 0 and 1 to keep x in the set, got {schedule!r}.")
    if isinstance(schedule, Power) and float(schedule.scale) > 1 and float(schedule.exponent) > 0:
        # the last one, counted from 1, as papers count
        last = math.ceil(float(schedule.scale) ** (1 / float(schedule.exponent)) - float(schedule.shift))
        if last >= 10:  # one or two are harmless, and the schedule printed for SBFW has one
            warnings.warn(
                f"{owner}: up to k = {last} the step {name}_k exceeds 1 and would leave the set; it is clipped to 1, "
                f"so that x jumps from vertex to vertex.",
                stacklevel=4,
            )
