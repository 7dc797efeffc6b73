"""Files of others: whatever they hold, a reader gives a sound result or one documented error, in little memory."""

import random
import resource
import subprocess
import sys
import textwrap
import time
import zipfile
from pathlib import Path

import pytest
from hostile_readers import READERS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mutations import DIGITS, HUGE, OPERATIONS, mutated

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
        assert "\n" not in words.strip() and len(words) < 1000, words
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
    assert count == SLOW or READERS[name].expensive
