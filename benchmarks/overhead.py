"""What the library itself costs: a step against its oracles, a second run against the first, an lmo against an SVD.

    python benchmarks/overhead.py [--quick] [--json FILE]

All times are medians, compilation apart. Each oracle runs in a compiled loop of its own, and so does the whole step.
"""

import argparse
import json
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np

import bilevax as bx
from bilevax.drawing.tables import markdown
from bilevax.linalg import lanczos
from bilevax.runs import chunks, run_directory

jax.config.update("jax_enable_x64", True)


def elementwise(n):
    """The cheapest oracles there are, hence the hardest case: a few operations per entry, an l1 ball."""

    def upper(x, y, data):
        return 0.5 * jnp.mean((y - data) ** 2) + 0.05 * jnp.mean(x**2)

    def lower(x, y, data):
        return jnp.mean(jnp.sqrt(1 + (y - data) ** 2)) + 0.5 * jnp.mean((y - x) ** 2)

    half = n // 2
    data = jax.random.normal(jax.random.key(0), (half,))
    return bx.BilevelProblem(upper, lower, bx.L1Ball(1.0), data), jnp.zeros(half), jnp.zeros(half)


def regression(n, rows=50, held_out=10):
    """A weight decay for each feature of a regression: 50 rows to train on, 10 to validate, a box."""
    half = n // 2

    def upper(x, y, data):
        return 0.5 * jnp.mean((data["B"] @ y - data["b"]) ** 2) + 0.05 * jnp.sum(x**2)

    def lower(x, y, data):
        return 0.5 * jnp.mean((data["A"] @ y - data["a"]) ** 2) + 0.5 * jnp.sum((0.1 + x) * y**2)

    keys = jax.random.split(jax.random.key(0), 4)
    data = {
        name: jax.random.normal(k, shape)
        for name, shape, k in zip("ABab", [(rows, half), (held_out, half), (rows,), (held_out,)], keys, strict=True)
    }
    return bx.BilevelProblem(upper, lower, bx.Box(0.0, 1.0), data), jnp.full(half, 0.5), jnp.zeros(half)


def seconds_per_turn(loop, *args, budget=0.4, repeats=7):
    """Median time of one turn of a compiled loop `loop(*args, count)`; turns and repeats fill the budget."""
    jax.block_until_ready(loop(*args, 1))
    count = 1
    while True:
        began = time.perf_counter()
        jax.block_until_ready(loop(*args, count))
        spent = time.perf_counter() - began
        if spent > budget / repeats or count > 10**6:
            break
        count = max(2 * count, int(count * budget / repeats / max(spent, 1e-6)))
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        jax.block_until_ready(loop(*args, count))
        times.append((time.perf_counter() - began) / count)
    return statistics.median(times)


def oracle_loop(oracle):
    """A loop around one oracle whose input depends on its last output, so that nothing is hoisted or dropped."""

    @jax.jit
    def loop(problem, point, count):
        def turn(_, carry):
            nudge = 1e-300 * sum(v.ravel()[0] for v in jax.tree.leaves(carry))
            return oracle(problem, jax.tree.map(lambda v: v + nudge, point))

        return jax.lax.fori_loop(0, count, turn, oracle(problem, point))

    return loop


ORACLES = {
    "both gradients of f": lambda p, z: p.upper_grads(z["x"], z["y"]),
    "gradient of g": lambda p, z: p.lower_grad(z["x"], z["y"]),
    "Hessian product": lambda p, z: p.lower_hvp(z["x"], z["y"], z["w"]),
    "cross product": lambda p, z: p.lower_cross(z["x"], z["y"], z["w"]),
    "lmo": lambda p, z: p.domain.lmo(z["x"], p.domain.start(z["x"]))[0],
}


