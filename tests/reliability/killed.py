"""A process that runs a job with checkpoints, in the setting of the tests, until somebody kills it."""

import sys

import conftest  # noqa: F401  the precision and the compiled code of the tests
from jobs import JOBS

import bilevax as bx

if __name__ == "__main__":
    name, folder = sys.argv[1:]
    make, steps = JOBS[name]
    say = lambda row, state: print(row["step"], flush=True)  # noqa: E731
    bx.solve(*make(), steps=steps, checkpoint=bx.Checkpoint(folder, seconds=0.0), observers=say)
