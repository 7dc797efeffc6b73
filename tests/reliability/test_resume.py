"""Runs that die anywhere and go on: the same bits as without that; wrong or damaged checkpoints are refused."""

import dataclasses
import os
import random
import signal
import warnings
from types import SimpleNamespace

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from faulty_disk import FaultyDisk, Killed
from jobs import JOBS, same, uninterrupted

import bilevax as bx
from bilevax import files, packed
from bilevax.runs import checkpoint, fingerprint
from bilevax.runs.lock import Busy, Lock

QUICK = [
    ("IBCG", "killed"),
    ("SBFW", "killed"),
    ("SABA", "lost"),
    ("BlockIBCG", "no rename"),
    ("AdaptiveIBCG", "error"),
]
QUICK += [("SampledIBCG", "killed"), ("ProjectedIBCG", "full")]
KINDS = ("killed", "no rename", "lost", "error", "full")


def disturbed(name, kind, at, folder, monkeypatch):
    """A run on a disk that fails at one call; whether it came to its end all the same."""
    make, steps = JOBS[name]
    with monkeypatch.context() as patched, warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        patched.setattr(files, "DISK", FaultyDisk(kind, at))
        try:
            bx.solve(*make(), steps=steps, checkpoint=bx.Checkpoint(folder, seconds=0.0))
        except Killed:
            return False
    return True


