"""Checks of options that several commands share; they run before the work."""

from __future__ import annotations

import argparse
import os
from pathlib import Path


def check_folder(folder: Path) -> None:
    """Find out before the work whether its results can be written."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"--out {folder} is a file; give a folder.")
    folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK):
        raise ValueError(f"--out {folder} cannot be written to; give another folder.")


def check_file(file: Path, option: str = "--out") -> None:
    """Find out before the work whether the file can be written."""
    if file.is_dir():
        raise ValueError(f"{option} {file} is a folder; give a file.")
    if file.parent.exists() and not file.parent.is_dir():
        raise ValueError(f"{option} {file} cannot be written, since {file.parent} is a file; give another path.")
    file.parent.mkdir(parents=True, exist_ok=True)
    if not os.access(file.parent, os.W_OK) or (file.exists() and not os.access(file, os.W_OK)):
        raise ValueError(f"{option} {file} cannot be written to; give another file.")


def check_given(*files: Path) -> None:
    """Find out before anything is written whether the files to read exist."""
    for file in files:
        if not file.is_file():
            raise ValueError(f"{file} is {'a folder' if file.is_dir() else 'not there'}; give a file.")


def check_at_least(options: argparse.Namespace, **bounds: int) -> None:
    """Refuse options below their bounds; an option that was not given passes."""
    for name, bound in bounds.items():
        value = getattr(options, name)
        if value is not None and value < bound:
            raise ValueError(f"--{name} must be at least {bound}, got {value}.")
