"""The command line that a folder belongs to, as a JSON file; only commands listed here are run from it."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bilevax.files import write_text

NAME = "command.json"
_FOLDER = {"complete": "checkpoint", "multitask": "checkpoint", "weights": "checkpoint", "reproduce": "out"}
"""The commands that can be resumed, and the option that names their folder."""
_KIND, _MOST = "bilevax command", 1_000_000  # bytes


def write(folder: Path, arguments: Sequence[str], *, replace: bool = False) -> None:
    """Keep the command line; unless `replace`, refuse a folder that belongs to another one."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; give a folder.")
    content = {"kind": _KIND, "arguments": list(arguments), "started_in": str(Path.cwd())}
    if not replace and (folder / NAME).exists():
        before = _content(folder)
        if before != content:
            words = shlex.join(["bilevax", *before["arguments"]])
            raise ValueError(
                f"{folder} belongs to another command ({words}, started in {before['started_in']}). "
                f"`bilevax resume {folder}` goes on with it; or give another folder."
            )
        return
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / NAME, json.dumps(content, indent=2) + "\n")


def read(folder: Path, parser: Callable[[], argparse.ArgumentParser]) -> argparse.Namespace:
    """The options of the command of a folder, parsed as if they were typed there and then."""
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder}.")
    if not (folder / NAME).is_file():
        raise ValueError(
            f"{folder} has no {NAME}; only the folder of `complete --checkpoint`, of `multitask` or `weights` with "
            "--checkpoint, or of `reproduce` can be resumed."
        )
    content = _content(folder)
    arguments = content["arguments"]
    refused = f"{folder / NAME} does not hold a command that can be resumed"
    if not arguments or arguments[0] not in _FOLDER:
        raise ValueError(f"{refused}: it must begin with {', '.join(list(_FOLDER)[:-1])} or {list(_FOLDER)[-1]}.")
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            options = parser().parse_args(arguments)
    except SystemExit:
        last = said.getvalue().strip().splitlines()[-1:]
        raise ValueError(f"{refused}: {' '.join(last)}") from None
    named = _FOLDER[options.command]
    if getattr(options, named) is None:
        raise ValueError(f"{refused}: it has no --{named}.")
    for name, given in vars(options).items():
        if isinstance(given, Path):  # the command read it from the folder that it was started in
            setattr(options, name, Path(content["started_in"]) / given)
    setattr(options, named, folder)  # it may have been moved
    options.arguments = None
    return options


def _content(folder: Path) -> dict[str, Any]:
    path = folder / NAME
    try:
        if path.stat().st_size > _MOST:
            raise ValueError(f"it has more than {_MOST} bytes")
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict) or content.get("kind") != _KIND:
            raise ValueError("it is not a command of bilevax")
        parts = content["arguments"], content["started_in"]
        if not isinstance(parts[0], list) or not all(isinstance(part, str) for part in (*parts[0], parts[1])):
            raise ValueError("its arguments are not a list of words")
    except KeyError as error:
        raise ValueError(f"{path} cannot be read: it lacks {error}.") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read: {error}.") from None
    return content
