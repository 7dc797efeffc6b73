"""An hour of runs and fits that die in every way we know and go on; each must end with the bits of an undisturbed one.

    python tests/reliability/soak.py --minutes 60

One process disturbs, resumes and compares for the whole time, so that its memory shows what restarts leave behind.
"""

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from functools import cache
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

import conftest
import jobs
import pytest
import test_completion_checkpoint as fits
import test_kill
import test_resume as runs
from completions import JOBS as FITS
from completions import same as same_fit
from completions import uninterrupted as fit_without_faults

for _name, (_make, _steps) in list(jobs.JOBS.items()):  # functions made anew would be compiled anew
    jobs.JOBS[_name] = (cache(_make), _steps)


def disturb_run(chance, patch, folder, name):
    """A run that dies once, by a signal or by its disk; then on to its end."""
    kind = chance.choice(("signal", *runs.KINDS))
    if kind == "signal":
        test_kill.killed(name, folder, chance.uniform(0, 0.5))
    else:
        runs.disturbed(name, kind, chance.randrange(1, 120), folder, patch)
    jobs.same(runs.go_on(name, folder), jobs.uninterrupted(name))
    return kind


def disturb_fit(chance, patch, folder, name):
    """A fit that dies one to three times; then on to its end."""
    kind = chance.choice(("signal", *fits.KINDS))
    for _ in range(chance.randrange(1, 4)):
        if kind == "signal":
            fits.killed_in_a_process(name, folder, chance.uniform(0, 4))
        else:
            fits.disturbed(name, kind, chance.randrange(1, 4000), folder, patch)
    same_fit(fits.go_on(name, folder, damaged=True), fit_without_faults(name))
    return kind


def megabytes():
    """What this process has in memory now."""
    return conftest.memory_in_use() / 1e6


def main():
    """Disturb until the time is over; print a line a minute and a summary."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    chance, patch = random.Random(options.seed), pytest.MonkeyPatch()
    began = told = time.monotonic()
    counts, memory = Counter(), []
    while time.monotonic() - began < 60 * options.minutes:
        with tempfile.TemporaryDirectory() as folder:
            if chance.random() < 0.7:
                name, disturb = chance.choice(list(jobs.JOBS)), disturb_run
            else:
                name, disturb = chance.choice(list(FITS)), disturb_fit
            kind = disturb(chance, patch, Path(folder) / "run", name)
            counts[f"{name}, {kind}"] += 1
        if time.monotonic() - told >= 60:
            told = time.monotonic()
            memory.append(round(megabytes()))
            files = len(os.listdir("/proc/self/fd")) if sys.platform == "linux" else 0
            minutes = (told - began) / 60
            print(f"{minutes:5.1f} min  {counts.total()} survived  {memory[-1]} MB  {files} open files", flush=True)
    print(json.dumps({"survived": counts.total(), "kinds": dict(sorted(counts.items())), "megabytes": memory}))


if __name__ == "__main__":
    main()
