"""Tables of results, aligned for a terminal and for markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    return " ".join(str(value).split()).replace("|", "\\|")  # a bar would end the cell, a line break the row


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """A markdown table that also reads well as plain text; numbers are right-aligned."""
    columns = list(rows[0])
    cells = [[_cell(name) for name in columns]] + [[_cell(row[name]) for name in columns] for row in rows]
    numeric = [all(isinstance(row[name], (int, float)) for row in rows) for name in columns]
    widths = [max(3, *(len(line[i]) for line in cells)) for i in range(len(columns))]

    def line(texts: Sequence[str]) -> str:
        padded = [t.rjust(w) if n else t.ljust(w) for t, w, n in zip(texts, widths, numeric, strict=True)]
        return "| " + " | ".join(padded) + " |"

    rule = "| " + " | ".join("-" * (w - 1) + (":" if n else "-") for w, n in zip(widths, numeric, strict=True)) + " |"
    return "\n".join([line(cells[0]), rule, *map(line, cells[1:])])
