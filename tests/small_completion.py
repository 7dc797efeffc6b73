"""A small completion problem, and what might be known of its rows and columns."""

import numpy as np

from bilevax.sets import AxisWeights

P, Q = 30, 20
_rng = np.random.default_rng(0)
M = _rng.standard_normal((P, 3)) @ _rng.standard_normal((3, Q))
OBSERVED = _rng.random((P, Q)) < 0.6
ROWS, COLS = np.nonzero(OBSERVED)


def sides(strengths=(2.0, 0.5)):
    """Weights and similarity of rows and of columns, with the matrices they stand for."""
    random = np.random.default_rng(5)
    found = []
    for n in (P, Q):
        vectors = np.linalg.qr(random.standard_normal((n, 2)))[0]
        side = AxisWeights(random.uniform(0.5, 2, n), vectors, np.array(strengths))
        whole = np.diag(side.scale) @ (np.eye(n) + vectors @ np.diag(side.strengths) @ vectors.T)
        found.append((side, whole))
    return found
