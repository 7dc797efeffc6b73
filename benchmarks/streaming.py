"""Seconds per step on rows that are read from disk, over those with all rows in memory; and the memory of a long run.

    python benchmarks/streaming.py [--pairs 5] [--rows 1000000] [--json FILE]
    python benchmarks/streaming.py --memory 10000000      # a run on that many rows, with its peak of memory

Rows are like those of the data set a9a: 123 features in single precision, 14 of them one and the others zero, and a
label. A fifth as many rows validate. The problem is a ridge weight for each feature of a logistic regression, with
batches of 64 rows. A round is one run on arrays, one on `numpy.memmap`, one on Parquet with a column for each feature,
and one on Parquet with a column of lists; the table has medians over the rounds. The default ends its mini-batches
within these steps and goes on with all rows, unless the table says that it was on batches only. Seconds are those of
steps, which contain every wait for rows, but neither compilation nor the rows of the trace. Files are written before,
into a folder that is removed, and are most likely still in the page cache.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import jax.numpy as jnp
import numpy as np

import bilevax as bx
from bilevax.drawing.tables import markdown
from bilevax.problems.logistic import lower, upper

FEATURES, ONES, BATCH, GROUP = 123, 14, 64, 32_768
AT_ONCE = 100_000


def some_rows(count, rng):
    """Features and labels of some rows; the label depends on the features by a fixed rule, with noise."""
    A = np.zeros((count, FEATURES), np.float32)
    which = rng.integers(0, FEATURES, (count, ONES))
    np.put_along_axis(A, which, 1.0, axis=1)
    rule = np.random.default_rng(7).standard_normal(FEATURES).astype(np.float32)
    b = np.sign(A @ rule + rng.standard_normal(count)).astype(np.float32)
    return A, np.where(b == 0, 1, b).astype(np.float32)


def write(folder, rows, parquet=True):
    """Two parts on disk, as arrays of numpy and as Parquet, written a few rows at a time."""
    rng = np.random.default_rng(0)
    for part, count in (("train", rows), ("valid", rows // 5)):
        open_array = np.lib.format.open_memmap
        A = open_array(folder / f"{part}-A.npy", "w+", np.float32, (count, FEATURES))
        b = open_array(folder / f"{part}-b.npy", "w+", np.float32, (count,))
        for first in range(0, count, AT_ONCE):
            last = min(first + AT_ONCE, count)
            A[first:last], b[first:last] = some_rows(last - first, rng)
        A.flush(), b.flush()
        if parquet:
            write_parquet(folder / f"{part}.parquet", A, b)
        del A, b


def write_parquet(path, A, b):
    import pyarrow
    import pyarrow.parquet

    names = [f"f{i}" for i in range(FEATURES)]
    schema = pyarrow.schema([(name, pyarrow.float32()) for name in [*names, "label"]])
    rows = pyarrow.list_(pyarrow.float32(), FEATURES)
    lists = pyarrow.schema([("features", rows), ("label", pyarrow.float32())])
    writer = pyarrow.parquet.ParquetWriter
    with writer(path, schema) as by_column, writer(path.with_suffix(".lists"), lists) as by_row:
        for first in range(0, len(b), GROUP):
            part, labels = np.array(A[first : first + GROUP]), b[first : first + GROUP]
            columns = [np.ascontiguousarray(part[:, i]) for i in range(FEATURES)]
            by_column.write_table(pyarrow.table([*columns, labels], schema=schema))
            matrix = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(part.ravel()), FEATURES)
            by_row.write_table(pyarrow.table([matrix, labels], schema=lists))


def mapped(folder, part):
    load = lambda name: np.load(folder / f"{part}-{name}.npy", mmap_mode="r")  # noqa: E731
    return {"A": load("A"), "b": load("b")}


def in_memory(folder, part):
    return {name: jnp.asarray(np.array(v)) for name, v in mapped(folder, part).items()}


def on_disk(folder, part):
    return bx.Stream(mapped(folder, part))


def in_parquet(folder, part):
    return bx.Stream.parquet(folder / f"{part}.parquet", {"A": [f"f{i}" for i in range(FEATURES)], "b": "label"})


def in_lists(folder, part):
    return bx.Stream.parquet(folder / f"{part}.lists", {"A": "features", "b": "label"})


def problem(folder, make, rows):
    parts = ("train", "valid")
    sampler = bx.PerPart({part: bx.Minibatch(BATCH, count) for part, count in zip(parts, rows, strict=True)})
    return bx.BilevelProblem(upper, lower, bx.Box(-7.0, 0.0), {part: make(folder, part) for part in parts}, sampler)


def methods():
    told = {"constants": bx.Constants(mu_g=1e-3, L_g=2.0)}
    return {"SOBA": (bx.SOBA(0.1, 0.1, **told), 4096), "default": (bx.SampledIBCG(), 24)}


def measure(problems, solver, steps, pairs):
    """Medians of the seconds per step, and how many steps of the default were on mini-batches at least."""
    start = jnp.zeros(FEATURES, jnp.float32)
    seconds, sampling = {name: [] for name in problems}, True
    for repeat in range(pairs + 1):
        for name, one in problems.items():
            result = bx.solve(one, solver, start, start, steps=steps, every=steps)
            sampling &= bool(getattr(result.state, "sampling", True))
            if repeat:  # the first round compiles
                seconds[name].append(result.seconds / steps)
    return {name: statistics.median(found) for name, found in seconds.items()}, sampling


def compare(options):
    rows = []
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        write(folder, options.rows)
        counts = (options.rows, options.rows // 5)
        makers = {"memory": in_memory, "memmap": on_disk, "Parquet": in_parquet, "lists": in_lists}
        makers = {name: make for name, make in makers.items() if name in ("memory", *options.sources)}
        problems = {name: problem(folder, make, counts) for name, make in makers.items()}
        for name in options.methods:
            solver, steps = methods()[name]
            found, sampling = measure(problems, solver, steps, options.pairs)
            row = {"method": name, "steps": steps, "on batches only": sampling}
            row |= {f"us, {where}": 1e6 * s for where, s in found.items()}
            row |= {f"{where} / memory": found[where] / found["memory"] for where in options.sources}
            rows.append(row)
            print(row, flush=True)
    return rows


def peak():
    """The largest resident memory of this process so far, in MB, as Linux counts it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return {key: int(line.split()[1]) / 1024 for line in lines for key in ("VmHWM", "RssFile") if line.startswith(key)}


