"""The command: its two demos, its words for wrong input, and the files it leaves."""

import json
import re
import sys

import numpy as np
import pytest

import bilevax as bx
from bilevax import cli
from bilevax.drawing.tables import markdown
from bilevax.experiments.paper import toy
from bilevax.experiments.paper.jobs import Options
from bilevax.experiments.story import readings, sources
from bilevax.experiments.story.chapter import compare_errors


def test_demo_tells_its_story_and_saves_it(tmp_path, capsys):
    assert cli.main(["demo", "--out", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr()
    assert printed.err.count(" steps, ") == 3  # progress goes to standard error
    for name in ("readings.png", "sources.png"):
        assert (tmp_path / "out" / name).read_bytes().startswith(b"\x89PNG")
        assert str(tmp_path / "out" / name) in printed.out
    assert "`bilevax complete your-ratings.csv`" in printed.out

    page = (tmp_path / "out" / "story.md").read_text()
    assert "(readings.png)" in page and "(sources.png)" in page
    table = [line for line in printed.out.splitlines() if line.startswith("|")]
    assert "\n".join(table) in page
    # What is printed and what is on the page are the same words, apart from line breaks.
    words = " ".join(printed.out.split())
    paragraphs = [text for text in page.split("\n\n") if text[0] not in "#!*|"]
    assert len(paragraphs) > 10 and all(" ".join(text.split()) in words for text in paragraphs)

    matrix, weights = (line.split("|") for line in table[2:])
    least_squares, ours = (float(re.search(r"error (\S+)", matrix[i]).group(1)) for i in (2, 3))
    assert ours < 0.2 * least_squares and "settled" in matrix[4] and "STALLED" in printed.out
    assert f"{least_squares:.2f} degrees" in words and compare_errors(least_squares, ours).split()[1] == "times"
    equal, alone, learned = (float(e) for e in re.findall(r"(?:error|or) (\d\S*)", weights[2] + weights[3]))
    assert learned < alone < equal and "verified" in weights[4] and "CONVERGED" in printed.out


def test_quiet_demo_reports_no_progress(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("bilevax.experiments.story.tell", lambda folder, *, seed, say, report: report("12 steps"))
    assert cli.main(["demo", "--out", str(tmp_path), "--quiet"]) == 0
    assert capsys.readouterr().err == ""
    assert cli.main(["demo", "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().err == "  12 steps\n"


def test_the_story_says_so_when_bilevax_does_not_win_or_does_not_converge(monkeypatch):
    assert compare_errors(3.0, 1.5) == "2.0 times smaller"
    assert compare_errors(1.0, 1.5) == "1.5 times larger (on this seed bilevax does worse)"
    assert compare_errors(1.0, 1.0) == "about the same (on this seed bilevax gains nothing)"
    monkeypatch.setattr(sources, "STEPS", 3)
    outcome = sources.chapter(0).solve(lambda line: None)
    assert "MAX_STEPS" in outcome.verdict[-1] and "does not call this a success" in outcome.verdict[-1]
    assert outcome.row["how it ended"] == "not verified"
    monkeypatch.setattr(readings, "MAX_STEPS", 1)
    outcome = readings.chapter(0).solve(lambda line: None)
    assert "MAX_STEPS" in outcome.verdict[-1] and "before it settled" in outcome.verdict[-1]
    assert outcome.row["how it ended"] == "steps used up"


@pytest.mark.slow
def test_the_papers_demo_draws_tables_pictures_and_runs(tmp_path, capsys):
    assert cli.main(["demo", "paper", "--out", str(tmp_path / "out"), "--steps", "50", "--size", "30"]) == 0
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


@pytest.mark.parametrize("case", [pytest.param("mu1", marks=pytest.mark.slow), "mu0.1"])
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
        (["demo", "paper", "--out", str(tmp_path / "o"), "--steps", "0"], "--steps must be at least 1, got 0"),
        (["demo", "--out", str(tmp_path / "o"), "--seed", "-1"], "--seed must be at least 0, got -1"),
        (["demo", "--out", str(tmp_path / "o"), "--size", "50"], "--steps and --size belong to `bilevax demo paper`"),
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
