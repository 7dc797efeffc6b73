"""The skeletons for contributors work as they are: a copy is a good beginning."""

import argparse
import importlib.util
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.utils import estimator_checks

import bilevax as bx
from bilevax.problems import random_quadratic

FOLDER = Path(__file__).parents[2] / "docs" / "skeletons"


def skeleton(name):
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def test_the_set_serves_both_kinds_of_methods():
    ends = np.array([[1.0, 0.0, 0.0], [0.0, 2.0, 1.0]])
    domain = skeleton("new_set").Segment(*ends)
    rng = np.random.default_rng(0)
    for direction in rng.standard_normal((20, 3)):
        s, _ = domain.lmo(jnp.asarray(direction), domain.start(jnp.zeros(3)))
        assert direction @ np.asarray(s) == min(ends @ direction) and bool(domain.contains(s))
        nearest = domain.project(jnp.asarray(direction))
        assert bool(domain.contains(nearest))
        for share in np.linspace(0, 1, 21):
            other = (1 - share) * ends[0] + share * ends[1]
            assert np.linalg.norm(direction - nearest) <= np.linalg.norm(direction - other) + 1e-12
    assert not bool(domain.contains(jnp.zeros(3)))
    with pytest.raises(ValueError, match="Segment: last must be finite"):
        skeleton("new_set").Segment(np.zeros(2), np.array([1.0, np.nan]))
    with pytest.raises(ValueError, match=r"has points like float64\[3\], got float64\[2\]"):
        domain.check_like(jnp.zeros(2))


def test_the_solver_reaches_a_known_solution():
    known = random_quadratic(bx.L2Ball(), jnp.zeros(4), 5, jax.random.key(0), kappa=5.0)
    result = bx.solve(known.problem, skeleton("new_solver").Plain(), jnp.zeros(4), jnp.zeros(5), steps=3000, tol=1e-8)
    assert result.success and known.ell(np.asarray(result.x)) - known.ell_star < 1e-8


@pytest.mark.slow
@pytest.mark.parametrize(
    "check",
    [
        estimator_checks.check_no_attributes_set_in_init,
        estimator_checks.check_dict_unchanged,
        estimator_checks.check_n_features_in,
    ],
)
def test_the_estimator_keeps_promises_of_scikit_learn(check):
    check("RidgeWeights", skeleton("new_estimator").RidgeWeights(steps=5))


def test_the_estimator_finds_the_useful_features():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 12))
    y = 3 + X[:, :2] @ [2.0, -1.0] + 0.1 * rng.standard_normal(60)
    model = skeleton("new_estimator").RidgeWeights().fit(X, y)
    assert model.score(X, y) > 0.98 and model.log_ridge_[:2].max() < model.log_ridge_[2:].mean()


def test_the_command_runs_from_its_own_parser(tmp_path, capsys):
    module = skeleton("new_command")
    parser = argparse.ArgumentParser()
    module.add(parser.add_subparsers())
    (tmp_path / "t.csv").write_text("a,b\n1,2\n")
    options = parser.parse_args(["shape", str(tmp_path / "t.csv")])
    assert module.run(options) == 0 and capsys.readouterr().out == "2 rows, 2 columns\n"
    with pytest.raises(ValueError, match="is not a file"):
        module.run(parser.parse_args(["shape", str(tmp_path)]))


def test_the_data_set_reads_its_file_and_names_a_bad_line(tmp_path):
    module = skeleton("new_data_set")
    (tmp_path / "numbers.txt").write_text("1\n2.5\n")
    np.testing.assert_array_equal(module.ENTRY.files[0].read(tmp_path / "numbers.txt"), [1.0, 2.5])
    (tmp_path / "numbers.txt").write_text("1\ntwo\n")
    with pytest.raises(ValueError, match="line 2: expected a number, got 'two'"):
        module.read_numbers(tmp_path / "numbers.txt")
