"""The bilevel problem: two functions, a set and data, and the derivatives every method is made of.

    min over x in X of f(x, y*(x)),   y*(x) = argmin over y of g(x, y)              eq. (1)

The Hessian of g in y is written H, its mixed derivative J (n x m), and every product with them comes from one
linearisation of the lower gradient, unless the user supplies a formula.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PyTree, Scalar

from bilevax import trees
from bilevax.linalg.brief import brief_jit
from bilevax.linalg.host_loops import Kernels
from bilevax.randomness import stream_and_step
from bilevax.sampling import Sampler
from bilevax.sets import ConvexSet, as_set
from bilevax.streaming import blocks

Objective = Callable[[PyTree, PyTree, Any], Scalar]


@dataclass(frozen=True)
class LowerStructure:
    """Formulas of the user that replace autodiff for the lower level; each is optional.

    `hvp(x, y, w, data)` is H w, `cross(x, y, w, data)` is J w, `hessian_diagonal(x, y, data)` the diagonal of H.
    `solve_lower(x, y, data)` returns y*(x) and may use `y` as a start; `solve_adjoint(x, y, b, data)` returns H^-1 b.
    Published methods use the exact solves only if they are defined with one. `host=True` means that some formula
    runs outside compiled code. All of them are compared with autodiff before they are trusted.
    """

    hvp: Callable[..., PyTree] | None = None
    cross: Callable[..., PyTree] | None = None
    hessian_diagonal: Callable[..., PyTree] | None = None
    solve_lower: Callable[..., PyTree] | None = None
    solve_adjoint: Callable[..., PyTree] | None = None
    host: bool = False

    @property
    def kernels(self) -> Kernels:
        """Where the formulas run."""
        return Kernels.HOST if self.host else Kernels.COMPILED


class LowerProducts(NamedTuple):
    """The two products at one point (x, y), sharing the linearisation of the lower gradient there."""

    hvp: Callable[[PyTree], PyTree]
    """w -> H(x, y) w"""
    cross: Callable[[PyTree], PyTree]
    """w -> J(x, y) w, with the structure of x"""


def _oracle(method: Callable[..., Any]) -> Callable[..., Any]:
    """On host-stepped problems every oracle is compiled by itself; otherwise the whole loop is.

    Functions see the coordinates of x, so that what else a point carries, in whatever shape, compiles nothing again.
    On streams an oracle is the mean of compiled ones over blocks of rows. Its name begins with that of its level.
    """
    compiled, of_block = jax.jit(method), brief_jit(method)
    level = "upper" if method.__name__.startswith("upper") else "lower"

    @functools.wraps(method)
    def call(self: BilevelProblem, x: PyTree, *args: Any) -> Any:
        if self.streamed:
            return self.over_rows(of_block, level, x, *args)
        return (compiled if self.host else method)(self, trees.coordinates(x), *args)

    return call


def compiled_on_arrays(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of a problem and more, compiled unless the oracles that it calls are passes over a stream."""
    compiled = brief_jit(function)

    @functools.wraps(function)
    def call(problem: BilevelProblem, *args: Any) -> Any:
        return (function if problem.streamed else compiled)(problem, *args)

    return call


@functools.lru_cache(maxsize=512)
def _read_by(function: Objective, shapes: trees.Shapes, owners: tuple[int, ...]) -> frozenset[int]:
    """The numbers of the streams that a function of (x, y, data) reads, by its traced program."""
    traced = jax.make_jaxpr(function)(*jax.tree.unflatten(shapes.structure, shapes.leaves)).jaxpr
    used = {v for equation in traced.eqns for v in equation.invars if not hasattr(v, "val")} | {
        v for v in traced.outvars if not hasattr(v, "val")
    }
    of_data = traced.invars[len(traced.invars) - len(owners) :]
    return frozenset(owner for owner, v in zip(owners, of_data, strict=True) if owner >= 0 and v in used)


@functools.cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return jax.jit(function)


def _objective(name: str) -> Callable[[Any], Any]:
    """Refuse what cannot be a static function, before it is stored as one."""

    def check(function: Any) -> Any:
        if not callable(function):
            raise TypeError(f"{name} must be a function of (x, y, data), got {function!r}.")
        try:
            hash(function)
        except TypeError:
            raise TypeError(
                f"{name} is a {type(function).__name__} that cannot be hashed, probably because it holds arrays; "
                f"pass a plain function and put the arrays in data."
            ) from None
        return function

    return check


def _like(tree: PyTree) -> trees.Shapes | None:
    return None if tree is None else trees.shapes(tree)


