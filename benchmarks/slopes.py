"""How fast our methods for lmos and for low rank converge: steps for each factor of ten of the true gap.

    python benchmarks/slopes.py [--quick] [--json FILE]

`PairwiseIBCG` on polytopes and `BlockIBCG` on the nuclear ball, on random quadratics with a solution on a face that is
known, for several condition numbers of the lower level and several sizes. "first steps" is how many it takes to 1e-2 of
the first gap. "steps per factor 10" is the slope from there to 1e-9. Linear convergence means that the second half of
that way takes about as many steps as the first: the last two columns. "steps" is of the whole way.
"""

import argparse
import json
from pathlib import Path

import jax

jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

import bilevax as bx  # noqa: E402
from bilevax.drawing.tables import markdown  # noqa: E402
from bilevax.linalg.blas import one_blas_thread  # noqa: E402
from bilevax.problems import random_quadratic  # noqa: E402

BEGIN, MIDDLE, END = 1e-2, 10**-5.5, 1e-9
STEPS = 1000
SETS = {
    "simplex": lambda n: (bx.Simplex(), jnp.zeros(n)),
    "l1 ball": lambda n: (bx.L1Ball(1.0), jnp.zeros(n)),
    "box": lambda n: (bx.Box(-1.0, 1.0), jnp.zeros(n)),
    "nuclear ball": lambda n: (bx.NuclearBall(1.0), jnp.zeros((n // 10, 10))),
}


def gaps_of(name, n, kappa):
    """The true gap of each iterate, relative to the first one."""
    domain, like = SETS[name](n)
    known = random_quadratic(domain, like, 60, jax.random.key(n), kappa=kappa, slope=0.1)
    solver = bx.BlockIBCG() if name == "nuclear ball" else bx.PairwiseIBCG()
    least = jax.jit(lambda d: bx.trees.inner(d, domain.lmo(d, domain.start(d))[0]))
    seen = []

    def measure(row, state):
        d = known.gradient(state.x)
        seen.append(float(bx.trees.inner(d, state.x) - least(d)))

    bx.solve(
        known.problem,
        solver,
        domain.vertex(like),
        jnp.zeros(60),
        steps=STEPS,
        every=1,
        observers=measure,
        stop=lambda trace: bx.Stop(bx.Status.STOPPED, "far enough") if seen[-1] <= 0.1 * END * seen[0] else None,
    )
    return np.minimum.accumulate(np.array(seen)) / seen[0]


def row(name, n, kappa):
    gaps = gaps_of(name, n, kappa)
    begin, middle, end = (
        int(np.argmax(gaps <= level)) if gaps[-1] <= level else None for level in (BEGIN, MIDDLE, END)
    )
    found = {"set": name, "variables": n, "kappa": f"{kappa:.0e}", "first steps": begin}
    if end is None:
        return found | {
            "steps per factor 10": f"{gaps[-1]:.0e} left",
            "to 3e-6": middle,
            "to 1e-9": None,
            "steps": None,
        }
    return found | {
        "steps per factor 10": f"{(end - begin) / np.log10(BEGIN / END):.2g}",
        "to 3e-6": middle - begin,
        "to 1e-9": end - middle,
        "steps": end,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes only")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    sizes = (50,) if options.quick else (50, 200, 500)
    rows = [row(name, n, kappa) for name in SETS for n in sizes for kappa in (1e1, 1e3, 1e5)]
    print(markdown(rows))
    if options.json:
        options.json.write_text(json.dumps(rows) + "\n")


if __name__ == "__main__":
    with one_blas_thread():
        main()
