"""One chapter of the story: what the problem is, and what came out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Report = Callable[[str], None]
"""Receives one line about the progress of the work."""


@dataclass(frozen=True)
class Outcome:
    """What a chapter found; every number in its words comes from the run."""

    verdict: tuple[str, ...]
    """Paragraphs: the errors in words, then how the run ended and what was checked."""
    row: dict[str, str]
    """The chapter in the closing table."""
    figure: Any
    caption: str


@dataclass(frozen=True)
class Chapter:
    """A problem in plain words, and the work that solves it."""

    title: str
    problem: tuple[str, ...]
    """Paragraphs that say what is known, what is asked, and what bilevax does about it."""
    picture: str
    """The name of the picture's file."""
    solve: Callable[[Report], Outcome]


def table_row(task: str, without: str, with_bilevax: str, ending: str) -> dict[str, str]:
    """A row of the closing table."""
    return {"task": task, "without bilevax": without, "with bilevax": with_bilevax, "how it ended": ending}


def compare_errors(other: float, ours: float) -> str:
    """How our error compares with another one, as the end of a sentence, whichever is smaller."""
    ratio = other / ours
    if ratio > 1.05:
        return f"{ratio:.1f} times smaller"
    if ratio < 1 / 1.05:
        return f"{1 / ratio:.1f} times larger (on this seed bilevax does worse)"
    return "about the same (on this seed bilevax gains nothing)"
