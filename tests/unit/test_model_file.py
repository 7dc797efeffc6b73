"""The file of an estimator: it comes back as it was, and a file of others is refused in one line."""

import json

import numpy as np
import pytest
from small_estimator import FORMAT, SmallRidge

from bilevax import estimators
from bilevax.estimators import model_file
from bilevax.estimators.choices import Choice
from bilevax.estimators.model_file import ModelFormat
from bilevax.estimators.saved import FORMATS
from bilevax.tables import read_table, schema_of

NUMBERS = {"x": np.arange(8.0), "z": np.arange(8.0) % 3, "y": np.arange(8.0) ** 2}
TABLE = read_table(NUMBERS | {"c": list("abababab"), "t": list("ppppqqqq")})
SCHEMA = schema_of(TABLE, target="y", task="t")
MODEL = SmallRidge(0.5, checkpoint="folder").fit(
    SCHEMA.features_of(TABLE), SCHEMA.outcomes_of(TABLE), SCHEMA.tasks_of(TABLE)
)


@pytest.fixture
def path(tmp_path):
    return FORMAT.save(MODEL, tmp_path / "model.npz", SCHEMA)


def rewritten(path, change_header=None, **arrays):
    with np.load(path) as stored:
        held = {name: stored[name] for name in stored.files}
    header = json.loads(str(held.pop("header")))
    if change_header is not None:
        change_header(header)
    held = {name: array for name, array in {**held, **arrays}.items() if array is not None}
    np.savez_compressed(path, header=np.array(json.dumps(header)), **held)
    return path


def test_a_model_comes_back_with_its_schema(path):
    model, schema = model_file.load(path, [FORMAT])
    X = schema.features_of(TABLE)
    np.testing.assert_allclose(
        model.predict(X, schema.tasks_of(TABLE)), MODEL.predict(X, TABLE["t"].astype(str)), rtol=1e-6
    )
    assert model.coef_.dtype == float and model.coef_std_ is None and str(model) == str(MODEL)
    assert (schema.encoder.columns, schema.target, schema.task) == (SCHEMA.encoder.columns, "y", "t")
    assert model.get_params() == {"ridge": 0.5, "checkpoint": None}  # folders of one computer are not kept


def test_a_model_without_a_schema_and_with_all_of_its_arrays(tmp_path):
    model = SmallRidge().fit(np.eye(2), np.array([1.0, 2]), np.array([4, 7]))
    model.coef_std_ = np.ones((2, 2))
    again, schema = model_file.load(FORMAT.save(model, tmp_path / "m"), [FORMAT])
    assert schema is None and again.tasks_.tolist() == [4, 7] and again.coef_std_.tolist() == [[1, 1], [1, 1]]


def test_the_kind_decides_which_estimator_is_made(path, tmp_path, monkeypatch):
    with pytest.raises(
        ValueError, match="model.npz is not a model.*kind is 'bilevax small ridge', which this bilevax does"
    ):
        estimators.load(path)
    monkeypatch.setattr("bilevax.estimators.saved.FORMATS", (*FORMATS, FORMAT))
    assert isinstance(estimators.load(path)[0], SmallRidge)
    triple = (np.array([0, 1, 1]), np.array([0, 0, 1]), np.array([1.0, 2, 3]))
    completion = estimators.MatrixCompletion(effort="fast").fit(triple).save(tmp_path / "completion.npz")
    found, row_ids, _ = estimators.load(completion)
    assert isinstance(found, estimators.MatrixCompletion) and len(row_ids) == 2


def test_values_of_every_kind_come_back(tmp_path):
    class Rich(SmallRidge):
        pass

    form = ModelFormat(
        "rich", Rich,
        {"mean_": float, "mix_": list, "errors_": dict, "name_": str, "n_": int, "on_": bool, "no_": float},
        {"coef_": "f|cf", "intercept_": "|c", "root": "ff", "none_": "f", "gone_": "f"}, {"tasks_": "t"},
        optional=frozenset({"root", "none_", "gone_", "no_"}),
        derived=lambda model: {"root": model.inside["root"]},
        restore=lambda model, values: model_file.set_attributes(
            model, {"inside": {"root": values["root"]}, **{name: v for name, v in values.items() if name != "root"}}
        ),
    )  # fmt: skip
    values = {"mean_": np.float64(2), "mix_": [("a", 0.5), ("b", np.float32(0.5))], "errors_": {"x": 1.5}, "name_": "n"}
    values |= {"n_": np.int64(3), "on_": np.bool_(True), "no_": None, "tasks_": np.array(["p", "q"], object)}
    values |= {"inside": {"root": np.eye(3)}, "none_": None, "choices_": []}
    for shapes in ({"coef_": np.ones(3), "intercept_": 2.5}, {"coef_": np.ones((2, 3)), "intercept_": np.ones(2)}):
        model = Rich()
        model_file.set_attributes(model, values | shapes)
        again, _ = model_file.load(form.save(model, tmp_path / "m"), [form])
        assert (again.mean_, again.mix_, again.errors_) == (2.0, [["a", 0.5], ["b", 0.5]], {"x": 1.5})
        assert (again.name_, again.n_, again.on_, again.no_, again.none_) == ("n", 3, True, None, None)
        assert not hasattr(again, "gone_") and again.tasks_.tolist() == ["p", "q"]
        np.testing.assert_array_equal(again.inside["root"], np.eye(3))
        np.testing.assert_array_equal(again.coef_, shapes["coef_"])
        assert np.shape(again.intercept_) == np.shape(shapes["intercept_"])


