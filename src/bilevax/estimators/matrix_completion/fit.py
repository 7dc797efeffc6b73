"""One run of `BlockIBCG` on the observed entries, with the effects fitted after each step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from bilevax.estimators.matrix_completion import ball_state
from bilevax.estimators.matrix_completion.deadline import Deadline
from bilevax.estimators.matrix_completion.effects import Effects
from bilevax.estimators.matrix_completion.entries import Entries
from bilevax.estimators.matrix_completion.journal import Call
from bilevax.estimators.matrix_completion.norm import axis_weights, entry_counts
from bilevax.estimators.matrix_completion.options import Norm, Options
from bilevax.estimators.matrix_completion.similarity import Similarity, leading_similarity
from bilevax.problems import sparse_completion
from bilevax.runs.loop import Run
from bilevax.runs.plan import make_plan
from bilevax.runs.progress import Progress
from bilevax.runs.stopping import Status, Stop
from bilevax.runs.trace import Trace
from bilevax.sets import AxisWeights, SampledNuclearBall
from bilevax.sets.sampled import Sampled, Term
from bilevax.solvers import BlockIBCG

# A radius is done when the error on held-out entries is known to a share of itself, or of its distance to the best one.
_SETTLED, _SHARE = 3e-4, 0.1
_CLOSER = 0.3  # the share of `tol` to which a radius that was searched for is fitted: its error is worth more steps
_EXACT, _INSIDE = 0.01, 0.01  # the training error as a share of the held-out one; the distance to the sphere


class CompletionFit:
    """One run over the whole path of radii: each step moves the matrix, then fits the effects to what is left.

    Held-out entries keep their place with weight zero, so that no shape changes and nothing is compiled again.
    """

    def __init__(self, entries: Entries, options: Options, deadline: Deadline):
        assert options.ridges is not None, "the caller estimates them"
        self.options, self.ridges = options, options.ridges
        self._deadline, self.journal = deadline, deadline.journal
        self.mean = _mean(entries.values, options.outlier)
        centred = entries.values - self.mean
        self.problem, _ = sparse_completion(
            entries.rows, entries.cols, centred, 1.0, shape=entries.shape, **options.lower
        )
        assert isinstance(self.problem.domain, SampledNuclearBall)
        self.pattern = self.problem.domain.pattern
        self.values = np.asarray(self.problem.data["M"])
        self.radius = 1.0
        self.run: Run | None = None
        self.cut: Stop | None = None
        """Why the run was cut short: interrupted, out of time, or not finite."""
        self.held_out = np.zeros(self.pattern.size, bool)
        self.norm: Norm | None = None
        self.training_error = np.nan
        self.effects: Effects | None = None
        self.similarity: Similarity | None = None
        self.weights: tuple[AxisWeights, AxisWeights]
        self.first_step = self.first_row = 0
        self.first_error = np.nan
        """Before the steps at this radius: steps taken, rows of the trace, and the error on held-out entries."""

    # ---- between stages

    def observe(self, held_out: np.ndarray, norm: Norm, x: Any = None) -> None:
        """Learn from the entries that are not held out; x, or what was learned before, is a warm start."""
        self.held_out, self.norm = held_out, norm
        self.mask = np.asarray(~held_out, self.values.dtype)
        mask, count = jnp.asarray(self.mask), jnp.asarray(max(self.mask.sum(), 1.0), self.values.dtype)
        self.count = float(count)
        components = self.options.n_similarity_components
        self.similarity = None
        if norm.strength > 0:
            counts, operator = entry_counts(self.pattern, self.mask), self.pattern.operator(self.mask)
            self.similarity = self.journal.compute(
                "similarity in the ball", lambda: leading_similarity(operator, counts, components, np.float32)
            )
        self.weights = axis_weights(self.pattern, self.mask, norm, self.similarity)
        self.problem = replace(
            self.problem, data={**self.problem.data, "omega1": mask, "omega2": mask, "count1": count}
        )
        self.set_radius(self.radius)
        before, self.effects = self.effects, Effects(self.pattern, self.mask, self.ridges)
        if before is not None:
            self.effects.move_to(before.rows, before.cols)
        if x is None:
            x = self.zero() if self.run is None else self.run.state.x
        self.begin_at(x)

    def begin_at(self, x: Any) -> None:
        """Take the next steps from this matrix, with the effects that fit it; momentum starts anew."""
        self._settle_effects(x)
        self._begin_at(x)

    def start_from(self, left: np.ndarray, right: np.ndarray, rows: np.ndarray, cols: np.ndarray) -> None:
        """Begin where an earlier fit ended."""
        self.effects = Effects(self.pattern, np.ones_like(self.values), self.ridges)
        self.effects.move_to(rows, cols)
        self._begin_at(Sampled(jnp.asarray(self.pattern.sample(left, right)), (Term(1.0, left, right),)))

    def set_radius(self, radius: float) -> None:
        """The radius for the steps to come."""
        self.radius = radius
        self.problem = replace(self.problem, domain=SampledNuclearBall(self.pattern, radius, *self.weights))

    def _begin_at(self, x: Any) -> None:
        y = jnp.zeros_like(self.problem.data["M"])
        if self.run is not None:
            self.run.restart(self.problem, x, y)
            return
        solver = BlockIBCG(self.options.max_rank, verify=None, look_ahead=True)
        plan = make_plan(every=1, time_limit=self.options.time_limit, metrics=self._columns, compute_gap=False)
        self.run = Run(self.problem, solver, x, y, plan, self._deadline.interrupt)
        self.run.after_step = self._fit_effects

    def _settle_effects(self, x: Any) -> None:
        assert self.effects is not None
        for _ in range(30 if self.options.effects else 0):
            residual = self.mask * (np.asarray(x.values) + self.effects.spread() - self.values)
            if self.options.outlier is not None:  # the slope of the pseudo-Huber loss
                residual = residual / np.sqrt(1 + (residual / self.options.outlier) ** 2)
            if self.effects.update(residual) < 1e-3:
                break
        self.set_offset()

    def set_offset(self) -> None:
        """Tell the problem what the effects are now."""
        assert self.effects is not None
        data = {**self.problem.data, "offset": jnp.asarray(self.effects.spread())}
        self.problem = replace(self.problem, data=data)

    # ---- steps

    def go(self, call: Call, best: float = np.inf) -> Stop:
        """Steps at the present radius until the error on held-out entries settles, or the training error without them.

        `best` is the lowest error on held-out entries at another radius: one that is far from it needs less accuracy,
        and steps end where the error rises above it. Steps that the journal knows of this call are not taken again.
        """
        run, steps = self.run, self.options.max_steps
        assert run is not None
        run.use(self.problem)
        self.first_step, self.first_row, self.first_error = run.k, len(run.trace), self.held_out_rmse()
        if ball_state.fits(self, call.running):
            ball_state.go_on(self, call.running)
        self.journal.state = lambda: ball_state.between_steps(self)
        if self.journal.spent and self._deadline.left is not None:  # the clock counts seconds of earlier processes too
            run.plan = run.plan._replace(time_limit=run.clock.seconds + self._deadline.left)
        if self.options.verbose:
            run.progress = Progress(steps, f"radius {self.radius:.4g}", begin=self.first_step)
        tol = self.options.tol if self.options.radius is not None else _CLOSER * self.options.tol
        rules = [_settled(self.first_step, tol)]
        if self.held_out.any():
            rules += _chosen_by(self.first_step, self.first_error, best)
        stop = run.go(steps - (run.k - self.first_step), rules)
        self.cut = stop if stop.status in (Status.STOPPED, Status.TIME_LIMIT, Status.NONFINITE) else None
        if stop.status in (Status.STOPPED, Status.TIME_LIMIT):
            self.journal.cut()
        return stop

    def finish(self, radius: float, norm: Norm) -> Stop:
        """Learn from all entries, at this radius."""
        self.observe(np.zeros(self.pattern.size, bool), norm)
        self.set_radius(radius)
        stop = self.go(self.journal.call("all entries"))
        self.say(f"all {self.pattern.size} entries, rank {self.rank}")
        return stop

    def say(self, words: str) -> None:
        """End the progress line of the steps just taken with these words."""
        if self.run is not None and self.run.progress is not None:
            self.run.progress.close(self.run.k, None, words)

    def _fit_effects(self, run: Run) -> None:
        """After a step of the matrix, a step of the effects; the next step of the matrix sees them."""
        assert self.effects is not None
        direction = np.asarray(run.state.lower.F) * (self.count / 2)
        if self.options.effects:
            self.effects.update(direction)
            self.set_offset()
            run.use(self.problem)
        self.training_error = float(np.dot(direction, direction)) / self.count
        self.journal.save_if_due()

    def _columns(self, problem: Any, state: Any) -> dict[str, float]:
        return {
            "radius": self.radius,
            "rank": self.rank,
            "training_error": self.training_error,
            "held_out_rmse": self.held_out_rmse(),
        }

    def held_out_rmse(self) -> float:
        """The error on held-out entries; NaN if there are none.

        Where the lower level gives values that are far off less weight, so does the error: they would choose otherwise.
        """
        if not self.held_out.any():
            return np.nan
        residual, values = self.residual()[self.held_out], self.values[self.held_out]
        if self.options.clip:
            residual = np.clip(residual + values, self.values.min(), self.values.max()) - values
        return self._root_mean(residual)

    def spread(self) -> float:
        """The error on the entries to learn from."""
        return self._root_mean(self.residual()[~self.held_out])

    def _root_mean(self, residual: np.ndarray) -> float:
        """The root of the mean square; with `outlier`, no residual counts for more than that."""
        squares = residual**2
        if self.options.outlier is not None:
            squares = squares / (1 + squares / self.options.outlier**2)
        return float(np.sqrt(np.mean(squares)))

    def ball_binds(self) -> bool:
        """Whether the radius decides where the steps lead.

        It does not where the matrix stays inside the ball, nor where it fits the training entries exactly: the error on
        held-out entries then depends on the start of the steps.
        """
        (size,) = self.problem.domain.conditions(self.state.x)
        inside = float(size.excess) < -_INSIDE * self.radius
        return not inside and not self.spread() ** 2 < _EXACT * self.held_out_rmse() ** 2

    # ---- what was learned

    def residual(self) -> np.ndarray:
        """Prediction minus value for every entry, held out or not."""
        assert self.run is not None and self.effects is not None
        return np.asarray(self.run.state.x.values) + self.effects.spread() - self.values

    @property
    def state(self) -> Any:
        """The state of the run."""
        assert self.run is not None
        return self.run.state

    @property
    def trace(self) -> Trace:
        """A row for each step."""
        assert self.run is not None
        return self.run.trace

    @property
    def steps(self) -> int:
        """Steps taken since the beginning."""
        return 0 if self.run is None else self.run.k

    @property
    def seconds(self) -> float:
        """Spent on steps since the beginning."""
        return 0.0 if self.run is None else self.run.clock.seconds

    def zero(self) -> Any:
        """The zero matrix."""
        return SampledNuclearBall(self.pattern).vertex(self.values)

    @property
    def rank(self) -> int:
        """The rank of the matrix."""
        return int(self.state.basis.rank)


def _mean(values: np.ndarray, outlier: float | None) -> float:
    """The mean; with `outlier`, values that are far from most others count as if they were nearer."""
    if outlier is None:
        return float(values.mean())
    middle = np.median(values)
    width = 3 * max(outlier, 1.5 * float(np.median(np.abs(values - middle))))
    return float(np.clip(values, middle - width, middle + width).mean())


def _settled(begin: int, tol: float) -> Any:
    """Stop when a step changed the training error by no more than `tol` of it."""

    def rule(trace: Trace) -> Stop | None:
        errors = [row["training_error"] for row in trace if row["step"] > begin]
        if len(errors) < 2 or not abs(errors[-2] - errors[-1]) <= tol * errors[-1]:
            return None
        return Stop(Status.STALLED, f"the training error settled: the last step changed it by less than {tol:g} of it")

    return rule


def _chosen_by(begin: int, first: float, best: float) -> list[Any]:
    """Rules on the error of held-out entries, `first` before the steps, when another radius has the error `best`."""

    def errors(trace: Trace) -> np.ndarray:
        return np.array([first, *(row["held_out_rmse"] for row in trace if row["step"] > begin)])

    def settled(trace: Trace) -> Stop | None:
        last = errors(trace)[-5:]
        if len(last) < 5:
            return None
        away = abs(last[-1] - best) if np.isfinite(best) else 0.0
        limit = max(_SETTLED * last[-1], _SHARE * away)
        if not (_remaining(last) <= limit and np.abs(np.diff(last[1:])).max() <= limit):
            return None
        return Stop(Status.STALLED, "the error on held-out entries settled")

    def hopeless(trace: Trace) -> Stop | None:
        last = errors(trace)[1:][-3:]
        if len(last) < 3 or not last[2] > last[1] > last[0] > best:
            return None
        return Stop(Status.STALLED, "the error on held-out entries rises, and another radius predicts them better")

    return [settled, hopeless]


def _remaining(errors: np.ndarray) -> float:
    """How far the last of five errors may still change, if each two steps change it by the same share of the last two.

    Slow convergence has small changes too, and much to go.
    """
    before, now = abs(errors[2] - errors[0]), abs(errors[4] - errors[2])
    share = min(now / max(before, 1e-300), 0.95)
    return float(now * share / (1 - share))
