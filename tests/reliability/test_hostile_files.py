"""Files of others: whatever they hold, a reader gives a sound result or one documented error, in little memory."""

import json
import os
import random
import subprocess
import sys
import time

import numpy as np
import pytest
import scipy.sparse
from bombs import bombs, gzip_bomb
from hostile_readers import READERS as FILE_READERS
from hostile_readers import TRIPLE
from hostile_tables import TABLE_READERS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mutations import DIGITS, HUGE, OPERATIONS, mutated

import bilevax as bx
from bilevax import estimators, limits
from bilevax.datasets.idx import read_idx
from bilevax.estimators import MatrixCompletion
from bilevax.files import unpacked
from bilevax.ratings import read_ratings

READERS = FILE_READERS | TABLE_READERS
QUICK = 60
SLOW, SLOW_SECONDS = 100_000, 600


def attempt(reader, folder, operations, part):
    """Read one changed file. The only errors are ValueError and FileNotFoundError, in one line that names the file."""
    path = folder / reader.name
    path.write_bytes(reader.build(lambda content: mutated(content, operations), part))
    try:
        reader.read(path)
    except (ValueError, FileNotFoundError) as error:
        words = str(error)
        named = (reader.name, "run", "state-", "inner")
        assert any(name in words for name in named), f"the message does not name the file: {words}"
        assert "\n" not in words.strip() and len(words) < 2000, words
        return False
    return True


@pytest.mark.parametrize("name", READERS)
def test_a_valid_file_is_read(name, tmp_path):
    if "forged" in name:
        pytest.skip("a forged file is never valid")
    assert attempt(READERS[name], tmp_path, [], 0)


