"""Polytopes given by linear constraints: a linear program for the lmo, least squares for the projection."""

from __future__ import annotations

import hashlib
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import scipy
from jaxtyping import Array, PyTree

from bilevax import trees
from bilevax.sets.contract import Condition, Diameter, Memory, flat
from bilevax.sets.host import HostSet, call, minimized
from bilevax.sets.least_distance import LeastDistance


class _Rows(NamedTuple):
    """Constraints `matrix @ x` against `right`, each row of length one so that an excess is a distance."""

    matrix: np.ndarray
    right: np.ndarray


def _read(matrix: Any, right: Any, first: str, second: str) -> _Rows | None:
    """Checked copies, or None where nothing was given."""
    if (matrix is None) != (right is None):
        raise ValueError(f"Polytope: give {first} and {second} together, or neither.")
    if matrix is None:
        return None
    matrix = np.array(matrix.toarray() if scipy.sparse.issparse(matrix) else matrix, np.float64)
    right = np.array(right, np.float64)
    if matrix.ndim != 2 or right.shape != matrix.shape[:1]:
        raise ValueError(
            f"Polytope: {first} must be a matrix and {second} a vector with one number per row of {first}, "
            f"got shapes {matrix.shape} and {right.shape}."
        )
    if not (np.all(np.isfinite(matrix)) and np.all(np.isfinite(right))):
        raise ValueError(f"Polytope: {first} or {second} has a NaN or infinite entry; leave that row out.")
    lengths = np.linalg.norm(matrix, axis=1)
    lengths[lengths == 0] = 1.0
    return _Rows(matrix / lengths[:, None], right / lengths)


class _Program:
    """A linear program without its objective, with its bounding box; equal to another with the same numbers."""

    def __init__(self, rows: _Rows | None, equal: _Rows | None, lower: Any, upper: Any):
        low, high = (np.reshape(np.asarray(v, np.float64), -1 if np.ndim(v) else ()) for v in (lower, upper))
        parts = {"A": rows and rows.matrix, "A_eq": equal and equal.matrix, "lower": low, "upper": high}
        sizes = {name: v.shape[-1] for name, v in parts.items() if v is not None and v.ndim}
        if not any(sizes.values()):
            raise ValueError("Polytope: the number of coordinates is unknown; give A, A_eq, or a bound as a vector.")
        if len(set(sizes.values())) > 1:
            raise ValueError(f"Polytope: its parts have different numbers of coordinates: {sizes}.")
        d = next(iter(sizes.values()))
        none = _Rows(np.zeros((0, d)), np.zeros(0))
        self.rows, self.equal = rows or none, equal or none
        self.lower, self.upper = np.broadcast_to(low, d).copy(), np.broadcast_to(high, d).copy()
        if not (np.all(self.lower < np.inf) and np.all(self.upper > -np.inf)):
            raise ValueError("Polytope: a bound is NaN, or infinite on the wrong side; give lower < inf, upper > -inf.")
        if np.any(self.lower > self.upper) or self._run(np.zeros(d), also=(2,)).status == 2:
            raise ValueError("Polytope is empty: no point satisfies all its constraints; relax one of them.")
        self.box = np.array([[self._end(i, 1.0), self._end(i, -1.0)] for i in range(d)]).T
        numbers = (*self.rows, *self.equal, self.lower, self.upper)
        self.projection = LeastDistance(*numbers)
        self.digests = tuple(hashlib.sha256(v.tobytes()).digest() for v in numbers)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Program) and self.digests == other.digests

    def __hash__(self) -> int:
        return hash(self.digests)

    def _run(self, objective: np.ndarray, also: tuple[int, ...] = ()) -> Any:
        # Numbers that allow no error below 1e-10 may still allow the usual 1e-7.
        for tolerance in (1e-10, 1e-7):
            answer = scipy.optimize.linprog(
                objective, A_ub=self.rows.matrix, b_ub=self.rows.right, A_eq=self.equal.matrix, b_eq=self.equal.right,
                bounds=np.stack([self.lower, self.upper], axis=1), method="highs",
                options={"primal_feasibility_tolerance": tolerance, "dual_feasibility_tolerance": tolerance},
            )  # fmt: skip
            if answer.status == 0:
                return answer
        if answer.status in also:
            return answer
        raise RuntimeError(f"Polytope: the linear program failed with status {answer.status}: {answer.message}")

    def _end(self, i: int, sign: float) -> float:
        """The least (`sign` 1) or largest (-1) value of one coordinate."""
        objective = np.zeros(self.lower.size)
        objective[i] = sign
        answer = self._run(objective, also=(3, 4))
        # The set has a point, so that HiGHS' "unbounded or infeasible", a 4, leaves one possibility.
        if answer.status == 3 or (answer.status == 4 and "unbounded" in answer.message.lower()):
            raise ValueError(
                f"Polytope is unbounded: coordinate {i} can go to {'-' if sign > 0 else '+'}infinity; "
                f"give it {'a lower' if sign > 0 else 'an upper'} bound."
            )
        return float((self._run(objective) if answer.status else answer).x[i])

    def minimize(self, direction: np.ndarray) -> tuple[np.ndarray, float]:
        """A vertex, and how far its value is above a lower bound that trusts no multiplier of the solver."""
        answer = self._run(direction)
        s = np.clip(answer.x, self.lower, self.upper)
        # Weak duality: any multipliers y <= 0 and z give <c, x> >= b y + b_eq z + min <c - A'y - A_eq'z, box>.
        y, z = np.minimum(answer.ineqlin.marginals, 0), answer.eqlin.marginals
        rest = direction - y @ self.rows.matrix - z @ self.equal.matrix
        bound = self.rows.right @ y + self.equal.right @ z + np.sum(np.min(rest * self.box, axis=0))
        return s, max(float(direction @ s - bound), 0.0)


