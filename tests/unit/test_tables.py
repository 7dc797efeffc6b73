"""Tables of every format give the same columns, both readers of text agree, and every fault is named."""

import gzip
import io
import json
import re
import struct
import sys

import numpy as np
import pandas
import pyarrow
import pyarrow.feather
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from bilevax import limits
from bilevax.tables import Encoder, Schema, Table, describe, read_table, schema_of
from bilevax.tables.slow_text import slow_columns
from bilevax.tables.table import is_text, missing
from bilevax.tables.text import open_text
from bilevax.tables.text_table import _header, parse_table

NAMES = ["size", "colour", "sold", "code"]
LINES = [["1.5", "red", "true", "007"], ["-2e3", "dark blue", "false", "12"], ["", "red", "NA", "a"]]


def text(separator, lines=LINES):
    return "".join(separator.join(line) + "\n" for line in [NAMES, *lines])


def check_same(table):
    assert table.names == NAMES and len(table) == 3
    np.testing.assert_array_equal(table["size"], [1.5, -2000, np.nan])
    assert table["colour"].tolist() == ["red", "dark blue", "red"]
    np.testing.assert_array_equal(table["sold"], [1, 0, np.nan])
    assert table["code"].tolist() == ["007", "12", "a"]


@pytest.fixture
def file(tmp_path):
    """Write text or bytes to a file."""

    def write(content, name="table.csv"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


@pytest.fixture(params=["pyarrow", "csv module"])
def reader(request, monkeypatch):
    if request.param == "csv module":
        monkeypatch.setitem(sys.modules, "pyarrow.csv", None)


@pytest.mark.parametrize(
    "content",
    [
        *(text(separator).encode() for separator in (",", "\t", ";", "|", "::")),
        gzip.compress(text(",").encode(), mtime=0),
    ]
    + [text(",").encode("utf-16"), text(",").replace("\n", "\r\n").encode(), text(",").replace("\n", "\r").encode()]
    + [
        text(",").replace("dark blue", '"dark blue"').encode(),
        text(", ").encode(),
        b"\xef\xbb\xbf" + text(",").encode(),
    ],
)
def test_every_layout_of_text_gives_the_same_table(content, file, reader):
    check_same(read_table(file(content)))


def test_columns_between_spaces(file, reader):
    table = read_table(file("a b\n1   2\n 3 NA \n"))
    np.testing.assert_array_equal(table["b"], [2, np.nan])


FRAME = pandas.DataFrame(
    {
        "size": [1.5, -2000, None],
        "colour": ["red", "dark blue", "red"],
        "sold": pandas.array([True, False, None], dtype="boolean"),
        "code": pandas.Categorical(["007", "12", "a"]),
    }
)


def stream_of(table, rows=2):
    sink = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=rows)
    return sink.getvalue().to_pybytes()


def test_files_and_frames_with_types_give_the_same_table(file, tmp_path):
    arrow = pyarrow.Table.from_pandas(FRAME)
    FRAME.to_parquet(tmp_path / "table.parquet")
    for packing in ("lz4", "zstd", "uncompressed"):
        FRAME.to_feather(tmp_path / "table.feather", compression=packing)
        check_same(read_table(tmp_path / "table.feather"))
    check_same(read_table(str(tmp_path / "table.parquet")))
    check_same(read_table(file(stream_of(arrow))))
    for frame in (FRAME, arrow, {name: FRAME[name].to_list() for name in NAMES}, read_table(FRAME)):
        check_same(read_table(frame))


class PolarsLike:
    """The part of a polars frame that is used."""

    columns = NAMES

    def __getitem__(self, name):
        class Series:
            dtype = object

            def to_list(self):
                return [None if pandas.isna(entry) else entry for entry in FRAME[name].to_list()]

        return Series()


def test_a_frame_of_a_library_that_is_not_installed():
    check_same(read_table(PolarsLike()))


def test_other_values_in_frames():
    table = read_table({"day": pandas.to_datetime(["2020-01-02", None]), "n": np.array([1, 2]), "b": [b"x", "y"]})
    assert table["day"].tolist() == ["2020-01-02 00:00:00", None] and table["b"].tolist() == ["x", "y"]
    assert read_table({"n": [1.0, 2.5, None], "m": [3, "x", 1]}, text=["n"])["n"].tolist() == ["1", "2.5", None]
    assert read_table({"m": [3, "x", 1.5]})["m"].tolist() == ["3", "x", "1.5"]


