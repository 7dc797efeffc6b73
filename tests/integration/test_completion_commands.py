"""complete, predict and recommend: what they print, what they leave, and what they refuse."""

import csv
import itertools
import json
import re
import signal
import sys

import numpy as np
import pytest

from bilevax import cli, estimators
from bilevax.estimators.matrix_completion.fit import CompletionFit


@pytest.fixture
def ratings(tmp_path):
    """Twenty users and fifteen items; the last user and the last item have one rating, the latest of all."""
    rng = np.random.default_rng(0)
    taste, quality = rng.normal(size=(20, 2)), rng.normal(size=(15, 2))
    scores = np.clip(np.round(3 + taste @ quality.T + rng.normal(0, 0.2, (20, 15))), 1, 5)
    lines = [f"u{u},i{i},{scores[u, i]:g},{100 * u + i}" for u in range(19) for i in range(14) if rng.random() < 0.6]
    path = tmp_path / "ratings.csv"
    path.write_text("\n".join(["user,item,rating,timestamp", *lines, "u19,i14,5,99999"]))
    return path


def run(*arguments):
    return cli.main([str(argument) for argument in arguments])


def table(path):
    with path.open(newline="") as stream:
        return list(csv.DictReader(stream))


def test_complete_reports_writes_and_saves(ratings, tmp_path, capsys):
    lines = ratings.read_text().splitlines()[1:]
    out, model = tmp_path / "out", tmp_path / "model.npz"
    options = ["--time-column", "timestamp", "--test-fraction", "0.2", "--out", out, "--model", model, "--quiet"]
    assert run("complete", ratings, *options) == 0
    printed = capsys.readouterr().out
    assert f"20 users, 15 items, {len(lines)} ratings" in printed.splitlines()[0]
    metrics = json.loads((out / "metrics.json").read_text())
    predictions = table(out / "predictions.csv")
    latest = sorted(lines, key=lambda line: int(line.split(",")[3]))[-round(0.2 * len(lines)) :]
    assert {(p["user"], p["item"]) for p in predictions} == {tuple(line.split(",")[:2]) for line in latest}
    errors = np.array([float(p["rating"]) - float(p["prediction"]) for p in predictions])
    assert metrics["errors"]["completion"]["rmse"] == pytest.approx(np.sqrt(np.mean(errors**2)), abs=1e-4)
    assert f"{metrics['errors']['effects only']['mae']:.4f}" in printed
    trained = {line.split(",")[0] for line in lines if line not in latest}
    unseen = sum(line.split(",")[0] not in trained or line.startswith("u19") for line in latest)
    assert metrics["held_out_unseen"] == unseen > 1 and f"{unseen} of them with a user or item" in printed
    assert len(table(out / "path.csv")) > 1 and (out / "path.png").read_bytes().startswith(b"\x89PNG")
    assert metrics["choices"]["taken"] in ("factors", "both", "shrunk", "effects alone")
    assert f"A fit of all {len(lines)} ratings with the same choices is saved in {model}" in printed
    _, row_ids, col_ids = estimators.load(model)
    assert (len(row_ids), len(col_ids)) == (20, 15)


@pytest.mark.slow
def test_the_model_is_fitted_again_only_if_ratings_were_held_out(ratings, tmp_path, monkeypatch):
    fits = []
    for name in ("fit", "fit_again"):
        method = getattr(estimators.MatrixCompletion, name)
        counted = lambda self, known, method=method: (fits.append((self.radius, len(known[2]))), method(self, known))[1]  # noqa: E731
        monkeypatch.setattr(estimators.MatrixCompletion, name, counted)
    every = len(ratings.read_text().splitlines()) - 1
    assert run("complete", ratings, "--radius", 7, "--model", tmp_path / "m", "--quiet") == 0
    (_, some), (radius, most) = fits
    assert some < most == every and radius == 7
    fits.clear()
    assert run("complete", ratings, "--radius", 7, "--model", tmp_path / "m", "--quiet", "--test-fraction", 0) == 0
    assert fits == [(7, every)]


