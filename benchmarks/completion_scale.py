"""Large matrices: `MatrixCompletion` against cmfrec on the same entries, and time and memory as entries grow.

    python benchmarks/completion_scale.py [--entries 1e6 1e7] [--peer] [--threads 2] [--json FILE]

The matrix has rank 20 and noise of standard deviation 1 (its own entries have that, too). Few rows and columns have
most of the entries, which are drawn once, shuffled, and kept in a temporary file. Every fit runs in a process of its
own: seconds are CPU time of import and fit, memory is the peak of the process, the entries included. The error is that
of predictions against the matrix without noise, at pairs of rows and columns that have entries. With `--peer`, cmfrec
is fitted with three numbers of factors and three penalties on nine tenths of the entries; the setting that predicts
the others best is fitted to all of them, and the nine fits are counted. 1e8 entries (1e6 x 1e5) take ten minutes and
16 GB, most of it for drawing them. Needs cmfrec for `--peer`.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from itertools import product
from pathlib import Path

import numpy as np

from bilevax.drawing.tables import markdown

SHAPES = {10**6: (10_000, 4_000), 10**7: (70_000, 10_000), 10**8: (1_000_000, 100_000)}
RANK = 20
GRID = list(product((20, 40, 60), (5.0, 10.0, 20.0)))
"""Numbers of factors and penalties of cmfrec."""


def draw(entries, file):
    """Draw a matrix and its entries, and keep them."""
    (p, q), rng = SHAPES[entries], np.random.default_rng(0)
    rows = np.minimum(p * rng.random(int(1.4 * entries)) ** 1.7, p - 1).astype(np.int64)
    cols = np.minimum(q * rng.random(int(1.4 * entries)) ** 2, q - 1).astype(np.int64)
    flat = np.unique(rows * q + cols)
    flat = rng.permutation(flat)[:entries]
    rows, cols = (flat // q).astype(np.int32), (flat % q).astype(np.int32)
    left, right = (rng.standard_normal((n, RANK)).astype(np.float32) for n in (p, q))
    values = np.empty(entries)
    for begin in range(0, entries, 1 << 20):
        part = slice(begin, begin + (1 << 20))
        values[part] = truth(left, right, rows[part], cols[part]) + rng.standard_normal(len(values[part]))
    np.savez(file, rows=rows, cols=cols, values=values, left=left, right=right)


def truth(left, right, rows, cols):
    """The matrix without noise at these places."""
    return np.einsum("ij,ij->i", left[rows], right[cols]) / RANK**0.5


def one_fit(file, method, threads, k=0, penalty=0.0, share=1.0):
    """In a process of its own: CPU seconds, wall seconds, peak memory in MB, error, and error on entries left out."""
    with np.load(file) as stored:
        rows, cols, values, left, right = (stored[name] for name in ("rows", "cols", "values", "left", "right"))
    learn = slice(0, round(float(share) * len(values)))
    began, cpu = time.perf_counter(), time.process_time()
    if method == "cmfrec":
        import scipy.sparse
        from cmfrec import CMF

        matrix = scipy.sparse.coo_matrix((values[learn], (rows[learn], cols[learn])), (len(left), len(right)))
        model = CMF(k=int(k), lambda_=float(penalty), verbose=False, nthreads=int(threads)).fit(matrix)
    else:
        from bilevax.estimators import MatrixCompletion

        model = MatrixCompletion(effort=method).fit((rows[learn], cols[learn], values[learn]))
    found = {"cpu": time.process_time() - cpu, "seconds": time.perf_counter() - began}
    found["memory"] = peak_memory()
    rng = np.random.default_rng(1)
    pairs = rng.choice(rows, 500_000), rng.choice(cols, 500_000)
    found["error"] = rmse(model.predict(*pairs), truth(left, right, *pairs))
    rest = slice(learn.stop, None)
    found["left out"] = rmse(model.predict(rows[rest], cols[rest]), values[rest]) if learn.stop < len(values) else None
    return found


def peak_memory():
    """In MB. `ru_maxrss` will not do: a new process inherits that of the one that has started it."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def rmse(a, b):
    return float(np.sqrt(np.mean((a - b) ** 2)))


def child(*arguments):
    """What `one_fit` returns in a fresh process."""
    command = [sys.executable, __file__, "--child", *map(str, arguments)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def tuned_peer(file, threads):
    """cmfrec with the best setting of the grid; CPU seconds of tuning are apart."""
    tried = {setting: child(file, "cmfrec", threads, *setting, 0.9) for setting in GRID}
    best = min(tried, key=lambda setting: tried[setting]["left out"])
    return child(file, "cmfrec", threads, *best) | {
        "tuning": sum(one["cpu"] for one in tried.values()),
        "setting": best,
    }


def row(name, entries, found):
    return {
        "entries": f"{entries:.0e}",
        "method": name,
        "CPU s": f"{found['cpu']:.0f}",
        "with tuning": f"{found['cpu'] + found.get('tuning', 0.0):.0f}",
        "s": f"{found['seconds']:.0f}",
        "us for each entry": f"{1e6 * found['cpu'] / entries:.1f}",
        "MB": f"{found['memory']:.0f}",
        "error": f"{found['error']:.4f}",
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--entries", type=float, nargs="+", default=[1e6, 1e7])
    parser.add_argument("--peer", action="store_true", help="also cmfrec, tuned; an hour at 1e8")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(one_fit(*options.child)))
        return
    records, rows = {}, []
    with tempfile.TemporaryDirectory() as folder:
        for entries in map(int, options.entries):
            file = Path(folder) / "entries.npz"
            draw(entries, file)
            found = {"bilevax, default": child(file, "default", options.threads)}
            if options.peer:
                found["cmfrec, tuned"] = tuned_peer(file, options.threads)
            records[entries] = found
            rows += [row(name, entries, one) for name, one in found.items()]
            print(markdown(rows) + "\n", flush=True)
            if options.json:
                options.json.write_text(json.dumps(records, indent=1) + "\n")


if __name__ == "__main__":
    main()
