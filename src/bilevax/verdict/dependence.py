"""What second derivatives depend on, read off the traced program: no sample of points could prove it."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
from jaxtyping import PyTree

from bilevax import trees
from bilevax.problem import BilevelProblem, Objective
from bilevax.streaming import blocks

_KINKS = {
    "abs",
    "sign",
    "max",
    "min",
    "clamp",
    "select_n",
    "floor",
    "ceil",
    "round",
    "sort",
    "reduce_max",
    "reduce_min",
}


def quadratic_in_y(problem: BilevelProblem, x: PyTree, y: PyTree) -> bool:
    """Whether the second derivatives that the audit needs are seen not to depend on y.

    True is proof: no path in the program leads from y to the products. False may be caution: a power with a
    floating-point exponent of two is not recognised.
    """
    return _quadratic(problem.upper, problem.lower, trees.shapes((x, y, blocks.shapes(problem.data))))


@functools.lru_cache(maxsize=512)
def _quadratic(upper: Objective, lower: Objective, shapes: trees.Shapes) -> bool:
    def products(y: PyTree, x: PyTree, z: PyTree, data: Any) -> Any:
        of_upper = jax.jvp(lambda y: jax.grad(upper, argnums=(0, 1))(x, y, data), (y,), (z,))[1]
        # If the Hessian of lower does not depend on y, whatever x is, then J is affine in y by itself.
        of_lower = jax.vjp(jax.grad(lambda y: lower(x, y, data)), y)[1](z)
        return of_upper, of_lower

    x, y, data = jax.tree.unflatten(shapes.structure, shapes.leaves)
    if any(_has_kinks(jax.make_jaxpr(lambda y, x, d, f=f: f(x, y, d))(y, x, data).jaxpr) for f in (upper, lower)):
        return False  # the second derivative of |y| vanishes wherever it exists
    traced = jax.make_jaxpr(products)(y, x, y, data).jaxpr
    count = len(jax.tree.leaves(y))
    return not any(_depends(traced, [i < count for i in range(len(traced.invars))]))


class LowerCurvature(NamedTuple):
    """What the Hessian of the lower level is seen not to depend on; False may be caution."""

    constant: bool
    """Neither on x nor on y."""
    quadratic: bool
    """Not on y."""


def lower_curvature(problem: BilevelProblem, x: PyTree, y: PyTree) -> LowerCurvature:
    """Whether one Hessian serves all y, or all x and y."""
    return _lower_curvature(problem.lower, trees.shapes((trees.coordinates(x), y, blocks.shapes(problem.data))))


@functools.lru_cache(maxsize=512)
def _lower_curvature(lower: Objective, shapes: trees.Shapes) -> LowerCurvature:
    def product(y: PyTree, x: PyTree, z: PyTree, data: Any) -> Any:
        return jax.vjp(jax.grad(lambda y: lower(x, y, data)), y)[1](z)

    x, y, data = jax.tree.unflatten(shapes.structure, shapes.leaves)
    if _has_kinks(jax.make_jaxpr(lambda y, x, d: lower(x, y, d))(y, x, data).jaxpr):
        return LowerCurvature(False, False)
    traced = jax.make_jaxpr(product)(y, x, y, data).jaxpr
    of_y, of_x = len(jax.tree.leaves(y)), len(jax.tree.leaves(x))
    on_y, on_x_or_y = (
        any(_depends(traced, [i < count for i in range(len(traced.invars))])) for count in (of_y, of_y + of_x)
    )
    return LowerCurvature(not on_x_or_y, not on_y)


def _has_kinks(jaxpr: Any) -> bool:
    """Whether some function in a program has kinks or jumps, whatever it is applied to."""
    for equation in jaxpr.eqns:
        if equation.primitive.name in _KINKS:
            return True
        for inside in equation.params.values():
            inside = getattr(inside, "jaxpr", inside)
            if hasattr(inside, "eqns") and _has_kinks(inside):
                return True
    return False


def _depends(jaxpr: Any, marked: list[bool]) -> list[bool]:
    """Which outputs depend on the marked inputs."""
    tainted = {var for var, mark in zip(jaxpr.invars, marked, strict=True) if mark}
    for equation in jaxpr.eqns:
        marks = [not hasattr(v, "val") and v in tainted for v in equation.invars]
        if not any(marks):
            continue
        inside = equation.params.get("jaxpr", equation.params.get("call_jaxpr"))
        inside = getattr(inside, "jaxpr", inside)
        if equation.primitive.name in ("jit", "pjit", "custom_jvp_call", "custom_vjp_call") and (
            inside is not None and len(inside.invars) == len(marks)
        ):
            outputs = _depends(inside, marks)
        else:  # loops and branches: every output, which is cautious
            outputs = [True] * len(equation.outvars)
        tainted |= {var for var, mark in zip(equation.outvars, outputs, strict=True) if mark}
    return [not hasattr(v, "val") and v in tainted for v in jaxpr.outvars]
