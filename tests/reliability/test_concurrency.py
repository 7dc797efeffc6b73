"""Several fits and runs at once: in threads, in processes, under joblib."""

import threading

import jax.numpy as jnp
import joblib
import numpy as np
import pytest
from completions import JOBS, X, same, uninterrupted
from sklearn.model_selection import GridSearchCV
from threadpoolctl import threadpool_info

import bilevax as bx
from bilevax.estimators import MatrixCompletion
from bilevax.linalg.blas import _libraries, one_blas_thread


def fitted(name, folder=None):
    return MatrixCompletion(**JOBS[name], checkpoint=folder).fit(X)


@pytest.mark.parametrize("backend", [pytest.param("threading", marks=pytest.mark.slow), "loky"])
def test_fits_under_joblib_have_the_bits_of_one_fit(backend, tmp_path):
    folders = [None, tmp_path / "first", tmp_path / "second"]
    models = joblib.Parallel(n_jobs=2, backend=backend)(joblib.delayed(fitted)("factors", folder) for folder in folders)
    assert all(same(model, uninterrupted("factors")) for model in models)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["threading", "loky"])
def test_a_grid_search_with_two_jobs_chooses_as_with_one(backend):
    rng = np.random.default_rng(0)
    pairs = np.argwhere(rng.random((30, 20)) < 0.8)
    values = np.sin(pairs[:, 0]) * np.cos(pairs[:, 1]) + 0.1 * rng.standard_normal(len(pairs))
    search = GridSearchCV(MatrixCompletion(effort="fast"), {"max_rank": [1, 4]}, cv=2, n_jobs=1).fit(pairs, values)
    with joblib.parallel_backend(backend, n_jobs=2):
        other = GridSearchCV(MatrixCompletion(effort="fast"), {"max_rank": [1, 4]}, cv=2).fit(pairs, values)
    assert other.best_params_ == search.best_params_
    np.testing.assert_array_equal(other.cv_results_["mean_test_score"], search.cv_results_["mean_test_score"])


@pytest.mark.slow
def test_solves_in_threads_have_the_bits_of_one_solve():
    problem = bx.BilevelProblem(
        lambda x, y, d: 0.5 * jnp.sum((y - d) ** 2),
        lambda x, y, d: jnp.sum(jnp.logaddexp(0.0, y)) + 0.5 * jnp.sum((y - x) ** 2),
        bx.Simplex(),
        jnp.arange(6.0),
    )
    start = jnp.full(6, 1 / 6), jnp.zeros(6)
    alone = [bx.solve(problem, solver, *start, steps=30) for solver in (bx.IBCG(), bx.ProjectedIBCG())]
    found = joblib.Parallel(n_jobs=4, backend="threading")(
        joblib.delayed(bx.solve)(problem, solver, *start, steps=30) for solver in 2 * [bx.IBCG(), bx.ProjectedIBCG()]
    )
    for one, other in zip(2 * alone, found, strict=True):
        assert one.status is other.status
        np.testing.assert_array_equal(one.x, other.x)
        np.testing.assert_array_equal(one.trace["gap"], other.trace["gap"])


def test_the_number_of_blas_threads_is_restored_when_the_last_of_two_threads_has_ended():
    """The first thread ends while the second still computes."""
    with _libraries().limit(limits=2, user_api="blas"):
        before = numbers()
        first_is_over, second_has_begun, during = threading.Event(), threading.Event(), []

        def second():
            with one_blas_thread():
                second_has_begun.set()
                first_is_over.wait(10)
                during.append(numbers())

        thread = threading.Thread(target=second)
        with one_blas_thread():
            thread.start()
            second_has_begun.wait(10)
        first_is_over.set()
        thread.join()
        assert set(during[0]) == {1} and numbers() == before


def numbers():
    """How many threads each loaded BLAS may use."""
    return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]
