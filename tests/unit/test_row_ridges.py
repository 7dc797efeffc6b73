"""Ridge regressions of many rows: against dense algebra, and with numba against those without."""

import numpy as np
import pytest

from bilevax.linalg import row_ridges
from bilevax.linalg.row_ridges import Lines, Regression, Weighting, residuals, row_sums, solve_rows


@pytest.fixture
def rng():
    return np.random.default_rng(3)


def small_regressions(rng, tails=np.inf, dtype=float):
    """Four rows of a matrix with six columns, some entries held out, and what they are regressed on."""
    learned, held, k = np.array([3, 0, 5, 1]), np.array([1, 2, 0, 0]), 4
    starts = np.concatenate([[0], np.cumsum(learned + held)[:-1]])
    index = np.concatenate([rng.permutation(6)[:n] for n in learned + held]).astype(np.int32)
    lines = Lines(starts, starts + learned, starts + learned + held, index, rng.standard_normal(12).astype(dtype))
    root = rng.standard_normal((2, k, k))
    regression = Regression(
        rng.standard_normal((6, k)).astype(dtype), rng.standard_normal(6).astype(dtype), rng.uniform(0.1, 1, k),
        rng.uniform(0, 2, (4, 2)).astype(np.float32), root @ root.transpose(0, 2, 1), Weighting(tails, 0.7, 0.2),
    )  # fmt: skip
    own, centre = (rng.standard_normal((4, k)).astype(dtype) for _ in range(2))
    return lines, regression, own, centre


def solved_densely(lines, regression, own, centre):
    """The rows, the weighted squares of their residuals and of their changes, and the weights."""
    rows, sums = [], np.zeros(3)
    for i in range(len(own)):
        part = slice(lines.starts[i], lines.middles[i])
        D, t = regression.design[lines.index[part]], lines.values[part] - regression.offset[lines.index[part]]
        w = regression.weighting.of(t - D @ own[i])
        if not len(w):
            rows.append(centre[i])
            continue
        doubt = np.tensordot(regression.shares[i] * w.mean(), regression.doubt, 1)
        normal = D.T @ (w[:, None] * D) + doubt + np.diag(regression.ridge)
        rows.append(np.linalg.solve(normal, D.T @ (w * t) + regression.ridge * centre[i]))
        sums += [w @ (D @ (rows[-1] - own[i])) ** 2, w @ (t - D @ rows[-1]) ** 2, w.sum()]
    return np.array(rows), sums


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize(
    ("tails", "dtype", "tol"), [(np.inf, float, 1e-9), (4.0, float, 1e-9), (4.0, np.float32, 1e-3)]
)
def test_rows_are_solved_as_by_dense_algebra(tails, dtype, tol, compiled, rng, monkeypatch):
    if not compiled:  # without numba
        monkeypatch.setattr(row_ridges, "_compiled", lambda: row_ridges._loop)
    given = small_regressions(rng, tails, dtype)
    found, summary = solve_rows(*given)
    rows, sums = solved_densely(*given)
    np.testing.assert_allclose(found, rows, rtol=tol, atol=tol)
    np.testing.assert_allclose(summary, sums, rtol=tol)


def test_many_unknowns_are_solved_by_the_compiled_factorisation(rng):
    pytest.importorskip("numba")
    from bilevax.linalg.row_kernels import solve_positive

    for k in (1, 3, 4, 5, 37, 101):  # whole blocks of four, and a rest
        root, right, found = rng.standard_normal((2 * k, k)), rng.standard_normal(k), np.empty(k)
        matrix = root.T @ root
        solve_positive(np.column_stack([matrix, right]), found)
        np.testing.assert_allclose(found, np.linalg.solve(matrix, right), rtol=1e-6)


@pytest.mark.parametrize("tails", [np.inf, 4.0])
def test_compiled_loops_and_those_without_numba_agree_on_rows_of_several_chunks(tails, rng, monkeypatch):
    counts, k = np.array([1300, 0, 7, 512, 2100]), 6
    ends = np.cumsum(counts).astype(np.int32)
    starts = ends - counts.astype(np.int32)
    lines = Lines(starts, ends - (counts > 9), ends, rng.integers(0, 50, ends[-1], np.int32), rng.random(ends[-1]))
    design, table, own = rng.random((50, k)), rng.random((50, 3)), rng.random((5, k))
    doubt = np.stack([np.eye(k), np.ones((k, k)) + np.eye(k)])
    given = design, rng.random(50), np.arange(1.0, k + 1), rng.random((5, 2)), doubt, Weighting(tails, 0.1, 0.02)

    def found():
        rows, summary = solve_rows(lines, Regression(*given), own, np.ones((5, k)))
        return rows, np.array(summary), residuals(lines, design, given[1], own), row_sums(lines, table)

    compiled = found()
    for name, loop in (("", "_loop"), ("_residuals", "_residual_loop"), ("_sums", "_sum_loop")):
        monkeypatch.setattr(row_ridges, f"_compiled{name}", lambda loop=loop: getattr(row_ridges, loop))
    for one, other in zip(compiled, found(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-11)
    bad = Lines(starts, ends, ends, lines.index, np.where(np.arange(ends[-1]) == 0, np.nan, lines.values))
    monkeypatch.undo()
    rows, _ = solve_rows(bad, Regression(*given), own, np.ones((5, k)))
    assert np.isnan(rows[0]).all() and np.isfinite(rows[1:]).all()


@pytest.mark.parametrize("compiled", [True, False])
def test_residuals_are_those_of_entries_to_learn_from(compiled, rng, monkeypatch):
    if not compiled:
        monkeypatch.setattr(row_ridges, "_compiled_residuals", lambda: row_ridges._residual_loop)
    lines, regression, own, _ = small_regressions(rng)
    rows = np.repeat(np.arange(4), lines.ends - lines.starts)
    whole = lines.values - regression.offset[lines.index] - (own @ regression.design.T)[rows, lines.index]
    whole[lines.held_out()] = 0
    np.testing.assert_allclose(residuals(lines, regression.design, regression.offset, own), whole, atol=1e-12)
    assert lines.held_out().tolist() == [3, 4, 5]
