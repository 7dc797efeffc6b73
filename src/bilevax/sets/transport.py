"""Non-negative matrices with given row and column sums: an assignment or a transport program on the host."""

from __future__ import annotations

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jaxtyping import Array, PyTree

from bilevax import trees
from bilevax.sets.contract import Condition, Diameter, Memory, flat
from bilevax.sets.host import HostSet, minimized
from bilevax.sets.margins import project_margins
from bilevax.sets.spectral import one_matrix
from bilevax.trees import is_concrete


def _permutation(direction: np.ndarray) -> tuple[np.ndarray, float]:
    matrix = direction.reshape(math.isqrt(direction.size), -1)
    s = np.zeros_like(matrix)
    s[scipy.optimize.linear_sum_assignment(matrix)] = 1.0
    return s.reshape(-1), 0.0


def _sum_conditions(matrix: Array, rows: Array, columns: Array) -> list[Condition]:
    off = jnp.sum(matrix, axis=1) - rows, jnp.sum(matrix, axis=0) - columns
    worst = [jnp.argmax(jnp.abs(each)) for each in off]
    least = jnp.min(matrix)
    return [
        Condition("a row sums to {:.6g}", (off[0] + rows)[worst[0]], jnp.abs(off[0][worst[0]])),
        Condition("a column sums to {:.6g}", (off[1] + columns)[worst[1]], jnp.abs(off[1][worst[1]])),
        Condition("its smallest entry is {:.6g}", least, -least),
    ]


class Birkhoff(HostSet):
    """Doubly stochastic n x n matrices: entries >= 0, rows and columns that sum to 1.

    `lmo` is the permutation of an optimal assignment, computed on the host; `project` runs in compiled code.

    >>> import jax.numpy as jnp, bilevax as bx
    >>> direction = jnp.array([[3.0, 1.0], [1.0, 0.0]])
    >>> bx.Birkhoff().lmo(direction, bx.Birkhoff().start(direction))[0].tolist()
    [[0.0, 1.0], [1.0, 0.0]]
    """

    def __repr__(self) -> str:
        return "Birkhoff()"

    def check_like(self, like: PyTree) -> None:
        one_matrix(self, trees.shapes(like).zeros(), square=True)

    def lmo(self, direction: PyTree, memory: Memory) -> tuple[PyTree, Memory]:
        one_matrix(self, direction, square=True)
        values, back = flat(direction)
        s, error = minimized(_permutation, values)
        return back(s), Memory(memory.warm, error)

    def vertex(self, like: PyTree) -> PyTree:
        # The centre: no pairing is preferred.
        matrix, structure = one_matrix(self, trees.shapes(like).zeros(), square=True)
        return jax.tree.unflatten(structure, [jnp.full_like(matrix, 1.0 / len(matrix))])

    def conditions(self, x: PyTree) -> list[Condition]:
        matrix, _ = one_matrix(self, x, square=True)
        ones = jnp.ones(matrix.shape[0], matrix.dtype)
        return _sum_conditions(matrix, ones, ones)

    def project(self, x: PyTree) -> PyTree:
        matrix, structure = one_matrix(self, x, square=True)
        ones = jnp.ones(matrix.shape[0], matrix.dtype)
        return jax.tree.unflatten(structure, [project_margins(matrix, ones, ones)])

    def diameter(self, like: PyTree) -> Diameter:
        n = one_matrix(self, trees.shapes(like).zeros(), square=True)[0].shape[0]
        # Two permutations without a common one; a 1 x 1 matrix leaves no choice.
        return Diameter(jnp.sqrt(jnp.asarray(2 * n if n > 1 else 0, trees.dtype(like))), True)


