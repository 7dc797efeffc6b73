"""Seconds that tuned sampled methods need: ours, those of benchmark_bilevel, and the default of `bx.solve`.

    git clone https://github.com/benchopt/benchmark_bilevel && git -C benchmark_bilevel checkout 3ad65dc
    pip install benchopt
    python benchmarks/batch_race.py --theirs benchmark_bilevel --json FILE [--problems NAME ...] [--methods NAME ...]

The measure is h(x) = f(x, y*(x)) on all data, with y*(x) solved accurately. A method reaches a level when
(h(x) - h*) / (h(x0) - h*) is at most that level. h* is the lowest h of all runs, `bx.ProjectedIBCG` on all data among
them, or the infimum where it is known. All runs are in single precision, have batches of 64 rows and begin at the same
point.

No setting races against the clock, because other programs may use the machine. A setting runs for a number of steps. h
is computed at step counts that grow geometrically, and the count of a level is interpolated between two of them, in
logarithms. The seconds of a step are measured apart, as the least of several chunks. Only `bx.solve` is timed as it
runs; its seconds include estimates of constants, but no compilation.

A search finds the step sizes. It measures the grid on seed 0 and then the neighbours of the best setting of each level,
for some rounds. The best setting is the one with the least median over all seeds; only settings that are good on seed 0
run with the other seeds. A setting ends when it can no longer be the best of its method. Needs the data sets.
"""

import argparse
import itertools
import json
import sys
import time
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from batch_references import METHODS, PROBLEMS, Ours, Theirs, make_task, rows_of, sampled
from batch_steps import BATCH, INNER

import bilevax as bx
from bilevax.drawing.tables import markdown

LEVELS = (1e-1, 1e-2, 1e-3)
SINGLE_LOOP = ("soba", "saba", "srba", "fsla")
RANGES = (1e-3, 10), (1e-7, 1e3)
"""Of lower steps and ratios, for neighbours."""
SLOWER = 20
"""A setting ends when it is so many times slower than the best of all methods so far; the table then has no time."""
MARGIN = 1.5
"""The same for the best setting of the method itself."""
TRIES = 8
"""How many settings may turn out to be the luck of one seed."""
SIDES = {"theirs": Theirs, "ours": Ours, "passes": partial(Ours, replacement=False)}
"""Ours draw every batch independently, but in `passes` each batch comes once before one comes again, as in theirs."""


