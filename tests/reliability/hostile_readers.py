"""Every reader of files: a valid file, how to change it at its surface or inside, and what a result must satisfy.

Formats with checksums refuse almost every changed byte at once. So their parts are changed before the checksums are
computed, as somebody would who means it.
"""

import bz2
import copy
import gzip
import hashlib
import io
import json
import shutil
import struct
import tempfile
import warnings
import zipfile
import zlib
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
from jobs import JOBS

import bilevax as bx
from bilevax import estimators, packed
from bilevax.datasets import frames, idx, libsvm, npz, ratings
from bilevax.datasets.download import _member
from bilevax.datasets.registry import DataFile
from bilevax.datasets.tasks import read_tasks
from bilevax.estimators import MatrixCompletion
from bilevax.files import unpacked
from bilevax.ratings import read_pairs, read_ratings, read_titles
from bilevax.runs import checkpoint

WEIRD = [
    None,
    True,
    -1,
    0,
    10**30,
    1e308,
    float("nan"),
    float("-inf"),
    "",
    "x",
    [],
    {},
    [[]],
    [1, "a"],
    {"class": "Box"},
]
WEIRD += [{"array": [1], "dtype": "O", "shape": [1]}, json.loads("[" * 300 + "]" * 300), {"list": [0, 9**20]}]


class Reader(NamedTuple):
    """`build(change, part)` makes a file in which `change` was applied to one part; `read` reads and checks it."""

    build: Any
    read: Any
    name: str = "file"


def raw(content):
    return lambda change, part: change(content())


def in_archive(content):
    """Changes one member of an archive whose checksums are right again."""

    def build(change, part):
        with zipfile.ZipFile(io.BytesIO(content())) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
        chosen = list(members)[part % len(members)]
        members[chosen] = change(members[chosen])
        return zipped(members)

    return build


def zipped(members, comment=b"", kind=zipfile.ZIP_STORED):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", kind) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
        archive.comment = comment
    return out.getvalue()


def places(value, at=()):
    """The way to every entry of a JSON value."""
    yield at
    if isinstance(value, (dict, list)):
        for name in value if isinstance(value, dict) else range(len(value)):
            yield from places(value[name], (*at, name))


