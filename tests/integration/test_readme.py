"""What the README and the examples show runs as it stands."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"


QUICK = {
    "03_feature_weights.py": ["ijcnn1", "0.05"],
    "05_clean_labels.py": ["5500", "1"],
    "06_neural_network.py": ["2"],
    "07_text_feature_weights.py": ["1"],
    "09_multitask.py": ["12"],
}
"""Arguments that make an example short."""


def execute(code, cwd, *arguments):
    # A relative folder of data would be looked for in `cwd`.
    data = {name: str(Path(folder).resolve()) for name, folder in os.environ.items() if name == "BILEVAX_DATA"}
    command = [sys.executable, "-W", "error", "-c", code, *arguments]
    done = subprocess.run(command, cwd=cwd, env={**os.environ, **data}, capture_output=True, text=True, timeout=300)
    if "DatasetUnavailable" in done.stderr:
        pytest.skip(done.stderr.strip().splitlines()[-1])
    assert done.returncode == 0, done.stderr
    return done.stdout


def readme_example():
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.S)
    return code


def test_the_readme_is_one_page():
    assert len(README.read_text().splitlines()) <= 90


def test_the_readmes_example_runs_finds_the_bad_sources_and_gives_a_curve(tmp_path):
    code = readme_example()
    lines = [line for line in code.splitlines() if line.strip() and not line.startswith("#")]
    assert len(lines) <= 20
    (drawing,) = re.findall(r"`(bx\.plot\(result.*?\))`", README.read_text())
    printed = execute(f"{code}\n{drawing}\nprint('rows:', len(result.trace))", tmp_path)
    assert printed.startswith("CONVERGED")
    weights = [float(value) for value in re.search(r"weights: (.*)", printed).group(1).split()]
    assert sum(weights[:3]) > 0.98 and max(weights[3:]) < 0.01
    assert int(re.search(r"rows: (\d+)", printed).group(1)) >= 4
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")

    # What the README shows is what is printed, up to numbers; "..." stands for lines left out.
    (shown,) = re.findall(r"```text\n(.*?)```", README.read_text(), re.S)
    words = [re.sub(r"\d[\d.e+-]*", "#", text) for text in (shown, printed)]
    assert re.match(re.escape(words[0]).replace(re.escape("  ...\n"), "(?s:.*)"), words[1])


def test_the_first_example_is_that_of_the_readme():
    example = (ROOT / "examples" / "01_first_solve.py").read_text()
    lines = [line for line in readme_example().splitlines() if line.strip() and not line.startswith("#")]
    missing = [line for line in lines if line not in example.splitlines()]
    assert len(missing) == 1 and missing[0].startswith("result = bx.solve(problem, ")
    values = [re.search(r"bx\.solve\(.*tol=([^,)]*)", text).group(1) for text in (missing[0], example)]
    assert values[0] == values[1]


def pages():
    return [README, *(ROOT / name for name in ("CHANGELOG.md", "CONTRIBUTING.md")), *(ROOT / "docs").rglob("*.md")]


def anchors(page):
    """The anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"(?ms)^```.*?^```", "", page.read_text())
    headings = re.findall(r"(?m)^#+ (.*)$", text)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if re.match(r"https?://|mailto:", link):
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        assert target.exists(), f"{page.name} links to {link}, which does not exist"
        assert not anchor or anchor in anchors(target), f"{page.name} links to {link}, which has no such heading"


def test_pictures_of_the_readme_are_small():
    for link in re.findall(r"!\[[^]]*\]\(([^)]+)\)", README.read_text()):
        assert (ROOT / link).stat().st_size < 150_000, link


def test_the_readme_names_the_two_commands():
    text = README.read_text()
    targets = (ROOT / "Makefile").read_text()
    for command in ("demo", "test"):
        assert f"make {command}" in text and f"\n{command}:" in targets


SLOW = {
    "02_compare_methods.py",
    "03_feature_weights.py",
    "04_meta_learning.py",
    "05_clean_labels.py",
    "06_neural_network.py",
    "07_text_feature_weights.py",
    "08_feature_weights.py",
    "09_multitask.py",
}
"""Examples that compile twenty methods or work on large data."""


@pytest.mark.parametrize(
    "path",
    [pytest.param(p, marks=[pytest.mark.slow] * (p.name in SLOW)) for p in sorted((ROOT / "examples").glob("*.py"))],
    ids=lambda path: path.name,
)
def test_examples_run_and_are_short(path, tmp_path):
    assert len(path.read_text().splitlines()) <= 100
    assert execute(path.read_text(), tmp_path, *QUICK.get(path.name, []))


def test_paper_map_names_only_files_and_names_that_exist():
    text = (ROOT / "docs" / "paper.md").read_text()
    for test in set(re.findall(r"`((?:unit|integration|property|contract|theory)/\w+\.py)`", text)):
        assert (ROOT / "tests" / test).is_file(), test
    for source in set(re.findall(r"`((?:problems|experiments)/[\w/]+\.py)`", text)):
        assert (ROOT / "src" / "bilevax" / source).is_file(), source
