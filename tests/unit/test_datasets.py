"""Data sets found, downloaded (from a server on this computer only), verified and parsed; real ones where present."""

import bz2
import collections
import csv
import functools
import gzip
import hashlib
import http.server
import io
import os
import re
import struct
import sys
import threading
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.io
from scipy.sparse import csr_array

from bilevax import datasets
from bilevax.datasets import DataFile, DatasetCorrupt, DatasetUnavailable, Entry
from bilevax.datasets.fingerprint import fingerprint
from bilevax.datasets.folders import cache_folder
from bilevax.datasets.frames import Frame, read_csv
from bilevax.datasets.idx import read_idx
from bilevax.datasets.libsvm import read_dense, read_sparse
from bilevax.datasets.npz import read_newsgroups
from bilevax.datasets.ratings import read_book_crossing, read_movielens
from bilevax.datasets.registry import ENTRIES
from bilevax.datasets.tasks import read_tasks

TEXT = b"1 1:0.5 3:2\n-1 2:1e-3\n"
OTHER = b"1 1:0.5 3:2\n-1 2:2e-3\n"
read = functools.partial(read_dense, features=3)
UNUSED = "0" * 64


# ---- a small fake data set and a server for it


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """No data folder, a cache of our own, no proxy."""
    folder = tmp_path / "cache"
    monkeypatch.delenv("BILEVAX_DATA", raising=False)
    monkeypatch.setenv("BILEVAX_CACHE", str(folder))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    return folder


@pytest.fixture
def data(tmp_path, monkeypatch, cache):
    """An empty data folder."""
    folder = tmp_path / "data"
    folder.mkdir()
    monkeypatch.setenv("BILEVAX_DATA", str(folder))
    return folder