class _Margins:
    """Row and column sums; equal to another with the same numbers."""

    def __init__(self, rows: Any, columns: Any):
        if not is_concrete((rows, columns)):
            raise TypeError("TransportPolytope: its sums must be known numbers; build it outside compiled functions.")
        self.rows, self.columns = np.array(rows, np.float64), np.array(columns, np.float64)
        for name, sums in (("rows", self.rows), ("columns", self.columns)):
            if sums.ndim != 1 or sums.size == 0:
                raise ValueError(f"TransportPolytope: {name} must be a vector of sums, got shape {sums.shape}.")
            if not (np.all(np.isfinite(sums)) and np.all(sums >= 0)):
                raise ValueError(f"TransportPolytope: {name} must hold finite numbers >= 0, got {sums.tolist()}.")
        out, into = float(self.rows.sum()), float(self.columns.sum())
        if out == 0 or into == 0:
            raise ValueError("TransportPolytope: all sums of rows or columns are 0; the zero matrix needs no set.")
        if abs(out - into) > 1e-9 * max(out, into):
            raise ValueError(
                f"TransportPolytope is empty: rows sum to {out:.10g} and columns to {into:.10g}; make them equal."
            )
        self.columns *= out / into

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, _Margins)
            and np.array_equal(self.rows, other.rows)
            and np.array_equal(self.columns, other.columns)
        )

    def __hash__(self) -> int:
        return hash((self.rows.tobytes(), self.columns.tobytes()))

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows.size, self.columns.size

    def largest(self) -> np.ndarray:
        """The largest value of each entry on the set."""
        return np.minimum(self.rows[:, None], self.columns)

    def minimize(self, direction: np.ndarray) -> tuple[np.ndarray, float]:
        """A vertex, and how far its value is above a lower bound that trusts no multiplier of the solver."""
        if np.all(self.rows == self.rows[0]) and np.array_equal(self.rows, self.columns):
            s, error = _permutation(direction)
            return self.rows[0] * s, error
        m, n = self.shape
        equal = scipy.sparse.vstack(
            [
                scipy.sparse.kron(scipy.sparse.eye(m), np.ones((1, n))),
                scipy.sparse.kron(np.ones((1, m)), scipy.sparse.eye(n)),
            ]
        )
        unit = float(np.max(self.rows))
        # Numbers that allow no error below 1e-10 may still allow the usual 1e-7.
        for tolerance in (1e-10, 1e-7):
            answer = scipy.optimize.linprog(
                direction, A_eq=equal.tocsr(), b_eq=np.r_[self.rows, self.columns] / unit, method="highs",
                options={"primal_feasibility_tolerance": tolerance, "dual_feasibility_tolerance": tolerance},
            )  # fmt: skip
            if answer.status == 0:
                break
        if answer.status != 0:
            raise RuntimeError(
                f"TransportPolytope: the linear program failed with status {answer.status}: {answer.message}"
            )
        s = np.maximum(answer.x, 0) * unit
        # Weak duality: prices u of rows and v of columns give <C, X> >= r u + c v + sum of min(C - u - v, 0) X.
        u, v = answer.eqlin.marginals[:m], answer.eqlin.marginals[m:]
        rest = np.minimum(direction.reshape(m, n) - u[:, None] - v, 0)
        bound = self.rows @ u + self.columns @ v + np.sum(rest * self.largest())
        return s, max(float(direction @ s - bound), 0.0)


class TransportPolytope(HostSet):
    """Matrices of entries >= 0 with given sums of rows and columns: all ways to transport goods.

    `lmo` is a transport program on the host (HiGHS), its error bounded by duality; where all sums are equal it is an
    optimal assignment. `project` runs in compiled code. `bx.Birkhoff()` has all sums equal to 1.

    >>> import jax.numpy as jnp, bilevax as bx
    >>> plans = bx.TransportPolytope([2.0, 1.0], [1.0, 1.0, 1.0])
    >>> costs = jnp.array([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]])
    >>> plans.lmo(costs, plans.start(costs))[0].tolist()
    [[1.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    """

    margins: _Margins = eqx.field(static=True)

    def __init__(self, rows: Any, columns: Any):
        self.margins = _Margins(rows, columns)

    def __repr__(self) -> str:
        m, n = self.margins.shape
        return f"TransportPolytope({m} rows, {n} columns)"

    def check_like(self, like: PyTree) -> None:
        self._matrix(trees.shapes(like).zeros())

    def _matrix(self, x: PyTree) -> tuple[Array, Any]:
        matrix, structure = one_matrix(self, x)
        if matrix.shape != self.margins.shape:
            raise ValueError(f"{self!r}: x has shape {matrix.shape}; give one sum for each of its rows and columns.")
        return matrix, structure

    def scale(self) -> float:
        return float(max(np.max(self.margins.rows), np.max(self.margins.columns)))

    def _sums(self, dtype: Any) -> tuple[Array, Array]:
        return jnp.asarray(self.margins.rows, dtype), jnp.asarray(self.margins.columns, dtype)

    def lmo(self, direction: PyTree, memory: Memory) -> tuple[PyTree, Memory]:
        self._matrix(direction)
        values, back = flat(direction)
        s, error = minimized(self.margins.minimize, values)
        return back(s), Memory(memory.warm, error)

    def project(self, x: PyTree) -> PyTree:
        matrix, structure = self._matrix(x)
        return jax.tree.unflatten(structure, [project_margins(matrix, *self._sums(matrix.dtype))])

    def vertex(self, like: PyTree) -> PyTree:
        # The centre: every row is spread in the same proportions.
        zeros = trees.shapes(like).zeros()
        plan = np.outer(self.margins.rows, self.margins.columns / self.margins.columns.sum())
        return jax.tree.map(lambda v: jnp.asarray(plan, v.dtype), zeros)

    def conditions(self, x: PyTree) -> list[Condition]:
        matrix, _ = self._matrix(x)
        return _sum_conditions(matrix, *self._sums(matrix.dtype))

    def diameter(self, like: PyTree) -> Diameter:
        # Entries of a difference are at most the largest value of that entry, and sum to at most twice the total.
        top = self.margins.largest()
        bound = min(np.sum(top**2), 2 * np.max(top) * np.sum(self.margins.rows))
        return Diameter(jnp.sqrt(jnp.asarray(bound, trees.dtype(like))), False)
