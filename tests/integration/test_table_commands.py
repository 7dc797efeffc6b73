"""multitask, weights and predict on tables: what they print, what they leave, and what they refuse."""

import csv
import json
import sys

import numpy as np
import pandas
import pytest
from table_stand_ins import FORMATS, StandInTasks, StandInWeights

from bilevax import cli, estimators
from bilevax.cli.table_report import verdict
from bilevax.cli.table_trial import Trial
from bilevax.estimators import saved
from bilevax.tables import read_table, schema_of
from bilevax.tables.hold_out import split_rows


@pytest.fixture(autouse=True)
def stand_ins(monkeypatch):
    monkeypatch.setattr(estimators, "MultiTaskRegression", StandInTasks, raising=False)
    monkeypatch.setattr(estimators, "FeatureWeights", StandInWeights, raising=False)
    monkeypatch.setattr(saved, "FORMATS", (*saved.FORMATS, *FORMATS.values()))
    for kind in (StandInTasks, StandInWeights):
        monkeypatch.setattr(kind, "fits", 0)
        monkeypatch.setattr(kind, "statuses", [])
        monkeypatch.setattr(kind, "rows", [])


@pytest.fixture
def frame():
    """Six schools of 20 pupils and one of a single pupil."""
    rng = np.random.default_rng(0)
    school = np.append(np.repeat(np.arange(6), 20), 6)
    n = len(school)
    made = pandas.DataFrame({"school": [f"{s:02d}" for s in school], "hours": rng.normal(size=n)})
    made["sex"] = rng.choice(["f", "m"], n)
    made["id"] = [f"pupil {i}" for i in range(n)]
    slope = rng.normal(2, 0.5, 7)
    made["score"] = np.round(slope[school] * made["hours"] + (made["sex"] == "f") + rng.normal(0, 0.3, n), 4)
    made["passed"] = np.where(made["score"] > 0.5, "yes", "no")
    made["grade"] = np.select([made["score"] > 1, made["score"] > 0], ["A", "B"], "C")
    return made


@pytest.fixture
def path(frame, tmp_path):
    frame.to_csv(tmp_path / "pupils.csv", index=False)
    return tmp_path / "pupils.csv"


def run(*arguments):
    return cli.main([str(argument) for argument in arguments])


def rows_of(path):
    with path.open(newline="") as stream:
        return list(csv.DictReader(stream))


OTHERS = ["--drop", "id", "--drop", "passed", "--drop", "grade"]


def test_multitask_reports_writes_and_saves(path, frame, tmp_path, capsys):
    out, model = tmp_path / "out", tmp_path / "model.npz"
    options = ["--task", "school", "--target", "score", *OTHERS, "--out", out, "--model", model, "--quiet"]
    assert run("multitask", path, *options) == 0
    printed = capsys.readouterr().out
    first = printed.splitlines()[0]
    assert "121 rows, 2 features from 2 columns, 7 tasks of 1 to 20 rows, target 'score' with numbers from" in first
    assert "1 tasks have one row and rest on the others; dropped id, passed, grade." in first
    metrics = json.loads((out / "metrics.json").read_text())
    predictions = rows_of(out / "predictions.csv")
    assert metrics["held_out"] == len(predictions) == 24 and metrics["training_rows"] == 97
    held = frame.iloc[[int(row["row"]) - 1 for row in predictions]]
    assert held["school"].tolist() == [row["school"] for row in predictions] and "06" not in held["school"].tolist()
    assert held["school"].value_counts().tolist() == [4] * 6
    np.testing.assert_allclose(held["score"], [float(row["score"]) for row in predictions])
    errors = np.array([float(row["score"]) - float(row["prediction"]) for row in predictions])
    assert metrics["errors"]["StandInTasks"]["RMSE"] == pytest.approx(np.sqrt(np.mean(errors**2)), abs=1e-4)
    assert list(metrics["errors"]) == ["one ridge for all rows", "one ridge per task", "StandInTasks"]
    assert metrics["errors"]["one ridge per task"]["RMSE"] < metrics["errors"]["one ridge for all rows"]["RMSE"]
    assert metrics["verdict"] in printed and "RMSE" in metrics["verdict"] and "standard error" in metrics["verdict"]
    assert "sharing yes; RMSE lower than no by 0.1 (standard error 0.01)" in printed
    coefficients = rows_of(out / "coefficients.csv")
    assert len(coefficients) == 7 * 2 and set(coefficients[0]) >= {"task", "feature", "coefficient", "own", "pooled"}
    assert (out / "tasks.png").read_bytes().startswith(b"\x89PNG")
    assert f"A fit of all 121 rows is saved in {model}" in printed and StandInTasks.rows == [97, 121]
    estimator, schema = estimators.load(model)
    assert schema.encoder.names == ["hours", "sex=m"] and estimator.tasks_.tolist() == sorted(set(frame["school"]))


