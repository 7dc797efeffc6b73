"""The constants of a problem, measured where no formula gives them.

The spectrum of the lower Hessian comes from Lanczos on Hessian products; Lipschitz constants are the largest ratios
between sampled points and hence lower bounds.
"""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PyTree, Scalar

from bilevax import trees
from bilevax.linalg import lanczos
from bilevax.linalg.brief import brief_jit
from bilevax.problem import BilevelProblem, LowerStructure
from bilevax.sets import ConvexSet
from bilevax.theory import Constants

START, CLOSE_LOOK = 36, 288
"""Hessian products at the first point, at most: before a run, and when a diagnosis was asked for."""
PRODUCTS_ELSEWHERE = 10
MARGIN = 1.1
"""Steps are taken for an L_g this much larger than the estimate: Ritz values lie inside the spectrum of one point."""


def _traceable(problem: BilevelProblem) -> BilevelProblem:
    """Without host formulas, which cannot be traced; autodiff of the lower level always can."""
    return replace(problem, structure=LowerStructure()) if problem.structure.host else problem


def lower_spectrum(problem: BilevelProblem, x: PyTree, y: PyTree, key: Array, max_products: int) -> lanczos.Extremes:
    """Both ends of the spectrum of H(x, y)."""
    problem = _traceable(problem)
    flat, back = ravel_pytree(y)
    hvp = problem.linearize_lower(x, y).hvp
    matvec = lambda v: ravel_pytree(hvp(back(v)))[0]  # noqa: E731
    return lanczos.extreme_eigenvalues(matvec, flat.size, key, max_products=max_products, dtype=flat.dtype)


def extreme_point(domain: ConvexSet, x: PyTree, d: PyTree) -> PyTree:
    """The extreme point of the set against `d`; where it is unbounded and has none, one step from x along it."""
    step = trees.sub(x, d)
    try:
        s = domain.lmo(d, domain.start(x))[0]
    except NotImplementedError:
        return domain.project(step)
    if isinstance(s, trees.Point):
        return s
    # A box may be unbounded in some of its coordinates only.
    return jax.tree.map(lambda a, b: jnp.where(jnp.isfinite(a), a, b), s, step)


def _towards(problem: BilevelProblem, x: PyTree, y: PyTree, key: Array, share: float) -> tuple[PyTree, PyTree]:
    """Another point: towards a random extreme point of the set, and from y by the best step along the gradient."""
    s = extreme_point(problem.domain, x, trees.random_like(x, key))
    x = trees.move(x, s, jnp.asarray(share, trees.dtype(y)))
    g_y = problem.lower_grad(x, y)
    curvature = trees.inner(g_y, problem.lower_hvp(x, y, g_y))
    length = jnp.where(curvature > 0, trees.inner(g_y, g_y) / jnp.where(curvature > 0, curvature, 1), 0)
    return x, trees.axpy(-length, g_y, y)


def _farthest(problem: BilevelProblem, x: PyTree, y: PyTree, key: Array) -> tuple[PyTree, PyTree]:
    """A random extreme point, where curvature often peaks; halfway to it if the lower level is not defined at it."""
    problem = _traceable(problem)
    corner, middle = (_towards(problem, x, y, key, share) for share in (1.0, 0.5))
    defined = trees.all_finite(corner) & trees.all_finite(problem.lower_grad(*corner))
    return trees.choose(defined, corner, middle)


def estimate_constants(problem: BilevelProblem, x: PyTree, y: PyTree, key: Array, products: int = START) -> Constants:
    """mu_g and L_g from Hessian products at the start, at most `products`, and a dozen at an extreme point of the set.

    After 36 products L_g is within a few percent. If mu_g still falls then, up to two thirds are taken off: methods
    are safe with a mu_g that is too small, and slow or wrong with one that is too large.
    """
    first_key, second_key = jax.random.split(key)
    first = lower_spectrum(problem, x, y, first_key, products)
    second = lower_spectrum(problem, *_farthest(problem, x, y, second_key), second_key, PRODUCTS_ELSEWHERE)
    # Where the lower level breaks down at that point, as with the inverse of a singular matrix, the start decides.
    sound = second.high < first.high / jnp.sqrt(jnp.finfo(trees.dtype(y)).eps)
    low = jnp.where(sound, jnp.minimum(first.low, second.low), first.low)
    if products == START:
        low = jnp.where(low > 0, jnp.maximum(low - 2 * first.fall, low / 3), low)
    high = jnp.where(sound, jnp.maximum(first.high, second.high), first.high)
    return Constants(low, high, estimated=True, products=first.products + second.products + 2)