def seconds_per_step(name, driver, task):
    """The least of the chunks of two seconds; those of SRBA hold whole periods, which have one full gradient each."""
    steps = task.timed if name in SINGLE_LOOP else task.timed // INNER
    if name == "srba":
        period = sum(rows_of(task.problem)) // (2 * BATCH)
        steps = -(-steps // period) * period
    state, times = jax.block_until_ready(driver.advance(driver.start(0.01, 1.0, 0), 0, steps)), []  # compiles
    while sum(times) < 2 or len(times) < 5:
        began = time.perf_counter()
        state = jax.block_until_ready(driver.advance(state, (1 + len(times)) * steps, steps))
        times.append(time.perf_counter() - began)
    return min(times) / steps


class Scale(NamedTuple):
    """h at the start and the lowest h, between which levels are measured."""

    start: float
    least: float

    def gap(self, h):
        """The share of the first distance to the lowest h that is left."""
        return max((h - self.least) / (self.start - self.least), 1e-9)

    def crossing(self, points, level):
        """Where [position, h] first has that level, interpolated in logarithms; infinity if nowhere."""
        for i, (position, h) in enumerate(points):
            if self.gap(h) <= level:
                if i == 0 or points[i - 1][0] <= 0:
                    return position
                before, above = points[i - 1][0], self.gap(points[i - 1][1])
                return before * (position / before) ** (np.log(above / level) / np.log(above / self.gap(h)))
        return np.inf


def race(driver, task, setting, seed, chunk, second, scale, allowed, first=0):
    """Run one setting, with h from step `first` on; returns [steps, h] and why the run ended.

    `allowed` has the levels to reach, each with the seconds after which it is not worth reaching.
    """
    state, done, points = driver.start(*setting, seed), 0, []
    longest = chunk * int(np.ceil(max(allowed.values()) / second / chunk))
    for i in itertools.count():
        goal = min(longest, max(done + chunk, chunk * round(task.growth**i)))
        while done < goal:
            state, done = driver.advance(state, done, chunk), done + chunk
        if done < min(first, longest):
            continue
        x = np.asarray(driver.x(state), float)
        h = float(task.value(x)) if np.all(np.isfinite(x)) else np.inf
        if not np.isfinite(h) or scale.gap(h) > 10:
            return points, "diverged"
        points.append([driver.spent + done, h])
        lowest = min(scale.gap(h) for _, h in points)
        left = [level for level in allowed if lowest > level]
        if not left:
            return points, "reached"
        if done * second >= max(allowed[level] for level in left):
            return points, "too slow"
        early = [scale.gap(h) for n, h in points if 4 * n <= done]
        if done * second > task.limit / 20 and early and lowest > 0.9 * min(early):
            return points, "no progress"


def nice_number(i):
    """1, 3, 10, 30, ... for 0, 1, 2, 3, ..., and 0.3, 0.1, ... for -1, -2, ..."""
    return float(f"{(1, 3)[i % 2]}e{i // 2}")


def neighbours(setting, diagonal):
    i, j = (round(2 * np.log10(v)) for v in setting)
    around = itertools.product((-1, 0, 1), (-1, 0, 1))
    points = [(nice_number(i + a), nice_number(j + b)) for a, b in around if diagonal or abs(a) + abs(b) < 2]
    return [p for p in points if all(low <= v <= high for v, (low, high) in zip(p, RANGES, strict=True))]


class Book:
    """The figures of one problem, in a file that has those of all problems."""

    def __init__(self, path, name):
        """Read the file, if there is one."""
        self.path, self.name = path, name
        self.all = json.loads(path.read_text()) if path and path.exists() else {}
        self.own = self.all.setdefault(name, {})

    def get(self, kind, key, measure):
        """A figure of the file, or a new one, which is written at once."""
        part = self.own.setdefault(kind, {})
        if key not in part:
            part[key] = measure()
            print(self.name, kind, key, _brief(part[key]), flush=True)
            if self.path:
                whole = self.path.with_suffix(".part")  # a run that is ended while it writes spoils no figure
                whole.write_text(json.dumps(self.all) + "\n")
                whole.replace(self.path)
        return part[key]

    def scale(self):
        """h at the start, and the lowest h of all runs."""
        runs = [run for kind in ("runs", "solves") for run in self.own.get(kind, {}).values()]
        known = [self.own["h"]["least"]] if "least" in self.own["h"] else []
        return Scale(self.own["h"]["start"], min(known + [h for run in runs for _, h in run["points"]]))


def _brief(figure):
    return {**figure, "points": figure["points"][-1:]} if isinstance(figure, dict) else figure


def key_of(method, side, setting, seed):
    return f"{method} {side} {setting[0]:g} {setting[1]:g} {seed}"


def scores(book, method, side, level, seeds):
    """For every setting the median seconds over all seeds, or those of seed 0 as long as others are not measured."""
    runs, scale, found = book.own.get("runs", {}), book.scale(), {}
    second = book.own["seconds per step"].get(f"{method} {side}", np.inf)
    for key, run in runs.items():
        if key.startswith(f"{method} {side} ") and key.endswith(" 0"):
            setting = tuple(float(v) for v in key.split()[2:4])
            keys = [f"{key_of(method, side, setting, seed)} to {level:g}" for seed in seeds[1:]]
            times = [
                second * scale.crossing(one["points"], level) for one in [run, *(runs[k] for k in keys if k in runs)]
            ]
            complete = len(times) == len(seeds) or 2 * np.sum(np.isinf(times)) > len(seeds)
            times += [np.inf] * (len(seeds) - len(times)) if complete else []
            lowest = min((scale.gap(h) for _, h in run["points"]), default=np.inf)
            found[setting] = Score(float(np.median(times)) if complete else times[0], lowest, complete, times, setting)
    return found


class Score(NamedTuple):
    """Of one setting and level; scores are sorted by seconds, and by the lowest h of seed 0 where all are infinite."""

    seconds: float
    lowest: float
    complete: bool
    times: list[float]
    setting: tuple[float, float]


def search(book, task, method, side, driver, seeds):
    """Measure the grid on seed 0, the best settings of each level on all seeds, their neighbours, and so on."""
    second = book.get("seconds per step", f"{method} {side}", lambda: seconds_per_step(method, driver, task))
    run = partial(race, driver, task, chunk=task.chunk // (1 if method in SINGLE_LOOP else 8), second=second)
    race_again = lambda *given, **options: dict(zip(("points", "end"), run(*given, **options), strict=True))  # noqa: E731

    def best(level, who=(method, side)):
        return min(scores(book, *who, level, seeds).values(), default=None)

    def allowed():
        found = dict.fromkeys(LEVELS, task.limit)
        for level, other in itertools.product(LEVELS, book.own["seconds per step"]):
            factor = MARGIN if other == f"{method} {side}" else SLOWER
            score = best(level, other.split())
            if score and score.complete >= task.cheap:
                found[level] = min(found[level], factor * score.seconds)
        return found

    def all_seeds(level):
        """Measure the best setting on the other seeds, then the next one, if that was the luck of seed 0."""
        for _ in range(TRIES):
            score = best(level)
            if score.complete or not np.isfinite(score.seconds):
                return
            for seed in seeds[1:]:
                limits = {"allowed": {level: 3 * score.seconds}, "first": score.seconds / second / 2}
                measure = partial(race_again, score.setting, seed, scale=book.scale(), **limits)
                book.get("runs", f"{key_of(method, side, score.setting, seed)} to {level:g}", measure)
                if scores(book, method, side, level, seeds)[score.setting].complete:
                    break

    middle = [np.log10(values[len(values) // 2]) for values in (task.steps, task.ratios)]
    grid = sorted(itertools.product(task.steps, task.ratios), key=lambda s: np.abs(np.log10(s) - middle).sum())
    others = [best(level, (method, "theirs")) for level in LEVELS] if task.follow and side != "theirs" else []
    settings = list(dict.fromkeys(score.setting for score in others if score)) or grid
    for _ in range(task.rounds):
        limits = allowed()
        for setting in settings:
            limits = limits if task.cheap else allowed()
            measure = partial(race_again, setting, 0, scale=book.scale(), allowed=limits)
            book.get("runs", key_of(method, side, setting, 0), measure)
        for level in LEVELS if task.cheap else ():
            all_seeds(level)
        found = [best(level).setting for level in LEVELS]
        settings = list(dict.fromkeys(near for setting in found for near in neighbours(setting, task.cheap)))
    for level in LEVELS:
        all_seeds(level)


def solve(task, solver, seed, scale):
    """[seconds, h] of `bx.solve`, on batches if it chooses the method; rows at 1, 2, 4, ... steps."""
    problem, points = task.problem if solver else sampled(task.problem), []

    def look(row, state):
        points.append([row["seconds"], float(task.value(np.asarray(state.x, float)))])

    stop = lambda trace: scale is not None and scale.gap(points[-1][1]) <= LEVELS[-1]  # noqa: E731
    options = {
        "steps": 10**6,
        "time_limit": task.solve_limit,
        "key": jax.random.key(seed),
        "observers": look,
        "stop": stop,
    }
    result = bx.solve(problem, solver, task.x, task.y, **options)
    return {"points": points, "end": result.status.name, "method": type(result.solver).__name__, "steps": result.steps}


def table(book, methods, seeds):
    """For every level a row for each method and side, the fastest first."""
    scale, rows = book.scale(), []
    seconds = book.own.setdefault("seconds per step", {})
    for level in LEVELS:
        found = []
        for method, side in itertools.product(methods, SIDES):
            score = min(scores(book, method, side, level, seeds).values(), default=None)
            if score:
                words = f"step {score.setting[0]:g}, ratio {score.setting[1]:g}"
                micro = 1e6 * seconds[f"{method} {side}"]
                found.append((score.times, {"method": f"{method}, {side}", "setting": words, "us per step": micro}))
        solves = {}
        for key, run in book.own.get("solves", {}).items():
            name = f"bx.solve, {run['method']}", "all data" if key == "all data" else "default"
            solves.setdefault(name, []).append(scale.crossing(run["points"], level))
        for (name, words), times in solves.items():
            found.append((times, {"method": name, "setting": words, "us per step": np.nan}))
        for times, row in sorted(found, key=lambda one: np.median(one[0])):
            shown = " ".join(f"{t:.3g}" if np.isfinite(t) else "-" for t in times)
            rows.append({"level": f"{level:g}", **row, "median s": float(np.median(times)), "s of every seed": shown})
    return markdown(rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--theirs", type=Path, help="a checkout of benchmark_bilevel; without it only ours run")
    parser.add_argument("--problems", nargs="+", default=list(PROBLEMS), choices=PROBLEMS)
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--sides", nargs="+", default=list(SIDES), choices=SIDES, help="`theirs` need --theirs")
    parser.add_argument("--seeds", type=int, default=5, help="how many seeds the best settings run with")
    parser.add_argument("--default-only", action="store_true", help="measure only `bx.solve`")
    parser.add_argument("--json", type=Path, help="the file of all figures; those in it are not measured again")
    options = parser.parse_args()
    sides = [side for side in options.sides if side != "theirs" or options.theirs]
    if options.theirs:
        sys.path.insert(0, str(options.theirs))
    for name in options.problems:
        task, book, seeds = make_task(name), Book(options.json, name), list(range(options.seeds))
        book.get("h", "start", lambda: float(task.value(np.asarray(task.x, float))))  # noqa: B023
        if np.isfinite(task.least):
            book.get("h", "least", lambda: task.least)  # noqa: B023
        book.get("solves", "all data", partial(solve, task, bx.ProjectedIBCG(), 0, None))
        default = type(bx.auto(sampled(task.problem), task.x)).__name__
        for seed in seeds:
            book.get("solves", f"{default} {seed}", partial(solve, task, None, seed, book.scale()))
        for method, side in itertools.product([] if options.default_only else options.methods, sides):
            search(book, task, method, side, SIDES[side](method, task), seeds)
        scale = book.scale()
        print(f"\n{name}: h from {scale.start:.7g} to {scale.least:.7g}\n\n{table(book, options.methods, seeds)}\n")


if __name__ == "__main__":
    main()