@pytest.mark.parametrize("name", READERS)
def test_changed_files_give_a_sound_result_or_a_documented_error(name, tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile")

    @settings(
        max_examples=QUICK, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
    )
    @given(OPERATIONS, st.integers(0, 100))
    def check(operations, part):
        attempt(READERS[name], folder, operations, part)

    check()


def drawn(chance):
    """Operations as Hypothesis draws them, a hundred times faster."""
    kinds = {
        "flip": lambda: chance.randrange(8),
        "cut": lambda: 0,
        "drop": lambda: chance.randrange(1, 65),
        "repeat": lambda: chance.randrange(1, 65),
        "move": lambda: chance.randrange(2**16),
        "binary": lambda: chance.choice(HUGE),
        "text": lambda: chance.choice(DIGITS),
        "noise": lambda: chance.randbytes(chance.randrange(1, 13)),
    }
    chosen = chance.choices(list(kinds), k=chance.randrange(1, 5))
    return [(kind, chance.randrange(2**16), kinds[kind]()) for kind in chosen]


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_a_hundred_thousand_changed_files(name, tmp_path):
    """Or as many as fit in ten minutes; the last line says how many."""
    chance, end, read = random.Random(name), time.monotonic() + SLOW_SECONDS, 0
    for count in range(1, SLOW + 1):  # noqa: B007
        operations, part = drawn(chance), chance.randrange(100)
        try:
            read += attempt(READERS[name], tmp_path, operations, part)
        except BaseException:
            print(f"{name}: {operations}, {part}")
            raise
        if time.monotonic() > end:
            break
    print(f"{name}: {count} files, {read} read, the others refused")


CHILD = """
import json, resource, sys
from pathlib import Path
from hostile_readers import FILE, dense_table, stream
from bilevax import estimators, limits, packed
from bilevax.datasets.download import _member
from bilevax.datasets.idx import read_idx
from bilevax.datasets.libsvm import read_sparse
from bilevax.datasets.npz import read_newsgroups
from bilevax.ratings import read_ratings
import bilevax as bx, pyarrow.parquet, scipy.sparse

limits.SMALL = int(sys.argv[2])
readers = {
    "ratings": read_ratings, "model": estimators.load, "newsgroups": read_newsgroups, "packed": packed.read,
    "idx": lambda path: read_idx(path, 3), "libsvm": lambda path: read_sparse(path, 3), "matlab": dense_table,
    "stream": lambda path: bx.Stream.parquet(path, {"A": ["item", "rating"], "b": "user"}),
    "member": lambda path: _member(path, FILE), "trace": bx.Trace.from_csv, "run": bx.load,
}
pages = int(Path("/proc/self/statm").read_text().split()[0])
limit = pages * resource.getpagesize() + 400_000_000
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
found = {}
for path in sorted(Path(sys.argv[1]).iterdir()):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        readers[path.name.split()[-1]](path)
        told = "nothing"
    except BaseException as error:
        told = f"{type(error).__name__}: {error}"
    found[path.name] = [told, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before]
print(json.dumps(found))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads the size of the process from /proc")
def test_files_that_claim_too_much_are_refused_in_little_memory(tmp_path):
    small = 16_000_000
    for name, content in bombs(small).items():
        (tmp_path / name).write_bytes(content)
    for name in ("huge.csv ratings", "huge.idx idx", "huge.csv trace"):  # a terabyte without a single block on disk
        with open(tmp_path / name, "wb") as stream:
            stream.truncate(10**12)
    (tmp_path / "folder run").mkdir()
    (tmp_path / "folder run" / "trace.csv").write_text("step\n")
    with open(tmp_path / "folder run" / "config.json", "wb") as stream:
        stream.truncate(10**12)
    environment = {**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system", "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    command = [sys.executable, "-c", CHILD, str(tmp_path), str(small)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert len(found) == len(list(tmp_path.iterdir()))
    for name, (told, kilobytes) in found.items():
        assert told.startswith(("ValueError: ", "DamagedFile: ", "DatasetCorrupt: ")), f"{name}: {told}"
        assert kilobytes < 200_000, f"{name} took {kilobytes} kB"
    needs = {name for name, (told, _) in found.items() if "BILEVAX_MOST_BYTES" in told}
    assert {"bomb.csv.gz ratings", "bomb.npz ratings", "rows.parquet ratings", "huge.csv ratings"} <= needs
    assert "more than 1000000 bytes" in found["one line.csv.gz ratings"][0]
    assert "does not describe numbers or text" in found["objects.npz ratings"][0]


def test_the_limit_can_be_raised_and_is_named(tmp_path, monkeypatch):
    path = tmp_path / "file.gz"
    path.write_bytes(gzip_bomb(1 << 24))
    monkeypatch.setattr(limits, "SMALL", 10**6)
    monkeypatch.setattr(limits, "RATIO", 1)
    with pytest.raises(ValueError, match=r"file\.gz: unpacked.*1000000 is the limit; if you trust.*BILEVAX_MOST_BYTES"):
        unpacked(path)
    monkeypatch.setenv("BILEVAX_MOST_BYTES", "1e8")
    with pytest.raises(ValueError, match="damaged"):  # its checksum is wrong
        unpacked(path)
    monkeypatch.setenv("BILEVAX_MOST_BYTES", "much")
    with pytest.raises(ValueError, match="BILEVAX_MOST_BYTES is 'much'; set it to a number of bytes"):
        unpacked(path)


def test_a_long_name_among_many_is_no_way_to_fill_the_memory(tmp_path, monkeypatch):
    lines = [f"u{i},{i % 7},{i % 5}" for i in range(1000)] + [f"{'x' * 400},1,2"]
    (tmp_path / "ratings.csv").write_text("user,item,rating\n" + "\n".join(lines))
    read_ratings(tmp_path / "ratings.csv")
    monkeypatch.setenv("BILEVAX_MOST_BYTES", "1e6")
    with pytest.raises(ValueError, match=r"ratings\.csv: the ids: 1001 texts of up to 400 characters would need"):
        read_ratings(tmp_path / "ratings.csv")


def test_devices_are_refused():
    with pytest.raises(ValueError, match="is a device"):
        read_ratings("/dev/zero")


def test_positions_outside_a_sparse_matrix_are_refused(tmp_path):
    """SciPy's compiled loops would write outside of their arrays."""
    parts = {"format": np.array(b"csr"), "shape": np.array([3, 3]), "data": np.ones(3), "indices": np.arange(3)}
    for starts in ([0, 2**40, -5, 3], [0, 2**40, 2**50, 0]):  # SciPy's own check lets the second one pass
        np.savez(tmp_path / "ratings.npz", **parts, indptr=np.array(starts))
        with pytest.raises(ValueError, match=r"ratings\.npz: this NPZ file cannot be read .*starts of 3 rows"):
            read_ratings(tmp_path / "ratings.npz")


@pytest.mark.parametrize("kind", ["csr", "csc", "coo", "dia", "bsr"])
def test_sparse_files_of_every_format_are_read_as_scipy_reads_them(kind, tmp_path):
    matrix = scipy.sparse.random_array((6, 4), density=0.7, rng=np.random.default_rng(1))
    stored = matrix.tobsr((3, 2)) if kind == "bsr" else matrix.asformat(kind)
    scipy.sparse.save_npz(tmp_path / "ratings.npz", stored)
    found = read_ratings(tmp_path / "ratings.npz")[0]
    again = np.zeros((6, 4))
    again[found.row_ids[found.rows], found.col_ids[found.cols]] = found.values
    np.testing.assert_array_equal(again, matrix.toarray())


def test_a_shape_that_claims_billions_of_rows_costs_nothing(tmp_path):
    parts = {"format": np.array(b"dia"), "data": np.arange(1.0, 10.0).reshape(3, 3), "offsets": np.array([-1, 0, 1])}
    np.savez(tmp_path / "ratings.npz", **parts, shape=np.array([2**40, 3]))
    assert read_ratings(tmp_path / "ratings.npz")[0].shape == (4, 3)


def test_large_ids_stay_apart(tmp_path):
    ids = np.array([1e300, 2e300, 1e300, 2e300])
    np.savez(tmp_path / "ratings.npz", rows=ids, cols=np.array([0, 0, 1, 1]), values=np.arange(4.0))
    assert read_ratings(tmp_path / "ratings.npz")[0].shape == (2, 2)


def test_a_stream_of_a_column_with_a_point_in_its_name(tmp_path):
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table({"a.b": [1.0, 2.0]}), tmp_path / "rows.parquet")
    stream = bx.Stream.parquet(tmp_path / "rows.parquet", {"x": "a.b"})
    assert stream.read(0, 2)["x"].tolist() == [1.0, 2.0]


