"""Every exported set, solver and small problem, for the suites that run over all of them."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np

import bilevax as bx
from bilevax.problems import random_quadratic

_POINTS = np.random.default_rng(3).standard_normal((7, 4))

# name: (set, a point's shape)
SETS = {
    "Simplex": (bx.Simplex(2.0), jnp.zeros(5)),
    "UnitSimplex": (bx.UnitSimplex(1.5), jnp.zeros(5)),
    "L1Ball": (bx.L1Ball(3.0), jnp.zeros(5)),
    "L2Ball": (bx.L2Ball(0.5), jnp.zeros(5)),
    "LInfBall": (bx.LInfBall(0.7), jnp.zeros(5)),
    "Box": (bx.Box(-1.0, np.array([1.0, 2.0, 0.5, 0.0, 3.0])), jnp.zeros(5)),
    "VertexHull": (bx.VertexHull(_POINTS), jnp.zeros(4)),
    "NuclearBall": (bx.NuclearBall(2.0), jnp.zeros((4, 6))),
    "Spectraplex": (bx.Spectraplex(2.0, 0.05), jnp.zeros((5, 5))),
    "Product": (
        bx.Product({"a": bx.Simplex(), "b": (bx.Box(-1.0, 1.0), bx.NuclearBall())}),
        {"a": jnp.zeros(3), "b": (jnp.zeros(2), jnp.zeros((3, 2)))},
    ),
    "UserSet": (bx.UserSet(lambda d: -jnp.sign(d), diameter=2 * np.sqrt(5)), jnp.zeros(5)),
}
UNBOUNDED = {"WholeSpace": (bx.WholeSpace(), jnp.zeros(5))}

SOLVERS = {"IBCG": bx.IBCG()}


def known_problem(name, seed=0, **options):
    """A small quadratic problem with a known solution over one of the sets."""
    domain, like = SETS[name]
    return random_quadratic(domain, like, 6, jax.random.key(seed), **options)


def exported(kind):
    """Names of the exported classes of one kind."""
    classes = {name: getattr(bx, name) for name in bx.__all__ if inspect.isclass(getattr(bx, name))}
    if kind == "set":
        return {n for n, c in classes.items() if issubclass(c, bx.ConvexSet) and c is not bx.ConvexSet}
    return {n for n, c in classes.items() if all(hasattr(c, m) for m in ("prepare", "init", "step"))}