def go_on(name, folder):
    make, steps = JOBS[name]
    problem = make()[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        try:
            return bx.resume(folder, problem)
        except FileNotFoundError:  # it died before its first checkpoint
            return bx.solve(*make(), steps=steps, checkpoint=folder)


@pytest.mark.parametrize(("name", "kind"), QUICK)
def test_a_run_that_dies_goes_on_to_the_same_bits(name, kind, tmp_path, monkeypatch):
    chance = random.Random(f"{name} {kind}")
    for i in range(2):
        folder = tmp_path / str(i)
        disturbed(name, kind, chance.randrange(1, 60), folder, monkeypatch)
        assert same(go_on(name, folder), uninterrupted(name))
        assert not list(folder.glob(".state*")) or kind in ("no rename", "killed", "lost")


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", JOBS)
def test_a_run_that_dies_at_any_call_goes_on_to_the_same_bits(name, kind, tmp_path, monkeypatch):
    chance = random.Random(f"{name} {kind} slow")
    for i in range(12):
        folder = tmp_path / str(i)
        disturbed(name, kind, chance.randrange(1, 120), folder, monkeypatch)
        assert same(go_on(name, folder), uninterrupted(name))


def test_a_finished_run_gives_its_result_again_and_can_be_made_longer(tmp_path):
    make, steps = JOBS["IBCG"]
    first = bx.solve(*make(), steps=steps // 2, checkpoint=tmp_path / "run")
    assert same(bx.resume(tmp_path / "run", make()[0]), first)
    longer = bx.resume(tmp_path / "run", make()[0], steps=steps)
    np.testing.assert_array_equal(longer.x, uninterrupted("IBCG").x)
    assert longer.seconds > first.seconds


def identical(a, b):
    return (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())


def saved_run(folder, name="IBCG"):
    make, steps = JOBS[name]
    bx.solve(*make(), steps=steps, checkpoint=folder)
    return make()


def test_another_run_is_noticed_and_named(tmp_path):
    folder = tmp_path / "run"
    problem, solver, x, y = saved_run(folder, "AdaptiveIBCG")
    A = problem.data
    others = {
        "the data": (dataclasses.replace(problem, data=A.at[0, 0].add(1e-9)), None),
        "the set": (dataclasses.replace(problem, domain=bx.Box(-3.0, 3.1)), None),
        "the solver or its numbers": (problem, bx.ProjectedIBCG()),
        "the sampler": (dataclasses.replace(problem, sampler=bx.Minibatch(4, 40)), None),
        "upper or lower": (
            dataclasses.replace(problem, lower=lambda x, y, d: problem.lower(x, y, d) + 1e-3 * y[0]),
            None,
        ),
    }
    for words, (other, method) in others.items():
        with pytest.raises(ValueError, match=f"not the run of the checkpoint; different: .*{words}"):
            bx.resume(folder, other, method)
    assert bx.resume(folder, problem).steps == JOBS["AdaptiveIBCG"][1]


def test_numbers_of_a_solver_are_noticed(tmp_path):
    problem, _, x, y = JOBS["IBCG"][0]()
    bx.solve(problem, bx.IBCG(gamma=0.01), x, y, steps=20, checkpoint=tmp_path / "run")
    with pytest.raises(ValueError, match="the solver or its numbers"):
        bx.resume(tmp_path / "run", problem, bx.IBCG(gamma=0.02))
    assert bx.resume(tmp_path / "run", problem).solver.gamma(jnp.asarray(3)) == 0.01


def test_other_versions_are_a_warning(tmp_path, monkeypatch):
    problem, *_ = saved_run(tmp_path / "run")
    here = fingerprint.machine()
    monkeypatch.setattr(fingerprint, "machine", lambda: {**here, "versions": {**here["versions"], "jax": "0.0.1"}})
    with pytest.warns(RuntimeWarning, match=r"last digits may change: jax .* then and 0\.0\.1 now"):
        bx.resume(tmp_path / "run", problem)


def test_functions_are_asked_for_again(tmp_path):
    problem, solver, x, y = JOBS["IBCG"][0]()
    schedule = bx.IBCG(gamma=lambda k: 2 / (k + 2))
    options = {"steps": 20, "metrics": {"size": lambda x, y, data: jnp.sum(x**2)}, "stop": bx.plateau("gap")}
    bx.solve(problem, schedule, x, y, checkpoint=tmp_path / "run", **options)
    with pytest.raises(ValueError, match="had stop="):
        bx.resume(tmp_path / "run", problem)
    with pytest.raises(ValueError, match="had metrics="):
        bx.resume(tmp_path / "run", problem, stop=bx.plateau("gap"))
    with pytest.raises(ValueError, match="IBCG holds functions, which are not saved; give it as solver="):
        bx.resume(tmp_path / "run", problem, stop=bx.plateau("gap"), metrics=options["metrics"])
    del options["steps"]
    assert "size" in bx.resume(tmp_path / "run", problem, schedule, **options).trace


def test_a_damaged_newest_checkpoint_gives_way_to_the_one_before(tmp_path):
    problem, *_ = saved_run(tmp_path)
    newest = max(tmp_path.glob("state-*.npz"))
    content = newest.read_bytes()
    newest.write_bytes(content[: len(content) // 2])
    with pytest.warns(RuntimeWarning, match="is damaged, cut short.*The checkpoint before it"):
        assert same(bx.resume(tmp_path, problem), uninterrupted("IBCG"))


def test_mutated_checkpoints_are_refused_or_intact(tmp_path):
    problem, *_ = saved_run(tmp_path / "run")
    newest, other = sorted((tmp_path / "run").glob("state-*.npz"), reverse=True)
    other.unlink()
    content, chance = newest.read_bytes(), random.Random(0)
    truth, arrays = packed.read(newest)
    refused = 0
    for i in range(1000):
        changed = bytearray(content)
        if i % 3 == 0:
            changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
        elif i % 3 == 1:
            del changed[chance.randrange(len(changed)) :]
        else:
            place = chance.randrange(len(changed))
            changed[place : place + chance.randrange(1, 50)] = chance.randbytes(chance.randrange(50))
        newest.write_bytes(changed)
        try:
            header, found = packed.read(newest)
        except packed.DamagedFile:
            refused += 1
            continue
        assert header == truth and all(map(identical, found.values(), arrays.values()))
    assert refused > 800
    with pytest.raises(packed.DamagedFile, match=r"no checkpoint in .* can be read"):
        newest.write_bytes(b"PK" + content[2:100])
        bx.resume(tmp_path / "run", problem)


def test_files_that_are_no_checkpoints_are_refused(tmp_path):
    problem = JOBS["IBCG"][0]()[0]
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        bx.resume(tmp_path / "nothing", problem)
    with pytest.raises(FileNotFoundError, match="has no checkpoint"):
        bx.resume(tmp_path, problem)
    packed.write(tmp_path / "state-000000000001.npz", {"kind": "something"}, {})
    with pytest.raises(packed.DamagedFile, match="not a checkpoint of bilevax"):
        bx.resume(tmp_path, problem)


def test_a_folder_with_a_run_is_not_overwritten_and_a_busy_one_names_its_owner(tmp_path):
    make, steps = JOBS["IBCG"]
    saved_run(tmp_path / "run")
    with pytest.raises(ValueError, match="already holds a run; bx.resume"):
        bx.solve(*make(), steps=steps, checkpoint=tmp_path / "run")
    held = Lock(tmp_path / "run")
    with pytest.raises(Busy, match=f"still going on .process {os.getpid()} on"):
        bx.resume(tmp_path / "run", make()[0])
    held.release()
    bx.resume(tmp_path / "run", make()[0])
    (tmp_path / "file").write_text("x")
    with pytest.raises(ValueError, match="is a file"):
        bx.solve(*make(), steps=steps, checkpoint=tmp_path / "file")
    with pytest.raises(TypeError, match="checkpoint must be the path"):
        bx.solve(*make(), steps=steps, checkpoint=3)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_sigterm_save_and_stop(number, tmp_path):
    make, steps = JOBS["IBCG"]

    def send(row, state):
        if row["step"] > 100:
            os.kill(os.getpid(), number)

    stopped = bx.solve(*make(), steps=steps, checkpoint=tmp_path / "run", observers=send)
    assert stopped.status.name == "STOPPED" and 100 < stopped.steps < steps
    assert same(bx.resume(tmp_path / "run", make()[0]), uninterrupted("IBCG"))


def test_a_full_disk_is_a_warning_and_leaves_the_last_checkpoint(tmp_path, monkeypatch):
    make, steps = JOBS["IBCG"]
    monkeypatch.setattr(files, "DISK", FaultyDisk("full", 400))
    with pytest.warns(RuntimeWarning, match="could not be written.*No space left"):
        result = bx.solve(*make(), steps=steps, checkpoint=bx.Checkpoint(tmp_path, seconds=0.0))
    assert same(result, uninterrupted("IBCG"))
    monkeypatch.setattr(files, "DISK", files.Disk())
    assert same(bx.resume(tmp_path, make()[0]), uninterrupted("IBCG"))


def test_a_saved_result_comes_back_without_the_problem(tmp_path):
    result = uninterrupted("IBCG")
    loaded = bx.load(result.save(tmp_path, {"seed": 3}))
    np.testing.assert_array_equal(loaded.x, result.x)
    np.testing.assert_array_equal(loaded.y, result.y)
    assert loaded.status is result.status and loaded.constants() == result.constants() and loaded.config["seed"] == 3
    for name in result.trace.columns:
        np.testing.assert_array_equal(loaded.trace[name], result.trace[name])
    assert "MAX_STEPS  IBCG" in str(loaded)
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(packed.DamagedFile, match="not a table"):
        bx.load(tmp_path)


def die_after_step(k, monkeypatch):
    """From now on a run dies when it has saved the first step from k on that has no row."""
    save = checkpoint.Saver.save

    def save_and_die(self, run):
        save(self, run)
        if run.k >= k and run.k % run.plan.every:
            raise Killed

    monkeypatch.setattr(checkpoint.Saver, "save", save_and_die)


@pytest.mark.parametrize("name", ["IBCG", "ProjectedIBCG"])
def test_a_run_that_dies_between_two_rows_gets_no_row_there(name, tmp_path, monkeypatch):
    make, steps = JOBS[name]
    reference = bx.solve(*make(), steps=steps, every=7)
    with monkeypatch.context() as patched:
        die_after_step(steps // 3, patched)
        with pytest.raises(Killed):
            bx.solve(*make(), steps=steps, every=7, checkpoint=bx.Checkpoint(tmp_path, seconds=0.0))
    assert same(bx.resume(tmp_path, make()[0]), reference)


def test_a_run_that_dies_again_and_again_has_no_row_twice(tmp_path, monkeypatch):
    make, steps = JOBS["IBCG"]
    problem = make()[0]
    # Rows behind those that the last checkpoint knows: here, of steps that were taken after it.
    for k in range(0, steps, 40):
        with monkeypatch.context() as patched:
            die_after_step(k, patched)
            with pytest.raises(Killed):
                if k == 0:
                    bx.solve(*make(), steps=steps, checkpoint=bx.Checkpoint(tmp_path, seconds=0.0))
                else:
                    bx.resume(tmp_path, problem, seconds=0.0)
        with open(tmp_path / "rows.csv", "a") as rows:
            rows.write("1,2,3\n")
    assert same(bx.resume(tmp_path, problem), uninterrupted("IBCG"))


def test_large_checkpoints_come_later_so_that_writing_takes_two_percent(tmp_path, monkeypatch):
    assert bx.Checkpoint("run", seconds=10).wait(0.05) == 10
    assert bx.Checkpoint("run", seconds=10).wait(2.0) == 100
    assert bx.Checkpoint("run", seconds=0).wait(2.0) == 0
    now = [0.0]
    monkeypatch.setattr(checkpoint.time, "monotonic", lambda: now[0])
    saver = checkpoint.Saver(bx.Checkpoint(tmp_path / "run", seconds=10))
    monkeypatch.setattr(saver, "_append", lambda trace: now.__setitem__(0, now[0] + 2.0))  # writing takes two seconds
    monkeypatch.setattr(saver, "_write", lambda run: None)
    saver.save(SimpleNamespace(trace=[]))
    now[0] += 99.0
    assert not saver.due()
    now[0] += 2.0
    assert saver.due()
    saver.close()


def test_data_in_half_precision_are_compared_too(tmp_path):
    """numpy cannot show the bytes of a bfloat16 array as they are."""
    made = lambda value: bx.BilevelProblem(  # noqa: E731
        lambda x, y, d: jnp.sum((y - d.astype(y.dtype)) ** 2),
        lambda x, y, d: jnp.sum((y - 2 * x) ** 2),
        bx.Box(-1.0, 1.0),
        jnp.full(3, value, jnp.bfloat16),
    )
    bx.solve(made(1.0), bx.IBCG(), jnp.zeros(3), jnp.zeros(3), steps=5, checkpoint=tmp_path / "run")
    assert bx.resume(tmp_path / "run", made(1.0), steps=9).steps == 9
    with pytest.raises(ValueError, match="different: the data"):
        bx.resume(tmp_path / "run", made(1.5))


def test_a_solver_of_the_user_with_the_name_of_ours_is_asked_for_again(tmp_path):
    """Otherwise the run would go on with ours."""

    class IBCG(eqx.Module):
        inner: bx.IBCG

        def __getattr__(self, name):
            return getattr(object.__getattribute__(self, "inner"), name)

        def prepare(self, *given):
            return IBCG(self.inner.prepare(*given))

    problem, _, x, y = JOBS["IBCG"][0]()
    mine = IBCG(bx.IBCG(gamma=0.01, constants=bx.Constants(1.0, 1000.0)))
    bx.solve(problem, mine, x, y, steps=5, checkpoint=tmp_path / "run")
    with pytest.raises(ValueError, match="IBCG holds functions, which are not saved; give it as solver="):
        bx.resume(tmp_path / "run", problem)
    assert bx.resume(tmp_path / "run", problem, mine, steps=8).steps == 8