def test_predict_answers_every_row_of_a_table(path, frame, tmp_path, capsys):
    model = tmp_path / "model.npz"
    options = ["--task", "school", "--target", "score", *OTHERS, "--test-fraction", 0, "--model", model, "--quiet"]
    assert run("multitask", path, *options) == 0
    printed = capsys.readouterr().out
    assert "Nothing was held out" in printed and f"The fit is saved in {model}" in printed and StandInTasks.fits == 1
    # Codes such as 01 are read as text again, and levels that the fit did not see are counted.
    new = pandas.DataFrame({"sex": ["f", "x", "m"], "school": ["01", "02", "01"], "hours": [0.5, 1, 2]})
    new.to_csv(tmp_path / "new.csv", index=False)
    assert run("predict", model, tmp_path / "new.csv", "--out", tmp_path / "answers.csv") == 0
    assert "1 rows have a level of 'sex' that the fit did not see, such as 'x'" in capsys.readouterr().err
    answers = rows_of(tmp_path / "answers.csv")
    assert [(row["row"], row["school"]) for row in answers] == [("1", "01"), ("2", "02"), ("3", "01")]
    estimator, _ = estimators.load(model)
    expected = estimator.predict(np.array([[0.5, 0], [1, 0.5], [2, 1]]), task=np.array(["01", "02", "01"]))
    np.testing.assert_allclose([float(row["prediction"]) for row in answers], expected, atol=1e-4)


def test_rows_of_unknown_tasks_get_the_regression_of_all_tasks_on_request(path, tmp_path, capsys):
    model = tmp_path / "model.npz"
    options = ["--task", "school", "--target", "score", *OTHERS, "--test-fraction", 0, "--model", model, "--quiet"]
    assert run("multitask", path, *options) == 0
    new = pandas.DataFrame({"sex": ["f", "m", "m"], "school": ["01", "98", "99"], "hours": [0.5, 1, 2]})
    new.to_csv(tmp_path / "new.csv", index=False)
    assert run("predict", model, tmp_path / "new.csv") == 2
    capsys.readouterr()
    assert run("predict", model, tmp_path / "new.csv", "--unknown-tasks", "pooled", "--out", tmp_path / "a.csv") == 0
    assert "2 rows of 2 unknown tasks (98, 99) got the regression of all tasks" in capsys.readouterr().err
    estimator, _ = estimators.load(model)
    pooled = np.array([[1, 1], [2, 1]]) @ estimator.pooled_coef_
    answers = [float(row["prediction"]) for row in rows_of(tmp_path / "a.csv")]
    np.testing.assert_allclose(answers[1:], pooled, atol=1e-4)
    own = np.array([0.5, 0]) @ estimator.coef_[1] + estimator.intercept_[1]
    np.testing.assert_allclose(answers[0], own, atol=1e-4)


def test_classes_have_probabilities(path, frame, tmp_path, capsys):
    out, model = tmp_path / "out", tmp_path / "model.npz"
    options = ["--target", "passed", "--drop", "id", "--drop", "grade", "--drop", "score", "--out", out]
    assert run("multitask", path, "--task", "school", *options, "--model", model, "--quiet") == 0
    printed = capsys.readouterr().out
    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics["loss"] == "logistic" and metrics["classes"] == ["no", "yes"] and "log loss" in metrics["verdict"]
    assert "one logistic regression per task" in printed and "error rate" in printed
    rows = rows_of(out / "predictions.csv")
    for row in rows:
        assert row["prediction"] == ("yes" if float(row["probability of yes"]) > 0.5 else "no")
    chance = np.array([float(row[f"probability of {row['passed']}"]) for row in rows])
    assert metrics["errors"]["StandInTasks"]["log loss"] == pytest.approx(-np.log(chance).mean(), abs=2e-3)
    assert metrics["errors"]["StandInTasks"]["error rate"] == np.mean(
        [row["prediction"] != row["passed"] for row in rows]
    )
    assert run("predict", model, path) == 0
    assert capsys.readouterr().out.splitlines()[0] == "row,school,probability of no,probability of yes,prediction"