def test_models_that_older_versions_wrote_can_be_read(tmp_path):
    """Formats 1 and 2 lack what came later; format 1 has other names."""
    from bilevax.estimators.matrix_completion import model_file

    model = MatrixCompletion(3.0, refit=False, max_steps=2).fit(TRIPLE)
    path = model.save(tmp_path / "model.npz")
    with np.load(path) as stored:
        arrays = {name: stored[name] for name in stored.files}
    header = json.loads(str(arrays.pop("header")))
    for name in model_file._SINCE_3:
        del header[name]
    names = {new: old for new, old in model_file._IN_FORMAT_1.items()}
    old = {names.get(name, name): value for name, value in header.items()} | {"format": 1}
    old["parameters"] = {names.get(name, name): value for name, value in header["parameters"].items()}
    old["parameters"] = {name: v for name, v in old["parameters"].items() if v != "deprecated"} | {"alike": 0.0}
    for made, form in ((header | {"format": 2}, arrays), (old, {names.get(n, n): a for n, a in arrays.items()})):
        np.savez_compressed(path, header=np.array(json.dumps(made)), **form)
        np.testing.assert_allclose(estimators.load(path)[0].complete(), model.complete(), rtol=1e-5)
    np.savez_compressed(path, header=np.array(json.dumps(header | {"format": 99})), **arrays)
    with pytest.raises(ValueError, match="has format 99; this bilevax reads up to 3. Update bilevax"):
        estimators.load(path)


def test_names_that_do_not_fit_are_not_saved(tmp_path):
    model = MatrixCompletion(effort="fast").fit(TRIPLE)
    with pytest.raises(ValueError, match="row_ids has shape .2,.; give a name for each of the 4"):
        model.save(tmp_path / "model.npz", row_ids=["a", "b"])


def test_a_model_that_would_predict_nan_is_refused(tmp_path):
    """A NaN of the kind that signals made numpy warn when it was turned into double precision."""
    path = MatrixCompletion(effort="fast").fit(TRIPLE).save(tmp_path / "model.npz")
    with np.load(path) as stored:
        arrays = {name: stored[name] for name in stored.files}
    for bits in (0x7FA00000, 0x7F800000):  # NaN that signals, infinity
        arrays["row_effects_"] = np.full(len(arrays["row_effects_"]), bits, np.uint32).view(np.float32)
        np.savez_compressed(path, **arrays)
        with pytest.raises(ValueError, match=r"model\.npz is not.*row_effects_ holds numbers that are not finite"):
            estimators.load(path)


def test_images_of_a_shape_that_no_array_has_are_refused_with_their_name(tmp_path):
    path = tmp_path / "images"
    path.write_bytes(bytes([0, 0, 8, 3]) + 2 * (2**32 - 1).to_bytes(4, "big") + (0).to_bytes(4, "big"))
    with pytest.raises(ValueError, match="images: shape .4294967295, 4294967295, 0.: "):
        read_idx(path, 3)