class BilevelProblem(eqx.Module):
    """Minimise `upper(x, y*(x), data)` over x in `domain`, where y*(x) minimises `lower(x, y, data)`.

    `lower` must be strongly convex in y. Functions take `(x, y, data)` and are written with `jax.numpy`; x and y
    are pytrees of real arrays; arrays belong in `data`, where other values of the same shape compile nothing again.

    >>> import jax.numpy as jnp, bilevax as bx
    >>> problem = bx.BilevelProblem(
    ...     upper=lambda x, y, data: 0.5 * jnp.sum((y - data) ** 2),
    ...     lower=lambda x, y, data: 0.5 * jnp.sum((y - x) ** 2),
    ...     domain=bx.Simplex(),
    ...     data=jnp.array([0.5, 0.5, 1.0]),
    ... )
    """

    upper: Objective = eqx.field(static=True, converter=_objective("upper"))
    lower: Objective = eqx.field(static=True, converter=_objective("lower"))
    domain: ConvexSet = eqx.field(converter=as_set)
    data: Any = None
    sampler: Sampler | None = None
    structure: LowerStructure = eqx.field(static=True, default=LowerStructure())
    x_like: trees.Shapes | None = eqx.field(static=True, converter=_like, default=None)
    y_like: trees.Shapes | None = eqx.field(static=True, converter=_like, default=None)
    solver_kernels: Kernels = eqx.field(static=True, default=Kernels.COMPILED, repr=False)
    """Where those of the solver run that works on the problem; the loop fills it in."""

    def __check_init__(self) -> None:
        if not isinstance(self.structure, LowerStructure):
            raise TypeError(f"structure must be a bx.LowerStructure, got {self.structure!r}.")
        if self.streamed and (self.structure.host or self.structure.solve_lower or self.structure.solve_adjoint):
            raise TypeError(
                "structure: solve_lower, solve_adjoint and host formulas need all rows at once, and data hold a "
                "bx.Stream; leave them out."
            )

    @property
    def kernels(self) -> Kernels:
        """Where the kernels run that the loop calls."""
        return max(self.domain.kernels, self.level_kernels, self.solver_kernels)

    @property
    def level_kernels(self) -> Kernels:
        """Where both levels are computed: on the host if a formula is, or if they are passes over a stream."""
        return Kernels.HOST if self.streamed else self.structure.kernels

    @property
    def host(self) -> bool:
        """Whether some kernel runs outside compiled code, so that the loop steps on the host."""
        return self.kernels.on_host

    @property
    def streamed(self) -> bool:
        """Whether some rows of the data are not in memory."""
        return blocks.has_streams(self.data)

    def over_rows(self, function: Callable[..., Any], level: str, x: PyTree, y: PyTree, *args: Any) -> Any:
        """The mean over all rows of `function(problem, x, y, ...)`, which may use that level only: "upper", "lower".

        Only the streams are read that the function of the level reads.
        """
        x = trees.coordinates(x)
        shapes = trees.shapes((x, y, blocks.shapes(self.data)))
        read = _read_by(getattr(self, level), shapes, blocks.owners(self.data))
        return blocks.mean(self, lambda part: function(part, x, y, *args), read)

    def sample(self, key: Array) -> BilevelProblem:
        """The same problem on a random mini-batch; the problem itself if it has no sampler."""
        if self.sampler is None:
            return self
        return replace(self, data=self.sampler.take(self.data, self.sampler.draw(*stream_and_step(key))))

    @_oracle
    def upper_value(self, x: PyTree, y: PyTree) -> Scalar:
        """f(x, y)."""
        return self.upper(x, y, self.data)

    @_oracle
    def lower_value(self, x: PyTree, y: PyTree) -> Scalar:
        """g(x, y)."""
        return self.lower(x, y, self.data)

    @_oracle
    def upper_grads(self, x: PyTree, y: PyTree) -> tuple[PyTree, PyTree]:
        """Both partial gradients of f from one reverse pass."""
        return jax.grad(self.upper, argnums=(0, 1))(x, y, self.data)

    @_oracle
    def upper_value_and_grads(self, x: PyTree, y: PyTree) -> tuple[Scalar, tuple[PyTree, PyTree]]:
        """The same with f itself."""
        return jax.value_and_grad(self.upper, argnums=(0, 1))(x, y, self.data)

    @_oracle
    def lower_grad(self, x: PyTree, y: PyTree) -> PyTree:
        """The gradient of g in y."""
        return jax.grad(self.lower, argnums=1)(x, y, self.data)

    @_oracle
    def lower_value_and_grad(self, x: PyTree, y: PyTree) -> tuple[Scalar, PyTree]:
        """g and its gradient in y."""
        return jax.value_and_grad(self.lower, argnums=1)(x, y, self.data)

    @_oracle
    def lower_grads(self, x: PyTree, y: PyTree) -> tuple[PyTree, PyTree]:
        """Both partial gradients of g from one reverse pass, for methods that penalise the lower level."""
        return jax.grad(self.lower, argnums=(0, 1))(x, y, self.data)

    def _pullback(self, x: PyTree, y: PyTree) -> Callable[[PyTree], tuple[PyTree, PyTree]]:
        # The transposed derivative of the lower gradient maps w to (J w, H w), since H is symmetric.
        _, pullback = jax.vjp(jax.grad(lambda x, y: self.lower(x, y, self.data), argnums=1), x, y)
        return pullback

    @_oracle
    def _pull_back(self, x: PyTree, y: PyTree, w: PyTree) -> tuple[PyTree, PyTree]:
        return self._pullback(x, y)(w)

    def _formula(self, name: str) -> Callable[..., PyTree] | None:
        """A user's formula; compiled by itself where the loop is not, unless it is a host kernel."""
        formula: Callable[..., PyTree] | None = getattr(self.structure, name)
        if formula is None or self.structure.host or not self.host:
            return formula
        compiled = _compiled(formula)
        if not self.streamed:
            return compiled
        return lambda x, y, w, data: blocks.mean(data, lambda part: compiled(x, y, w, part))

    def lower_hvp(self, x: PyTree, y: PyTree, w: PyTree) -> PyTree:
        """H(x, y) w."""
        formula = self._formula("hvp")
        return self._pull_back(x, y, w)[1] if formula is None else formula(trees.coordinates(x), y, w, self.data)

    def lower_cross(self, x: PyTree, y: PyTree, w: PyTree) -> PyTree:
        """J(x, y) w, which lives where x does."""
        formula = self._formula("cross")
        return self._pull_back(x, y, w)[0] if formula is None else formula(trees.coordinates(x), y, w, self.data)

    def linearize_lower(self, x: PyTree, y: PyTree) -> LowerProducts:
        """Both products at (x, y); autodiff linearises the lower gradient once for all of them."""
        hvp, cross = functools.partial(self.lower_hvp, x, y), functools.partial(self.lower_cross, x, y)
        given = self.structure
        if self.host or (given.hvp is not None and given.cross is not None):
            return LowerProducts(hvp, cross)
        pullback = self._pullback(trees.coordinates(x), y)
        return LowerProducts(
            hvp if given.hvp is not None else lambda w: pullback(w)[1],
            cross if given.cross is not None else lambda w: pullback(w)[0],
        )


