"""Completion at real size, as ratios measured in one run.

    python benchmarks/completion.py [a b c d e f] [--quick] [--json FILE]

a  a step of IBCG on the observed entries of MovieLens 1M, against the dense step of the paper in numpy
b  block steps against rank-one steps of IBCG with three step rules, until the true gap is a thousandth of the first
c  the whole `MatrixCompletion().fit` on MovieLens 1M in a fresh process, compilation included, against a cmfrec fit
d  time and memory for each observation of a fit, at 1e6 and at 1e7 ratings with power-law counts
e  the kernels against the same step written with scipy or numba
f  the paper's synthetic 250 x 250 instance: block steps until the true gap is a millionth of the first, dense and on
   entries, against the first 500 steps of IBCG as printed

Needs the MovieLens data sets; c needs cmfrec (pip install 'bilevax[bench]') and is left out without it.
"""

import argparse
import ctypes
import json
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
import scipy.sparse.linalg

import bilevax as bx
from bilevax.drawing.tables import markdown
from bilevax.linalg.row_blocks import _compiled_dots
from bilevax.linalg.sparse import sorted_pattern
from bilevax.problems import matrix_completion, sparse_completion
from bilevax.problems.completion import synthetic
from bilevax.runs import run_directory

jax.config.update("jax_enable_x64", True)
LAMBDA1, LAMBDA2, DELTA = 0.05, 0.05, 0.9


def seconds_of(job, repeats=5):
    """The median over repetitions, the first one not counted."""
    job()
    found = []
    for _ in range(repeats):
        began = time.perf_counter()
        job()
        found.append(time.perf_counter() - began)
    return statistics.median(found)


def centred(data):
    return data.rows, data.cols, data.values - data.values.mean()


class DenseIBCG:
    """The paper's iteration on whole matrices, in numpy, with ARPACK for the leading singular pair."""

    def __init__(self, rows, cols, values, shape, radius):
        """Start at x = 0 and y = M."""
        self.mask = np.zeros(shape)
        self.M = np.zeros(shape)
        self.mask[rows, cols], self.M[rows, cols] = 1.0, values
        self.x, self.y, self.w = np.zeros(shape), self.M.copy(), np.zeros(shape)
        self.radius, self.count, self.k = radius, len(values), 0
        highest = 2 + LAMBDA1 + 2 * LAMBDA2
        self.alpha = 2 / (2 * LAMBDA2 + highest)
        self.guess = None

    def step(self):
        """Algorithm 1, lines 4 to 8."""
        x, y = self.x, self.y
        apart = 2 / self.count * self.mask * (x - y)
        hessian = 2 * self.mask + LAMBDA1 * (1 + (y / DELTA) ** 2) ** -1.5 + 2 * LAMBDA2
        self.w = self.w - 0.9 * self.alpha * (hessian * self.w + apart)
        F = apart + 2 * LAMBDA2 * self.w
        u, _, v = scipy.sparse.linalg.svds(F, k=1, tol=1e-2, v0=self.guess)
        self.guess = u[:, 0] if F.shape[0] <= F.shape[1] else v[0]
        gamma = 2 / (self.k + 2)
        self.x = x + gamma * (-self.radius * u @ v - x)
        slope = 2 * self.mask * (y - self.M) + LAMBDA1 * y / np.sqrt(1 + (y / DELTA) ** 2)
        self.y = y - self.alpha * (slope + 2 * LAMBDA2 * (y - self.x))
        self.k += 1


def step_against_dense(quick):
    data = bx.datasets.movielens_100k() if quick else bx.datasets.movielens_1m()
    entries = centred(data)
    problem, constants = sparse_completion(*entries, 3000.0, shape=data.shape)
    solver = bx.IBCG(constants=constants, warmup=0)  # neither has one: a step is what is compared
    bx.solve(problem, solver, steps=2, every=2)
    ours = statistics.median(bx.solve(problem, solver, steps=20, every=20).seconds / 20 for _ in range(3))
    dense = DenseIBCG(*entries, data.shape, 3000.0)
    theirs = seconds_of(dense.step, 3)
    return {"sparse ms": 1e3 * ours, "dense numpy ms": 1e3 * theirs, "ratio": theirs / ours}


