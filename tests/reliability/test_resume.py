"""Runs that die anywhere and go on: the same bits as without that; wrong or damaged checkpoints are refused."""

import random
import warnings

import jax.numpy as jnp
import numpy as np
import pytest
from faulty_disk import FaultyDisk, Killed
from jobs import JOBS, same, uninterrupted

import bilevax as bx
from bilevax import files

QUICK = [("IBCG", "killed"), ("SBFW", "killed"), ("SABA", "lost"), ("BlockIBCG", "no rename"), ("AdaptiveIBCG", "error")]
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