def _relative(error: PyTree, size: PyTree) -> Scalar:
    scale = trees.norm(size)
    return trees.norm(error) / jnp.where(scale > 0, scale, 1)


def check_derivatives(problem: BilevelProblem, x: PyTree, y: PyTree, key: Array) -> dict[str, float]:
    """Relative error of each formula in `problem.structure` against autodiff, at one point and a random direction.

    `solve_lower` is judged by the lower gradient it leaves, `solve_adjoint` by the residual of its linear system.
    """
    measure = _errors if problem.host else _compiled_errors
    return {name: float(error) for name, error in measure(problem, trees.coordinates(x), y, key).items()}


def _errors(problem: BilevelProblem, x: PyTree, y: PyTree, key: Array) -> dict[str, Scalar]:
    plain = replace(problem, structure=LowerStructure())
    given, data = problem.structure, problem.data
    w = trees.random_like(y, key)
    truth = plain.linearize_lower(x, y)
    Hw = truth.hvp(w)
    errors: dict[str, Scalar] = {}
    if given.hvp is not None:
        errors["hvp"] = _relative(trees.sub(given.hvp(x, y, w, data), Hw), Hw)
    if given.cross is not None:
        Jw = truth.cross(w)
        errors["cross"] = _relative(trees.sub(given.cross(x, y, w, data), Jw), Jw)
    if given.hessian_diagonal is not None:
        errors["hessian_diagonal"] = _diagonal_error(given.hessian_diagonal(x, y, data), truth.hvp, y, key)
    if given.solve_lower is not None:
        start = trees.add(y, w)
        left = plain.lower_grad(x, given.solve_lower(x, start, data))
        errors["solve_lower"] = _relative(left, plain.lower_grad(x, start))
    if given.solve_adjoint is not None:
        errors["solve_adjoint"] = _relative(trees.sub(truth.hvp(given.solve_adjoint(x, y, w, data)), w), w)
    return errors


_compiled_errors = brief_jit(_errors)


def _diagonal_error(diagonal: PyTree, hvp: Callable[[PyTree], PyTree], y: PyTree, key: Array) -> Scalar:
    """The largest relative error in five random entries."""
    values, _ = ravel_pytree(diagonal)
    flat, back = ravel_pytree(y)
    worst = jnp.zeros((), flat.dtype)
    for i in jax.random.randint(key, (5,), 0, flat.size):
        true = ravel_pytree(hvp(back(jnp.zeros_like(flat).at[i].set(1))))[0][i]
        worst = jnp.maximum(worst, abs(values[i] - true) / jnp.maximum(abs(true), jnp.finfo(flat.dtype).tiny))
    return worst


def formulas(structure: LowerStructure) -> list[str]:
    """The names of the formulas a structure holds."""
    return [f.name for f in fields(structure) if f.name != "host" and getattr(structure, f.name) is not None]
