"""What an epoch of accelerated steps gives: an average of its points, cut where it moved least."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree, Scalar

from bilevax import trees


class Epoch(eqx.Module):
    """What the output of an epoch is made of."""

    mean: PyTree
    """The average of the points so far."""
    output: PyTree
    """That average at the shortest move of the second half."""
    shortest: Scalar


def first_epoch(x: PyTree) -> Epoch:
    """Before the first step."""
    return Epoch(x, x, trees.scalar(jnp.inf, x))


def continued(epoch: Epoch, point: PyTree, move: PyTree, t: Int[Array, ""], K: Int[Array, ""] | int) -> Epoch:
    """The epoch with its step t of at most K. The first step of an epoch is t = 0 and forgets the one before."""
    mean = jax.tree.map(lambda m, u: jnp.where(t == 0, u, m + (u - m) / (t + 1).astype(u.dtype)), epoch.mean, point)
    length, shortest = trees.norm(move), jnp.where(t == 0, jnp.inf, epoch.shortest)
    better = (t >= K // 2) & (length < shortest)
    output = jax.tree.map(lambda new, old: jnp.where(better, new, old), mean, epoch.output)
    return Epoch(mean, output, jnp.where(better, length, shortest))