def block_against_rank_one(quick):
    data = bx.datasets.movielens_100k()
    problem, constants = sparse_completion(*centred(data), 1200.0, shape=data.shape)
    goal = bx.relative_gap(1e-3)
    bx.solve(problem, bx.BlockIBCG(), steps=2)
    block = bx.solve(problem, bx.BlockIBCG(), steps=200, every=2, stop=goal)
    first = block.trace["gap"][0]
    found = {"block steps": block.steps, "block seconds": block.seconds, "relative gap": block.audit().gap / first}
    budget = (5 if quick else 30) * block.seconds
    rules = {"2/(k+2)": bx.IBCG(constants=constants), "constant 0.01": bx.IBCG(0.01, constants=constants)}
    rules["1/(4 sqrt K), K = 1000"] = bx.IBCG(1 / (4 * 1000**0.5), constants=constants)
    for name, solver in rules.items():
        bx.solve(problem, solver, steps=2)
        rank_one = bx.solve(problem, solver, steps=10**6, every=20, time_limit=budget, stop=goal)
        ratio = rank_one.seconds / block.seconds
        found[f"IBCG {name}"] = (
            f"gap {float(rank_one.audit().gap) / first:.1e} of the first after {ratio:.0f} x the time"
        )
    return found


CMFREC = {
    "cmfrec k=40, lambda=20": {"k": 40, "lambda_": 20},
    "cmfrec with implicit features": {"k": 60, "lambda_": 14, "add_implicit_features": True},
}


def split(loader):
    """Ratings to learn from, those held out, and the shape."""
    data = getattr(bx.datasets, loader)()
    held = np.random.default_rng(0).random(len(data.values)) < 0.1
    parts = [(data.rows[where], data.cols[where], data.values[where]) for where in (~held, held)]
    return *parts, data.shape


def one_fit(loader, name):
    """In a process of its own: seconds of a fit, imports of the package fitted included, and its RMSE."""
    train, test, shape = split(loader)
    began = time.perf_counter()
    if name in CMFREC:
        from cmfrec import CMF

        matrix = scipy.sparse.coo_matrix((train[2], train[:2]), shape)
        model = CMF(**CMFREC[name], verbose=False, nthreads=2).fit(matrix)
    else:
        from bilevax.estimators import MatrixCompletion

        model = MatrixCompletion().fit(train)
    spent = time.perf_counter() - began
    error = np.clip(model.predict(*test[:2]), 1, 5) - test[2]
    return spent, float(np.sqrt(np.mean(error**2)))


def whole_fit(quick):
    loader = "movielens_100k" if quick else "movielens_1m"
    found, ours = {}, None
    for name in ("fit", *CMFREC):
        runs = [child("one_fit", loader, name) for _ in range(3)]
        spent = statistics.median(run[0] for run in runs)
        ours = spent if ours is None else ours
        found |= {f"{name}: seconds": spent, f"{name}: RMSE": runs[0][1]}
        if name in CMFREC:
            found[f"{name}: ratio"] = ours / spent
    return found