@pytest.fixture
def server():
    """Serves the bytes in `server.pages`; a page may announce more than it sends. Requests are counted."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            requests[self.path] += 1
            if self.path not in pages:
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(pages[self.path]) + missing))
            self.end_headers()
            self.wfile.write(pages[self.path])

        def log_message(self, *_):
            pass

    pages, requests, missing = {}, collections.Counter(), 0
    listener = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=listener.serve_forever, args=(0.01,))
    thread.start()

    class Server:
        url = f"http://127.0.0.1:{listener.server_port}/"

        @staticmethod
        def cut_short():
            nonlocal missing
            missing = 10

    Server.pages, Server.requests = pages, requests
    yield Server
    listener.shutdown()
    listener.server_close()
    thread.join()


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """Register a data set of one file."""

    def register(**changes):
        sample = tmp_path / "sample"
        sample.write_bytes(TEXT)
        file = DataFile("table", "fake/table.gz", UNUSED, fingerprint(read(sample)), read, published="fake/table")
        entry = Entry("fake", (replace(file, **changes),), "2 x 3", "https://example.org", "Ask Ann.", "Ask Bob.")
        monkeypatch.setitem(ENTRIES, "fake", entry)

    return register


def put(folder, path, content):
    target = folder / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content)
    return target


def files_below(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file()) if folder.exists() else []


def archive(**members):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in members.items():
            packed.writestr(name, content)
    return stream.getvalue()


# ---- finding


def test_the_data_folder_comes_before_the_cache(data, cache, fake):
    fake()
    in_cache = put(cache, "fake/table", TEXT)
    assert datasets.fetch("fake") == {"table": in_cache}
    in_data = put(data, "fake/table.gz", gzip.compress(TEXT, mtime=0))
    assert datasets.fetch("fake") == {"table": in_data}


@pytest.mark.parametrize("pack", [lambda text: text, gzip.compress, bz2.compress], ids=["plain", "gzip", "bzip2"])
@pytest.mark.parametrize("text", [TEXT, b"1.0 1:.5  2:0 3:2.0 \r\n-1 2:0.001 \r\n\n"], ids=["ours", "rewritten"])
def test_other_bytes_with_the_same_content_pass(data, fake, pack, text):
    fake()
    put(data, "fake/table.gz", pack(text))
    np.testing.assert_array_equal(read(datasets.fetch("fake")["table"]).X, [[0.5, 0, 2], [0, 1e-3, 0]])


def test_known_bytes_pass_without_being_parsed(data, fake):
    def refuse(path):
        raise AssertionError

    path = put(data, "fake/table", TEXT)
    fake(sha256=hashlib.sha256(TEXT).hexdigest(), read=refuse)
    assert datasets.fetch("fake") == {"table": path}


def test_a_file_is_verified_once_and_again_when_it_changes(data, fake):
    calls = []
    fake(read=lambda path: calls.append(path) or read(path))
    path = put(data, "fake/table", TEXT)
    datasets.fetch("fake")
    datasets.fetch("fake")
    assert len(calls) == 1
    path.write_bytes(OTHER)
    os.utime(path, ns=(1, 1))
    with pytest.raises(DatasetCorrupt):
        datasets.fetch("fake")


def test_a_wrong_file_names_itself_and_both_checksums(data, fake):
    fake()
    path = put(data, "fake/table", OTHER)
    expected, found = ENTRIES["fake"].files[0].content, fingerprint(read(path))
    with pytest.raises(DatasetCorrupt, match="Move the file away") as caught:
        datasets.fetch("fake")
    assert all(text in str(caught.value) for text in (str(path), expected, found, UNUSED))
    assert path.read_bytes() == OTHER


def test_a_wrong_file_in_the_cache_is_neither_used_nor_overwritten(cache, fake, server):
    fake(url=server.url + "table")
    server.pages["/table"] = TEXT
    path = put(cache, "fake/table", OTHER)
    with pytest.raises(DatasetCorrupt):
        datasets.fetch("fake")
    assert path.read_bytes() == OTHER and not server.requests


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress])
def test_a_truncated_file_is_refused(data, fake, pack):
    fake()
    path = put(data, "fake/table", pack(TEXT * 100)[:-9])
    with pytest.raises(DatasetCorrupt, match=rf"{re.escape(str(path))}.*damaged or cut short"):
        datasets.fetch("fake")


@pytest.mark.parametrize("variable", ["BILEVAX_DATA", "BILEVAX_CACHE"])
def test_a_variable_that_names_no_folder(data, monkeypatch, tmp_path, variable):
    path = put(tmp_path, "file", b"")
    monkeypatch.setenv(variable, str(path))
    with pytest.raises(NotADirectoryError, match=rf"{re.escape(str(path))}.*not a folder.*set"):
        datasets.fetch("housing")


def test_a_data_folder_that_does_not_exist(cache, monkeypatch, tmp_path):
    monkeypatch.setenv("BILEVAX_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(NotADirectoryError, match="BILEVAX_DATA is .*nowhere"):
        datasets.available()


@pytest.mark.parametrize(
    ("platform", "variable", "expected"),
    [
        ("linux", "XDG_CACHE_HOME", "there/bilevax"),
        ("linux", None, "home/.cache/bilevax"),
        ("darwin", None, "home/Library/Caches/bilevax"),
        ("win32", "LOCALAPPDATA", "there/bilevax"),
    ],
)
def test_the_cache_of_the_platform(monkeypatch, tmp_path, platform, variable, expected):
    for name in ("BILEVAX_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    if variable:
        monkeypatch.setenv(variable, str(tmp_path / "there"))
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    monkeypatch.setattr("bilevax.datasets.folders.sys.platform", platform)
    assert cache_folder() == tmp_path / expected


def test_unknown_names():
    with pytest.raises(ValueError, match="did you mean 'movielens-100k'"):
        datasets.fetch("movielens100k")
    with pytest.raises(ValueError, match="mnist has no file 'valid'; it has train-images"):
        datasets.fetch("mnist", "valid")
    with pytest.raises(ValueError, match="one of bodyfat, .* got 'cadata'"):
        datasets.libsvm_regression("cadata")
    for load in (datasets.mnist, datasets.a9a):
        with pytest.raises(ValueError, match="'train' or 'test', got 'valid'"):
            load("valid")


# ---- downloading


def test_a_download_is_kept_and_not_repeated(data, cache, fake, server):
    fake(url=server.url + "table")
    server.pages["/table"] = TEXT
    assert datasets.fetch("fake") == datasets.fetch("fake") == {"table": cache / "fake" / "table"}
    assert files_below(cache) == [cache / "fake" / "table"] and not files_below(data)
    assert server.requests == {"/table": 1}


def test_a_download_out_of_an_archive(cache, fake, server):
    fake(url=server.url + "all.zip", member="inner/table")
    server.pages["/all.zip"] = archive(**{"inner/table": TEXT, "inner/other": b"noise"})
    assert datasets.fetch("fake")["table"].read_bytes() == TEXT
    assert files_below(cache) == [cache / "fake" / "table"]


@pytest.mark.parametrize("page", [OTHER, b"<html>moved</html>", b"", gzip.compress(TEXT, mtime=0)[:-5]])
def test_a_download_of_something_else_is_not_kept(cache, fake, server, page):
    fake(url=server.url + "table")
    server.pages["/table"] = page
    with pytest.raises(
        DatasetCorrupt, match=f"the download from {server.url}table is not .*expected.*nothing was kept"
    ):
        datasets.fetch("fake")
    assert not files_below(cache)


@pytest.mark.parametrize("page", [b"<html>moved</html>", archive(other=TEXT), archive(table=TEXT)[:-30]])
def test_a_download_of_something_other_than_the_archive(cache, fake, server, page):
    fake(url=server.url + "all.zip", member="table")
    server.pages["/all.zip"] = page
    with pytest.raises(DatasetCorrupt, match="is not a zip archive with table"):
        datasets.fetch("fake")
    assert not files_below(cache)


def test_an_interrupted_download_leaves_nothing(cache, fake, server):
    fake(url=server.url + "table")
    server.pages["/table"] = TEXT
    server.cut_short()
    with pytest.raises(DatasetUnavailable, match="the download from .* failed"):
        datasets.fetch("fake")
    assert not files_below(cache)


def test_without_network_the_error_says_everything_needed(data, cache, fake):
    fake(url="http://127.0.0.1:9/table")
    with pytest.raises(DatasetUnavailable) as caught:
        datasets.fetch("fake")
    needed = ("'fake'", str(data), str(cache), "http://127.0.0.1:9/table failed (ConnectionError", "fake/table.gz")
    assert all(text in str(caught.value) for text in (*needed, "Ask Bob.", "Terms: Ask Ann.", "https://example.org"))
    assert isinstance(caught.value, OSError)


def test_a_page_that_is_gone(cache, fake, server):
    fake(url=server.url + "gone")
    with pytest.raises(DatasetUnavailable, match="HTTPError: 404"):
        datasets.fetch("fake")


def test_a_cache_that_cannot_be_written(cache, fake, server):
    fake(url=server.url + "table")
    server.pages["/table"] = TEXT
    put(cache, "fake", b"in the way")
    with pytest.raises(DatasetUnavailable, match=r"\((FileExists|NotADirectory)Error"):
        datasets.fetch("fake")


@pytest.mark.parametrize("name", [name for name, entry in ENTRIES.items() if entry.files[0].url is None])
def test_a_data_set_without_download_says_how_to_get_it(data, cache, name):
    with pytest.raises(DatasetUnavailable, match="there is no download") as caught:
        datasets.fetch(name)
    assert ENTRIES[name].files[0].paths[-1] in ENTRIES[name].by_hand and ENTRIES[name].by_hand in str(caught.value)


def test_without_pooch_the_error_names_the_extra(cache, fake, monkeypatch):
    fake(url="http://127.0.0.1:9/table")
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(ImportError, match=r"pip install 'bilevax\[data\]'(.|\n)*Ask Bob"):
        datasets.fetch("fake")


# ---- listing


def test_available_asks_for_all_files(data):
    where = {row.name: row.where for row in datasets.available()}
    assert set(where) == set(ENTRIES) and set(where.values()) == {None}
    put(data, "ml-100k/u.data", b"not looked into")
    put(data, "mnist/train-images-idx3-ubyte.gz", b"")
    where = {row.name: row.where for row in datasets.available()}
    assert where["movielens-100k"] == data / "ml-100k" and where["mnist"] is None


def test_table_is_rows_of_text(data):
    rows = datasets.table()
    assert [row["name"] for row in rows] == list(ENTRIES)
    assert all(isinstance(text, str) and text for row in rows for text in row.values())
    assert rows[0]["found"] == "not here" and "no redistribution" in rows[0]["terms"]


def test_the_registry_is_complete():
    for name, entry in ENTRIES.items():
        assert entry.name == name and entry.shape and entry.terms.endswith(".") and entry.source.startswith("http")
        for file in entry.files:
            assert all(re.fullmatch("[0-9a-f]{64}", checksum) for checksum in (file.sha256, file.content))
            assert not any(Path(path).is_absolute() for path in file.paths)


# ---- parsing


def test_movielens_numbers_users_and_items_without_gaps(tmp_path):
    path = put(tmp_path, "ratings", b"7::50::3::100\n2::90::5::101\n7::10::1::102")
    ratings = read_movielens(path, b"::")
    assert ratings.shape == (2, 3)
    np.testing.assert_array_equal(ratings.row_ids, [2, 7])
    np.testing.assert_array_equal(ratings.col_ids, [10, 50, 90])
    np.testing.assert_array_equal(np.stack([ratings.rows, ratings.cols]), [[1, 0, 1], [1, 2, 0]])
    np.testing.assert_array_equal(ratings.values, [3.0, 5.0, 1.0])
    np.testing.assert_array_equal(ratings.times, [100, 101, 102])


def test_book_crossing_reads_latin_1_and_escaped_quotes(tmp_path):
    text = '"User-ID";"ISBN";"Book-Rating"\r\n"9";"X;1";"0"\r\n"10";"\\"2\\"";"8"\r\n"9";"Ü&#93";"10"\r\n'
    ratings = read_book_crossing(put(tmp_path, "books", text.encode("latin-1")))
    triples = zip(ratings.row_ids[ratings.rows], ratings.col_ids[ratings.cols], ratings.values, strict=True)
    assert set(triples) == {("9", "X;1", 0.0), ("10", '"2"', 8.0), ("9", "Ü&#93", 10.0)}
    explicit = ratings.subset(ratings.values > 0)
    assert explicit.shape == (2, 2) and list(explicit.col_ids) == ['"2"', "Ü&#93"] and explicit.times is None


def test_a_csv_has_numbers_gaps_and_text(tmp_path):
    path = put(tmp_path, "t.csv", b'age,job,pay\n20.0,"a, b",\n30,c,1e3\n')
    frame = Frame(read_csv(path), "pay")
    assert frame.shape == (2, 3) and list(frame["job"]) == ["a, b", "c"]
    np.testing.assert_array_equal(frame["pay"], [np.nan, 1000.0])
    assert frame.complete().shape == (1, 3) and frame.complete()["age"][0] == 30.0
    with pytest.raises(KeyError, match="no column 'wage'; there are age, job, pay"):
        frame["wage"]


def test_a_row_of_a_sparse_table_may_be_empty(tmp_path):
    X, y = read_sparse(put(tmp_path, "t", b"1\n-1 2:3 4:5\n+1\n-1 4:1\n2"), 4)
    np.testing.assert_array_equal(X.toarray(), [[0] * 4, [0, 3, 0, 5], [0] * 4, [0, 0, 0, 1], [0] * 4])
    np.testing.assert_array_equal(y, [1, -1, 1, -1, 2])


def in_cells(arrays):
    cells = np.empty((1, len(arrays)), object)
    for i, array in enumerate(arrays):
        cells[0, i] = array
    return cells


def matlab_file(path, packed=False, **arrays):
    parts = {name: in_cells(part) if isinstance(part, list) else part for name, part in arrays.items()}
    scipy.io.savemat(path, parts, do_compression=packed)
    return path


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("kind", [np.uint8, np.int16, np.float32, float])
def test_cells_of_a_matlab_file_are_tasks(tmp_path, packed, kind):
    Xs = [np.arange(6).reshape(3, 2).astype(kind), np.array([[7, 8]], kind)]
    ys = [np.array([[1], [2], [3]], kind), np.array([[4]], kind)]
    X, y, task = read_tasks(matlab_file(tmp_path / "t.mat", packed, X=Xs, other=[Xs], Y=ys), 2)
    np.testing.assert_array_equal(X, [[0, 1], [2, 3], [4, 5], [7, 8]])
    np.testing.assert_array_equal(y, [1, 2, 3, 4])
    np.testing.assert_array_equal(task, [0, 0, 0, 1])
    assert X.dtype == y.dtype == float


ROW = np.ones((1, 2))


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"X": [ROW]}, "not a MATLAB file with X and Y"),
        ({"X": ROW, "Y": [ROW]}, "not a MATLAB file with X and Y"),
        ({"X": [in_cells([ROW])], "Y": [ROW]}, "not a MATLAB file with X and Y"),
        ({"X": ["text"], "Y": [ROW]}, "not a MATLAB file with X and Y"),
        ({"X": [1j * ROW], "Y": [ROW]}, "not a MATLAB file with X and Y"),
        ({"X": [], "Y": []}, "as many cells in X as in Y, got 0 and 0"),
        ({"X": [ROW, ROW], "Y": [ROW]}, "as many cells in X as in Y, got 2 and 1"),
        ({"X": [ROW], "Y": [ROW]}, r"task 0, got \(1, 2\), \(1, 2\)"),
        ({"X": [ROW.T], "Y": [ROW.T]}, r"task 0, got \(2, 1\), \(2, 1\)"),
    ],
)
def test_cells_that_are_not_tasks_are_refused(tmp_path, arrays, message):
    path = matlab_file(tmp_path / "t.mat", **arrays)
    with pytest.raises(ValueError, match=re.escape(str(path)) + ".*" + message):
        read_tasks(path, 2)


def test_a_cell_array_that_claims_another_number_of_cells_is_refused(tmp_path):
    path = matlab_file(tmp_path / "t.mat", X=[ROW, ROW], Y=[ROW[:, :1], ROW[:, :1]])
    data = path.read_bytes()
    shape = struct.pack("<ii", 1, 2)  # of X first
    for claimed in ((1, 1), (1, 3), (1, -2), (2**15, 2**15)):
        path.write_bytes(data.replace(shape, struct.pack("<ii", *claimed), 1))
        with pytest.raises(ValueError, match="not a MATLAB file with X and Y"):
            read_tasks(path, 2)


TABS = functools.partial(read_movielens, separator=b"\t")


@pytest.mark.parametrize(
    ("reader", "text", "message"),
    [
        (TABS, b"1\t2\t3\t4\n1\t2\t3\n1\t2\t3\t4\t5\n", r"line 2: expected user, item, .* got b'1\\t2\\t3'"),
        (TABS, b"1\t2\t3\t4\n\n1\t2\t3\t4\n", "line 2"),
        (TABS, b"1\t2\tx\t4\n", "line 1"),
        (TABS, b"", "line 1"),
        (read_book_crossing, b'"u";"b";"r"\n"1";"2";"3"\n"1";"a"b";"3"\n', "line 3"),
        (read_book_crossing, b'"1";"2";"3"', "line 2"),
        (read, b"1 1:2\n1 2:x\n", r"line 2: expected a target and index:value pairs, got b'1 2:x'"),
        (read, b"1 1:2:3 4\n", "line 1"),
        (read, b"1 1:nan\n", "line 1"),
        (read, b"1 1:2\n1\n1 2:1 4:1\n", "line 3: expected ascending indices from 1 to 3, got 4"),
        (read, b"1 1:2\n1 0:1\n", "line 2: .* got 0"),
        (read, b"1 1:2\n1 2:1 2:1\n", "line 2: .* got 2"),
        (read, b"MATLAB 5.0 MAT-file, cut", "not a MATLAB file with X and y"),
        (read_csv, b"a,b\n1,2\n1\n", "line 3: expected 2 fields as in the header, got 1"),
        (read_csv, b'a,b\n1,"2\n', "line 2"),
        (read_csv, b"a,a\n1,2\n", "distinct names"),
        (read_csv, b"a,b\n", "at least one row"),
        (read_csv, b"a,\xff\n1,2\n", "not UTF-8"),
        (functools.partial(read_idx, dimensions=1), b"\0\0\x08\x03" + bytes(12), "IDX file of bytes in 1 dimensions"),
        (
            functools.partial(read_idx, dimensions=1),
            b"\0\0\x08\x01" + struct.pack(">I", 5) + b"abc",
            "5 bytes .* got 3",
        ),
        (read_newsgroups, b"PK\x03\x04 no archive", "expected an NPZ file"),
        (read_newsgroups, b"", "expected an NPZ file"),
        (read_newsgroups, b"\x93NUMPY\x01\x00", "expected an NPZ file"),
    ],
)
def test_malformed_files_are_named_with_the_line(tmp_path, reader, text, message):
    path = put(tmp_path, "broken", text)
    with pytest.raises(ValueError, match=re.escape(str(path)) + ".*" + message):
        reader(path)


def test_fingerprints_see_values_not_notation():
    a = np.array([[0.0, 1.5], [np.nan, -2.0]])
    assert fingerprint(a) == fingerprint(np.asfortranarray(a)) == fingerprint(a.astype(">f8"))
    assert fingerprint(a) == fingerprint(np.array([[-0.0, 1.5], [-np.nan, -2.0]]))
    assert fingerprint(np.arange(3, dtype=np.int32)) == fingerprint(np.arange(3))
    different = [a, a.ravel(), a.T, (a, a), {"a": a}, {"b": a}, np.arange(3), np.arange(3.0), np.array(["0", "1"])]
    different += [csr_array(np.eye(2)), csr_array(np.eye(2, 3))]
    assert len({fingerprint(value) for value in different}) == len(different)
    with pytest.raises(TypeError, match="array of object"):
        fingerprint(np.array([None]))


# ---- the real data, where they are here


def here(name):
    """The raw bytes of the files of a data set by role, or skip."""
    folder = os.environ.get("BILEVAX_DATA")
    if not folder:
        pytest.skip("BILEVAX_DATA is not set")
    paths = {file.role: Path(folder) / file.path for file in ENTRIES[name].files}
    for path in paths.values():
        if not path.is_file():
            pytest.skip(f"{path} is not here")
    return paths


def plain(path):
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()


@pytest.mark.parametrize(("name", "role"), [(name, file.role) for name in ENTRIES for file in ENTRIES[name].files])
def test_real_files_have_the_registered_content(name, role):
    path = here(name)[role]
    file = next(file for file in ENTRIES[name].files if file.role == role)
    assert datasets.fetch(name, role) == {role: path}
    assert fingerprint(file.read(path)) == file.content


@pytest.mark.parametrize(
    ("name", "load", "separator", "shape", "count"),
    [
        ("movielens-100k", datasets.movielens_100k, "\t", (943, 1682), 100_000),
        ("movielens-1m", datasets.movielens_1m, "::", (6040, 3706), 1_000_209),
    ],
)
def test_real_movielens(name, load, separator, shape, count):
    lines = plain(here(name)["ratings"]).decode().splitlines()
    ratings = load()
    assert ratings.shape == shape and len(ratings.values) == len(lines) == count
    assert len(set(zip(ratings.rows.tolist(), ratings.cols.tolist(), strict=True))) == count
    assert np.array_equal(np.unique(ratings.rows), np.arange(shape[0]))
    assert np.array_equal(np.unique(ratings.cols), np.arange(shape[1]))
    named = {(u, i): k for k, (u, i) in enumerate(zip(*names(ratings), strict=True))}
    for line in lines[::997]:
        user, item, value, time = map(int, line.split(separator))
        k = named[user, item]
        assert (ratings.values[k], ratings.times[k]) == (value, time)
    assert ratings.values.mean() == pytest.approx(sum(int(line.split(separator)[2]) for line in lines) / count)


def names(ratings):
    return ratings.row_ids[ratings.rows].tolist(), ratings.col_ids[ratings.cols].tolist()


@pytest.mark.slow
def test_real_book_crossing():
    text = plain(here("book-crossing")["ratings"]).decode("latin-1")
    rows = list(csv.reader(io.StringIO(text, newline=""), delimiter=";", escapechar="\\"))[1:]
    ratings = datasets.book_crossing(explicit=False)
    assert ratings.shape == (105_283, 340_556)
    expected = {(user, book): float(value) for user, book, value in rows}
    assert dict(zip(zip(*names(ratings), strict=True), ratings.values.tolist(), strict=True)) == expected
    explicit = datasets.book_crossing()
    assert len(explicit.values) == 433_671 and explicit.values.min() == 1 and explicit.values.max() == 10
    assert dict(zip(zip(*names(explicit), strict=True), explicit.values.tolist(), strict=True)) == {
        pair: value for pair, value in expected.items() if value
    }


def slow_libsvm(text, features):
    X, y = [], []
    for line in text.decode().splitlines():
        target, *pairs = line.split()
        row = [0.0] * features
        for pair in pairs:
            index, value = pair.split(":")
            row[int(index) - 1] = float(value)
        X.append(row)
        y.append(float(target))
    return np.array(X), np.array(y)


REGRESSION = {"bodyfat": (252, 14), "housing": (506, 13), "mg": (1385, 6), "mpg": (392, 7), "space_ga": (3107, 6)}


@pytest.mark.parametrize("name", datasets.REGRESSION)
def test_real_libsvm_regression(name):
    X, y = slow_libsvm(plain(here(name)["table"]), REGRESSION[name][1])
    table = datasets.libsvm_regression(name)
    assert table.X.shape == REGRESSION[name] and table.X.dtype == float
    np.testing.assert_array_equal(table.X, X)
    np.testing.assert_array_equal(table.y, y)
    assert np.abs(table.X).max() == 1


def test_real_housing_target_is_the_one_of_boston():
    here("housing")
    assert datasets.libsvm_regression("housing").y.mean() == pytest.approx(22.5328, abs=1e-4)


@pytest.mark.parametrize(
    ("split", "shape", "positive"), [("train", (32_561, 123), 7_841), ("test", (16_281, 123), 3_846)]
)
def test_real_a9a(split, shape, positive):
    X, y = slow_libsvm(plain(here("a9a")[split]), 123)
    table = datasets.a9a(split)
    assert table.X.shape == shape and np.sum(table.y == 1) == positive and set(table.y) == {-1.0, 1.0}
    np.testing.assert_array_equal(table.X.toarray(), X)
    np.testing.assert_array_equal(table.y, y)


def test_real_ijcnn1_and_the_publishers_form_of_it(tmp_path, monkeypatch):
    here("ijcnn1")
    table = datasets.ijcnn1()
    assert table.X.shape == (49_990, 22) and np.sum(table.y == 1) == 4_853 and set(table.y) == {-1.0, 1.0}
    lines = (
        f"{target:g} " + " ".join(f"{j + 1}:{row[j]:g}" for j in np.flatnonzero(row)) + " \n"
        for row, target in zip(table.X, table.y, strict=True)
    )
    put(tmp_path, "libsvm-classification/ijcnn1.bz2", bz2.compress("".join(lines).encode()))
    monkeypatch.setenv("BILEVAX_DATA", str(tmp_path))
    again = datasets.ijcnn1()
    np.testing.assert_array_equal(again.X, table.X)
    np.testing.assert_array_equal(again.y, table.y)


@pytest.mark.slow
def test_real_movielens_in_the_publishers_archive(server, tmp_path, monkeypatch):
    raw = plain(here("movielens-1m")["ratings"])
    monkeypatch.delenv("BILEVAX_DATA")
    monkeypatch.setenv("BILEVAX_CACHE", str(tmp_path))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    entry = ENTRIES["movielens-1m"]
    served = replace(entry, files=(replace(entry.files[0], url=server.url + "ml-1m.zip"),))
    monkeypatch.setitem(ENTRIES, "movielens-1m", served)
    server.pages["/ml-1m.zip"] = archive(**{"ml-1m/README": b"terms", "ml-1m/ratings.dat": raw})
    assert datasets.movielens_1m().shape == (6040, 3706)
    assert files_below(tmp_path) == [tmp_path / "ml-1m" / "ratings.dat"]


def test_real_nlsy79():
    rows = list(csv.DictReader(plain(here("nlsy79")["table"]).decode().splitlines()))
    frame = datasets.nlsy79()
    assert frame.shape == frame.complete().shape == (4908, 18) and frame.outcome == "income90"
    assert {name for name, column in frame.columns.items() if column.dtype.kind == "U"} == {
        "race", "gender", "grade90", "partner", "genhealth", "typejob90", "jobtrain90",
    }  # fmt: skip
    assert list(frame["gender"]) == [row["gender"] for row in rows]
    np.testing.assert_array_equal(frame["income90"], [float(row["income90"]) for row in rows])


def test_real_nlsy79_labor_income():
    rows = list(csv.DictReader(plain(here("nlsy79-labor-income")["table"]).decode().splitlines()))
    frame = datasets.nlsy79_labor_income()
    assert frame.shape == (12_686, 18) and frame.complete().shape == (5_640, 18)
    assert all(column.dtype == float for column in frame.columns.values())
    assert np.nansum(frame[frame.outcome]) == sum(float(row["laborinc07"] or 0) for row in rows)


@pytest.mark.parametrize(
    ("split", "digits"),
    [
        ("train", [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]),
        ("test", [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]),
    ],
)
def test_real_mnist(split, digits):
    raw = plain(here("mnist")[f"{split}-images"])
    images, labels = datasets.mnist(split)
    assert images.shape == (sum(digits), 28, 28) and images.dtype == labels.dtype == np.uint8
    assert images[-1].tobytes() == raw[-784:] and images[0, 0, 0] == raw[16]
    np.testing.assert_array_equal(np.bincount(labels), digits)


def test_real_newsgroups():
    here("20newsgroups")
    counts, y20, y6 = datasets.newsgroups()
    assert counts.shape == (18_221, 36_568) and counts.nnz == 893_733 and counts.data.min() == 1
    assert set(y20) == set(range(1, 21)) and set(y6) == set(range(1, 7))
    assert len(set(zip(y20.tolist(), y6.tolist(), strict=True))) == 20


def test_real_school():
    expected = scipy.io.loadmat(here("school")["pupils"])
    Xs, ys = ([np.asarray(cell, float) for cell in expected[name].ravel()] for name in "XY")
    X, y, task = datasets.school()
    assert X.shape == (15_362, 28) and X.dtype == y.dtype == float
    np.testing.assert_array_equal(X, np.vstack(Xs))
    np.testing.assert_array_equal(y, np.vstack(ys)[:, 0])
    np.testing.assert_array_equal(np.bincount(task), [len(school) for school in Xs])
    assert np.all(np.diff(task) >= 0) and task[-1] == 138 and np.all(X[:, -1] == 1)
