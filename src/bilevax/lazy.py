"""Names that a package imports on first use. Its stub, `__init__.pyi`, is the one list of them."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable
from pathlib import Path


def attach(package: str, file: str) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of the package whose `__init__.py` is `file`.

    Loading all solvers and sets takes as long as loading a third of JAX, and most programs need two of them.
    """
    homes = _homes(Path(file).with_suffix(".pyi"))

    def load(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = homes[name]
        is_module = home == package  # `from package import part`
        value = importlib.import_module(f"{home}.{name}") if is_module else getattr(importlib.import_module(home), name)
        setattr(sys.modules[package], name, value)
        return value

    return load, lambda: sorted(homes), sorted(homes)


def _homes(stub: Path) -> dict[str, str]:
    """Where each public name comes from: the stub has lines `from home import name as name`."""
    imports = [node for node in ast.parse(stub.read_text("utf-8")).body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in imports for alias in node.names if alias.asname == alias.name}