def power_law(n, p, q):
    """Ratings of a matrix of rank five, few rows and columns having most of them."""
    rng = np.random.default_rng(0)
    rows = np.minimum(p * rng.random(int(1.3 * n)) ** 2, p - 1).astype(np.int64)
    cols = np.minimum(q * rng.random(int(1.3 * n)) ** 2.5, q - 1).astype(np.int64)
    flat = np.unique(rows * q + cols)
    flat = flat[np.sort(rng.permutation(len(flat))[:n])]
    rows, cols = (flat // q).astype(np.int32), (flat % q).astype(np.int32)
    left, right = rng.standard_normal((p, 5)), rng.standard_normal((q, 5))
    values = 3 + np.einsum("ij,ij->i", left[rows], right[cols]) / 5**0.5 + 0.5 * rng.standard_normal(len(rows))
    return rows, cols, values - values.mean()


def resident():
    """Bytes of memory that this process holds now."""
    with open("/proc/self/status") as lines:
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


def block_steps(n, p, q, dtype):
    """In a process of its own: seconds of a block step, and the peak of memory while stepping."""
    jax.config.update("jax_enable_x64", dtype == "float64")
    rows, cols, values = power_law(int(float(n)), int(p), int(q))
    problem, _ = sparse_completion(
        rows, cols, values.astype(dtype), 3.0 * len(rows) ** 0.5, shape=(int(p), int(q)), regularizer=None
    )
    del rows, cols, values
    ctypes.CDLL(None).malloc_trim(0)  # what making the data left behind is not memory of the method
    solver = bx.BlockIBCG(16, verify=None)
    state, _ = solver.init(problem, problem.domain.vertex(problem.x_like), problem.data["M"])
    peaks, done = [resident()], threading.Event()

    def watch():
        while not done.wait(0.005):
            peaks.append(resident())

    watcher, spent = threading.Thread(target=watch), []
    watcher.start()
    for _ in range(8):
        began = time.perf_counter()
        state, _ = solver.step(problem, state, None)
        spent.append(time.perf_counter() - began)
    done.set()
    watcher.join()
    return statistics.median(spent), max(peaks), problem.domain.pattern.size


def growth(quick):
    sizes = [(1e5, 943, 1682), (1e6, 6040, 3706)] if quick else [(1e6, 6040, 3706), (1e7, 72000, 65000)]
    found = {}
    for dtype in ("float32", "float64"):
        (t1, m1, n1), (t2, m2, n2) = (child("block_steps", *size, dtype) for size in sizes)
        found |= {f"{dtype}: ns for each of {n:.0e}": 1e9 * t / n for t, n in ((t1, n1), (t2, n2))}
        found[f"{dtype}: ratio"] = (t2 / n2) / (t1 / n1)
        # From one size to the other, since what the process itself takes is in both; factors and blocks included.
        found[f"{dtype}: peak bytes for each observation"] = (m2 - m1) / (n2 - n1)
    return found


def child(job, *arguments):
    """What a job returns in a fresh process."""
    command = [sys.executable, __file__, "--child", job, *map(str, arguments)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def kernels(quick):
    data = bx.datasets.movielens_100k() if quick else bx.datasets.movielens_1m()
    known, order = sorted_pattern(data.rows, data.cols, data.shape)
    values = np.ascontiguousarray(data.values[order])
    rng = np.random.default_rng(0)
    left, right = (rng.standard_normal((n, 32)) for n in data.shape)
    plain = scipy.sparse.csr_matrix((values, np.asarray(known.cols), np.asarray(known.starts)), shape=data.shape)
    ours = known.operator(values)
    found = {
        "matrix times block": seconds_of(lambda: ours.matvec(right)) / seconds_of(lambda: plain @ right),
        "transpose times block": seconds_of(lambda: ours.rmatvec(left)) / seconds_of(lambda: plain.T @ left),
    }
    loop, rows, cols = _compiled_dots(), np.asarray(known.rows), np.asarray(known.cols)
    if loop is not None:
        out = np.empty(len(values))
        direct = seconds_of(lambda: loop(rows, cols, left, right, out))
        found["entries of a low-rank matrix"] = seconds_of(lambda: known.sample(left, right)) / direct
    return found


def synthetic_against_printed(quick):
    made = synthetic(0, n=100 if quick else 250)
    dense, constants = matrix_completion(made.M, made.observed, made.radius)
    rows, cols = np.nonzero(made.observed)
    sparse, _ = sparse_completion(rows, cols, made.M[made.observed], made.radius, shape=made.M.shape)
    zeros = jnp.zeros(made.M.shape)
    printed = bx.IBCG.as_printed(1 / (4 * 1000**0.5), constants)
    runs = {
        "printed": lambda: bx.solve(dense, printed, jnp.asarray(made.x0), jnp.asarray(made.y0), steps=500, every=500),
        "dense": lambda: bx.solve(dense, bx.BlockIBCG(), zeros, zeros, steps=300, every=2, stop=bx.relative_gap(1e-6)),
        "sparse": lambda: bx.solve(sparse, bx.BlockIBCG(), steps=300, every=2, stop=bx.relative_gap(1e-6)),
    }
    found, compare = {}, None
    for name, run in runs.items():
        run()
        results = [run() for _ in range(5)]
        spent = statistics.median(result.seconds for result in results)
        compare = spent if compare is None else compare
        gap = float(results[0].audit().gap) / results[0].trace["gap"][0]
        found |= {f"{name}: seconds": spent, f"{name}: true gap over the first": gap, f"{name}: ratio": spent / compare}
    return found


JOBS = {
    "a": step_against_dense,
    "b": block_against_rank_one,
    "c": whole_fit,
    "d": growth,
    "e": kernels,
    "f": synthetic_against_printed,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("jobs", nargs="*")
    parser.add_argument("--child", metavar="JOB", help=argparse.SUPPRESS)
    parser.add_argument("--quick", action="store_true", help="smaller data; for trying the script, not for figures")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(globals()[options.child](*options.jobs)))
        return
    results = {}
    for name in options.jobs or JOBS:
        if name == "c":
            try:
                import cmfrec  # noqa: F401
            except ImportError:
                print("c is left out: pip install 'bilevax[bench]' for cmfrec.", file=sys.stderr)
                continue
        results[name] = {key: v if isinstance(v, str) else float(v) for key, v in JOBS[name](options.quick).items()}
        words = JOBS[name].__name__.replace("_", " ")
        rows = [
            {f"{name}: {words}": key, "": v if isinstance(v, str) else f"{v:.4g}"} for key, v in results[name].items()
        ]
        print(markdown(rows) + "\n", flush=True)
    if options.json:
        options.json.write_text(json.dumps({"machine": run_directory.machine(), "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
