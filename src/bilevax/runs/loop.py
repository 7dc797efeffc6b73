"""The loop, the only one: rows, observers, rules, limits, and the only place that grants `CONVERGED`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import equinox as eqx
import numpy as np
from jaxtyping import PyTree

from bilevax import trees
from bilevax.linalg.blas import one_blas_thread
from bilevax.problem import BilevelProblem
from bilevax.runs import chunks
from bilevax.runs import metrics as measures
from bilevax.runs.audit import Audit, audit
from bilevax.runs.certificate import Certificate
from bilevax.runs.checkpoint import Saver
from bilevax.runs.clock import Clock
from bilevax.runs.divergence import growing, nonfinite
from bilevax.runs.interrupt import Interrupt
from bilevax.runs.plan import Plan
from bilevax.runs.progress import Progress
from bilevax.runs.result import Result
from bilevax.runs.stage import Stage
from bilevax.runs.stopping import Rule, Status, Stop, as_stop
from bilevax.runs.trace import Row, Trace
from bilevax.sets import gradient_mapping
from bilevax.solvers.protocol import COUNTS, Solver, takes_few_steps
from bilevax.streaming.blocks import mean
from bilevax.verdict.assumptions import Assumptions, examine

_CONVEX = "Add a ridge term such as 0.5 * mu * jnp.sum(y**2) to lower, or remove what lower does not determine"
_CHUNK_SECONDS = 0.2  # how long compiled code may run before the loop looks at the clock and the interrupt flag


class Look(NamedTuple):
    """What is known at one point: a summary, the estimates behind its direction, and the step taken ahead for it."""

    summary: chunks.StepSummary
    y: PyTree
    w: PyTree
    ahead: chunks.Chunk | None
    seconds: float


class Run:
    """A problem and a solver, with the state, the clock and the trace, moved on row by row.

    `solve` makes one and calls `finish`. An estimator calls `go` several times. Between two calls, and in `after_step`,
    it may `use` another problem, with other data and another set of the same shapes, for the steps to come.
    `restart` begins again at a given point while clock, counts and trace go on.
    """

    def __init__(
        self, problem: BilevelProblem, solver: Solver, x: PyTree, y: PyTree, plan: Plan, interrupt: Interrupt
    ) -> None:
        self.plan, self.interrupt = plan, interrupt
        self.clock, self.trace = Clock(), Trace()
        self._stage = Stage(problem, solver, plan)
        self._solver_kernels = self._stage.problem.solver_kernels
        with one_blas_thread():  # estimates decompose small matrices
            self.solver, seconds = self.clock.call(self._stage.prepare, solver, x, y, plan.key)
        self.clock.seconds += seconds
        self.counts = dict.fromkeys(COUNTS, 0)
        self.k = self.next_row = 0
        self.saver: Saver | None = None
        self.after_step: Callable[[Run], None] | None = None
        self.verify_after = 0
        self.unverified = ""
        self.chosen = ""
        self.verified: Audit | None = None
        self.examined: Assumptions | None = None
        self.begun = (x, y)
        self.certificate = Certificate(problem, self.solver, x)
        label = plan.progress if isinstance(plan.progress, str) else type(solver).__name__
        self.progress = Progress(plan.steps, label) if plan.progress else None
        self.restart(self._stage.problem, x, y)

    def use(self, problem: BilevelProblem) -> None:
        """Take the steps to come on this problem."""
        self.problem = replace(problem, solver_kernels=self._solver_kernels)

    def restart(self, problem: BilevelProblem, x: PyTree, y: PyTree, *w: PyTree) -> None:
        """Begin at (x, y), on this problem; with an adjoint for a solver that can begin with one."""
        self.use(problem)
        with one_blas_thread():
            begun, seconds = self.clock.call(self._stage.init, self.k, self.problem, self.solver, x, y, *w)
        (self.state, counts), self.clock.seconds = begun, self.clock.seconds + seconds
        self.spoiled = not bool(trees.all_finite(trees.on_host((self.state.x, self.state.y))))
        if self.spoiled:
            self.state = eqx.tree_at(lambda s: (s.x, s.y), self.state, (x, y))
        self._count(counts)
        self.bounded = not np.isinf(float(problem.domain.diameter(x).value))

    def finish(self) -> Result:
        """Go on to the end of the plan."""
        try:
            with self.interrupt:
                stop = self.go(self.plan.steps - self.k, self.plan.rules)
                if self.saver is not None:  # before the row that only this stop makes
                    self.saver.save(self)
            if not self.trace or self.trace.last["step"] < self.k:
                self._row(self._look())
        finally:
            self.close()
        if self.progress:
            self.progress.close(self.k, self.trace.last, stop.status.name)
        self.certificate.finish(self.trace, [self.begun, (self.state.x, self.state.y)])
        return Result(
            x=self.state.x,
            y=self.state.y if self.verified is None else self.verified.y,
            status=stop.status,
            message=stop.message + self.unverified,
            steps=self.k,
            seconds=self.clock.seconds,
            compile_seconds=self.clock.compiling,
            trace=self.trace,
            state=self.state,
            problem=self.problem,
            solver=self.solver,
            verified=self.verified,
            certificate=self.certificate,
            chosen=self.chosen,
        )

    def close(self) -> None:
        """End the threads and give back the folder."""
        self._stage.close()
        if self.saver is not None:
            self.saver.close()

    def go(self, steps: int, rules: Sequence[Rule]) -> Stop:
        """Row, rules, steps to the next row, and again, until a rule or a limit says stop."""
        with one_blas_thread():  # steps decompose small matrices
            return self._go(steps, rules)

    def _go(self, steps: int, rules: Sequence[Rule]) -> Stop:
        last, stop = self.k + steps, None
        if self.k < self.next_row:  # a run that was stopped between two rows goes on
            stop = self._steps_to_next_row(None, 0.0, last)
        while stop is None:
            look = self._look()
            if not self.trace or self.trace.last["step"] < self.k:  # the last call of `go` may have ended here
                self._row(look)
            if self.spoiled:
                stop = Stop(Status.NONFINITE, "the warm-up made y non-finite; the start is kept")
            else:
                stop = self._stop(rules, last) or self._steps_to_next_row(look.ahead, look.seconds, last)
        return stop

    def _look(self) -> Look:
        """What is known at the present point. Most methods know it only in their next step, which is taken now and
        used if the run goes on; others have `observe`."""
        if self._stage.endless:
            self.use(self._stage.at(self.problem, self.k))
        if hasattr(self.solver, "observe"):
            with self.clock.compilation():
                seen, summary = self._stage.observe(self.problem, self.solver, self.state, self.k)
            if self._sampling():  # its direction is a mean over mini-batches, of which no residual tells the error
                return Look(summary, None, None, None, 0.0)
            return Look(summary, seen.y, seen.w, None, 0.0)
        ahead, seconds = self._call(1)
        y, w = self._estimates(ahead.state)
        return Look(ahead.summary, y, w, ahead, seconds)

    def _sampling(self) -> bool:
        """Whether a method that ends on all rows is still on mini-batches."""
        return bool(getattr(self.state, "sampling", False))

    def _estimates(self, following: Any) -> tuple[PyTree, PyTree]:
        """The y and w that the direction of a step is made of."""
        if not hasattr(self.solver, "estimates"):
            return None, None
        states = {"before": self.state, "after": following}
        y, w = self.solver.estimates
        return states[y].y, getattr(states[w], "w", None)

    def _call(self, count: int) -> tuple[chunks.Chunk, float]:
        steps = np.asarray(count, np.int32)
        return self.clock.call(self._stage.advance, self.problem, self.solver, self.state, self.plan.key, self.k, steps)

    def _count(self, counts: Any) -> None:
        for name in COUNTS:
            self.counts[name] += int(getattr(counts, name))

    def _accept(self, chunk: chunks.Chunk, count: int) -> None:
        self.state = chunk.state
        self.k += count
        self._count(chunk.counts)
        if self.leaves_windows():
            before = self.state
            self.restart(self.problem, before.x, before.y, before.w)
            self.state = eqx.tree_at(lambda s: s.k, self.state, before.k)
        if self.after_step is not None:
            self.after_step(self)

    def leaves_windows(self) -> bool:
        """Whether mini-batches of a stream are over; steps are on all its rows from now on."""
        if not self._stage.has_sampled(self.state):
            return False
        self._stage.use_all_rows(self.problem, self.solver)
        return True

    def _row(self, look: Look) -> None:
        with self.clock.compilation():
            self.trace.append(self._values(look))
        for observe in self.plan.observers:
            observe(self.trace.last, self.state)

    def _values(self, look: Look) -> Row:
        summary = look.summary
        measured = measures.measure_row(self.problem, self.state, look.y, look.w)
        gap, lmo_error = summary.gap, summary.lmo_error
        if self.bounded and summary.direction is not None and self.plan.compute_gap:
            # A projected method: one lmo for the row, not counted as one of the method.
            gap, lmo_error = measures.tracked_gap(self.problem, self.state.x, summary.direction)
        row: Row = {"step": self.k, "seconds": self.clock.seconds, "gap": float(gap)}
        row |= {"upper": measured.upper, "lower_grad_norm": measured.lower_grad_norm}
        self.certificate.add(measured.residuals)
        row |= {"adjoint_residual": measured.residuals.adjoint, "grad_norm": float(summary.grad_norm)}
        row["lmo_error"] = float(lmo_error)
        row["gap_bound"] = self.certificate.bound(row)
        if not self.bounded:
            mapping = summary.direction is not None and self.plan.compute_gap
            row["gradient_mapping"] = (
                gradient_mapping(self.problem.domain, self.state.x, summary.direction) if mapping else np.nan
            )
        row.update(self.counts)
        for metric in self.plan.metrics:
            measures.add_metrics(row, self._measured(metric))
        return row

    def _measured(self, metric: Any) -> dict[str, Any]:
        if isinstance(metric, Mapping):
            at = lambda f: functools.partial(f, self.state.x, self.state.y)  # noqa: E731
            return {name: mean(self.problem.data, at(f)) for name, f in metric.items()}
        return dict(metric(self.problem, self.state))

    def _stop(self, rules: Sequence[Rule], last: int) -> Stop | None:
        with self.clock.compilation():
            solves = takes_few_steps(self.solver) and not self._sampling()
            diverges = growing(self.trace, self.problem, self.state, self.begun, solves)
        if diverges:
            return Stop(Status.STALLED, diverges)
        for rule in rules:
            verdict = as_stop(rule(self.trace), rule)
            if verdict is not None and verdict.status is Status.CONVERGED:
                verdict = self._verified(verdict)
            if verdict is not None:
                return verdict
        if self.k >= last:
            return Stop(Status.MAX_STEPS, f"all {last} steps were taken")
        return self._cut()

    def _cut(self) -> Stop | None:
        if self.interrupt.flag:
            return Stop(Status.STOPPED, f"interrupted at step {self.k}; the state is kept")
        if self.clock.seconds >= self.plan.time_limit:
            return Stop(Status.TIME_LIMIT, f"the time limit of {self.plan.time_limit:g} s was reached at step {self.k}")
        return None

    def _verified(self, claim: Stop) -> Stop | None:
        """Grant `CONVERGED` only if the true gap plus its error passes too, and nothing speaks against the audit."""
        if self.k < min(self.verify_after, self.plan.steps) or self._sampling():
            return None
        if self._stage.endless:
            self.unverified = "; the data hold an iterable without length, so that no gap of all rows is known"
            return None
        with self.clock.compilation():
            true = self._audit()
            name, value, error = true.measure
            outside = self.problem.domain.violations(self.state.x)
            if not outside and value < -error:
                outside = "its gap is negative"  # no point of the set has one: what a user's oracle says of itself
            passes = not outside and not true.not_convex and value + error <= claim.limit
            assumptions = self._assumptions(true) if passes else Assumptions()
        not_convex, refusal = true.not_convex or assumptions.not_convex, true.refusal or assumptions.refusal
        if not_convex:
            return Stop(Status.NOT_STRONGLY_CONVEX, f"{not_convex}; y*(x) and the true gap are not defined. {_CONVEX}")
        if passes and not refusal:
            self.unverified, self.verified = "", true
            bound = f"{name} {value:.3e} (+- {error:.0e}, {true.certified}) <= {claim.limit:.3e}"
            return claim._replace(message=bound)
        if outside:
            why = f"x is not in the set: {outside}"
        elif refusal:
            why = f"it cannot be verified: {refusal}"
        else:
            why = f"the {name} was {value:.3e} (+- {error:.0e})"
        self.unverified = f"; at step {self.k} the tracked gap passed but {why}"
        # Verification costs many steps: not again before the run is a quarter longer.
        self.verify_after = max(self._next_row(), self.k + self.k // 4)
        return None

    def _audit(self) -> Audit:
        """The truth at the present point. A factorization is worth as many products as the run has spent."""
        w, constants = (getattr(owner, name, None) for owner, name in ((self.state, "w"), (self.solver, "constants")))
        spent = sum(self.counts[name] for name in ("upper_grads", "lower_grads", "hvps"))
        worth = True if spent >= trees.size(self.state.y) else None
        return audit(self.problem, self.state.x, self.state.y, w, constants=constants, factorize=worth)

    def _assumptions(self, true: Audit) -> Assumptions:
        """What probes elsewhere say; looked at once, for the first gap that passes."""
        if self.examined is None:
            self.examined = examine(self.problem, self.state.x, true.y, *self.begun)
        return self.examined

    def _steps_to_next_row(self, chunk: chunks.Chunk | None, seconds: float, last: int) -> Stop | None:
        self.next_row = self.next_row if self.k < self.next_row else self._next_row()
        goal, count = min(last, self.next_row), 1
        if chunk is None:
            chunk, seconds = self._call(count)
        while True:
            self.clock.seconds += seconds
            if not bool(chunk.finite):
                return self._nonfinite(count)
            self._accept(chunk, count)
            if self.progress:
                self.progress.show(self.k, self.trace.last)
            if self.saver is not None and self.saver.due():
                self.saver.save(self)
            if self.k >= goal:
                return None
            if (stop := self._cut()) is not None:
                return stop
            wanted = max(1, min(goal - self.k, int(_CHUNK_SECONDS * count / max(seconds, 1e-9))))
            count = self._stage.most(self.k, wanted)
            chunk, seconds = self._call(count)

    def _next_row(self) -> int:
        """The step of the next row."""
        every = self.plan.every
        if self.plan.early and self.k < every:
            return min(max(1, 2 * self.k), every)
        return self.k - self.k % every + every

    def _nonfinite(self, count: int) -> Stop:
        """Replay the chunk step by step, to name the step and the quantity; the last finite state is kept."""
        for _ in range(count):
            chunk, _ = self._call(1)
            if not bool(chunk.finite):
                break
            self._accept(chunk, 1)
        words = nonfinite(chunk, self.problem, self.state, self.begun, takes_few_steps(self.solver))
        return Stop(Status.NONFINITE, f"step {self.k} made {words}")
