"""The command: its demo at a small size, its words for wrong input, and the files it leaves."""

import json
import sys

import numpy as np
import pytest

import bilevax as bx
from bilevax import cli
from bilevax.experiments import toy
from bilevax.report.tables import markdown


def test_demo_draws_tables_pictures_and_runs(tmp_path, capsys):
    assert cli.main(["demo", "--out", str(tmp_path / "out"), "--steps", "50", "--size", "30"]) == 0
    printed = capsys.readouterr()
    assert "as printed" in printed.out and "our defaults" in printed.out
    assert "MAX_STEPS" in printed.err and "%" in printed.err  # progress goes to standard error
    for name in ("toy-mu1.png", "toy-mu0.1.png", "completion.png"):
        assert (tmp_path / "out" / name).read_bytes().startswith(b"\x89PNG")
    runs = sorted((tmp_path / "out" / "runs").glob("*/*"))
    assert len(runs) == 7
    for run in runs:
        config, trace = bx.rundir.load(run)
        assert config["steps"] == trace["step"][-1] and config["versions"]["jax"]
    assert "| toy, mu_g = 1" in (tmp_path / "out" / "table.md").read_text()


@pytest.mark.parametrize("mu_g", [1.0, 0.1])
def test_toy_experiment_comes_near_the_exact_optimum(mu_g):
    results = toy.run(toy.ToyConfig(mu_g, 300))
    for name, result in results.items():
        errors = result.trace["ell_error"]
        assert errors.min() > -1e-12, name
        assert errors[-1] < 0.05 * errors[0], name


def test_wrong_input_is_one_line_and_exit_code_2(tmp_path, capsys):
    file = tmp_path / "file"
    file.write_text("x")
    for arguments, words in (
        (["demo", "--out", str(file)], "is a file; give a folder"),
        (["demo", "--out", str(tmp_path / "o"), "--steps", "0"], "--steps must be at least 1, got 0"),
        (["demo", "--out", str(tmp_path / "o"), "--seed", "-1"], "--seed must be at least 0, got -1"),
    ):
        assert cli.main(arguments) == 2
        error = capsys.readouterr().err
        assert words in error and error.count("\n") == 1
    assert file.read_text() == "x"


def test_unknown_commands_and_version(capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["frobnicate"])
    assert ended.value.code == 2
    with pytest.raises(SystemExit) as ended:
        cli.main(["--version"])
    assert ended.value.code == 0 and bx.__version__ in capsys.readouterr().out


def test_plot_draws_what_it_is_given_and_refuses_the_rest(tmp_path, monkeypatch):
    trace = bx.Trace([{"step": k, "seconds": 0.1 * k, "gap": 10.0**-k, "upper": 1.0} for k in range(5)])
    figure = bx.plot({"a": trace, "b": trace}, ["gap", "upper"], against="step", path=tmp_path / "p.svg", title="t")
    gap, upper = figure.axes
    assert gap.get_yscale() == "log" and upper.get_yscale() == "linear"
    np.testing.assert_array_equal(gap.lines[0].get_ydata(), trace["gap"])
    assert "<svg" in (tmp_path / "p.svg").read_text()
    with pytest.raises(ValueError, match="no column 'nope'; it has step, seconds, gap, upper"):
        bx.plot(trace, ["nope"])
    with pytest.raises(TypeError, match="expected a Result, a Trace, or a dictionary"):
        bx.plot(3)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"bilevax\[plot\]"):
        bx.plot(trace, ["gap"])


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"old": 1}))
    with pytest.raises(TypeError):
        bx.files.write_whole(path, lambda stream: (stream.write("half"), json.dump({"x": object()}, stream)))
    assert json.loads(path.read_text()) == {"old": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["config.json"]


def test_tables_align():
    lines = markdown([{"name": "a", "value": 1.0}, {"name": "longer", "value": 12345.678}]).splitlines()
    assert len({len(line) for line in lines}) == 1 and lines[1].endswith(":|") is False
    assert "1.23e+04" in lines[3]