class Polytope(HostSet):
    """The bounded set `A x <= b`, `A_eq x = b_eq`, `lower <= x <= upper`, over all leaves of x as one vector.

    Matrices may be dense or sparse and are kept dense; bounds are numbers or arrays and default to none. Both oracles
    run on the host. The `lmo` is a linear program (HiGHS), its error bounded by duality; `project` is a least-squares
    problem. Construction checks that the set is neither empty nor unbounded, at the price of two linear programs per
    coordinate; the box that these give bounds the diameter. Numbers stay in double precision whatever the precision
    of x.

    >>> import jax.numpy as jnp, bilevax as bx
    >>> triangle = bx.Polytope([[1.0, 2.0]], [2.0], lower=0.0)
    >>> direction = jnp.array([-1.0, -3.0])
    >>> triangle.lmo(direction, triangle.start(direction))[0].tolist()
    [0.0, 1.0]
    """

    minimizes_models: ClassVar[bool] = True
    program: _Program = eqx.field(static=True)

    def __init__(
        self, A: Any = None, b: Any = None, A_eq: Any = None, b_eq: Any = None, lower: Any = None, upper: Any = None
    ):
        rows, equal = _read(A, b, "A", "b"), _read(A_eq, b_eq, "A_eq", "b_eq")
        self.program = _Program(rows, equal, -np.inf if lower is None else lower, np.inf if upper is None else upper)

    def __repr__(self) -> str:
        d, rows, equal = (v.size for v in (self.program.lower, self.program.rows.right, self.program.equal.right))
        return f"Polytope({d} coordinates, {rows} inequalities, {equal} equalities)"

    def check_like(self, like: PyTree) -> None:
        if trees.size(like) != self.program.lower.size:
            raise ValueError(f"{self!r}: x has {trees.size(like)} entries; give constraints on as many coordinates.")

    def scale(self) -> float:
        return max(1.0, float(np.max(np.abs(self.program.box))))

    def lmo(self, direction: PyTree, memory: Memory) -> tuple[PyTree, Memory]:
        values, back = flat(direction)
        s, error = minimized(self.program.minimize, values)
        return back(s), Memory(memory.warm, error)

    def project(self, x: PyTree) -> PyTree:
        values, back = flat(x)
        nearest = self.program.projection.nearest
        return back(call(lambda given: (nearest(given), 0.0), values)[0])

    def lowest(self, x: PyTree, F: PyTree, B: Array) -> PyTree:
        values, back = flat(x)
        n, search = values.size, self.program.projection.lowest

        def kernel(given: np.ndarray) -> tuple[np.ndarray, float]:
            x, F, B = given[:n], given[n : 2 * n], given[2 * n :].reshape(n, n)
            return np.concatenate([search(x, F, B), np.zeros(given.size - n)]), 0.0

        return back(call(kernel, jnp.concatenate([values, flat(F)[0], B.reshape(-1)]))[0][:n])

    def conditions(self, x: PyTree) -> list[Condition]:
        values, _ = flat(x)
        numbers = (*self.program.rows, *self.program.equal, self.program.lower, self.program.upper)
        A, b, A_eq, b_eq, lower, upper = (jnp.asarray(v, values.dtype) for v in numbers)
        beyond = jnp.max(A @ values - b, initial=-jnp.inf)
        off = jnp.max(jnp.abs(A_eq @ values - b_eq), initial=0)
        below, above = jnp.max(lower - values), jnp.max(values - upper)
        return [
            Condition("it lies {:.6g} beyond an inequality", beyond, beyond),
            Condition("it lies {:.6g} off an equality", off, off),
            Condition("an entry is {:.6g} below its lower bound", below, below),
            Condition("an entry is {:.6g} above its upper bound", above, above),
        ]

    def diameter(self, like: PyTree) -> Diameter:
        low, high = self.program.box
        return Diameter(jnp.asarray(np.linalg.norm(high - low), trees.dtype(like)), False)
