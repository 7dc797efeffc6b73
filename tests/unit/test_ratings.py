"""Rating files of every layout give the same ratings; every problem is named with its line."""

import gzip
import sys

import numpy as np
import pytest
from scipy import sparse

from bilevax import datasets
from bilevax.ratings import Ratings, read_pairs, read_ratings, read_titles, split, split_by_time

# User, item, rating, time; the same in every layout below.
LINES = [("7", "b", "4", "30"), ("7", "a", "2.5", "10"), ("12", "b", "1", "20")]


def text(separator, header=None, lines=LINES):
    return "".join(separator.join(line) + "\n" for line in ([header] if header else []) + list(lines))


def check_same(ratings, *, times=True):
    np.testing.assert_array_equal(ratings.row_ids, [7, 12])
    np.testing.assert_array_equal(ratings.col_ids, ["a", "b"])
    np.testing.assert_array_equal(ratings.rows, [0, 0, 1])
    np.testing.assert_array_equal(ratings.cols, [1, 0, 1])
    np.testing.assert_array_equal(ratings.values, [4, 2.5, 1])
    if times:
        np.testing.assert_array_equal(ratings.times, [30, 10, 20])
        assert ratings.times.dtype == np.int64


@pytest.fixture
def file(tmp_path):
    """Write text or bytes to a file."""

    def write(content, name="ratings.csv"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


LAYOUTS = {
    "csv": text(",", ("userId", "movieId", "rating", "timestamp")),
    "no header": text(","),
    "other names": text(";", ("who", "what", "how much", "when")),
    "tabs": text("\t"),
    "movielens": text("::"),
    "bars": text("|"),
    "spaces": "\n".join("  " + "   ".join(line) + " " for line in LINES),
    "space after comma, crlf, blank lines": text(", ", ("user", "item", "score", "time")).replace("\n", "\r\n\r\n"),
    "quotes": text('";"', ("User-ID", "ISBN", "Book-Rating", "date")).replace("\n", '"\n"').join('""')[:-2],
    "byte order mark": "\ufeff" + text(",", ("user", "item", "rating", "time")),
    "utf-16": text("\t", ("user", "item", "rating", "time")).encode("utf-16"),
    "gzip": gzip.compress(text(",").encode()),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_of_text_gives_the_same_ratings(file, layout):
    ratings, notes = read_ratings(file(LAYOUTS[layout]), time="3")
    check_same(ratings)
    assert bool(notes) == (layout == "other names")


def test_columns_are_found_by_name_by_position_and_by_what_is_left(file):
    names = ("when", "stars", "what", "Who")
    path = file(text(",", names, [line[::-1] for line in LINES]))
    ratings, notes = read_ratings(path, user="who", item=2, time="when")
    check_same(ratings)  # the rating has a usual name
    assert notes == ()
    check_same(read_ratings(path, user="3", item="2", rating="1", time="0", header=True)[0])
    turned = file(text(",", None, [(item, user, rating) for user, item, rating, _ in LINES]))
    check_same(read_ratings(turned, user="1")[0], times=False)


def test_dates_are_times_and_a_column_nobody_asked_for_may_hold_anything(file):
    lines = [line[:3] + (f"2005-01-01 00:00:{line[3]}",) for line in LINES]
    ratings, _ = read_ratings(file(text(",", ("user", "item", "rating", "date"), lines)))
    np.testing.assert_array_equal(ratings.times, 1104537600 + np.array([30, 10, 20]))
    path = file(text(",", ("user", "item", "rating", "date"), [line[:3] + ("yesterday",) for line in LINES]))
    ratings, notes = read_ratings(path)
    assert ratings.times is None and "times was left out" in notes[0]
    with pytest.raises(ValueError, match=r"line 2: the time .* is 'yesterday'; expected a number or an ISO date"):
        read_ratings(path, time="date")


def test_ids_that_are_not_plain_integers_stay_as_written(file):
    content = '1,"a,b",1\n1,"say \\"x\\"",2\n2,caf\xe9,3\n2,007,4\n'.encode("latin-1")
    ratings, notes = read_ratings(file(content))
    assert ratings.col_ids.tolist() == ["007", "a,b", "café", 'say "x"']
    assert notes == ("not UTF-8, read as latin-1",)


def test_npz_and_parquet_hold_ratings_too(file, tmp_path):
    arrays = {"rows": [7, 7, 12], "cols": np.array(["b", "a", "b"]), "values": [4, 2.5, 1], "times": [30, 10, 20]}
    np.savez(tmp_path / "arrays.npz", **arrays)
    check_same(read_ratings(tmp_path / "arrays.npz", time="times")[0])
    matrix = sparse.csr_array(([4, 2.5, 1], ([0, 0, 3], [1, 0, 1])))
    sparse.save_npz(tmp_path / "matrix.npz", matrix)
    ratings, _ = read_ratings(tmp_path / "matrix.npz")
    assert ratings.row_ids.tolist() == [0, 3]
    again = np.zeros(matrix.shape)
    again[ratings.row_ids[ratings.rows], ratings.col_ids[ratings.cols]] = ratings.values
    np.testing.assert_array_equal(again, matrix.toarray())
    assert read_pairs(tmp_path / "arrays.npz") == (["7", "7", "12"], ["b", "a", "b"])

    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = dict(
        zip(
            ("rating", "user_id", "item", "timestamp"),
            (arrays[k] for k in ("values", "rows", "cols", "times")),
            strict=True,
        )
    )
    parquet.write_table(pyarrow.table(columns), tmp_path / "ratings.parquet")
    check_same(read_ratings(tmp_path / "ratings.parquet")[0])
    parquet.write_table(
        pyarrow.table({"user": [1, 2], "item": [1, None], "rating": [1, 2]}), tmp_path / "holes.parquet"
    )
    with pytest.raises(ValueError, match="entry 2: the item .* is missing"):
        read_ratings(tmp_path / "holes.parquet")
    with pytest.raises(ValueError, match="Parquet file is damaged"):
        read_ratings(file((tmp_path / "ratings.parquet").read_bytes()[:-20]))


def test_parquet_without_its_reader_says_what_to_install(file, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(ImportError, match=r"pip install 'bilevax\[files\]'"):
        read_ratings(file(b"PAR1..."))


HEAD = "user,item,rating\n"
PROBLEMS = {
    "empty": ("", {}, "the file is empty"),
    "header only": (HEAD, {}, "a header but no rating below it"),
    "one column": ("1\n2\n", {}, "expected 3 columns or more, .* got '1' in the first line"),
    "a word": (HEAD + "1,2,3\n\n1,3,good\n", {}, r"line 4: the rating \(column 2, from 0\) is 'good', not a number"),
    "a word first": ("1,2,x\n1,2,y\n1,2,3\n", {}, "line 1: the rating .* is 'x', not a number"),
    "decimal comma": ("1;2;3,5\n2;3;4\n", {}, "is '3,5', not a number; write decimals with a point"),
    "empty rating": (HEAD + "1,2,3\n1,3,\n", {}, "line 3: the rating .* is '', not a number"),
    "nan": (HEAD + "1,2,3\n1,3,nan\n", {}, "line 3: the rating .* is 'nan', which is not finite"),
    "infinite": (HEAD + "1,2,3\n1,3,-inf\n", {}, "is '-inf', which is not finite"),
    "few fields": (HEAD + "1,2,3\n1,3\n", {}, "line 3: expected at least 3 fields separated by ',', got 2: '1,3'"),
    "empty id": (HEAD + "1,2,3\n,3,4\n", {}, r"line 3: the user \(column 0, from 0\) is empty"),
    "open quote": (HEAD + '1,2,3\n1,"3,4\n2,2,2\n', {}, "line 4: expected at least 3 fields|quotation mark"),
    "no such name": (HEAD + "1,2,3\n", {"user": "who"}, "no column 'who'; the first line has user, item, rating"),
    "no such number": ("1,2,3\n2,2,2\n", {"item": "7"}, "no column '7'; .* no header, and its 3 columns are numbered"),
    "same column": (HEAD + "1,2,3\n", {"user": "item", "item": "item"}, "user and item are the same column"),
    "short header": ("user item rating\n1 1 2 3\n2 3 4 5\n", {}, "header has 3 fields and the lines below have 4"),
    "one user": (HEAD + "1,2,3\n1,3,4\n", {}, "the same user, '1'; completion needs at least two"),
    "one item": (HEAD + "1,2,3\n2,2,4\n", {}, "the same item, '2'"),
    "all equal": (HEAD + "1,2,3\n2,3,3\n", {}, "all 2 ratings are 3, so there is nothing to learn"),
    "cut gzip": (gzip.compress(text(",").encode())[:-12], {}, "damaged or cut short .* download the file again"),
    "bad gzip": (b"\x1f\x8b\x08" + b"x" * 50, {}, "damaged or cut short"),
    "binary": (b"\x00\x01\x02" * 100, {}, "this is no text"),
    "bad npz": (b"PK\x03\x04 and nothing more", {}, "this NPZ file cannot be read"),
    "wrong zeros": (text(","), {"zeros": "maybe"}, "zeros must be None, 'drop' or 'keep', got 'maybe'"),
}


@pytest.mark.parametrize("problem", PROBLEMS)
def test_every_problem_is_named(file, problem):
    content, options, words = PROBLEMS[problem]
    path = file(content)
    with pytest.raises(ValueError, match=words) as raised:
        read_ratings(path, **options)
    assert problem == "wrong zeros" or str(path) in str(raised.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere\.csv: there is no such file"):
        read_ratings(tmp_path / "nowhere.csv")


def test_the_line_of_a_problem_far_down_is_right(file):
    lines = [f"{k % 50},{k},{k % 5}" for k in range(3000)]
    lines[2345] = "1,2,three"
    with pytest.raises(ValueError, match="line 2347: .* 'three'"):
        read_ratings(file(HEAD + "\n".join(lines)))


def test_of_repeated_pairs_the_last_is_kept(file):
    ratings, notes = read_ratings(file(HEAD + "1,2,3\n2,2,1\n1,2,5\n1,3,4\n1,2,4\n"))
    assert notes == ("2 repeated ratings of a pair left out, the last one is kept",)
    assert list(zip(ratings.rows, ratings.cols, ratings.values, strict=True)) == [(1, 0, 1), (0, 1, 4), (0, 0, 4)]


def test_mostly_zeros_is_a_question_for_the_user(file):
    lines = [f"{k % 20},{k},{0 if k < 70 else 1 + k % 5}\n" for k in range(100)]
    path = file(HEAD + "".join(lines) + "19,99,0\n")
    with pytest.raises(ValueError, match="71 of 101 ratings are zero.*--zeros drop.*--zeros keep"):
        read_ratings(path)
    kept, _ = read_ratings(path, zeros="keep")
    dropped, notes = read_ratings(path, zeros="drop")
    assert (kept.values == 0).sum() == 71 and len(kept.values) == 100
    assert len(dropped.values) == 30 and dropped.values.min() > 0 and notes == ("71 ratings of zero left out",)
    assert read_ratings(file(HEAD + "".join(lines[1:])))[0].values.min() == 0  # fewer than a hundred


def test_pairs_and_titles_are_read_as_written(file):
    assert read_pairs(file("item,user\n7,a\n007,b\n")) == (["a", "b"], ["7", "007"])
    assert read_pairs(file("1\t2\n3\t4\n")) == (["1", "3"], ["2", "4"])
    assert read_pairs(file("x,y\n3,4\n"), user="y", item="x") == (["4"], ["3"])
    with pytest.raises(ValueError, match="line 3: expected at least 2 fields"):
        read_pairs(file("user,item\n1,2\n3\n"))
    dat = '1::Toy Story (1995)::Animation|Comedy\n2::Caf\xe9, the "Film" (1996)::Drama\n'.encode("latin-1")
    assert read_titles(file(dat)) == {"1": "Toy Story (1995)", "2": 'Café, the "Film" (1996)'}
    assert read_titles(file('year,title,movieId\n1995,"Heat, the",6\n')) == {"6": "Heat, the"}


def test_data_sets_and_files_give_the_same_class():
    assert datasets.Ratings is Ratings


def test_the_latest_or_a_random_share_is_held_out():
    times = np.array([5, 1, 5, 9, 2, 5])
    ratings = Ratings(np.arange(6), np.arange(6), np.ones(6), times, np.arange(6), np.arange(6))
    assert np.flatnonzero(split_by_time(ratings, 0.5)).tolist() == [2, 3, 5]
    assert not split_by_time(ratings, 0).any() and not split(ratings, 0, 0).any()
    np.testing.assert_array_equal(split(ratings, 0.5, 3), np.random.default_rng(3).random(6) < 0.5)
    with pytest.raises(ValueError, match="have no times"):
        split_by_time(ratings._replace(times=None), 0.5)
    with pytest.raises(ValueError, match="below 1, got 1"):
        split(ratings, 1, 0)
