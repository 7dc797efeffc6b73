"""Which column holds the user, the item, the rating, the time or the title, and whether there is a header."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from bilevax.ratings.bad_line import error_with_line
from bilevax.ratings.fields import is_number
from bilevax.tables.text import TextFile, shortened

ColumnChoice = Mapping[str, str | int | None]
"""For each role the name or position that the user gave, or None. Its keys are the roles that the caller reads."""

# How columns are usually called, in lower case and without anything but letters and digits.
COLUMN_ALIASES = {
    "user": "user userid uid username customer customerid reviewer reviewerid rater raterid member memberid row",
    "item": "item itemid iid movie movieid film filmid isbn book bookid product productid asin song songid "
    "track trackid artist artistid anime animeid game gameid business businessid joke jokeid col column",
    "rating": "rating ratings score value stars overall bookrating movierating userrating reviewscore reviewoverall",
    "time": "timestamp time date datetime unixtime unixreviewtime ratedat createdat",
    "title": "title name booktitle movietitle itemtitle itemname moviename label",
}
OPTIONAL_ROLES = frozenset({"time"})


class Layout(NamedTuple):
    """Whether the first line is a header, and the position of each role's column."""

    header: bool
    positions: dict[str, int]
    notes: tuple[str, ...]


def find_layout(text: TextFile, choice: ColumnChoice, header: bool | None) -> Layout:
    """Header and columns, from the user's choice and from the first lines."""
    sample = text.sample()
    if not sample:
        raise error_with_line(text, False, {}, ValueError(f"{text.path}: the first lines cannot be read."))
    if header is None:
        header = _has_header(sample, choice)
    below = sample[1:] if header else sample
    width = Counter(map(len, below)).most_common(1)[0][0] if below else len(sample[0])
    if header and len(sample[0]) != width:
        raise ValueError(
            f"{text.path}: the header has {len(sample[0])} fields and the lines below have {width}, separated by "
            f"{text.separator}; which name belongs to which column is not clear."
        )
    names = [name.strip() for name in sample[0]] if header else None
    positions, notes = find_positions(text.path, names, width, choice)
    return Layout(header, positions, notes)


def find_positions(
    path: Path, names: Sequence[str] | None, width: int, choice: ColumnChoice
) -> tuple[dict[str, int], tuple[str, ...]]:
    """A column for each role, and a note if one was guessed: as chosen, by its usual name, else the first free one."""
    positions = {role: _chosen(path, names, width, given) for role, given in choice.items() if given is not None}
    normalized = [_normalized(name) for name in names or ()]
    for role in choice:
        if role not in positions and (by_name := _by_alias(role, normalized, positions.values())) is not None:
            positions[role] = by_name
    guessed = [role for role in choice if role not in positions and role not in OPTIONAL_ROLES]
    for role in guessed:
        free = [position for position in range(width) if position not in positions.values()]
        if not free:
            raise ValueError(f"{path}: no column is left for the {role}; {_columns_in_words(names, width)}.")
        positions[role] = free[0]
    counts = Counter(positions.values())
    if len(counts) < len(positions):
        shared = " and ".join(role for role, position in positions.items() if counts[position] > 1)
        raise ValueError(f"{path}: {shared} are the same column; {_columns_in_words(names, width)}.")
    positions = {role: positions[role] for role in choice if role in positions}
    if not names or not guessed:
        return positions, ()
    taken = (f"column {names[position]!r} taken as the {role}" for role, position in positions.items())
    return positions, (", ".join(taken),)


def _has_header(sample: Sequence[Sequence[str]], choice: ColumnChoice) -> bool:
    """A header is needed by a chosen name, or is a line without numbers that has usual names or is above numbers."""
    if any(not str(given).isdecimal() for given in choice.values() if given is not None):
        return True
    first, *below = sample
    if any(map(is_number, first)):
        return False
    normalized = [_normalized(name) for name in first]
    if any(_by_alias(role, normalized, ()) is not None for role in choice):
        return True
    numbers = Counter(position for row in below for position, field in enumerate(row) if is_number(field))
    return 2 * max(numbers.values(), default=0) > len(below) or ("rating" in choice and not below)


def _chosen(path: Path, names: Sequence[str] | None, width: int, given: str | int) -> int:
    """The position of a column that the user gave by name or by position."""
    wanted = str(given)
    for form in (str, _normalized):
        positions = [position for position, name in enumerate(names or ()) if form(name) == form(wanted) != ""]
        if len(positions) == 1:
            return positions[0]
    if wanted.isdecimal() and int(wanted) < width:
        return int(wanted)
    raise ValueError(f"{path}: there is no column {wanted!r}; {_columns_in_words(names, width)}.")


def _by_alias(role: str, normalized: Sequence[str], taken: Collection[int]) -> int | None:
    """The first free column with a usual name of the role."""
    aliases = COLUMN_ALIASES[role].split()
    free = (position for position, name in enumerate(normalized) if name in aliases and position not in taken)
    return next(free, None)


def _normalized(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _columns_in_words(names: Sequence[str] | None, width: int) -> str:
    if names is None:
        return f"the file has no header, and its {width} columns are numbered from 0 to {width - 1}"
    more = f" and {len(names) - 20} more" if len(names) > 20 else ""
    return f"the first line has {', '.join(shortened(name)[1:-1] for name in names[:20])}{more}"