def forged(value, change, part):
    """A JSON value in which one entry is another one: `change` decides which."""
    ways = list(places(value))
    chosen = int.from_bytes(hashlib.sha256(change(b"some bytes to change 0123456789")).digest()[:8], "little") + part
    way, weird = ways[chosen % len(ways)], WEIRD[chosen // len(ways) % len(WEIRD)]
    if not way:
        return weird
    value = copy.deepcopy(value)
    inner = value
    for name in way[:-1]:
        inner = inner[name]
    if chosen % 7 == 0:
        del inner[way[-1]]
    else:
        inner[way[-1]] = weird
    return value


def forged_header(content):
    """A file of `packed` with another header and right checksums."""

    def build(change, part):
        with zipfile.ZipFile(io.BytesIO(content())) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
        text = json.dumps(forged(json.loads(members["header.json"]), change, part)).encode()
        members["header.json"] = text
        return zipped(members, hashlib.sha256(text).hexdigest().encode())

    return build


def forged_model(content):
    """A model file with another header."""

    def build(change, part):
        with zipfile.ZipFile(io.BytesIO(content())) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
        with io.BytesIO(members["header.npy"]) as stream:
            header = json.loads(str(np.load(stream)))
        out = io.BytesIO()
        np.save(out, np.array(json.dumps(forged(header, change, part))))
        return zipped({**members, "header.npy": out.getvalue()})

    return build


# ---- valid files

TRIPLE = (np.array([0, 0, 1, 1, 2, 2, 3, 3, 3]), np.array([0, 1, 1, 2, 0, 2, 0, 1, 2]), np.arange(9.0) % 5 + 1)
CSV = b"userId,movieId,rating,timestamp\n" + b"".join(
    b"%d,%d,%.1f,%d\n" % (r + 7, c + 100, v, 10**9 + i) for i, (r, c, v) in enumerate(zip(*TRIPLE, strict=True))
)
TSV = CSV.split(b"\n", 1)[1].replace(b",", b"\t")


def npz_bytes(compressed=True, **arrays):
    out = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(out, **arrays)
    return out.getvalue()


@cache
def sparse_npz(kind):
    out = io.BytesIO()
    scipy.sparse.save_npz(out, scipy.sparse.coo_array((TRIPLE[2], TRIPLE[:2])).asformat(kind))
    return out.getvalue()


@cache
def columns_npz():
    return npz_bytes(rows=TRIPLE[0], cols=np.array([f"i{c}" for c in TRIPLE[1]]), values=TRIPLE[2])


@cache
def parquet_bytes():
    import pyarrow
    import pyarrow.parquet

    out = io.BytesIO()
    names = [f"user {r}" for r in TRIPLE[0]]
    table = pyarrow.table({"user": names, "item": TRIPLE[1], "rating": TRIPLE[2], "v": [[1.0, 2.0]] * 9})
    pyarrow.parquet.write_table(table, out, row_group_size=5)
    return out.getvalue()


@cache
def model_file():
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rng = np.random.default_rng(0)
        rows, cols = np.nonzero(rng.random((12, 9)) < 0.7)
        model = MatrixCompletion(effort="fast", random_state=0).fit((rows, cols, rows * 0.3 - cols * 0.2))
        return model.save(
            Path(folder) / "model.npz", row_ids=[f"u{i}" for i in range(model.left_.shape[0])]
        ).read_bytes()


@cache
def run_files():
    """The files of a short run: result, trace, config and a checkpoint with its rows."""
    folder = Path(tempfile.mkdtemp())
    try:
        make, _ = JOBS["IBCG"]
        bx.solve(*make(), steps=3, checkpoint=folder / "run").save(folder / "run")
        return {path.name: path.read_bytes() for path in (folder / "run").iterdir()}
    finally:
        shutil.rmtree(folder)


def state_name():
    return max(name for name in run_files() if name.startswith("state-"))


@cache
def newsgroups():
    counts = scipy.sparse.csr_array(np.eye(4, 6) * 2)
    parts = {"data": counts.data, "indices": counts.indices, "indptr": counts.indptr, "shape": np.array(counts.shape)}
    return npz_bytes(**parts, y20=np.arange(4), y6=np.arange(4) % 2)


def matlab(pack=True):
    """X of 3 x 2 and y in the format of MATLAB 5."""
    return _matlab_file(pack, X=np.arange(6.0).reshape(3, 2), y=np.ones((3, 1)))


def matlab_cells(pack=True):
    """Two cells of X and of Y in the format of MATLAB 5."""
    return _matlab_file(pack, X=[np.arange(6.0).reshape(3, 2), np.ones((1, 2))], Y=[np.ones((3, 1)), np.ones((1, 1))])


def _matlab_file(pack, **arrays):
    def element(kind, content):
        return struct.pack("<II", kind, len(content)) + content + bytes(-len(content) % 8)

    def matrix(name, array):
        cells = isinstance(array, list)
        flags, shape = struct.pack("<II", 1 if cells else 6, 0), (1, len(array)) if cells else array.shape
        parts = element(6, flags) + element(5, struct.pack("<ii", *shape)) + element(1, name)
        inner = b"".join(matrix(b"", cell) for cell in array) if cells else element(9, array.tobytes("F"))
        return element(14, parts + inner)

    def top(name, array):
        whole = matrix(name.encode(), array)
        if not pack:
            return whole
        packed_ = zlib.compress(whole)
        return struct.pack("<II", 15, len(packed_)) + packed_

    start = b"MATLAB 5.0 MAT-file".ljust(124) + b"\0\1IM"
    return start + b"".join(top(name, array) for name, array in arrays.items())


IDX = bytes([0, 0, 8, 3]) + struct.pack(">3I", 2, 3, 4) + bytes(range(24))
LIBSVM = b"1 1:0.5 3:2\n-1 2:1e-3\n+1 1:3 2:4 3:-5\n"
MOVIELENS = b"1::10::5::978300760\n2::11::3::978302109\n1::12::4::978301968\n"
BOOKS = b'"User-ID";"ISBN";"Book-Rating"\n"276725";"034545104X";"0"\n"276726";"\\"01\\"";"5"\n'
FRAME = b'"a","b","c"\n1.5,x,\n2,"y, z",3\n'
TITLES = b"item,title\n10,Alien\n11,Brazil\n"


# ---- what a result must satisfy


def table_of_ratings(found):
    assert np.all(np.isfinite(found.values)) and len(found.rows) == len(found.cols) == len(found.values)
    assert 0 <= found.rows.min() and found.rows.max() < len(found.row_ids)
    assert 0 <= found.cols.min() and found.cols.max() < len(found.col_ids)


def of_user(path):
    table_of_ratings(read_ratings(path)[0])


def of_publisher(read):
    def check(path):
        found = read(path)
        if found.values.size:
            table_of_ratings(found)

    return check


def model(path):
    found, row_ids, col_ids = estimators.load(path)
    assert len(row_ids) == len(found.left_) and len(col_ids) == len(found.right_)
    with np.errstate(all="ignore"):
        found.predict([0, -1, 10**6], [0, 1, 2])
        found.recommend(0, 3)
        found.complete()
    assert str(found)


def array_of_bytes(path):
    assert idx.read_idx(path, 3).dtype == np.uint8


def sparse_table(path):
    with np.errstate(all="ignore"):
        X, y = libsvm.read_sparse(path, 3)
    assert X.shape == (len(y), 3)


def dense_table(path):
    X, y = libsvm.read_dense(path, 2)
    assert X.shape == (len(y), 2)


def tasks(path):
    X, y, task = read_tasks(path, 2)
    assert X.shape == (len(y), 2) and len(task) == len(y)


def counts(path):
    found = npz.read_newsgroups(path)
    assert found.counts.shape[0] == len(found.y20)


def pairs(path):
    users, items = read_pairs(path)
    assert len(users) == len(items)


def same_arrays(path):
    header, arrays = packed.read(path)
    truth, expected = _truth()
    assert header == truth and arrays.keys() == expected.keys()
    assert all(arrays[name].tobytes() == expected[name].tobytes() for name in expected)


@cache
def _truth():
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state.npz"
        path.write_bytes(run_files()[state_name()])
        return packed.read(path)


def in_folder(changed, read):
    """Puts the changed file among the others of its run."""

    def check(path):
        folder = path.parent / "run"
        folder.mkdir(exist_ok=True)
        for name, content in run_files().items():
            if name == state_name() or not name.startswith(("state-", "lock")):
                (folder / name).write_bytes(path.read_bytes() if name == changed() else content)
        read(folder)

    return check


def result(folder):
    found = bx.load(folder)
    assert str(found) and isinstance(found.constants(), dict)


def saved(folder):
    found = checkpoint.newest(folder)
    for part in ("x0", "y0"):
        found.tree(part)
        found.leaves(part)


def stream(path):
    rows = bx.Stream.parquet(path, {"A": ["item", "rating"], "b": "rating", "v": "v"}, window=4)
    try:
        found = rows.read(0, len(rows))
    except RuntimeError as error:
        raise ValueError(str(error)) from error
    assert len(found["A"]) == len(found["b"]) == len(found["v"]) == len(rows)


FILE = DataFile("table", "table", "", "", libsvm.read_dense, "http://127.0.0.1/all.zip", "inner/table")

READERS = {
    "checkpoint": Reader(raw(lambda: run_files()[state_name()]), same_arrays, "state.npz"),
    "checkpoint, forged header": Reader(
        forged_header(lambda: run_files()[state_name()]), in_folder(state_name, saved), "x.npz"
    ),
    "checkpoint, its rows": Reader(raw(lambda: run_files()["rows.csv"]), in_folder(lambda: "rows.csv", saved), "x.csv"),
    "result": Reader(raw(lambda: run_files()["result.npz"]), in_folder(lambda: "result.npz", result), "x.npz"),
    "result, forged header": Reader(
        forged_header(lambda: run_files()["result.npz"]), in_folder(lambda: "result.npz", result), "x.npz"
    ),
    "result, forged config": Reader(
        lambda change, part: json.dumps(forged(json.loads(run_files()["config.json"]), change, part)).encode(),
        in_folder(lambda: "config.json", result),
        "x.json",
    ),
    "config.json": Reader(raw(lambda: run_files()["config.json"]), in_folder(lambda: "config.json", result), "x.json"),
    "trace.csv": Reader(raw(lambda: run_files()["trace.csv"]), bx.Trace.from_csv, "trace.csv"),
    "model": Reader(raw(model_file), model, "model.npz"),
    "model, arrays": Reader(in_archive(model_file), model, "model.npz"),
    "model, forged header": Reader(forged_model(model_file), model, "model.npz"),
    "ratings CSV": Reader(raw(lambda: CSV), of_user, "ratings.csv"),
    "ratings TSV": Reader(raw(lambda: TSV), of_user, "ratings.tsv"),
    "ratings gzip": Reader(raw(lambda: gzip.compress(CSV, mtime=0)), of_user, "ratings.csv.gz"),
    "ratings NPZ": Reader(raw(columns_npz), of_user, "ratings.npz"),
    "ratings NPZ, arrays": Reader(in_archive(columns_npz), of_user, "ratings.npz"),
    "ratings sparse csr": Reader(in_archive(lambda: sparse_npz("csr")), of_user, "ratings.npz"),
    "ratings sparse csc": Reader(in_archive(lambda: sparse_npz("csc")), of_user, "ratings.npz"),
    "ratings sparse bsr": Reader(in_archive(lambda: sparse_npz("bsr")), of_user, "ratings.npz"),
    "ratings sparse coo": Reader(in_archive(lambda: sparse_npz("coo")), of_user, "ratings.npz"),
    "ratings sparse dia": Reader(in_archive(lambda: sparse_npz("dia")), of_user, "ratings.npz"),
    "ratings Parquet": Reader(raw(parquet_bytes), of_user, "ratings.parquet"),
    "stream Parquet": Reader(raw(parquet_bytes), stream, "rows.parquet"),
    "pairs": Reader(raw(lambda: CSV), pairs, "pairs.csv"),
    "titles": Reader(raw(lambda: TITLES), read_titles, "titles.csv"),
    "idx": Reader(raw(lambda: IDX), array_of_bytes, "images"),
    "idx gzip": Reader(raw(lambda: gzip.compress(IDX, mtime=0)), array_of_bytes, "images.gz"),
    "LIBSVM": Reader(raw(lambda: LIBSVM), sparse_table, "table"),
    "LIBSVM bzip2": Reader(raw(lambda: bz2.compress(LIBSVM)), sparse_table, "table.bz2"),
    "MATLAB": Reader(lambda change, part: change(matlab(pack=part % 2 == 0)), dense_table, "table.mat"),
    "MATLAB cells": Reader(lambda change, part: change(matlab_cells(pack=part % 2 == 0)), tasks, "tasks.mat"),
    "newsgroups": Reader(in_archive(newsgroups), counts, "newsgroups.npz"),
    "MovieLens": Reader(
        raw(lambda: MOVIELENS), of_publisher(partial(ratings.read_movielens, separator=b"::")), "ratings.dat"
    ),
    "Book-Crossing": Reader(raw(lambda: BOOKS), of_publisher(ratings.read_book_crossing), "books.csv"),
    "frame": Reader(raw(lambda: FRAME), frames.read_csv, "frame.csv"),
    "zip download": Reader(
        raw(lambda: zipped({"inner/table": LIBSVM}, kind=zipfile.ZIP_DEFLATED)),
        lambda path: _member(path, FILE),
        "inner",
    ),
    "unpacked": Reader(raw(lambda: gzip.compress(CSV, mtime=0)), lambda path: unpacked(path), "file.gz"),
}