def for_steps(constants: Constants) -> Constants:
    """What step sizes are computed from: estimates with a margin, given constants as they are."""
    if not constants.estimated:
        return constants
    return replace(constants, mu_g=jnp.maximum(constants.mu_g, 0), L_g=MARGIN * constants.L_g)


def _next_sample(problem: BilevelProblem, x: PyTree, y: PyTree, key: Array) -> tuple[PyTree, PyTree]:
    x, y = _towards(_traceable(problem), x, y, key, 0.5)
    return x, trees.axpy(0.1 * trees.norm(y) / trees.size(y) ** 0.5, trees.random_like(y, key), y)


_compiled_next_sample = brief_jit(_next_sample)


def sample_points(problem: BilevelProblem, x: PyTree, y: PyTree, key: Array, count: int) -> list[tuple[PyTree, PyTree]]:
    """The start and `count - 1` other points: x on random chords of the set, y around y*(x)."""
    following = _next_sample if problem.host else _compiled_next_sample
    points = [(x, y)]
    for i in range(1, count):
        points.append(following(problem, *points[-1], jax.random.fold_in(key, i)))
    return points


@brief_jit
def _cross_norm(problem: BilevelProblem, x: PyTree, y: PyTree, key: Array) -> Scalar:
    """The norm of J(x, y), by twenty power steps on J^T J."""

    def step(_: Array, w: PyTree) -> PyTree:
        d = problem.lower_cross(x, y, w)
        _, back = jax.jvp(lambda x: problem.lower_grad(x, y), (x,), (d,))
        size = trees.norm(back)
        return trees.scale(1 / jnp.where(size > 0, size, 1), back)

    w = jax.lax.fori_loop(0, 20, step, trees.random_like(y, key))
    return trees.norm(problem.lower_cross(x, y, w)) / jnp.where(trees.norm(w) > 0, trees.norm(w), 1)


@brief_jit
def _ratios(
    problem: BilevelProblem, a: tuple[PyTree, PyTree], b: tuple[PyTree, PyTree], key: Array
) -> dict[str, Scalar]:
    """How much each derivative changes between two points, over the distance that its constant refers to."""
    (x, y), (x_b, y_b) = a, b
    v = trees.random_like(y, key)
    v = trees.scale(1 / trees.norm(v), v)

    def ratio(change: PyTree, distance: Scalar) -> Scalar:
        return jnp.where(distance > 0, trees.norm(change) / jnp.where(distance > 0, distance, 1), 0)

    along_x, along_y = trees.norm(trees.sub(x_b, x)), trees.norm(trees.sub(y_b, y))
    base, moved_x, moved_y = problem.upper_grads(x, y), problem.upper_grads(x_b, y), problem.upper_grads(x, y_b)
    at_a, at_b = problem.linearize_lower(x, y), problem.linearize_lower(x_b, y_b)
    both = jnp.sqrt(along_x**2 + along_y**2)
    return {
        "L_xx_f": ratio(trees.sub(moved_x[0], base[0]), along_x),
        "L_yx_f": ratio(trees.sub(moved_x[1], base[1]), along_x),
        "L_xy_f": ratio(trees.sub(moved_y[0], base[0]), along_y),
        "L_yy_f": ratio(trees.sub(moved_y[1], base[1]), along_y),
        "L_yy_g": ratio(trees.sub(at_b.hvp(v), at_a.hvp(v)), both),
        "L_yx_g": ratio(trees.sub(at_b.cross(v), at_a.cross(v)), both),
    }


def sampled_constants(problem: BilevelProblem, points: list[tuple[PyTree, PyTree]], key: Array) -> dict[str, float]:
    """The largest ratio between the points for each Lipschitz constant of the assumptions; true ones are no smaller."""
    problem, points = _traceable(problem), [(trees.coordinates(x), y) for x, y in points]
    largest: dict[str, float] = {"C_yx_g": 0.0}
    for i, point in enumerate(points):
        largest["C_yx_g"] = max(largest["C_yx_g"], float(_cross_norm(problem, *point, jax.random.fold_in(key, i))))
        ratios = _ratios(problem, point, points[i - 1], jax.random.fold_in(key, i))
        largest.update({name: max(largest.get(name, 0.0), float(value)) for name, value in ratios.items()})
    return largest