def test_text_that_looks_like_numbers_can_be_kept(file, reader):
    path = file("code,n,empty\n007,1,\n12,2,\n")
    assert read_table(path)["code"].tolist() == [7, 12]
    kept = read_table(path, text=["code", "empty"])
    assert kept["code"].tolist() == ["007", "12"] and np.isnan(kept["empty"]).all()


def test_a_column_has_one_meaning(file, reader):
    rows = ["1,true,inf ormation,1_0,0x1,TRUE,٣,-nan", "1e3,1,Inf Inity,2,2,False,4,nan"]
    table = read_table(file("a,b,c,d,e,f,g,h\n" + "\n".join(rows) + "\n"))
    assert [is_text(column) for column in table.columns.values()] == [False] + [True] * 4 + [False, True, True]
    assert table["h"].tolist() == ["-nan", None]


def test_words_for_missing_values(file, reader):
    words = ["NA", "na", "N/A", "NaN", "nan", "NULL", "null", "nULL", "?", "", " ", "NAN"]
    table = read_table(file("x,y\n" + "".join(f"{word},b{word}\n" for word in words) + "3,4\n"))
    assert missing(table["x"]).sum() == len(words) and table["x"][-1] == 3
    assert not missing(table["y"]).any() and table["y"][0] == "bNA"


def test_the_same_columns_as_pandas(file, reader):
    rng = np.random.default_rng(0)
    frame = pandas.DataFrame({"a": rng.normal(size=300) * 10.0 ** rng.integers(-300, 300, 300)})
    frame["b"] = rng.integers(-(2**62), 2**62, 300)
    frame["c"] = rng.choice(["x", "a,b", 'say "no"', "two\nlines", "ü"], 300)
    frame.loc[5:9, "a"] = None
    path = file(frame.to_csv(index=True))
    table = read_table(path)
    assert table.notes == ("a column without a name that counts the rows was left out",)
    np.testing.assert_array_equal(table["a"], frame["a"])
    again = pandas.read_csv(path)
    np.testing.assert_allclose(table["a"], again["a"], rtol=1e-14)
    np.testing.assert_array_equal(table["b"], again["b"].astype(float))
    assert table["c"].tolist() == again["c"].tolist()


FIELD = st.one_of(
    st.sampled_from(["1", "2.5", "-1e5", "NA", "", "true", "x", '"q"', '"a,b"', '""', '"x""y"', " 1 ", ' "z"', "inf"]),
    st.sampled_from(['a"b', '"a"b', '"two\nlines"', '"say \\"no\\""', "a\rb", '"a', "x\x00"]),
    st.text('ab1."\\\r\t ;_-+eE\x1f\xa0é', max_size=5),
)


@settings(max_examples=400, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(FIELD, FIELD), min_size=1, max_size=4), st.sampled_from(["\n", "\r\n"]))
@example([["1", '"x'], ['y"', "2"]], "\n")
@example([['"a\\"', '"b"']], "\n")
def test_both_readers_of_text_agree(tmp_path_factory, rows, end):
    path = tmp_path_factory.getbasetemp() / "agree.csv"
    content = "a,b\n" + end.join(",".join(row) for row in rows)

    def columns(parse):
        try:
            opened = open_text(path, content.encode(), ",", 2, "")
            return {name: column.tolist() for name, column in parse(opened).items()}
        except ValueError as error:
            return str(error)

    def slow(opened):
        names = _header(opened)
        return dict(zip(names, slow_columns(opened, names, [False] * len(names)), strict=True))

    np.testing.assert_equal(columns(lambda opened: parse_table(opened, ()).columns), columns(slow))


def test_most_files_are_read_by_pyarrow(file, monkeypatch):
    """Otherwise the comparison of both readers compares one with itself."""
    monkeypatch.setattr("bilevax.tables.text_table.slow_columns", lambda *given: pytest.fail("read slowly"))
    for content in (text(","), text(";"), text(",").replace("red", '"red"'), 'a,b\n"x, y",1\n"two\nlines",\n'):
        read_table(file(content))


def test_lines_inside_of_fields_may_stand_anywhere_in_a_long_file(file, monkeypatch):
    monkeypatch.setattr("bilevax.tables.text_table.slow_columns", lambda *given: pytest.fail("read slowly"))
    table = read_table(file("a,b\n" + '"two\nlines, or more",1\n' * 100_000))
    assert len(table) == 100_000 and set(table["a"]) == {"two\nlines, or more"} and np.all(table["b"] == 1)


