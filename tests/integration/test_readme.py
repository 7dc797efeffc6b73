"""What the README and the examples show runs as it stands."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def execute(code, cwd):
    # A relative folder of data would be looked for in `cwd`.
    data = {name: str(Path(folder).resolve()) for name, folder in os.environ.items() if name == "BILEVAX_DATA"}
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, cwd=cwd, env={**os.environ, **data}, capture_output=True, text=True, timeout=300)
    if "DatasetUnavailable" in done.stderr:
        pytest.skip(done.stderr.strip().splitlines()[-1])
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_readmes_example_runs_and_finds_the_bad_sources(tmp_path):
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    lines = [line for line in code.splitlines() if line.strip() and not line.startswith("#")]
    assert len(lines) <= 15
    printed = execute(code, tmp_path)
    assert printed.startswith("CONVERGED")
    trust = [float(v) for v in re.search(r"trust: \[(.*)\]", printed).group(1).split()]
    assert sum(trust[:3]) > 0.99 and max(trust[3:]) < 0.01


def test_the_readme_names_the_two_commands():
    text = (ROOT / "README.md").read_text()
    targets = (ROOT / "Makefile").read_text()
    for command in ("demo", "test"):
        assert f"make {command}" in text and f"\n{command}:" in targets


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.name)
def test_examples_run_and_are_short(path, tmp_path):
    assert len(path.read_text().splitlines()) <= 100
    assert execute(path.read_text(), tmp_path)


def test_paper_map_names_only_files_and_names_that_exist():
    text = (ROOT / "docs" / "paper.md").read_text()
    for test in set(re.findall(r"`((?:unit|integration|property|contract|theory)/\w+\.py)`", text)):
        assert (ROOT / "tests" / test).is_file(), test
    for source in set(re.findall(r"`((?:problems|experiments)/[\w/]+\.py)`", text)):
        assert (ROOT / "src" / "bilevax" / source).is_file(), source
