"""Fits that die anywhere and go on: the same bits as without that; other fits and damaged files are refused."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import warnings

import numpy as np
import pytest
from completions import JOBS, X, same, uninterrupted
from faulty_disk import FaultyDisk, Killed
from sklearn.base import clone

import bilevax as bx
from bilevax import cli, files, packed
from bilevax.encoding import decode, encode
from bilevax.estimators import MatrixCompletion
from bilevax.estimators.matrix_completion import checkpoint as completion_checkpoint
from bilevax.estimators.matrix_completion import journal
from bilevax.estimators.matrix_completion.new_rows import Shrunk
from bilevax.estimators.matrix_completion.stored_classes import forms
from bilevax.runs import checkpoint_options
from bilevax.runs.lock import Busy, Lock

KINDS = ("killed", "no rename", "lost", "error", "full")
QUICK = [("ball", "no rename", 4000), ("ball", "full", 1500), ("factors", "lost", 2500)]
"""Fits, faults, and at which call of the disk: there are about 6000 and 4000."""
OFTEN = 0.03  # seconds between checkpoints


@pytest.fixture(autouse=True)
def _write_often(monkeypatch):
    monkeypatch.setattr(checkpoint_options, "LEAST_SHARE", 0)


def model(name, folder, seconds=OFTEN, **options):
    return MatrixCompletion(**{**JOBS[name], **options}, checkpoint=bx.Checkpoint(folder, seconds=seconds))


def disturbed(name, kind, at, folder, monkeypatch, seconds=OFTEN):
    """A fit on a disk that fails at one call; whether it died, and the number of calls that there were."""
    disk = FaultyDisk(kind, at)
    with monkeypatch.context() as patched, warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        patched.setattr(files, "DISK", disk)
        try:
            found = model(name, folder, seconds).fit(X)
        except Killed:
            return True, disk.calls
    assert same(found, uninterrupted(name))
    return False, disk.calls


def go_on(name, folder, damaged=False, **options):
    """The same fit again; only damage is worth a warning."""
    with warnings.catch_warnings():
        if damaged:
            warnings.simplefilter("ignore", RuntimeWarning)
        return model(name, folder, 10.0, **options).fit(X)


@pytest.mark.parametrize(("name", "kind", "at"), QUICK)
def test_a_fit_that_dies_goes_on_to_the_same_bits(name, kind, at, tmp_path, monkeypatch):
    disturbed(name, kind, at, tmp_path, monkeypatch)
    assert same(go_on(name, tmp_path, kind == "lost"), uninterrupted(name))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", JOBS)
def test_a_fit_that_dies_at_any_call_goes_on_to_the_same_bits(name, kind, tmp_path, monkeypatch):
    chance = random.Random(f"{name} {kind}")
    _, most = disturbed(name, "killed", 10**9, tmp_path / "whole", monkeypatch, 0.0)
    for i in range(8):
        folder = tmp_path / str(i)
        for _ in range(chance.randrange(1, 4)):  # some die several times
            disturbed(name, kind, chance.randrange(1, most), folder, monkeypatch, 0.0)
        assert same(go_on(name, folder, kind == "lost"), uninterrupted(name))


CHILD = """
import sys
import bilevax as bx
from completions import JOBS, X
from bilevax.estimators import MatrixCompletion
MatrixCompletion(**JOBS[sys.argv[1]], checkpoint=bx.Checkpoint(sys.argv[2], seconds=0.0)).fit(X)
"""


def killed_in_a_process(name, folder, after, number=signal.SIGKILL):
    """A fit in another process that is killed so many seconds after its first checkpoint."""
    path = os.pathsep.join(filter(None, [os.path.dirname(__file__), *sys.path]))
    child = subprocess.Popen([sys.executable, "-c", CHILD, name, folder], env={**os.environ, "PYTHONPATH": path})
    end = time.monotonic() + 60
    while not (folder / "running.npz").exists() and child.poll() is None and time.monotonic() < end:
        time.sleep(0.01)
    time.sleep(after)
    child.send_signal(number)
    child.wait(60)


@pytest.mark.parametrize(("name", "after"), [("factors", 0.2), pytest.param("both", 1.0, marks=pytest.mark.slow)])
def test_a_killed_process_goes_on_to_the_same_bits(name, after, tmp_path):
    killed_in_a_process(name, tmp_path / "fit", after)
    assert same(go_on(name, tmp_path / "fit"), uninterrupted(name))
    assert sorted(file.name for file in (tmp_path / "fit").iterdir()) == ["fit.npz", "lock"]


@pytest.mark.slow
def test_thirty_killed_processes_go_on_to_the_same_bits(tmp_path):
    chance = random.Random(0)
    for i in range(30):
        name = chance.choice(list(JOBS))
        for _ in range(chance.randrange(1, 3)):
            killed_in_a_process(name, tmp_path / str(i), chance.uniform(0, 6))
        assert same(go_on(name, tmp_path / str(i)), uninterrupted(name))


def unfinished(name, folder, monkeypatch):
    """A fit that died after some dozens of checkpoints."""
    died, _ = disturbed(name, "killed", 6000, folder, monkeypatch, 0.0)
    assert died


def test_a_finished_fit_gives_its_model_again_at_once(tmp_path, monkeypatch):
    first = model("factors", tmp_path / "fit").fit(X)
    assert sorted(file.name for file in (tmp_path / "fit").iterdir()) == ["fit.npz", "lock"]
    monkeypatch.setattr("bilevax.estimators.matrix_completion.estimator.learn", None)
    again = model("factors", tmp_path / "fit").fit(X)
    assert same(again, first) and same(first, uninterrupted("factors"))
    assert again.seconds_ == first.seconds_ and str(again) == str(first)


def test_without_a_seed_the_same_entries_stay_held_out(tmp_path, monkeypatch):
    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(files, "DISK", FaultyDisk("killed", 3000))
        model("factors", tmp_path / "one", 0.0, random_state=None).fit(X)
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    found = [go_on("factors", tmp_path / name, random_state=None) for name in ("one", "two")]
    assert same(*found)


def test_what_was_computed_is_not_computed_again(tmp_path, monkeypatch):
    from bilevax.estimators.matrix_completion.factors import Factors

    sweeps, real = [], Factors.sweep
    monkeypatch.setattr(Factors, "sweep", lambda self: sweeps.append(1) or real(self))
    with monkeypatch.context() as patched, pytest.raises(Killed):  # at the very end
        patched.setattr("bilevax.estimators.matrix_completion.journal.Journal.finish", _dies)
        model("factors", tmp_path).fit(X)
    whole = len(sweeps)
    assert whole > 20
    sweeps.clear()
    assert same(model("factors", tmp_path, 10.0).fit(X), uninterrupted("factors"))
    assert len(sweeps) < whole / 2


def test_another_fit_is_refused_and_named(tmp_path, monkeypatch):
    unfinished("factors", tmp_path, monkeypatch)
    changed = X.copy()
    changed[tuple(np.argwhere(~np.isnan(X))[0])] += 1e-9
    fewer = X.copy()
    fewer[tuple(np.argwhere(~np.isnan(X))[0])] = np.nan
    others = {
        "the values of the entries": (changed, {}),
        "the rows or columns of the entries, the values": (fewer, {}),
        "the shape of the matrix": (np.vstack([X, np.full((1, X.shape[1]), np.nan)]), {}),
        "max_rank .3 then and 50 now": (X, {"max_rank": 50}),
        "effort .'fast' then and 'best' now": (X, {"effort": "best"}),
        "dtype .'float32' then and 'float64' now": (X, {"dtype": "float64"}),
        "random_state .0 then and 1 now": (X, {"random_state": 1}),
        "ridge .None then and .2.0, 2.0. now": (X, {"ridge": 2.0}),
        "outlier .None then and 3.0 now": (X, {"outlier": 3.0}),
    }
    for words, (data, options) in others.items():
        with pytest.raises(ValueError, match=f"is that of another fit; different: .*{words}"):
            model("factors", tmp_path, **options).fit(data)
    here = completion_checkpoint.machine()
    with monkeypatch.context() as patched:
        other = {**here, "versions": {**here["versions"], "numpy": "0.0.1"}}
        patched.setattr(completion_checkpoint, "machine", lambda: other)
        with pytest.raises(ValueError, match=r"different: numpy .* then and 0\.0\.1 now"):
            model("factors", tmp_path).fit(X)
        patched.setattr(completion_checkpoint, "machine", lambda: {**here, "cores": 1000})
        with pytest.warns(RuntimeWarning, match="last digits may change: .* cores then and 1000 now"):
            model("factors", tmp_path, time_limit=1e-6).fit(X)
    assert same(go_on("factors", tmp_path, damaged=True, verbose=0), uninterrupted("factors"))  # cores differ
    with pytest.raises(ValueError, match="the earlier fit that this one begins with"):
        go_on("factors", tmp_path).fit_again(X)


def test_folders_of_others_are_refused(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(ValueError, match="is a file"):
        model("factors", tmp_path / "file").fit(X)
    packed.write(tmp_path / "run/state-000000000001.npz", {"kind": "something"}, {})
    with pytest.raises(ValueError, match="holds a run of bx.solve"):
        model("factors", tmp_path / "run").fit(X)
    with pytest.raises(TypeError, match="checkpoint must be the path of a folder or a bx.Checkpoint, got 3"):
        MatrixCompletion(checkpoint=3).fit(X)
    held = Lock(tmp_path / "held")
    with pytest.raises(Busy, match=f"still going on .process {os.getpid()} on"):
        model("factors", tmp_path / "held").fit(X)
    held.release()
    assert same(go_on("factors", tmp_path / "held"), uninterrupted("factors"))


def test_the_parameter_is_one_of_the_estimator_and_not_of_the_model(tmp_path):
    given = MatrixCompletion(**JOBS["factors"], checkpoint=str(tmp_path / "fit"))
    assert clone(given).get_params()["checkpoint"] == str(tmp_path / "fit")
    given.fit(X).save(tmp_path / "model.npz")
    loaded, _, _ = bx.estimators.load(tmp_path / "model.npz")
    assert loaded.checkpoint is None


@pytest.mark.parametrize(
    ("name", "where", "number"),
    [("factors", "Factors.sweep", signal.SIGINT), ("ball", "CompletionFit._fit_effects", signal.SIGTERM)],
)
def test_ctrl_c_and_sigterm_save_and_deliver(name, where, number, tmp_path, monkeypatch):
    from bilevax.estimators.matrix_completion import factors, fit

    kind, method = where.split(".")
    owner = getattr(factors if kind == "Factors" else fit, kind)
    real, calls = getattr(owner, method), []

    def counted(self, *args):
        calls.append(1)
        if len(calls) == at:
            os.kill(os.getpid(), number)
        return real(self, *args)

    def count(checkpoint):
        calls.clear()
        return MatrixCompletion(**JOBS[name], checkpoint=checkpoint).fit(X), len(calls)

    monkeypatch.setattr(owner, method, counted)
    at = 0
    _, whole = count(None)
    at = 25
    stopped, _ = count(tmp_path)
    assert stopped.status_ == "STOPPED" and np.all(np.isfinite(stopped.complete()))
    assert packed.read(tmp_path / "running.npz")[0]["state"] is not None
    at = 0
    found, rest = count(tmp_path)
    assert same(found, uninterrupted(name)) and rest == whole - 25


def test_seconds_count_on_and_a_longer_limit_goes_on(tmp_path):
    first = model("ball", tmp_path, 10.0, time_limit=0.1).fit(X)
    assert first.status_ == "TIME_LIMIT" and first.seconds_ >= 0.1
    again = model("ball", tmp_path, 10.0, time_limit=0.1).fit(X)
    np.testing.assert_array_equal(again.left_, first.left_)
    longer = model("ball", tmp_path, 10.0, time_limit=0.11).fit(X)
    assert longer.status_ == "TIME_LIMIT" and longer.seconds_ > first.seconds_
    whole = go_on("ball", tmp_path)
    assert same(whole, uninterrupted("ball")) and whole.seconds_ > longer.seconds_


def test_damaged_files_are_a_warning_and_never_other_numbers(tmp_path, monkeypatch):
    unfinished("factors", tmp_path / "fit", monkeypatch)
    chance = random.Random(1)
    contents = {file: file.read_bytes() for file in (tmp_path / "fit").glob("*.npz")}
    assert len(contents) > 4
    for i in range(3):
        for file, content in contents.items():
            file.write_bytes(content)
        (tmp_path / "fit/fit.npz").unlink(missing_ok=True)
        file = chance.choice(sorted(contents))
        broken = bytearray(contents[file])
        if i % 2:
            del broken[chance.randrange(len(broken)) :]
        else:
            broken[chance.randrange(len(broken) // 2)] ^= 1 << chance.randrange(8)
        file.write_bytes(broken)
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            assert same(model("factors", tmp_path / "fit", 10.0).fit(X), uninterrupted("factors"))
        intact = packed_reads(bytes(broken), tmp_path)
        assert intact or any("is computed again" in str(one.message) for one in heard), file.name


def packed_reads(content, folder):
    (folder / "one.npz").write_bytes(content)
    try:
        packed.read(folder / "one.npz")
        return True
    except packed.DamagedFile:
        return False


def test_a_damaged_model_is_fitted_again(tmp_path):
    model("factors", tmp_path).fit(X)
    (tmp_path / "fit.npz").write_bytes((tmp_path / "fit.npz").read_bytes()[:-100])
    with pytest.warns(RuntimeWarning, match="damaged, cut short.* is computed again"):
        assert same(model("factors", tmp_path, 10.0).fit(X), uninterrupted("factors"))


def test_a_full_disk_is_a_warning(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "DISK", FaultyDisk("full", 300))
    with pytest.warns(RuntimeWarning) as heard:
        assert same(model("factors", tmp_path).fit(X), uninterrupted("factors"))
    said = [str(one.message) for one in heard]
    assert len(said) == 2 and "a checkpoint could not be written: [Errno 28] No space left" in said[0]
    assert "the fitted model could not be written" in said[1]


def test_only_listed_classes_are_made_again():
    arrays = {}
    value = {"a": (1, -0.0, np.nan, None, "x"), "b": [True, Shrunk(1.5, *np.arange(4.0)[:, None])]}
    value["c"] = np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3)), np.zeros((2, 0)), np.array(3)
    text = json.loads(json.dumps(encode(value, arrays, forms), allow_nan=False))
    found = decode(text, arrays, forms)
    np.testing.assert_equal(found, value)
    assert [part.shape for part in found["c"]] == [(2, 3), (2, 0), ()]
    assert type(found["b"][1]) is Shrunk and found["c"][0].flags.f_contiguous and found["c"][0].dtype == np.float32
    for text, words in (
        ({"Popen": ["ls"]}, "not a kind"),
        ({"class": ["Popen", {"list": ["ls"]}]}, "not a class that"),
    ):
        with pytest.raises(ValueError, match=words):
            decode(text, {}, forms)
    with pytest.raises(TypeError):
        decode(["ls"], {})
    with pytest.raises(TypeError, match="a value of class object cannot be written"):
        encode(object(), {})


def write_ratings(path):
    rows, cols = np.nonzero(~np.isnan(X))
    lines = [f"u{i},m{j},{value:.3f}" for i, j, value in zip(rows, cols, X[rows, cols], strict=True)]
    path.write_text("\n".join(["user,item,rating", *lines]) + "\n")


def test_resume_goes_on_with_a_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_ratings(tmp_path / "ratings.csv")
    options = ["--effort", "fast", "--quiet"]
    assert cli.main(["complete", "ratings.csv", "--out", "plain", "--model", "plain.npz", *options]) == 0
    saved = ["complete", "ratings.csv", "--out", "out", "--model", "model.npz", *options, "--checkpoint", "saved"]
    monkeypatch.setattr("bilevax.estimators.matrix_completion.checkpoint.Journal", _eager)
    with monkeypatch.context() as patched:
        patched.setattr(files, "DISK", FaultyDisk("killed", 1500))
        with pytest.raises(Killed):
            cli.main(saved)
    assert not (tmp_path / "out/metrics.json").exists()
    with monkeypatch.context() as patched, pytest.raises(Killed):  # between the two fits
        patched.setattr("bilevax.cli.complete.write_results", _dies)
        cli.main(["resume", "saved"])
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert cli.main(["resume", "../saved"]) == 0
    monkeypatch.chdir(tmp_path)
    assert (tmp_path / "out/predictions.csv").read_bytes() == (tmp_path / "plain/predictions.csv").read_bytes()
    metrics = [json.loads((tmp_path / name / "metrics.json").read_text()) for name in ("out", "plain")]
    assert metrics[0] | {"seconds": 0} == metrics[1] | {"seconds": 0}
    with np.load("model.npz") as one, np.load("plain.npz") as other:
        assert sorted(one) == sorted(other)
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])
    assert cli.main(saved) == 0  # the same command again gives its results again
    capsys.readouterr()
    assert cli.main([*saved, "--seed", "1"]) == 2
    assert "saved belongs to another command (bilevax complete ratings.csv" in capsys.readouterr().err
    held = Lock(tmp_path / "saved/trial")
    assert cli.main(["resume", "saved"]) == 2
    assert "still going on" in capsys.readouterr().err
    held.release()


def _eager(plan=None, *about):
    return journal.Journal(None if plan is None else bx.Checkpoint(plan.path, OFTEN), *about)


def _dies(*_):
    raise Killed


def test_resume_refuses_what_it_does_not_know(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()

    def refused(content, words):
        if content is not None:
            text = content if isinstance(content, str) else json.dumps({"kind": "bilevax command", **content})
            (tmp_path / "run/command.json").write_text(text)
        assert cli.main(["resume", "run"]) == 2
        said = capsys.readouterr().err
        assert words in said and said.count("\n") == 1

    refused(None, "run has no command.json; only the folder of `complete --checkpoint`")
    refused("[1", "command.json cannot be read")
    refused("{}", "it is not a command of bilevax")
    refused({"arguments": [1], "started_in": "."}, "its arguments are not a list of words")
    refused({"arguments": ["complete"]}, "it lacks 'started_in'")
    for arguments in ([], ["demo"], ["resume", "run"], ["--version"], ["-h"], ["rm", "-rf", "x"]):
        refused({"arguments": arguments, "started_in": "."}, "it must begin with complete")
    refused({"arguments": ["complete", "a.csv", "--what"], "started_in": "."}, "unrecognized arguments: --what")
    refused({"arguments": ["complete", "--help"], "started_in": "."}, "does not hold a command that can be resumed")
    refused({"arguments": ["complete", "a.csv"], "started_in": "."}, "it has no --checkpoint")
    refused({"arguments": ["complete", "a.csv", "--checkpoint", "run"], "started_in": "."}, "a.csv is not there")
    assert cli.main(["resume", "nothing"]) == 2
    assert "there is no folder nothing" in capsys.readouterr().err