BAD = {
    "no such": (None, "there is no such file"),
    "empty": ("", "the file is empty"),
    "one column": ("a\n1\n", "expected 2 columns or more"),
    "binary": (b"a,b\n\0\0\0", "this is no text; expected text, Parquet or Arrow"),
    "no header": ("1,2\n3,4\n", "the first line holds numbers .1, 2., and a table needs a header"),
    "header only": ("a,b\n", "there is a header but no row below it"),
    "same names": ("a,b,a\n1,2,3\n", "two columns are called 'a'; rename one of them"),
    "no name": ("a,,b\n1,2,3\n", "column 2 of the header has no name"),
    "ragged": ("a,b\n1,2\n\n1,2,3\n", "line 4: expected 2 fields separated by ',', as in the header, got 3: '1,2,3'"),
    "short": ("a,b,c\n1,2,3\n1,2\n", "line 3: expected 3 fields"),
    "infinite": ("a,b\n1,2\nx,1e999\n", "line 3: column 'b' holds '1e999', which is inf; correct it"),
    "long": (f"a,b\n1,2\nx,{'y' * 20_000}\n", "line 3: column 'b' holds 'y+...', which has 20000 characters"),
    "quote": ('a,b\n"1,2\n' + "3,4\n" * 50_000, "line .*; is a quotation mark missing"),
    "columns": (",".join(f"c{i}" for i in range(20_001)) + "\n" + "1," * 20_000 + "1\n", "20001 columns, and 20000"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_fault_of_a_file_is_named(name, file, reader, tmp_path):
    content, words = BAD[name]
    path = tmp_path / "nowhere.csv" if content is None else file(content)
    with pytest.raises((ValueError, FileNotFoundError), match=words) as caught:
        read_table(path)
    assert str(caught.value).startswith(str(path)) and "\n" not in str(caught.value)


def test_a_fault_of_a_frame_is_named(tmp_path, file, monkeypatch):
    for frame, words in (
        ({"a": [1.0, np.inf]}, "column 'a' holds inf in row 2"),
        ({"a": ["x", ["y"]]}, "column 'a' holds a list in row 2"),
        ({"a": [1], "b": [1, 2]}, r"columns of one length with rows in them, got lengths \[1, 2\]"),
        ({"a": []}, r"got lengths \[0\]"),
        ({}, "got lengths"),
        ({"a": 3}, "column 'a' is a int; expected a column of values"),
        ({"a": np.zeros((2, 2))}, "column 'a' has 2 dimensions"),
        (pandas.DataFrame([[1, 2]], columns=["a", "a"]), "two columns are called 'a'|column 'a'"),
    ):
        with pytest.raises(ValueError, match=words):
            read_table(frame)
    with pytest.raises(TypeError, match="expected a path, a frame or a dictionary of columns, got int"):
        read_table(3)
    pyarrow.parquet.write_table(pyarrow.table({"a": [[1.0]], "b": [1]}), tmp_path / "nested.parquet")
    with pytest.raises(ValueError, match="column 'a' holds list.*expected numbers or text"):
        read_table(tmp_path / "nested.parquet")
    with pytest.raises(ValueError, match="this Arrow file is damaged"):
        read_table(file(stream_of(pyarrow.table({"a": [1]}))[:-30]))
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(
        ImportError, match=r"nested.parquet: Parquet files need pyarrow: pip install 'bilevax\[files\]'"
    ):
        read_table(tmp_path / "nested.parquet")


def test_an_arrow_file_that_claims_a_terabyte_is_refused(tmp_path):
    out = io.BytesIO()
    pyarrow.feather.write_feather(pyarrow.table({"a": np.zeros(5000), "b": ["x"] * 5000}), out, compression="lz4")
    content = out.getvalue()
    lengths = [found.start() for found in re.finditer(re.escape(struct.pack("<q", 40_000)), content)]
    forged = content[: lengths[-1]] + struct.pack("<q", 10**12) + content[lengths[-1] + 8 :]
    (tmp_path / "bomb.feather").write_bytes(forged)
    with pytest.raises(ValueError, match=f"bomb.feather: its content would need 1000000.* {limits.VARIABLE}"):
        read_table(tmp_path / "bomb.feather")
    nothing = pyarrow.record_batch([pyarrow.nulls(10**6)] * 40, [f"n{i}" for i in range(40)])
    (tmp_path / "rows.arrow").write_bytes(stream_of(pyarrow.Table.from_batches([nothing]), rows=None))
    with pytest.raises(ValueError, match=r"rows.arrow: 1000000 rows of 40 columns would need"):
        read_table(tmp_path / "rows.arrow")


# ---- the encoder


def table_of(**columns):
    return read_table(columns)


def test_the_features_are_those_of_get_dummies():
    rng = np.random.default_rng(1)
    frame = pandas.DataFrame(
        {"n": rng.normal(size=60), "c": rng.choice(list("xyz"), 60), "d": rng.choice(["p", "q"], 60)}
    )
    table = read_table(frame)
    encoder = Encoder.fit(table, ["d", "n", "c"])
    truth = pandas.get_dummies(frame[["d", "n", "c"]], columns=["d", "c"], prefix_sep="=")[encoder.names]
    assert encoder.names == ["d=q", "n", "c=x", "c=y", "c=z"] and encoder.notes == ()
    np.testing.assert_array_equal(encoder.transform(table), truth.to_numpy(float))


def test_of_two_levels_one_is_a_feature_and_one_never_seen_is_between_them():
    encoder = Encoder.fit(table_of(c=["x", "y", "x", "y"]), ["c"])
    assert encoder.names == ["c=y"]
    np.testing.assert_array_equal(encoder.transform(table_of(c=["y", "x", "new"])), [[1], [0], [0.5]])
    rare = Encoder.fit(table_of(c=["x", "y", "x", "z"]), ["c"])
    assert rare.names == ["c=(other)"]
    np.testing.assert_array_equal(rare.transform(table_of(c=["x", "y", "z"])), [[0], [1], [1]])
    assert Encoder.of_plain(encoder.as_plain()).names == ["c=y"]


def test_missing_values_are_imputed_with_a_feature_that_says_where():
    table = table_of(n=[1.0, None, 5, 2], c=["x", "x", None, "x"], m=[None, 4.0, 4, None], k=[1, 2, 3, 4])
    encoder = Encoder.fit(table, ["n", "c", "m", "k"], missing="impute")
    assert encoder.names == ["n", "n=(missing)", "c=(missing)", "m=(missing)", "k"]
    np.testing.assert_array_equal(encoder.transform(table)[1], [2, 1, 0, 0, 2])
    later = table_of(n=[None], c=[None], m=[None], k=[None])
    np.testing.assert_array_equal(encoder.transform(later), [[2, 1, 1, 1, 2.5]])
    assert "1 missing values of 'k' replaced by the median 2.5" in encoder.notes_on(later)


def test_rare_levels_are_merged_and_levels_never_seen_are_zero():
    table = table_of(c=["x", "y", "x", "z", "w", "x", "w"])
    encoder = Encoder.fit(table, ["c"])
    assert encoder.names == ["c=w", "c=x", "c=(other)"]
    assert encoder.notes == ("2 levels of 'c' with fewer than 2 rows merged into one",)
    later = table_of(c=["z", "new", "x", "new"])
    np.testing.assert_array_equal(encoder.transform(later), [[0, 0, 1], [0, 0, 0], [0, 1, 0], [0, 0, 0]])
    assert encoder.notes_on(later) == ["2 rows have a level of 'c' that the fit did not see, such as 'new'"]
    assert Encoder.fit(table, ["c"], min_count=1).names == ["c=w", "c=x", "c=y", "c=z"]


def test_columns_that_say_nothing_are_left_out_with_a_note():
    nothing = np.full(3, np.nan)
    table = table_of(a=[3, 3, 3], b=["x"] * 3, c=nothing, d=["p", "q", "r"], e=[1, 2, 3])
    encoder = Encoder.fit(table, list("abcde"), missing="impute")
    assert encoder.names == ["e"]
    for words in (
        "'a' left out, since it is always 3",
        "'b' left out, since it is always 'x'",
        "'c' left out, since it",
    ):
        assert any(words in note for note in encoder.notes)
    assert any("'d' left out, since every level has fewer than 2 rows" in note for note in encoder.notes)


REFUSED = {
    "missing": (
        {"a": [1, None, 2], "b": ["x", None, None]},
        {},
        "missing in 'a' .1 of 3., 'b' .2 of 3.. Choose --missing",
    ),
    "all missing": ({"a": [np.nan, np.nan]}, {}, r"missing in 'a' \(2 of 2\)"),
    "ids": (
        {"a": [f"id{i}" for i in range(1001)]},
        {},
        "'a' holds 1001 different texts, and 1000 is the limit.*--drop",
    ),
    "a word": (
        {"a": [*map(str, range(1200)), "none"]},
        {},
        "'a' holds numbers, but also text such as 'none' in row 1201",
    ),
    "comma": ({"a": ["1,5", "2,5", "3"]}, {}, "'a' holds text such as '1,5', which looks like.* decimal comma"),
    "nothing": ({"a": [1, 1]}, {}, "no feature to learn from .column 'a' left out"),
    "option": ({"a": [1, 2]}, {"missing": "drop"}, "missing must be 'refuse' or 'impute', got 'drop'"),
    "count": ({"a": [1, 2]}, {"min_count": 0}, "min_count must be a whole number from 1 on, got 0"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_encoder_that_cannot_be_fitted_says_why(name):
    columns, options, words = REFUSED[name]
    with pytest.raises(ValueError, match=words):
        Encoder.fit(table_of(**columns), list(columns), **options)


def test_a_table_that_does_not_fit_the_encoder_is_refused_by_name():
    encoder = Encoder.fit(table_of(n=[1, 2], c=["x", "x"], d=["p", "q"]), ["n", "d"], min_count=1)
    for columns, words in (
        ({"n": [1]}, "there is no column 'd'; the columns are n"),
        ({"n": ["x"], "d": ["p"]}, "'n' held numbers when the model was fitted and holds text now, 'x' in row 1"),
        ({"n": [1], "d": [1]}, r"'d' held text when the model was fitted and holds numbers now; .*text=\['d'\]"),
        ({"n": [1, None], "d": ["p", "q"]}, "'n' is missing in 1 rows, first in row 2; .*--missing impute"),
        ({"n": [1, 2], "d": [None, "q"]}, "'d' is missing in 1 rows, first in row 1"),
    ):
        with pytest.raises(ValueError, match=words):
            encoder.transform(table_of(**columns))


def test_an_encoder_comes_back_from_plain_values():
    table = table_of(n=[1.0, None, 5, 2], c=["x", "x", None, "y"], d=["p", "q", "p", "q"])
    encoder = Encoder.fit(table, ["n", "c", "d"], missing="impute")
    again = Encoder.of_plain(json.loads(json.dumps(encoder.as_plain())))
    assert again.columns == encoder.columns
    np.testing.assert_array_equal(again.transform(table), encoder.transform(table))


def test_plain_values_of_others_are_checked():
    plain = Encoder.fit(table_of(n=[1.0, 2], c=["x", "y"]), ["n", "c"], min_count=1, missing="impute").as_plain()
    numbers, levels = plain["columns"]
    for column in (
        {**numbers, "median": float("nan")},
        {**numbers, "median": "1"},
        {**numbers, "value": 1},
        {**numbers, "name": 3},
        {**numbers, "kind": "dates"},
        {**numbers, "more": 1},
        {**levels, "levels": ["x", "x"]},
        {**levels, "levels": [1]},
        {**levels, "levels": "xy"},
        {**levels, "merged": [f"l{i}" for i in range(1000)]},
        {key: value for key, value in levels.items() if key != "absent"},
        None,
    ):
        with pytest.raises(ValueError, match="not an encoder of bilevax"):
            Encoder.of_plain({"columns": [column]})
    for other in (None, {}, {"columns": []}, {"columns": [numbers, numbers]}, [1]):
        with pytest.raises(ValueError, match="not an encoder of bilevax"):
            Encoder.of_plain(other)


# ---- the schema


def example_table():
    y = np.array([1.0, 2, 4, 3, 7])
    return table_of(
        x=[1, 2, 3, 4, 5], c=["a", "b", "a", "b", "a"], s=[1, 1, 2, 2, 3], y=y, z=["no", "yes"] * 2 + ["no"]
    )


def test_a_schema_gives_arrays_and_a_line_about_them():
    table = example_table()
    schema = schema_of(table, target="y", task="s", drop=["z"])
    assert schema.encoder.names == ["x", "c=b"] and schema.loss == "squared" and schema.text_columns == ["c", "s"]
    assert schema.tasks_of(table).tolist() == ["1", "1", "2", "2", "3"]
    np.testing.assert_array_equal(schema.outcomes_of(table), table["y"])
    assert describe(table, schema, ["z"]) == (
        "the table: 5 rows, 2 features from 2 columns, 3 tasks of 1 to 2 rows, target 'y' with numbers from 1 to 7, "
        "mean 3.4; 1 tasks have one row and rest on the others; dropped z."
    )
    classes = schema_of(table, target="z", features=["x"])
    assert classes.labels == ("no", "yes") and classes.loss == "logistic" and classes.tasks_of(table) is None
    np.testing.assert_array_equal(classes.outcomes_of(table), [0, 1, 0, 1, 0])
    assert "classes no (60 %), yes (40 %)" in describe(table, classes)
    with pytest.raises(ValueError, match="the target 'z' is 'maybe' in 1 rows; expected no or yes"):
        classes.outcomes_of(table_of(x=[1, 1], z=["maybe", "no"]))
    for one in (schema, classes):
        again = Schema.of_plain(json.loads(json.dumps(one.as_plain())))
        assert (again.target, again.task, again.labels) == (one.target, one.task, one.labels)
    half = schema.fitted_on(table.subset(np.arange(2)), min_count=1)
    assert half.encoder.names == schema.encoder.names and half.task == "s"


def test_numbers_of_two_values_are_classes_unless_asked_otherwise():
    table = table_of(x=[1, 2, 3], y=[0, 1, 1])
    assert schema_of(table, target="y").labels == ("0", "1")
    assert schema_of(table, target="y", loss="squared").labels is None


ROLES = {
    "unknown": ({"target": "w"}, "no column 'w'; the columns are x, c, s, y, z"),
    "unknown task": ({"target": "y", "task": "w"}, "no column 'w'"),
    "unknown drop": ({"target": "y", "drop": ["w"]}, "no column 'w'"),
    "both": ({"target": "y", "task": "y"}, "'y' cannot be both the target and the task"),
    "dropped": ({"target": "y", "drop": ["y"]}, "'y' is the target and cannot be dropped"),
    "feature": ({"target": "y", "features": ["x", "y"]}, "'y' is the target and cannot be a feature"),
    "text": ({"target": "z", "loss": "squared"}, "the target 'z' holds text, and the squared loss needs numbers"),
    "classes": (
        {"target": "y", "loss": "logistic"},
        r"'y' has 5 classes \(1, 2, 3, 4, 7\), and 2 is the limit",
    ),
    "alone": ({"target": "y", "task": "x"}, "every task .'x'. has one row"),
    "loss": ({"target": "y", "loss": "hinge"}, "loss must be 'auto', 'squared' or 'logistic', got 'hinge'"),
}


@pytest.mark.parametrize("name", ROLES)
def test_a_role_that_a_column_cannot_have_is_refused(name):
    options, words = ROLES[name]
    with pytest.raises(ValueError, match=words):
        schema_of(example_table(), **options)


def test_a_target_or_task_that_says_nothing_is_refused():
    for columns, words in (
        ({"y": [2, 2, 2], "t": [1, 1, 2]}, "the target 'y' is always '2', so nothing can be learned"),
        ({"y": [1, None, 2], "t": [1, 1, 2]}, "the target 'y' is missing in 1 of 3 rows, first in row 2"),
        ({"y": [1, 2, 3], "t": [1, 1, None]}, "the task 't' is missing in 1 of 3 rows, first in row 3"),
        ({"y": [1, 2, 3], "t": ["a", "a", "a"]}, "the task 't' is always 'a'; expected several tasks"),
    ):
        with pytest.raises(ValueError, match=words):
            schema_of(table_of(x=[1, 2, 3], **columns), target="y", task="t")


def test_plain_values_of_a_schema_are_checked():
    plain = schema_of(example_table(), target="z", task="s").as_plain()
    for change in (
        {"target": 3},
        {"task": 3},
        {"labels": ["a", "a"]},
        {"labels": [1, 2]},
        {"target": "x"},
        {"task": "z"},
    ):
        with pytest.raises(ValueError, match="not a schema of bilevax"):
            Schema.of_plain({**plain, **change})
    with pytest.raises(ValueError, match="not a schema of bilevax"):
        Schema.of_plain({"encoder": plain["encoder"]})


def test_a_table_says_which_columns_it_has():
    table = Table("t", {f"c{i}": np.zeros(1) for i in range(30)})
    with pytest.raises(ValueError, match="t: there is no column 'x'; the columns are c0, .*c19 and 10 more"):
        table["x"]