@pytest.mark.parametrize("target", ["score", "passed", "grade"])
def test_weights_rank_features(path, tmp_path, capsys, target):
    out, model = tmp_path / "out", tmp_path / "model.npz"
    dropped = [part for name in {"score", "passed", "grade"} - {target} for part in ("--drop", name)]
    options = ["--target", target, "--drop", "id", *dropped, "--out", out, "--model", model, "--quiet"]
    assert run("weights", path, *options) == 0
    printed = capsys.readouterr().out
    weights = rows_of(out / "weights.csv")
    assert weights[0]["feature"] == "hours" and [row["rank"] for row in weights] == [
        str(i + 1) for i in range(len(weights))
    ]
    values = [float(row["weight"]) for row in weights]
    assert values == sorted(values) and (out / "weights.png").read_bytes().startswith(b"\x89PNG")
    words = ["| ridge", "| lasso"] if target == "score" else ["| l2 logistic regression", "| l1 logistic regression"]
    assert all(word in printed for word in words)
    if target == "grade":
        assert "coefficient of C" in weights[0] and "probability of B" in rows_of(out / "predictions.csv")[0]
    assert run("predict", model, path) == 0
    assert len(capsys.readouterr().out.splitlines()) == 122


def test_missing_values_are_filled_in_if_asked(frame, tmp_path, capsys):
    frame.loc[3:8, "hours"] = None
    frame["empty"] = np.nan
    frame.to_parquet(tmp_path / "pupils.parquet")
    options = ["weights", tmp_path / "pupils.parquet", "--target", "score", *OTHERS, "--quiet"]
    assert run(*options) == 2
    assert (
        "values are missing in 'hours' (6 of 121), 'empty' (121 of 121). Choose --missing impute"
        in capsys.readouterr().err
    )
    assert run(*options, "--missing", "impute") == 0
    assert "column 'empty' left out, since it has no value" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("statuses", "code", "words"),
    [
        (["STOPPED"], 130, ["The fit was interrupted", "The interrupted fit of 97 rows is saved"]),
        (["CONVERGED", "STOPPED"], 130, ["A fit of all 121 rows, which was interrupted, is saved"]),
        (["TIME_LIMIT", "TIME_LIMIT"], 0, ["The fit reached its time limit", "rows, which reached its time limit, is"]),
    ],
)
def test_a_fit_that_ends_early_still_delivers(path, tmp_path, capsys, statuses, code, words):
    StandInTasks.statuses += statuses
    options = ["--task", "school", "--target", "score", *OTHERS, "--model", tmp_path / "m", "--quiet"]
    assert run("multitask", path, *options) == code
    printed = capsys.readouterr().out
    assert all(word in printed for word in words)


def test_a_command_with_a_checkpoint_is_resumed(path, tmp_path, capsys, monkeypatch):
    folder, model = tmp_path / "saved", tmp_path / "model.npz"
    monkeypatch.chdir(tmp_path)
    folders = []
    fit = StandInWeights.fit
    monkeypatch.setattr(StandInWeights, "fit", lambda self, X, y: (folders.append(self.checkpoint), fit(self, X, y))[1])
    options = ["--target", "score", *OTHERS, "--model", model, "--checkpoint", folder, "--quiet"]
    assert run("weights", path.name, *options) == 0
    model.unlink()
    monkeypatch.chdir(tmp_path.parent)
    assert run("resume", folder) == 0
    assert model.exists() and folders == [folder / "trial", folder / "model"] * 2
    assert run("weights", path, "--target", "grade", "--checkpoint", folder, "--quiet") == 2
    assert "belongs to another command" in capsys.readouterr().err


