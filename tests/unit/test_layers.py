"""Imports point downward only, and importing the package has no side effects."""

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "src" / "bilevax"
# Lowest first. A module may import its own layer (never in a circle, or Python itself would complain) and those below.
LAYERS = [
    ["trees", "linalg", "limits", "zips", "files", "packed", "encoding", "memory", "lazy", "randomness"],
    ["sets", "schedules", "sampling", "streaming", "problem"],
    ["hypergradient", "theory", "estimation", "verdict"],
    ["solvers"],
    ["drawing"],
    ["runs", "diagnosis"],
    ["problems", "tables", "ratings"],
    ["datasets"],
    ["estimators"],
    ["experiments"],
    ["cli", "__main__"],
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}


def imports_of(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "bilevax":
            parts = node.module.split(".")
            yield from [parts[1]] if len(parts) > 1 else [alias.name for alias in node.names]


def modules():
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).with_suffix("").parts[0]
        if name != "__init__":
            yield pytest.param(path, name, id=str(path.relative_to(PACKAGE)))


@pytest.mark.parametrize(("path", "name"), list(modules()))
def test_imports_point_downward(path, name):
    assert name in LEVEL, f"{name} has no layer; add it to LAYERS"
    for used in imports_of(path):
        if used != "__version__":
            assert LEVEL[used] <= LEVEL[name], f"{path.name} imports {used} from a higher layer"


@pytest.mark.parametrize("module", ["bilevax", "bilevax.cli"])
def test_importing_changes_no_setting_and_draws_in_no_extra(module):
    code = (
        f"import jax, sys; before = jax.config.values.copy(); import {module}; "
        "assert jax.config.values == before, 'a JAX setting changed'; "
        "extras = {'matplotlib', 'pandas', 'cvxpy', 'pooch', 'numba', 'sklearn', 'pyarrow'}; "
        "heavy = {'bilevax.estimators', 'bilevax.experiments'}; "
        "assert not (extras | heavy) & set(sys.modules), 'an extra was imported'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("place", ["", "sets", "solvers", "estimators"])
def test_the_stub_lists_what_the_package_exports(place):
    """The stub is read at run time, and each line of it must hold."""
    package = importlib.import_module(".".join(filter(None, ["bilevax", place])))
    stub = ast.parse((PACKAGE / place / "__init__.pyi").read_text())
    lines = [
        (node.module, alias.name) for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names
    ]
    assert sorted(name for _, name in lines) == package.__all__
    for home, name in lines:
        assert getattr(package, name) is getattr(importlib.import_module(home), name)


@pytest.mark.parametrize("path", sorted((PACKAGE / "solvers").glob("*.py")), ids=lambda path: path.name)
def test_a_solver_is_about_a_page(path):
    assert len(path.read_text().splitlines()) <= 140


def test_csv_is_written_in_one_place():
    writers = {path.name for path in PACKAGE.rglob("*.py") if re.search(r"csv\.(Dict)?[wW]riter", path.read_text())}
    assert writers == {"files.py"}


def test_a_command_has_one_function_for_its_options_and_one_for_its_work():
    from bilevax import cli

    for command in cli.COMMANDS:
        public = [
            name
            for name, value in vars(command).items()
            if callable(value) and value.__module__ == command.__name__ and not name.startswith("_")
        ]
        assert sorted(public) == ["add", "run"], command.__name__
