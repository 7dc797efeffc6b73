"""The command: its demo at a small size, its words for wrong input, and the files it leaves."""

import json
import sys

import numpy as np
import pytest

import bilevax as bx
from bilevax import cli
from bilevax.drawing.tables import markdown
from bilevax.experiments.paper import toy
from bilevax.experiments.paper.jobs import Options


def test_demo_draws_tables_pictures_and_runs(tmp_path, capsys):
    assert cli.main(["demo", "--out", str(tmp_path / "out"), "--steps", "50", "--size", "30"]) == 0
    printed = capsys.readouterr()
    assert all(name in printed.out for name in ("printed", "repaired", "IBCG", "SBFW", "TTSA"))
    assert "MAX_STEPS" in printed.err and "%" in printed.err  # progress goes to standard error
    for name in ("toy-mu1-printed.png", "toy-mu0.1-repaired.png", "completion-synthetic-repaired.png"):
        assert (tmp_path / "out" / name).read_bytes().startswith(b"\x89PNG")
    runs = sorted(path.parent for path in (tmp_path / "out" / "runs").rglob("config.json"))
    assert len(runs) == 21
    for run in runs:
        config, trace = bx.runs.run_directory.load(run)
        assert config["steps"] == trace["step"][-1] and config["versions"]["jax"]
    assert "| toy, mu_g = 1" in (tmp_path / "out" / "table.md").read_text()


@pytest.mark.parametrize("case", ["mu1", "mu0.1"])
def test_toy_experiment_comes_near_the_exact_optimum(case):
    for job in toy.jobs(Options(repeats=1, methods=("IBCG",))):
        if job.folder == f"toy/{case}":
            errors = job.run(False).result.trace["ell_error"]
            assert errors.min() > -1e-12, job.path
            assert errors[-1] < 0.05 * errors[0], job.path


def test_datasets_are_listed_and_fetched(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("BILEVAX_DATA", str(tmp_path))
    monkeypatch.setenv("BILEVAX_CACHE", str(tmp_path / "cache"))
    assert cli.main(["datasets", "list"]) == 0
    listed = capsys.readouterr().out
    assert "movielens-100k" in listed and "redistribution" in listed
    assert cli.main(["datasets", "fetch", "nlsy79"]) == 2
    assert "nlsy79" in capsys.readouterr().err
    assert cli.main(["datasets", "fetch", "nlsy97"]) == 2
    assert "nlsy79" in capsys.readouterr().err  # did you mean


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
        bx.files.write_atomic(path, lambda stream: (stream.write("half"), json.dump({"x": object()}, stream)))
    assert json.loads(path.read_text()) == {"old": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["config.json"]


def test_tables_align():
    lines = markdown([{"name": "a", "value": 1.0}, {"name": "longer", "value": 12345.678}]).splitlines()
    assert len({len(line) for line in lines}) == 1 and lines[1].endswith(":|") is False
    assert "1.23e+04" in lines[3]