def test_nothing_held_out_and_no_matplotlib_are_said(ratings, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert run("complete", ratings, "--test-fraction", 0, "--out", tmp_path / "out", "--quiet") == 0
    printed = capsys.readouterr()
    assert "Nothing was held out" in printed.out and "pip install 'bilevax[plot]'" in printed.err
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["metrics.json", "path.csv"]


def interrupt(monkeypatch, name, calls):
    """Press Ctrl-C when a fit calls this method of `CompletionFit` for the given times, counted over all fits."""
    method, count = getattr(CompletionFit, name), itertools.count(1)

    def pressed(self, *arguments, **keywords):
        if next(count) in calls:
            signal.raise_signal(signal.SIGINT)
        return method(self, *arguments, **keywords)

    monkeypatch.setattr(CompletionFit, name, pressed)


@pytest.mark.parametrize(("name", "call"), [("observe", 1), ("_fit_effects", 4)])
def test_an_interrupted_fit_delivers_the_model_it_had(ratings, tmp_path, capsys, monkeypatch, name, call):
    interrupt(monkeypatch, name, {call})
    out, model = tmp_path / "out", tmp_path / "model.npz"
    options = ["--time-column", "timestamp", "--test-fraction", "0.2", "--out", out, "--model", model, "--quiet"]
    assert run("complete", ratings, *options) == 130
    printed = capsys.readouterr()
    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics["status"] == "STOPPED" and metrics["steps"] == (0 if name == "observe" else 4)
    assert "The fit was interrupted" in printed.out and f"{metrics['errors']['completion']['rmse']:.4f}" in printed.out
    assert f"The interrupted fit of {metrics['training_ratings']} ratings is saved in {model}" in printed.out
    assert "A fit of all" not in printed.out and printed.err == ""
    # The saved model learned from the training ratings only; its ids are theirs and its predictions those reported.
    estimator, row_ids, col_ids = estimators.load(model)
    predictions = table(out / "predictions.csv")
    assert len(row_ids) == len(estimator.row_effects_) < 20 and len(col_ids) == len(estimator.col_effects_) < 15
    assert len(predictions) == metrics["held_out"]
    pairs = tmp_path / "pairs.csv"
    pairs.write_text("user,item\n" + "".join(f"{p['user']},{p['item']}\n" for p in predictions))
    assert run("predict", model, pairs, "--out", tmp_path / "again.csv") == 0
    assert [p["prediction"] for p in table(tmp_path / "again.csv")] == [p["prediction"] for p in predictions]


def test_an_interrupted_second_fit_is_saved_and_said(ratings, tmp_path, capsys, monkeypatch):
    starts = []
    begin = CompletionFit.__init__
    monkeypatch.setattr(CompletionFit, "__init__", lambda self, *given: (starts.append(1), begin(self, *given))[1])
    fit_effects = CompletionFit._fit_effects

    def pressed(self, run):
        if len(starts) == 2:
            signal.raise_signal(signal.SIGINT)
        fit_effects(self, run)

    monkeypatch.setattr(CompletionFit, "_fit_effects", pressed)
    assert run("complete", ratings, "--radius", 7, "--model", tmp_path / "m", "--quiet") == 130
    printed = capsys.readouterr().out
    assert "The fit was interrupted" not in printed
    assert re.search(r"A fit of all \d+ ratings with the same choices, which was interrupted, is saved in", printed)
    assert len(estimators.load(tmp_path / "m")[1]) == 20


def test_a_time_limit_ends_each_fit(ratings, tmp_path, capsys):
    out, model = tmp_path / "out", tmp_path / "model.npz"
    assert run("complete", ratings, "--time-limit", "1e-6", "--out", out, "--model", model, "--quiet") == 0
    printed = capsys.readouterr().out
    assert json.loads((out / "metrics.json").read_text())["status"] == "TIME_LIMIT"
    assert "The fit reached its time limit" in printed and ", which reached its time limit, is saved in" in printed
    assert len(estimators.load(model)[1]) == 20
    assert run("complete", ratings, "--time-limit", "1e6", "--quiet") == 0
    assert "time limit" not in capsys.readouterr().out


@pytest.fixture
def model(ratings, tmp_path, capsys):
    assert run("complete", ratings, "--test-fraction", 0, "--model", tmp_path / "model.npz", "--quiet") == 0
    capsys.readouterr()
    return tmp_path / "model.npz"


def test_predict_answers_every_pair(model, tmp_path, capsys):
    pairs = tmp_path / "pairs.csv"
    pairs.write_text("item,user\ni3,u1\ni3,nobody\nnothing,u1\n")
    assert run("predict", model, pairs) == 0
    printed = capsys.readouterr()
    known, *_ = answers = list(csv.DictReader(printed.out.splitlines()))
    assert [(a["user"], a["item"]) for a in answers] == [("u1", "i3"), ("nobody", "i3"), ("u1", "nothing")]
    estimator, row_ids, col_ids = estimators.load(model)
    place = (np.array([k]) for k in (list(row_ids).index("u1"), list(col_ids).index("i3")))
    assert float(known["prediction"]) == pytest.approx(float(estimator.predict(*place)[0]), abs=1e-4)
    assert "of 3 pairs, 1 have an unknown user and 1 an unknown item" in printed.err
    assert run("predict", model, pairs, "--out", tmp_path / "answers.csv") == 0
    assert table(tmp_path / "answers.csv") == answers


def test_recommend_lists_unseen_items_best_first_with_titles(model, ratings, tmp_path, capsys):
    titles = tmp_path / "movies.dat"
    titles.write_bytes("".join(f"i{k}::Caf\xe9 {k} (1999)::Drama\n" for k in range(15)).encode("latin-1"))
    assert run("recommend", model, "--user", "u3", "-n", "4", "--items", titles) == 0
    header, _, *lines = capsys.readouterr().out.splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert [cell.strip() for cell in header.strip("|").split("|")] == ["item", "predicted", "title"]
    assert len(rows) == 4 and all(title == f"Café {item[1:]} (1999)" for item, _, title in rows)
    assert [float(row[1]) for row in rows] == sorted((float(row[1]) for row in rows), reverse=True)
    assert not any(f"u3,{item}," in ratings.read_text() for item, *_ in rows)


def test_wrong_input_is_one_line_and_exit_code_2(ratings, model, tmp_path, capsys):
    bad = tmp_path / "bad.csv"
    bad.write_text("user,item,rating\n1,2,good\n")
    for arguments, words in (
        (["complete", tmp_path / "nowhere.csv", "--out", tmp_path / "made"], "nowhere.csv is not there"),
        (["complete", bad], "line 2: the rating"),
        (["complete", ratings, "--user", "who"], "no column 'who'; the first line has user, item, rating, timestamp"),
        (["complete", ratings, "--test-fraction", "0.95"], "--test-fraction must be from 0 to 0.9, got 0.95"),
        (["complete", ratings, "--test-fraction", "1e-9"], "holds out none; give a larger one"),
        (["complete", ratings, "--radius", "-3"], "--radius must be auto or a positive number, got '-3'"),
        (["complete", ratings, "--seed", "-1"], "--seed must be at least 0"),
        (["complete", ratings, "--time-limit", "0"], "--time-limit must be a positive number of seconds, got 0"),
        (["complete", ratings, "--time-limit", "nan"], "--time-limit must be a positive number of seconds, got nan"),
        (["complete", ratings, "--out", bad], "--out"),
        (["complete", ratings, "--model", tmp_path], "--model"),
        (["predict", bad, ratings], "not a model"),
        (["predict", model, bad, "--item", "what"], "no column 'what'"),
        (["recommend", model, "--user", "nobody"], "user 'nobody' is not among the 20 users"),
        (["recommend", model, "--user", "u1", "-n", "0"], "-n must be at least 1, got 0"),
        (["recommend", model, "--user", "u1", "--items", tmp_path / "none"], "none is not there"),
    ):
        assert run(*arguments) == 2, arguments
        error = capsys.readouterr().err
        assert words in error and error.count("\n") == 1, error
    assert not (tmp_path / "made").exists()