def step_overhead(make, n):
    problem, x, y = make(n)
    solver = bx.IBCG(0.01, alpha=0.1, eta=0.1, warmup=0)
    problem, solver = chunks.cast_numbers(problem, solver, jnp.float64)
    key = jax.random.key(0)
    solver = solver.prepare(problem, x, y, key)
    state, _ = solver.init(problem, x, y)
    point = {"x": x + 0.1, "y": y + 0.2, "w": y + 0.3}
    parts = {name: seconds_per_turn(oracle_loop(f), problem, point) for name, f in ORACLES.items()}
    whole = seconds_per_turn(lambda *a: chunks.advance(*a[:-1], np.int32(a[-1])), problem, solver, state, key)
    total = sum(parts.values())
    return {
        "problem": make.__name__,
        "variables": x.size + y.size,
        **{f"{name} us": 1e6 * t for name, t in parts.items()},
        "sum us": 1e6 * total,
        "IBCG step us": 1e6 * whole,
        "ratio": whole / total,
    }


def compilations():
    """Backend compilations of a first solve, and of later ones that change numbers only."""
    count = [0]
    listener = lambda name, *_, **__: count.__setitem__(0, count[0] + ("backend_compile" in name))  # noqa: E731
    jax.monitoring.register_event_duration_secs_listener(listener)

    def solve(gamma=0.1, radius=1.0, seed=0, tol=1e-3):
        before = count[0]
        _, x, y = elementwise(2000)
        problem = bx.BilevelProblem(_upper, _lower, bx.L1Ball(radius), jax.random.normal(jax.random.key(seed), (1000,)))
        made = count[0] - before  # the new data themselves
        bx.solve(problem, bx.IBCG(gamma), x, y, steps=200, tol=tol)
        return count[0] - before - made

    rows = [{"solve": "first", "compilations": solve()}]
    for name, change in {
        "another step size": {"gamma": 0.2},
        "another radius": {"radius": 2.0},
        "other data of the same shape": {"seed": 1},
        "another tolerance": {"tol": 1e-2},
    }.items():
        rows.append({"solve": name, "compilations": solve(**change)})
    return rows


def _upper(x, y, data):
    return 0.5 * jnp.mean((y - data) ** 2)


def _lower(x, y, data):
    return 0.5 * jnp.mean((y - x) ** 2)


def nuclear_lmo(p, q):
    """Leading singular pair by our Krylov method against the full SVD of LAPACK, at a relative error of 1e-6."""
    rng = np.random.default_rng(0)
    gaussian = rng.standard_normal((p, q))
    matrices = {
        "low rank + noise": 0.1 * gaussian + rng.standard_normal((p, 10)) @ rng.standard_normal((10, q)),
        "Gaussian": gaussian,
    }
    find = jax.jit(lambda A: lanczos.top_singular_pair(A, jnp.zeros(min(p, q)), jax.random.key(0), tol=1e-6))
    rows = []
    for name, A in matrices.items():
        began = time.perf_counter()
        full = np.linalg.svd(A, full_matrices=False)[1][0]
        svd_seconds = time.perf_counter() - began
        A = jnp.asarray(A)
        jax.block_until_ready(find(A))
        times = []
        for _ in range(5):
            began = time.perf_counter()
            pair = jax.block_until_ready(find(A))
            times.append(time.perf_counter() - began)
        ours = statistics.median(times)
        rows.append(
            {
                "direction": f"{name} {p} x {q}",
                "full SVD s": svd_seconds,
                "lmo s": ours,
                "products": int(pair.products),
                "relative error": float((full - pair.value) / full),
                "ratio": svd_seconds / ours,
            }
        )
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes only")
    parser.add_argument("--json", help="write the figures to this file")
    options = parser.parse_args()
    sizes = [10**k for k in range(2, 4 if options.quick else 7)]
    tables = {"compilations": compilations()}
    print(markdown(tables["compilations"]), "\n")
    tables["step"] = [step_overhead(make, n) for make in (elementwise, regression) for n in sizes]
    print(markdown(tables["step"]), "\n")
    tables["nuclear lmo"] = nuclear_lmo(*((400, 300) if options.quick else (4000, 3000)))
    print(markdown(tables["nuclear lmo"]))
    if options.json:
        with open(options.json, "w") as stream:
            json.dump({**run_directory.machine(), **tables}, stream, indent=2)


if __name__ == "__main__":
    main()
