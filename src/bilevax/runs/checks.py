"""Everything that can be wrong with a call, said in words before the first step."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from bilevax import trees
from bilevax.estimation import extreme_point
from bilevax.linalg.brief import brief_jit
from bilevax.linalg.host_loops import Kernels
from bilevax.problem import BilevelProblem, LowerStructure, check_derivatives, formulas
from bilevax.runs.stage import endless, on_first_window
from bilevax.sampling import check_rows
from bilevax.streaming import blocks
from bilevax.streaming.windows import on_windows
from bilevax.verdict.evaluation import values

NUMPY_INSIDE = (
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerBoolConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.ConcretizationTypeError,
)
_LARGE = 1_000_000  # bytes of closed-over arrays from which on it is worth a warning


def check_start(problem: BilevelProblem, x0: PyTree, y0: PyTree) -> tuple[PyTree, PyTree]:
    """Both starts as JAX arrays of one precision, inside the set, with every oracle answering in kind."""
    if not isinstance(problem, BilevelProblem):
        raise TypeError(f"solve: the first argument must be a bx.BilevelProblem, got {type(problem).__name__}.")
    x, y = _start("x0", x0, problem.x_like), _start("y0", y0, problem.y_like)
    dtype = trees.shapes(problem.x_like if x is None else x).leaves[0].dtype
    problem = replace(problem, domain=trees.cast(problem.domain, dtype))
    if x is None:
        problem.domain.check_like(problem.x_like)
        x = problem.domain.vertex(problem.x_like)
    if y is None:
        y = problem.y_like.zeros()  # type: ignore[union-attr]
    if len({v.dtype for v in jax.tree.leaves(trees.coordinates((x, y)))}) > 1:
        kinds = ", ".join(f"{name} {v.dtype}" for name, v in trees.named_leaves(x, "x0") + trees.named_leaves(y, "y0"))
        raise TypeError(f"solve: x0 and y0 must share one precision, got {kinds}; cast them to the same dtype.")
    _check_data(problem.data)
    _check_sampler(problem)
    problem.domain.check_like(x)
    broken = problem.domain.violations(x)
    if broken:
        raise ValueError(f"x0 is not in {problem.domain!r}: {broken}. {_feasible_start(problem, x)}")
    at = trees.coordinates(x)
    _check_objective(problem, "upper", at, y)
    _check_objective(problem, "lower", at, y)
    few = on_first_window(problem) if formulas(problem.structure) or endless(problem) else problem
    _check_values(few if endless(problem) else problem, at, y)
    _check_structure(few, at, y)
    return x, y


def _feasible_start(problem: BilevelProblem, x: PyTree) -> str:
    try:
        jax.eval_shape(problem.domain.project, x)
    except Exception:
        return "Start from domain.vertex(x0)."
    return "Start from domain.project(x0)."


def _start(name: str, given: PyTree, like: trees.Shapes | None) -> PyTree | None:
    if given is None:
        if like is None:
            letter = name[0]
            raise ValueError(
                f"solve: no {name} and no {letter}_like: give a start, or BilevelProblem(..., {letter}_like=) "
                f"with the shapes of {letter} (arrays or jax.ShapeDtypeStruct)."
            )
        for where, leaf in trees.named_leaves(jax.tree.unflatten(like.structure, like.leaves), f"{name[0]}_like"):
            _check_dtype(where, leaf.dtype)
        _check_entries(f"{name[0]}_like", like.leaves)
        return None
    if not jax.tree.leaves(given):
        raise ValueError(f"{name} holds no arrays; give a pytree with at least one.")
    for where, leaf in trees.named_leaves(given, name):
        _check_leaf(where, leaf)
    _check_entries(name, jax.tree.leaves(given))
    point = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.result_type(leaf)), given)  # never weakly typed
    if like is not None:
        got = trees.shapes(trees.coordinates(point))
        wanted = [s.shape for s in like.leaves]
        if got.structure != like.structure or [s.shape for s in got.leaves] != wanted:
            raise ValueError(f"{name} does not match {name[0]}_like: got {_layout(got)}, expected {_layout(like)}.")
    return point


def _check_entries(name: str, leaves: Sequence[Any]) -> None:
    if not sum(np.size(leaf) if isinstance(leaf, float) else math.prod(leaf.shape) for leaf in leaves):
        raise ValueError(f"{name} has no entries: shapes {[np.shape(leaf) for leaf in leaves]}; give at least one.")


def _check_leaf(where: str, leaf: Any) -> None:
    if isinstance(leaf, float):
        return
    _check_sharding(where, leaf)
    if getattr(leaf, "dtype", None) is None:
        raise TypeError(f"{where} has type {type(leaf).__name__}; variables are arrays of floats: use jnp.asarray.")
    _check_dtype(where, leaf.dtype)
    if not np.all(np.isfinite(np.asarray(leaf))):
        raise ValueError(f"{where} holds a NaN or infinite entry; start from finite numbers.")


def _check_sharding(where: str, leaf: Any) -> None:
    sharding = getattr(leaf, "sharding", None)
    kinds = getattr(getattr(sharding, "mesh", None), "axis_types", None) or ()
    if any("Explicit" in str(kind) for kind in kinds) and not sharding.is_fully_replicated:  # type: ignore[union-attr]
        raise ValueError(
            f"{where} is sharded over a mesh with explicit axes, which bilevax does not support; make the mesh with "
            f"axis_types=jax.sharding.AxisType.Auto, or put {where} on one device."
        )


def check_concrete(*values: Any) -> None:
    """Refuse to run inside jit, vmap or grad: `solve` looks at numbers between steps."""
    if not trees.is_concrete(values):
        raise TypeError(
            "solve: called inside jax.jit, jax.vmap or jax.grad, where numbers cannot be looked at. Call solve "
            "outside, or use bx.run, which is one pure function that you can transform."
        )


def _check_dtype(where: str, kind: Any) -> None:
    if jnp.issubdtype(kind, jnp.complexfloating):
        raise TypeError(f"{where} is complex ({kind}); bilevax works on real arrays: split real and imaginary parts.")
    if not jnp.issubdtype(kind, jnp.floating):
        raise TypeError(f"{where} has dtype {kind}; variables must be floating point: convert with .astype(float).")
    if kind == np.float64 and not jax.config.read("jax_enable_x64"):
        raise TypeError(_no_64_bit(where))
    if kind not in (np.float32, np.float64):
        raise TypeError(f"{where} has dtype {kind}; bilevax works in float32 and float64.")


def _no_64_bit(where: str) -> str:
    return (
        f"{where} is float64 but JAX runs in 32 bits and would silently truncate it. Call "
        f"jax.config.update('jax_enable_x64', True) first, or convert it to float32."
    )


def _check_data(data: Any) -> None:
    if jax.config.read("jax_enable_x64"):
        return
    for where, leaf in trees.named_leaves(blocks.shapes(data), "data"):
        kind = getattr(leaf, "dtype", None)
        if kind == np.float64:
            raise TypeError(_no_64_bit(where))
        if kind == np.int64 and np.size(leaf) and np.max(np.abs(leaf)) > np.iinfo(np.int32).max:
            raise TypeError(
                f"{where} holds integers beyond 32 bits; call jax.config.update('jax_enable_x64', True) first."
            )


def _check_sampler(problem: BilevelProblem) -> None:
    if problem.sampler is None:
        return
    if len(inspect.signature(problem.sampler.draw).parameters) < 2:
        kind = type(problem.sampler).__name__
        raise TypeError(f"{kind}.draw takes a key only; define draw(self, key, k), where k is the number of the step.")
    data = blocks.shapes(problem.data, all_rows=True)
    look = lambda key, data: replace(problem, data=data).sample(key).data  # noqa: E731
    try:
        batch = jax.eval_shape(look, jax.random.key(0), data)
    except (KeyError, TypeError, IndexError) as error:
        kind = f"{type(error).__name__}: {_first_line(error)}"
        raise ValueError(
            f"{problem.sampler!r} cannot draw a batch from data: {kind}. Give it the parts of data."
        ) from error
    check_rows(problem.sampler, data)
    if problem.sampler.batches > 1 and trees.describe(batch) == trees.describe(data):
        raise ValueError(
            f"{problem.sampler!r} found nothing to draw from: no array of data has as many rows as it counts on; "
            f"data holds {trees.describe(data)}. Give it the number of rows of the data."
        )
    if problem.streamed:
        on_windows(problem.sampler, problem.data)


def _check_objective(problem: BilevelProblem, name: str, x: PyTree, y: PyTree) -> None:
    function = getattr(problem, name)
    try:
        traced = jax.make_jaxpr(function)(x, y, blocks.shapes(problem.data))
    except NUMPY_INSIDE as error:
        raise TypeError(
            f"{name}(x, y, data) uses its arguments outside JAX, most likely through numpy or a Python `if`, "
            f"`float` or `int`. Write it with jax.numpy (jnp.where for conditions). JAX said: {_first_line(error)}"
        ) from error
    except Exception as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(
            f"{name}(x, y, data) failed on x of shapes {trees.describe(x)} and y of shapes {trees.describe(y)}: "
            f"{_first_line(error)}. Check the shapes and structure of x0, y0 and data.{_of_streams(problem)}"
        ) from error
    if len(traced.out_avals) != 1 or traced.out_avals[0].shape != ():
        got = [tuple(a.shape) for a in traced.out_avals]
        raise ValueError(f"{name}(x, y, data) must return one scalar, got shapes {got}; reduce it, e.g. with jnp.sum.")
    if not jnp.issubdtype(traced.out_avals[0].dtype, jnp.floating):
        raise TypeError(f"{name}(x, y, data) must return a real float, got {traced.out_avals[0].dtype}.")
    closed_over = sum(getattr(c, "nbytes", 0) for c in traced.consts)
    if closed_over > _LARGE:
        warnings.warn(
            f"{name} closes over {closed_over / 1e6:.0f} MB of arrays, which are compiled in as constants; "
            f"pass them in data.",
            stacklevel=5,
        )


def _of_streams(problem: BilevelProblem) -> str:
    if not problem.streamed:
        return ""
    return " Of a bx.Stream, functions see some rows at a time; arrays with a row for each of its rows belong into it."


def _check_values(problem: BilevelProblem, x: PyTree, y: PyTree) -> None:
    for name, value in zip(("upper", "lower"), values(problem, x, y)[:2], strict=True):
        if not np.isfinite(value):
            raise ValueError(f"{name}(x0, y0, data) is {value}; both objectives must be finite at the start.")


def _check_structure(problem: BilevelProblem, x: PyTree, y: PyTree) -> None:
    if not formulas(problem.structure):
        return
    limit = 1e-3 if trees.dtype(y) == np.float32 else 1e-6
    try:
        if not problem.structure.kernels.on_host:  # compiled loops will trace the formulas
            for name in formulas(problem.structure):
                vectors = (x, y, y) if name in ("hvp", "cross", "solve_adjoint") else (x, y)
                jax.eval_shape(getattr(problem.structure, name), *vectors, problem.data)
        points = _points(problem, x, y)
        errors = [check_derivatives(problem, *point, jax.random.key(i)) for i, point in enumerate(points)]
    except NUMPY_INSIDE as error:
        raise TypeError(
            "a formula in structure uses its arguments outside JAX, most likely through numpy. Write it with "
            "jax.numpy, or pass LowerStructure(..., host=True) to run the formulas on the host."
        ) from error
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"a formula in structure failed or answered in the wrong shape at the start: {_first_line(error)}. "
            f"hvp, solve_lower, solve_adjoint and hessian_diagonal answer like y, cross like x."
        ) from error
    for i, found in enumerate(errors):
        for name, off in found.items():
            if not off <= limit:
                where = "at a random point" if i else "at the start"
                raise ValueError(
                    f"structure.{name} disagrees with autodiff of lower: relative error {off:.2g} {where}. "
                    f"Correct the formula or leave it out."
                )


def _points(problem: BilevelProblem, x: PyTree, y: PyTree) -> list[tuple[PyTree, PyTree]]:
    """The start and three random points, where lower is defined: a formula may be right at y = 0 by accident."""
    points, size = [(x, y)], 1 + trees.norm(y) / trees.size(y) ** 0.5
    for key in jax.random.split(jax.random.key(1), 3):
        keys = jax.random.split(key)
        y_i = trees.axpy(size, trees.random_like(y, keys[0]), y)
        if problem.domain.kernels is Kernels.HOST:  # its points carry more than coordinates
            x_i = x
        else:
            x_i = trees.move(x, extreme_point(problem.domain, x, trees.random_like(x, keys[1])), trees.scalar(0.5, x))
        if bool(trees.all_finite((x_i, plain_products(problem, x_i, y_i)))):
            points.append((x_i, y_i))
    return points


@brief_jit
def plain_products(problem: BilevelProblem, x: PyTree, y: PyTree) -> tuple[PyTree, PyTree]:
    """H y and J y from autodiff."""
    products = replace(problem, structure=LowerStructure()).linearize_lower(x, y)
    return products.hvp(y), products.cross(y)


def check_solver(solver: Any) -> Any:
    """Refuse what is not a solver, above all a class that was not called."""
    if solver is None:
        return solver
    if isinstance(solver, type):
        raise TypeError(f"solve: the solver is the class {solver.__name__}; write {solver.__name__}() to build one.")
    if not all(hasattr(solver, name) for name in ("prepare", "init", "step", "oracle")):
        raise TypeError(
            f"solve: the second argument must be a solver such as bx.IBCG(), got {type(solver).__name__}; "
            f"give starts by name, x0= and y0=."
        )
    return solver


def _layout(shapes: trees.Shapes) -> str:
    """A tree of shapes in words: `{'a': (3,), 'b': (2, 2)}`."""
    return str(jax.tree.unflatten(shapes.structure, [s.shape for s in shapes.leaves]))


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0].rstrip(".")