def set_(*way, to):
    def change(header):
        inner = header
        for name in way[:-1]:
            inner = inner[name]
        inner[way[-1]] = to

    return change


BAD = {
    "newer": (set_("format", to=9), {}, "model.npz has format 9; this bilevax reads up to 1. Update bilevax"),
    "format": (set_("format", to="1"), {}, "its format is not a number"),
    "number": (set_("numbers", "mean_", to="3"), {}, "mean_ is '3'"),
    "not finite": (set_("numbers", "mean_", to=float("nan")), {}, "mean_ is 'nan'"),
    "parameter": (set_("parameters", "ridge", to=[1]), {}, "a parameter is neither a number nor text"),
    "unknown parameter": (set_("parameters", "other", to=1), {}, "other"),
    "choices": (set_("choices", to={}), {}, "its choices are not a list"),
    "choice": (set_("choices", 0, "gain", to="much"), {}, "the numbers of a choice are none"),
    "words": (set_("choices", 0, "unit", to=3), {}, "the words of a choice are not text"),
    "no choice": (set_("choices", 0, to=3), {}, "a choice is '3'"),
    "schema": (set_("schema", "target", to="x"), {}, "a column has two roles"),
    "features": (None, {"coef_": np.ones((2, 5))}, "the model has 5 features and its table 3"),
    "shape": (None, {"coef_": np.ones((3, 3))}, "tasks_ has shape .2,., which does not fit the other arrays"),
    "dimensions": (None, {"coef_": np.ones(3)}, "coef_ has shape .3,."),
    "text": (None, {"coef_": np.array([["a"] * 3] * 2)}, "coef_ holds <U1"),
    "nan": (None, {"coef_": np.full((2, 3), np.nan)}, "coef_ holds numbers that are not finite"),
    "missing": (None, {"coef_": None}, "coef_ is missing"),
    "absent": (set_("absent", to=["coef_"]), {}, "'coef_'.* are missing"),
    "check": (None, {"tasks_": np.array(["a", "a"])}, "the tasks are not distinct and sorted"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_file_that_is_not_sound_is_refused(name, path):
    change, arrays, words = BAD[name]
    with pytest.raises(ValueError, match=words) as caught:
        model_file.load(rewritten(path, change, **arrays), [FORMAT])
    assert str(caught.value).startswith(str(path)) and "\n" not in str(caught.value)


def test_a_model_that_cannot_be_read_again_is_not_saved(tmp_path):
    model = SmallRidge().fit(np.eye(2), np.array([1.0, 2]), np.array([4, 7]))
    model.coef_ = np.full((2, 2), np.inf)
    with pytest.raises(ValueError, match="coef_ holds numbers that are not finite"):
        FORMAT.save(model, tmp_path / "m")
    assert not list(tmp_path.iterdir())
    with pytest.raises(ValueError, match="the model has 2 features and its table 3"):
        FORMAT.save(SmallRidge().fit(np.eye(2), np.ones(2), np.array([4, 7])), tmp_path / "m", SCHEMA)


def test_no_file_is_said(tmp_path):
    with pytest.raises(FileNotFoundError):
        estimators.load(tmp_path / "nothing")


def test_a_choice_in_words():
    choice = Choice("noise", "normal", "'long tails'", -0.00123, 0.0004, "RMSE")
    assert choice.words() == "noise normal; RMSE higher than 'long tails' by 0.0012 (standard error 0.0004)"
    unsure = Choice("loss", "squared", "another", 0.5, float("nan"), "error")
    assert unsure.words() == "loss squared; error lower than another by 0.5"
    assert Choice.of_plain(json.loads(json.dumps(unsure.as_plain()))).words() == unsure.words()
