"""The numbers behind `MatrixCompletion`: low-rank steps on the observed entries, and effects fitted along with them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bilevax.estimators.effects import Effects
from bilevax.estimators.entries import Entries
from bilevax.linalg import low_rank
from bilevax.linalg.sparse import Pattern
from bilevax.problems import sparse_completion
from bilevax.sets import SampledNuclearBall
from bilevax.sets.sampled import Sampled, Side, Term
from bilevax.solvers import BlockIBCG


class Options(NamedTuple):
    """What the user may choose of the model."""

    max_rank: int | None
    exponent: float
    """Of the counts in the weights of rows and columns; 0 is the plain nuclear norm."""
    smoothing: float
    """Added to the counts."""
    effects: bool
    ridge: float
    directions: int
    """Directions in which rows, or columns, are alike by what of them is known."""
    lower: dict[str, Any]
    """The lower level: `lambda1`, `lambda2`, `delta`."""


class Course:
    """A sequence of joint steps: one of the matrix, given the effects, and one of the effects, given the matrix.

    Entries that are held out keep their place with weight zero, so that no shape changes and nothing is compiled again.
    """

    def __init__(self, entries: Entries, options: Options):
        self.options = options
        self.mean = float(entries.values.mean())
        centred = entries.values - self.mean
        problem, _ = sparse_completion(
            entries.rows, entries.cols, centred, 1.0, shape=entries.shape, regularizer="pseudo-huber", **options.lower
        )
        assert isinstance(problem.domain, SampledNuclearBall)
        self.known: Pattern = problem.domain.pattern
        self.values = np.asarray(problem.data["M"])
        self.solver = BlockIBCG(options.max_rank, verify=None)
        self.problem = problem
        self.state: Any = None
        self.radius = 1.0
        self.steps = 0

    def observe(self, weights: np.ndarray, strength: float, x: Any = None) -> None:
        """Learn from the entries of weight one; what was learned before, or x, is a warm start.

        `strength` is that of the likeness of rows and columns which have entries in the same places; 0 ignores it.
        """
        weights = np.asarray(weights, self.values.dtype)
        mask = jnp.asarray(weights)
        count = jnp.asarray(max(weights.sum(), 1.0), self.values.dtype)
        self.weights, self.count = weights, float(count)
        data = {**self.problem.data, "omega1": mask, "omega2": mask, "count1": count}
        self.alike = likeness(self.known, weights, self.options.directions) if strength > 0 else None
        self.sides = sides(self.known, weights, self.options, strength, self.alike)
        domain = SampledNuclearBall(self.known, self.radius, *self.sides)
        self.problem = replace(self.problem, data=data, domain=domain, on_host=True)
        before = getattr(self, "effects", None)
        self.effects = Effects(self.known, weights, self.options.ridge)
        if before is not None:
            self.effects.move_to(before.rows, before.cols)
        if x is None:
            x = domain.vertex(mask) if self.state is None else self.state.x
        self._settle_effects(x)
        self._restart(x)

    def start_from(self, left: np.ndarray, right: np.ndarray, rows: np.ndarray, cols: np.ndarray) -> None:
        """Begin where an earlier fit ended."""
        self.effects = Effects(self.known, np.ones_like(self.values), self.options.ridge)
        self.effects.move_to(rows, cols)
        x = Sampled(jnp.asarray(self.known.sample(left, right)), (Term(1.0, left, right),))
        self._restart(x)

    def _settle_effects(self, x: Any) -> None:
        for _ in range(30 if self.options.effects else 0):
            residual = self.weights * (np.asarray(x.values) + self.effects.spread() - self.values)
            if self.effects.update(residual) < 1e-3:
                break
        self._offset()

    def _offset(self) -> None:
        data = {**self.problem.data, "offset": jnp.asarray(self.effects.spread())}
        self.problem = replace(self.problem, data=data)

    def _restart(self, x: Any) -> None:
        self.state, _ = self.solver.init(self.problem, x, jnp.zeros_like(self.problem.data["M"]))

    def widen(self, radius: float) -> None:
        """Another radius for the steps to come."""
        self.radius = radius
        domain = SampledNuclearBall(self.known, radius, *self.sides)
        self.problem = replace(self.problem, domain=domain)

    def step(self) -> float:
        """One step of the matrix and one of the effects; the mean squared direction, which tells the progress."""
        self.state, _ = self.solver.step(self.problem, self.state, jax.random.key(0))
        self.steps += 1
        direction = np.asarray(self.state.seen.F) * (self.count / 2)
        if self.options.effects:
            self.effects.update(direction)
            self._offset()
        return float(np.dot(direction, direction)) / self.count

    def run(self, most: int, tol: float, enough: Callable[[], bool] = lambda: False) -> int:
        """Steps until the training error settles or it is enough; how many there were."""
        before = np.inf
        for k in range(1, most + 1):
            found = self.step()
            if enough() or abs(before - found) <= tol * found:
                return k
            before = found
        return most

    def residual(self) -> np.ndarray:
        """Prediction minus value for every entry, learned from or not."""
        return np.asarray(self.state.x.values) + self.effects.spread() - self.values

    @property
    def rank(self) -> int:
        """Of the matrix."""
        return int(self.state.basis.rank)


class Likeness(NamedTuple):
    """What the places of the entries say of rows and columns: leading singular vectors of the scaled pattern."""

    rows: np.ndarray
    values: np.ndarray
    cols: np.ndarray


def likeness(known: Pattern, weights: np.ndarray, directions: int) -> Likeness | None:
    """The leading singular triplets of the pattern, its rows and columns divided by the fourth root of their counts."""
    if directions < 2 or min(known.shape) < 3:
        return None
    by_row, by_col = (damped(counts) for counts in _counts(known, weights))
    operator = known.operator(known.scaled(weights, by_row, by_col))
    found = Likeness(*low_rank.leading(operator, min(directions, min(known.shape) - 1)))
    told = int(np.sum(found.values > 1e-2 * found.values[0]))  # a full matrix has one direction, which tells nothing
    return Likeness(found.rows[:, :told], found.values[:told], found.cols[:, :told]) if told > 1 else None


def damped(counts: np.ndarray) -> np.ndarray:
    """What the pattern of a row or column with so many entries is multiplied by."""
    found: np.ndarray = (counts + 5.0) ** -0.25
    return found


def sides(
    known: Pattern, weights: np.ndarray, options: Options, strength: float, alike: Likeness | None
) -> tuple[Side, Side]:
    """Rows and columns as the norm sees them: scaled by a power of their counts, alike where their entries are."""
    counts = _counts(known, weights)
    scales = [np.ones(len(n)) if options.exponent == 0 else 1 / norm_weights(n, n, options) for n in counts]
    if alike is None:
        return Side(scales[0]), Side(scales[1])
    strengths = strength * np.minimum(alike.values / alike.values[1], 1.0)  # the first is how full the matrix is
    return Side(scales[0], alike.rows, strengths), Side(scales[1], alike.cols, strengths)


def _counts(known: Pattern, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    matrix = known.matrix(weights)
    return np.asarray(matrix.sum(axis=1)).ravel(), np.asarray(matrix.sum(axis=0)).ravel()


def norm_weights(counts: Any, among: np.ndarray, options: Options) -> np.ndarray:
    """Weights in the norm of rows with so many entries, among all: a power, one in the geometric mean over entries."""
    logs = np.log(np.maximum(among, 1) + options.smoothing)
    centre = np.sum(among * logs) / np.sum(among)
    found: np.ndarray = np.exp(options.exponent * (np.log(np.maximum(counts, 1) + options.smoothing) - centre))
    return found
