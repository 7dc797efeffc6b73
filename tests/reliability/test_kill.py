"""SIGKILL at a random moment, then on to the same bits."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from jobs import JOBS, same, uninterrupted
from test_resume import go_on

HERE = Path(__file__).parent
METHODS = ["BlockIBCG", "AdaptiveIBCG"]  # on the host, and compiled with a memory; the slow test has all


def killed(name, folder, wait):
    """Run a job in another process and kill it so many seconds after its first row; whether it was still running."""
    paths = [str(HERE), str(HERE.parent), *sys.path]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, str(HERE / "killed.py"), name, str(folder)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as child:
        child.stdout.readline()
        time.sleep(wait)
        alive = child.poll() is None
        child.send_signal(signal.SIGKILL)
        child.stdout.read()
    return alive


@pytest.mark.parametrize("name", METHODS)
def test_a_killed_process_is_continued_to_the_same_bits(name, tmp_path):
    killed(name, tmp_path, random.Random(name).uniform(0, 0.3))
    assert same(go_on(name, tmp_path), uninterrupted(name))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(28))
@pytest.mark.parametrize("name", JOBS)
def test_many_killed_processes_are_continued_to_the_same_bits(name, part, tmp_path):
    killed(name, tmp_path, random.Random(f"{name} {part}").uniform(0, 0.6))
    assert same(go_on(name, tmp_path), uninterrupted(name))