def test_a_picture_without_matplotlib_is_said(path, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert run("weights", path, "--target", "score", *OTHERS, "--out", tmp_path / "out", "--quiet") == 0
    assert "weights.png is not drawn" in capsys.readouterr().err
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == [
        "metrics.json",
        "predictions.csv",
        "weights.csv",
    ]


TASKS = ["multitask", "--task", "school", "--target", "score"]


def test_rows_held_out_decide_nothing(path, frame, tmp_path, capsys):
    """A column that varies only in a row held out is no feature of the trial, and one of the saved model."""
    out, model = tmp_path / "out", tmp_path / "model.npz"
    options = ["--target", "score", *OTHERS, "--out", out, "--model", model, "--quiet"]
    assert run("weights", path, *options) == 0
    held = int(rows_of(out / "predictions.csv")[0]["row"]) - 1
    frame.assign(odd=np.arange(len(frame)) == held).to_csv(path, index=False)
    assert run("weights", path, *options) == 0
    assert "odd" not in json.loads((out / "metrics.json").read_text())["features"]
    assert "odd" in estimators.load(model)[1].encoder.names


@pytest.mark.parametrize(
    ("ours", "words"),
    [
        (0.2, "predicts better than the best plain model: RMSE lower than with ridge by 0.8"),
        (1.0, "predicts as well as the best plain model, within two standard errors: RMSE lower than with ridge by"),
        (3.0, "predicts worse than the best plain model: RMSE higher than with ridge by 2"),
    ],
)
def test_the_verdict_compares_with_the_best_plain_model(ours, words):
    noise = np.random.default_rng(0).normal(size=(3, 4000)) * np.array([[ours], [1.0], [2.0]])
    schema = schema_of(read_table({"x": [1, 2, 3], "y": [1, 2, 3]}), target="y")
    predictions = {"StandInWeights": noise[0], "ridge": noise[1], "lasso": noise[2]}
    trial = Trial(StandInWeights(), schema, None, None, np.zeros(4000), predictions)
    said = verdict(trial)
    assert "standard error" in said and words in said.replace(
        "higher than with ridge by 0.0", "lower than with ridge by 0.0"
    )


REFUSED = {
    "no file": ([*TASKS], "nowhere.csv is not there", "nowhere.csv"),
    "target": (
        ["weights", "--target", "mark"],
        "no column 'mark'; the columns are school, hours, sex, id, score",
        None,
    ),
    "task": (["multitask", "--task", "class", "--target", "score"], "no column 'class'; the columns are", None),
    "drop": ([*TASKS, "--drop", "age"], "there is no column 'age'", None),
    "drop target": ([*TASKS, "--drop", "score"], "'score' is the target and cannot be dropped", None),
    "same": (["multitask", "--task", "score", "--target", "score"], "cannot be both the target and the task", None),
    "alone": (["multitask", "--task", "id", "--target", "score"], "every task ('id') has one row", None),
    "classes": (["multitask", "--task", "school", "--target", "grade"], "'grade' has 3 classes (A, B, C)", None),
    "text": (["weights", "--target", "grade", "--loss", "squared"], "'grade' holds text, and the squared loss", None),
    "numbers": ([*TASKS, "--loss", "logistic"], "'score' has 120 classes|'score' has 121 classes", None),
    "fraction": ([*TASKS, "--test-fraction", "0.95"], "--test-fraction must be from 0 to 0.9, got 0.95", None),
    "none": (
        [*TASKS, "--drop", "id", "--test-fraction", "1e-9"],
        "of 121 rows holds out none; give a larger one",
        None,
    ),
    "folder": ([*TASKS, "--drop", "id", "--out", "FILE"], "is a file; give a folder", None),
    "seed": ([*TASKS, "--seed", "-1"], "--seed must be at least 0", None),
    "time": ([*TASKS, "--time-limit", "0"], "--time-limit must be a positive number of seconds, got 0", None),
    "separator": ([*TASKS, "--separator", ";"], "there is no column 'score'", None),
}


@pytest.mark.parametrize("name", REFUSED)
def test_wrong_input_is_one_line_before_any_work(name, path, tmp_path, capsys):
    (command, *options), words, file = REFUSED[name]
    table = path if file is None else tmp_path / file
    made = ["--out", tmp_path / "made", "--model", tmp_path / "made.npz", "--checkpoint", tmp_path / "saved"]
    options = [path if option == "FILE" else option for option in options]
    assert run(command, table, *made, *options) == 2
    said = capsys.readouterr()
    assert any(part in said.err for part in words.split("|")) and said.err.count("\n") == 1, said.err
    assert said.out == "" and sorted(file.name for file in tmp_path.iterdir()) == ["pupils.csv"]
    assert StandInTasks.fits == StandInWeights.fits == 0


COLUMNS = {
    "constant": ({"y": [2.0] * 30}, "the target 'y' is always '2'"),
    "missing": ({"y": [1.0, np.nan] * 15}, "the target 'y' is missing in 15 of 30 rows"),
    "task": ({"t": ["a", None] * 15}, "the task 't' is missing in 15 of 30 rows"),
    "one task": ({"t": ["a"] * 30}, "the task 't' is always 'a'; expected several tasks"),
    "feature": ({"x": [None, 1.0] * 15}, "values are missing in 'x' (15 of 30)"),
    "infinite": ({"x": [np.inf, 1.0] * 15}, "column 'x' holds"),
    "no feature": ({"x": [1.0] * 30}, "there is no feature to learn from (column 'x' left out"),
    "split": ({"y": [1.0] * 28 + [2.0, 3.0]}, "the target 'y' is constant in the 3 rows to learn from; give a smaller"),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_a_table_that_teaches_nothing_is_refused(name, tmp_path, capsys):
    columns, words = COLUMNS[name]
    rng = np.random.default_rng(0)
    table = {"x": rng.normal(size=30), "t": ["a", "b"] * 15, "y": rng.normal(size=30), **columns}
    pandas.DataFrame(table).to_csv(tmp_path / "table.csv", index=False)
    options = ["--target", "y", "--test-fraction", 0.9 if name == "split" else 0.2, "--out", tmp_path / "made"]
    assert run("multitask", tmp_path / "table.csv", "--task", "t", *options) == 2
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1 and not (tmp_path / "made").exists(), error


def test_a_table_that_does_not_fit_the_model_is_refused(path, frame, tmp_path, capsys):
    model = tmp_path / "model.npz"
    options = ["--task", "school", "--target", "score", *OTHERS, "--test-fraction", 0, "--model", model, "--quiet"]
    assert run("multitask", path, *options) == 0
    for change, words in (
        ({"school": "99"}, "1 tasks (99) are not among the 7 that the model learned (00, 01, 02, 03, 04 and 2 more)"),
        ({"school": "99"}, "remove them, or give --unknown-tasks pooled."),
        ({"school": None}, "the task 'school' is missing in 121 of 121 rows"),
        (
            {"hours": "many"},
            "column 'hours' held numbers when the model was fitted and holds text now, 'many' in row 1",
        ),
        ({"sex": None}, "column 'sex' is missing in 121 rows, first in row 1; fill these in, or fit the model with"),
        ({"hours": np.nan}, "column 'hours' is missing in 121 rows"),
    ):
        frame.assign(**change).to_csv(tmp_path / "new.csv", index=False)
        capsys.readouterr()
        assert run("predict", model, tmp_path / "new.csv", "--out", tmp_path / "answers" / "a.csv") == 2
        error = capsys.readouterr().err
        assert words in error and error.count("\n") == 1, error
    frame.drop(columns="sex").to_csv(tmp_path / "new.csv", index=False)
    assert run("predict", model, tmp_path / "new.csv") == 2 and "no column 'sex'" in capsys.readouterr().err
    assert run("predict", model, path, "--user", "u") == 2 and "belong to models of ratings" in capsys.readouterr().err
    assert not (tmp_path / "answers").exists()
    estimators.load(model)[0].save(model)
    assert run("predict", model, path) == 2 and "saved without the columns of its table" in capsys.readouterr().err


def test_every_group_is_held_out_in_its_share_and_keeps_a_row():
    rng = np.random.default_rng(3)
    task, kind = rng.integers(0, 9, 1000), rng.integers(0, 2, 1000)
    task[:2] = [9, 10]
    held = split_rows([task, kind], 0.2, 0)
    for t in range(9):
        assert abs(held[task == t].sum() - 0.2 * np.sum(task == t)) <= 1
        for k in range(2):
            both = (task == t) & (kind == k)
            assert abs(held[both].sum() - 0.2 * both.sum()) <= 1
    assert not held[:2].any() and not np.array_equal(held, split_rows([task, kind], 0.2, 1))
    assert split_rows([task, kind], 0.9, 0)[np.argsort(task)].sum() < 1000
    assert set(task[~split_rows([task, kind], 0.9, 0)]) == set(task)
