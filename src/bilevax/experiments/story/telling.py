"""The story as a whole: its chapters one after the other, a closing table, pictures and a page."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

from bilevax import __version__
from bilevax.drawing import figures
from bilevax.drawing.tables import markdown
from bilevax.experiments.story import readings, sources
from bilevax.experiments.story.chapter import Report
from bilevax.files import write_text

_WIDTH = 100
_CLOSING = "In short"
_NEXT = (
    "The README shows a first solve of your own in twenty lines.",
    "`bilevax complete your-ratings.csv` completes a table of ratings that you have as a file.",
    "`bilevax demo paper` runs the methods of the IBCG paper on its two smallest problems.",
)


def tell(folder: Path, *, seed: int, say: Callable[[str], None], report: Report) -> None:
    """Solve the problem of each chapter, save pictures and `story.md` in `folder`, and say everything on the way.

    Args:
        say: receives the text, paragraph by paragraph, wrapped for a terminal.
        report: receives a line about each piece of work that is done.
    """
    opening = f"bilevax {__version__}: two problems, without and with bilevax (seed {seed})"
    say(opening)
    page, rows, saved = [f"# {opening}"], [], []
    for number, make in enumerate((readings.chapter, sources.chapter), 1):
        chapter = make(seed)
        say(f"\n{number}. {chapter.title}\n")
        _say_paragraphs(say, chapter.problem)
        outcome = chapter.solve(report)
        saved.append(folder / chapter.picture)
        figures.save(outcome.figure, saved[-1])
        _say_paragraphs(say, (*outcome.verdict, f"Picture: {saved[-1]}"))
        rows.append(outcome.row)
        image = f"![{chapter.title}]({chapter.picture})"
        page += [f"## {number}. {chapter.title}", *chapter.problem, image, f"*{outcome.caption}*", *outcome.verdict]

    table = markdown(rows)
    page += [f"## {_CLOSING}", table, *_NEXT]
    saved.append(write_text(folder / "story.md", "\n\n".join(page) + "\n"))
    say(f"\n{_CLOSING}\n\n{table}\n")
    say("Saved: " + ", ".join(map(str, saved)))
    say("\nWhere to look next:")
    for words in _NEXT:
        say(f"- {words}")


def _say_paragraphs(say: Callable[[str], None], paragraphs: tuple[str, ...]) -> None:
    for paragraph in paragraphs:
        say(textwrap.fill(paragraph, _WIDTH) + "\n")