def memory_run(rows):
    """A run of the default on files larger than what it may hold; reads its own peak."""
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        script = f"import streaming, pathlib; streaming.write(pathlib.Path({path!r}), {rows}, parquet=False)"
        subprocess.run([sys.executable, "-c", script], check=True, cwd=Path(__file__).parent)
        before = peak()["VmHWM"]
        one = problem(folder, on_disk, (rows, rows // 5))
        start = jnp.zeros(FEATURES, jnp.float32)
        began, seen = time.perf_counter(), []
        look = lambda row, state: seen.append(peak()["VmHWM"])  # noqa: E731
        result = bx.solve(one, None, start, start, steps=40, tol=1e-3, every=10, time_limit=120, observers=look)
        size = sum(file.stat().st_size for file in folder.iterdir()) / 2**20
        return {
            "rows": rows + rows // 5,
            "MB on disk": size,
            "MB before": before,
            "MB at rows": seen,
            "MB at the peak": peak()["VmHWM"],
            "status": result.status.name,
            "steps": result.steps,
            "seconds": time.perf_counter() - began,
            "message": result.message,
        }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--methods", nargs="+", default=["SOBA", "default"])
    parser.add_argument("--sources", nargs="+", default=["memmap", "Parquet", "lists"])
    parser.add_argument("--memory", type=int, metavar="ROWS", help="measure memory on so many rows, in a child process")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.memory:
        script = f"import json, streaming; print(json.dumps(streaming.memory_run({options.memory})))"
        child = subprocess.run(
            [sys.executable, "-c", script], check=True, cwd=Path(__file__).parent, stdout=subprocess.PIPE, text=True
        )
        rows = [json.loads(child.stdout.splitlines()[-1])]
        print(rows[0])
    else:
        rows = compare(options)
        print(markdown(rows))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
