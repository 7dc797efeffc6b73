"""The command keeps compiled code between calls, and never depends on being able to."""

import os
import subprocess
import sys

import pytest

from bilevax.cli.compilation_cache import remove_oldest

KEEP = (
    "import jax; from bilevax.cli.compilation_cache import keep_compiled_code; {before}; "
    "before = jax.config.values.copy(); keep_compiled_code(); changed = jax.config.values != before; print(changed)"
)


def python(*arguments, **variables):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    done = subprocess.run(
        [sys.executable, "-W", "error", *arguments],
        env={**environment, **{name: str(value) for name, value in variables.items()}},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.fixture
def complete(tmp_path):
    """A command that compiles a few functions."""
    file = tmp_path / "ratings.csv"
    file.write_text("".join(f"{k % 7},{k % 5},{1 + k * k % 5}\n" for k in range(35)))
    return ["-m", "bilevax", "complete", str(file), "--radius", "3", "--quiet"]


def names(folder):
    return {path.name for path in folder.iterdir()}


@pytest.mark.slow
def test_the_second_call_uses_what_the_first_compiled_and_survives_damage(complete, tmp_path):
    folder = tmp_path / "cache" / "compiled"
    first = python(*complete, BILEVAX_CACHE=tmp_path / "cache")
    compiled = names(folder)
    assert compiled
    for path in list(folder.iterdir())[::2]:
        path.write_bytes(path.read_bytes()[:-10])
    second = python(*complete, BILEVAX_CACHE=tmp_path / "cache")
    assert names(folder) == compiled
    assert second.splitlines()[:-1] == first.splitlines()[:-1]  # the last line has the seconds


@pytest.mark.slow
def test_a_folder_that_the_user_chose_is_left_alone(complete, tmp_path):
    mine = {"JAX_COMPILATION_CACHE_DIR": tmp_path / "mine", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": 0}
    python(*complete, BILEVAX_CACHE=tmp_path / "cache", **mine)
    assert names(tmp_path / "mine") and not (tmp_path / "cache").exists()


def test_without_a_folder_or_with_the_cache_turned_off_no_setting_changes(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    turned_off = "jax.config.update('jax_enable_compilation_cache', False)"
    assert python("-c", KEEP.format(before="pass"), BILEVAX_CACHE=tmp_path / "file") == "False\n"
    assert python("-c", KEEP.format(before=turned_off), BILEVAX_CACHE=tmp_path / "cache") == "False\n"
    assert python("-c", KEEP.format(before="pass"), BILEVAX_CACHE=tmp_path / "cache") == "True\n"


def test_a_folder_that_is_too_large_loses_its_oldest_files(tmp_path):
    for age in range(6):
        (tmp_path / f"{age}").write_bytes(b"x" * 100)
        os.utime(tmp_path / f"{age}", (1e9 - age, 1e9))
    remove_oldest(tmp_path, 600)
    assert len(names(tmp_path)) == 6
    remove_oldest(tmp_path, 599)
    assert names(tmp_path) == {"0", "1"}
