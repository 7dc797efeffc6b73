"""Conjugate gradients, the only linear solver for products: with its true residual, and frank about what it met."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jaxtyping import Array, Bool, Float, Int, PyTree, Scalar

from bilevax import trees
from bilevax.linalg import host_loops

Product = Callable[[PyTree], PyTree]

_CYCLES = 4  # restarts from the true residual; rounding makes that of the recursion too small


class LinearSolution(NamedTuple):
    """What conjugate gradients ended with."""

    w: PyTree
    residual: Scalar
    """`|b - H w|`, from a product with this `w` where `solve_linear` made it, otherwise that of the recursion."""
    products: Int[Array, ""]
    reached: Bool[Array, ""]
    """Whether the residual is as small as was asked, or as rounding allows."""
    positive: Bool[Array, ""]
    """Whether every direction had positive curvature; if not, H is not positive definite."""
    lowest: Scalar
    highest: Scalar
    """The least and the largest curvature along a direction: both lie inside the spectrum."""
    direction: PyTree = None
    """The next direction, with which `solve_linear` goes on as if it had not stopped."""


class Coefficients(NamedTuple):
    """The scalars of a run, from which the spectrum it has seen follows."""

    lengths: Float[Array, " k"]
    ratios: Float[Array, " k"]


def conjugate_gradient(
    hvp: Product,
    b: PyTree,
    w: PyTree,
    *,
    tol: Scalar | float = 0.0,
    max_steps: Int[Array, ""] | int = 1000,
    host: bool = False,
) -> LinearSolution:
    """`H w = b` by conjugate gradients from `w`, until the residual of the recursion is at most `tol |b|`.

    The last iterate is the answer, never the one of least residual: on an ill-conditioned H the residual rises for
    many steps while the error falls. `tol=0` goes on to rounding, eps |H| |w|, below which only the recursion gains.
    A direction of curvature that is not positive ends the run, and the answer says so.
    """
    return remembered(hvp, b, w, tol=tol, max_steps=max_steps, host=host, remember=0)[0]


def remembered(
    hvp: Product,
    b: PyTree,
    w: PyTree,
    *,
    tol: Scalar | float,
    max_steps: Int[Array, ""] | int,
    remember: int,
    direction: Callable[[PyTree], PyTree] = lambda r: r,
    host: bool = False,
) -> tuple[LinearSolution, Coefficients]:
    """`conjugate_gradient` with the coefficients of its first `remember` steps, for `ritz_values`.

    `direction` makes the first direction from the first residual.
    """
    dtype = trees.dtype(b)
    eps = jnp.finfo(dtype).eps
    small = jnp.asarray(tol, dtype) * trees.norm(b)
    r = trees.sub(b, hvp(w))
    zero, none, most = jnp.zeros((), dtype), jnp.zeros((), jnp.int32), jnp.full((), jnp.inf, dtype)

    def left(w: PyTree, rr: Scalar, highest: Scalar) -> Array:
        # A length that is not finite ends the run too.
        return jnp.sqrt(rr) > jnp.maximum(small, eps * highest * trees.norm(w))

    def unfinished(carry: tuple[Any, ...]) -> Array:
        w, _, _, rr, _, highest, positive, k, _ = carry
        return left(w, rr, highest) & positive & (k < max_steps)

    def step(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        w, r, p, rr, lowest, highest, _, k, memory = carry
        Hp = hvp(p)
        curvature, pp = trees.inner(p, Hp), trees.inner(p, p)
        # Below rounding a curvature says nothing, and a step along it would be a leap.
        positive = curvature > eps * jnp.maximum(highest, curvature / pp) * pp
        length = jnp.where(positive, rr / jnp.where(positive, curvature, 1), 0)
        w, r = trees.axpy(length, p, w), trees.axpy(-length, Hp, r)
        new = trees.inner(r, r)
        ratio = jnp.where(rr > 0, new / jnp.where(rr > 0, rr, 1), 0)
        if remember:
            memory = Coefficients(memory.lengths.at[k].set(length), memory.ratios.at[k].set(ratio))
        lowest, highest = jnp.minimum(lowest, curvature / pp), jnp.maximum(highest, curvature / pp)
        return w, r, trees.axpy(ratio, p, r), new, lowest, highest, positive, k + 1, memory

    memory = Coefficients(*(jnp.zeros(remember, dtype) for _ in range(2)))
    start = (w, r, direction(r), trees.inner(r, r), most, zero, jnp.asarray(True), none, memory)
    w, _, p, rr, lowest, highest, positive, k, memory = host_loops.loop_while(unfinished, step, start, host=host)
    reached = positive & ~left(w, rr, highest) & jnp.isfinite(rr)
    return LinearSolution(w, jnp.sqrt(rr), k + 1, reached, positive, lowest, highest, p), memory


def solve_linear(
    hvp: Product,
    b: PyTree,
    w: PyTree,
    *,
    tol: Scalar | float = 0.0,
    max_steps: Int[Array, ""] | int = 20_000,
    direction: PyTree = None,
    host: bool = False,
) -> LinearSolution:
    """`H w = b` with its true residual: restarted from there until that one is small enough or no longer falls.

    `tol=0` asks for rounding: a true residual of at most 8 eps (|H| |w| + |b|). `w` and `direction` of a solution that
    stopped early continue it; a direction of zeros does nothing.
    """
    eps, size = jnp.finfo(trees.dtype(b)).eps, trees.norm(b)

    def unfinished(carry: tuple[LinearSolution, Int[Array, ""], Bool[Array, ""]]) -> Array:
        solution, cycle, better = carry
        return ~solution.reached & solution.positive & better & (cycle < _CYCLES) & (solution.products < max_steps)

    def again(carry: tuple[LinearSolution, Any, Any]) -> tuple[LinearSolution, Any, Any]:
        before, cycle, _ = carry
        steps = max_steps - before.products
        onward = lambda r: r if direction is None else trees.choose(resumes & (cycle == 0), direction, r)  # noqa: E731
        run, _ = remembered(hvp, b, before.w, tol=tol, max_steps=steps, direction=onward, host=host, remember=0)
        residual = trees.norm(trees.sub(b, hvp(run.w)))
        highest = jnp.maximum(before.highest, run.highest)
        reached = residual <= jnp.maximum(tol * size, 8 * eps * (highest * trees.norm(run.w) + size))
        better = ~(residual > 0.5 * before.residual)  # NaN stays as it is and is seen by its residual
        keep = residual <= before.residual
        w = trees.choose(keep, run.w, before.w)
        solution = LinearSolution(
            w, jnp.minimum(residual, before.residual), before.products + run.products + 1,
            reached & run.positive, before.positive & run.positive, jnp.minimum(before.lowest, run.lowest), highest,
            run.direction,
        )  # fmt: skip
        return solution, cycle + 1, better

    no, infinite = jnp.asarray(False), jnp.full((), jnp.inf, trees.dtype(b))
    nothing = LinearSolution(w, infinite, jnp.zeros((), jnp.int32), no, ~no, infinite, jnp.zeros_like(infinite), w)
    resumes = no if direction is None else trees.inner(direction, direction) > 0
    return host_loops.loop_while(unfinished, again, (nothing, jnp.zeros((), jnp.int32), ~no), host=host)[0]


class Correction(NamedTuple):
    """A rough solution of `H w = b` from zero."""

    w: PyTree
    residual: PyTree
    """`b - H w`, from the recursion."""
    energy: Scalar
    """`<w, H w>`, what the solution has gained."""
    products: Int[Array, ""]


def rough_solution(
    hvp: Product,
    b: PyTree,
    *,
    share: Scalar | float,
    precondition: Product | None = None,
    max_steps: Int[Array, ""] | int,
    host: bool = False,
) -> Correction:
    """`H w = b` by conjugate gradients from zero, until the error is about `share` of the solution, in energy.

    The norm of the residual tells nothing of that error where H is ill-conditioned. So the steps since a mark must have
    gained less than `share`^2 of all the energy gained; marks lie farther and farther apart. With a `precondition`
    the preconditioned residual must be as small too: it is the error where that is close to the inverse of H.
    """
    dtype = trees.dtype(b)
    solve = (lambda r: r) if precondition is None else precondition
    z = solve(b)
    first = trees.inner(b, z)
    least = jnp.asarray(share, dtype) ** 2
    apart = 2 if precondition is None else 1

    def unfinished(carry: tuple[Any, ...]) -> Array:
        *_, k, done = carry
        return ~done & (k < max_steps)

    def step(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        w, r, p, rz, gained, at_mark, mark, k, _ = carry
        Hp = hvp(p)
        curvature = trees.inner(p, Hp)
        positive = curvature > 0
        length = jnp.where(positive, rz / jnp.where(positive, curvature, 1), jnp.where(k == 0, 1, 0))
        w, r = trees.axpy(length, p, w), trees.axpy(-length, Hp, r)
        z = solve(r)
        new, gained = trees.inner(r, z), gained + length * rz
        marked = k + 1 == mark
        done = marked & (gained - at_mark <= least * gained) & ((precondition is None) | (new <= least * first))
        at_mark = jnp.where(marked, gained, at_mark)
        mark = jnp.where(marked, mark + apart + mark // 4, mark)
        done = done | ~positive | ~(new > 0)
        return w, r, trees.axpy(new / rz, p, z), new, gained, at_mark, mark, k + 1, done

    zero, none = jnp.zeros((), dtype), jnp.zeros((), jnp.int32)
    start = (trees.zeros_like(b), b, z, first, zero, zero, none + apart, none, ~(first > 0))
    w, r, _, _, gained, _, _, k, _ = host_loops.loop_while(unfinished, step, start, host=host)
    return Correction(w, r, gained, k)


def ritz_values(solution: LinearSolution, memory: Coefficients) -> tuple[float, float]:
    """The ends of the spectrum that a run has seen: never outside that of H. Not inside compiled code."""
    k = min(int(solution.products) - 1, len(memory.lengths))
    lengths, ratios = (np.asarray(v, np.float64)[:k] for v in memory)
    diagonal = 1 / lengths + np.concatenate([[0.0], ratios[:-1] / lengths[:-1]])
    beside = np.sqrt(ratios[:-1]) / lengths[:-1]
    ends = lambda i: scipy.linalg.eigvalsh_tridiagonal(diagonal, beside, select="i", select_range=(i, i))[0]  # noqa: E731
    return float(ends(0)), float(ends(k - 1))


def residual_polynomial(solution: LinearSolution, memory: Coefficients, values: np.ndarray) -> np.ndarray:
    """p at some values, where p(H) takes the first residual of a run to its last. Not inside compiled code."""
    k = min(int(solution.products) - 1, len(memory.lengths))
    lengths, ratios = (np.asarray(v, np.float64)[:k] for v in memory)
    r = p = np.ones_like(values)
    for length, ratio in zip(lengths, ratios, strict=True):
        r = r - length * values * p
        p = r + ratio * p
    return r
