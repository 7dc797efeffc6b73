"""Ratings from the user's own files: text of any usual layout, Parquet, and NPZ."""

from __future__ import annotations

import codecs
import csv
import io
import math
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from scipy.sparse import load_npz

from bilevax.datasets.ratings import Ratings
from bilevax.datasets.text import unpacked

Zeros = Literal["drop", "keep"]
Wanted = Mapping[str, str | int | None]

# How columns are usually called, in lower case and without anything but letters and digits.
COLUMN_ALIASES = {
    "user": "user userid uid username customer customerid reviewer reviewerid rater raterid member memberid row",
    "item": "item itemid iid movie movieid film filmid isbn book bookid product productid asin song songid "
    "track trackid artist artistid anime animeid game gameid business businessid joke jokeid col column",
    "rating": "rating ratings score value stars overall bookrating movierating userrating reviewscore reviewoverall",
    "time": "timestamp time date datetime unixtime unixreviewtime ratedat createdat",
    "title": "title name booktitle movietitle itemtitle itemname moviename label",
}
IN_NPZ = {"user": "rows", "item": "cols", "rating": "values", "time": "times"}
OPTIONAL = frozenset({"time"})
NO_TIMES = "the column of times was left out, since not all are numbers or ISO dates"
WHITESPACE = "spaces"
SEPARATORS = ("::", "\t", ";", ",", "|", WHITESPACE)
SAMPLE = 100  # lines from which the layout is guessed
BLOCK = 1024  # larger blocks leave the cache, and parsing takes twice as long
LONGEST_ID = 500
# What NumPy and zipfile raise for a file that is cut or overwritten.
DAMAGE = (ValueError, OSError, EOFError, KeyError, TypeError, RuntimeError, zipfile.BadZipFile, zlib.error)


class Layout(NamedTuple):
    """Whether the first line is a header, and at which position each role's column is."""

    header: bool
    positions: dict[str, int]
    notes: tuple[str, ...]


class Text(NamedTuple):
    """A text file ready for the csv module; `shown` names the separator to people."""

    path: Path
    data: bytes
    encoding: str
    delimiter: str
    quoting: Any
    shown: str

    def reader(self) -> Any:
        r"""A new csv reader of the whole file; quotes inside quotes may be doubled or written `\"`."""
        lines = io.TextIOWrapper(io.BytesIO(self.data), encoding=self.encoding, newline="")
        return csv.reader(
            lines,
            delimiter=self.delimiter,
            quoting=self.quoting,
            escapechar="\\" if b'\\"' in self.data else None,
            skipinitialspace=self.delimiter != " ",
        )


class Numbering(dict[str, int]):
    """Numbers names in the order in which they are asked for."""

    def __missing__(self, name: str) -> int:
        self[name] = number = len(self)
        return number


# ---- what users call


def read_ratings(
    path: str | Path,
    *,
    user: str | int | None = None,
    item: str | int | None = None,
    rating: str | int | None = None,
    time: str | int | None = None,
    header: bool | None = None,
    separator: str | None = None,
    zeros: Zeros | None = None,
) -> tuple[Ratings, tuple[str, ...]]:
    """Ratings of a text, Parquet or NPZ file, packed with gzip or not, and notes on what the reader did to them.

    Args:
        path: text with one rating a line, a Parquet file, or NPZ (`scipy.sparse.save_npz`, or rows, cols and values).
        user: the column, by name or by position from 0; by default a column with a usual name, else the first.
        item: likewise; else the second.
        rating: likewise; else the third.
        time: likewise; numbers or ISO dates. By default a column with a usual name, else none.
        header: whether the first line holds names; by default guessed.
        separator: between fields, " " for any run of spaces; by default guessed.
        zeros: "drop" or "keep" ratings of zero; None refuses a file where most are zero.
    """
    path = Path(path)
    if zeros not in (None, "drop", "keep"):
        raise ValueError(f"read_ratings: zeros must be None, 'drop' or 'keep', got {zeros!r}.")
    wanted = {"user": user, "item": item, "rating": rating, "time": time}
    data = _contents(path)
    if _is_table(data):
        ratings, notes = _ratings_of_arrays(path, _arrays(path, data, wanted), time_asked=time is not None)
    else:
        ratings, notes = _ratings_of_text(_text(path, data, separator, needed=3), wanted, header)
    return _finished(path, ratings, zeros, notes)


def read_pairs(
    path: str | Path,
    *,
    user: str | int | None = None,
    item: str | int | None = None,
    header: bool | None = None,
    separator: str | None = None,
) -> tuple[list[str], list[str]]:
    """Users and items of a file of pairs, as the file writes them; arguments as in `read_ratings`."""
    users, items = _two_columns(Path(path), {"user": user, "item": item}, header, separator)
    return users, items


def read_titles(path: str | Path) -> dict[str, str]:
    """Titles of items by their id, from a file with a column of ids and one of titles."""
    items, titles = _two_columns(Path(path), {"item": None, "title": None}, None, None)
    return dict(zip(items, titles, strict=True))


def split(ratings: Ratings, fraction: float, seed: int) -> np.ndarray:
    """True for a random share of the ratings, to be held out."""
    _check_fraction(fraction)
    return np.random.default_rng(seed).random(len(ratings.values)) < fraction


def split_by_time(ratings: Ratings, fraction: float) -> np.ndarray:
    """True for the latest share of the ratings, to be held out; of the same moment, those later in the file."""
    _check_fraction(fraction)
    if ratings.times is None:
        raise ValueError("split_by_time: the ratings have no times; name the column of times when reading them.")
    count = round(fraction * len(ratings.times))
    held_out = np.zeros(len(ratings.times), bool)
    held_out[np.argsort(ratings.times, kind="stable")[len(held_out) - count :]] = True
    return held_out


def _check_fraction(fraction: float) -> None:
    if not 0 <= fraction < 1:
        raise ValueError(f"split: the fraction must be at least 0 and below 1, got {fraction}.")


# ---- from any file to columns


def _contents(path: Path) -> bytes:
    if not path.exists():
        raise FileNotFoundError(f"{path}: there is no such file.")
    if path.is_dir():
        raise ValueError(f"{path} is a folder; give a file.")
    try:
        data = unpacked(path)
    except ValueError as error:
        raise ValueError(f"{error}; copy or download the file again.") from error
    if not data.strip():
        raise ValueError(f"{path}: the file is empty; give a file with one rating a line.")
    return data


def _is_table(data: bytes) -> bool:
    """Whether these are bytes of NPZ or Parquet."""
    return data.startswith((b"PK\x03\x04", b"PAR1"))


def _two_columns(path: Path, wanted: Wanted, header: bool | None, separator: str | None) -> tuple[list[str], list[str]]:
    """Two columns as text."""
    data = _contents(path)
    if _is_table(data):
        first, second = (_as_text(path, role, array) for role, array in _arrays(path, data, wanted).items())
        return first, second
    text = _text(path, data, separator, needed=2)
    layout = _layout(text, wanted, header)
    one, other = layout.positions.values()
    found: tuple[list[str], list[str]] = ([], [])
    try:
        for block in _blocks(text, layout):
            found[0].extend([row[one].strip() for row in block])
            found[1].extend([row[other].strip() for row in block])
    except (IndexError, csv.Error) as error:
        raise _problem(text, layout, error) from None
    if not found[0]:
        raise ValueError(f"{path}: there is a header but nothing below it.")
    return found


# ---- text


def _text(path: Path, data: bytes, separator: str | None, needed: int) -> Text:
    """Find the encoding and, if it is not given, the separator."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        data = data.decode("utf-16", errors="replace").encode()
    if b"\0" in data[:4096]:
        raise ValueError(f"{path}: this is no text; expected text, Parquet or NPZ.")
    data = data.removeprefix(codecs.BOM_UTF8)
    encoding = "utf-8" if _is_utf8(data) else "latin-1"
    if separator == "":
        raise ValueError("read_ratings: the separator is empty; give a character, or None to have it guessed.")
    separator = WHITESPACE if separator == " " else separator or _separator(path, data, encoding, needed)
    return _prepared(path, data, encoding, separator)


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _prepared(path: Path, data: bytes, encoding: str, separator: str) -> Text:
    """The csv module takes separators of one character only; others are replaced by one."""
    shown = separator if separator == WHITESPACE else repr(separator)
    if separator == WHITESPACE:
        data = b"\n".join([b" ".join(line.split()) for line in data.splitlines()])
        return Text(path, data, encoding, " ", csv.QUOTE_NONE, shown)
    if len(separator) > 1:
        data = data.replace(separator.encode(encoding), b"\x1f")
        return Text(path, data, encoding, "\x1f", csv.QUOTE_NONE, shown)
    return Text(path, data, encoding, separator, csv.QUOTE_MINIMAL, shown)


def _separator(path: Path, data: bytes, encoding: str, needed: int) -> str:
    """The separator by which the most of the first lines have the same number of fields."""
    head = data[: 1 << 16]
    if len(data) > len(head):
        head = head[: head.rfind(b"\n") + 1] or head
    best, most = "", 0
    for separator in SEPARATORS:
        widths = Counter(len(row) for row in _sample(_prepared(path, head, encoding, separator)))
        agreeing = max((count for width, count in widths.items() if width >= needed), default=0)
        if agreeing > most:
            best, most = separator, agreeing
    if not best:
        first = data.split(b"\n", 1)[0].decode(encoding).strip()
        raise ValueError(
            f"{path}: expected {needed} columns or more, separated by commas, semicolons, tabs, '|', '::' or spaces, "
            f"got {_short(first)} in the first line."
        )
    return best


def _sample(text: Text) -> list[list[str]]:
    """The first lines; none if they cannot be parsed."""
    try:
        return list(islice(filter(None, text.reader()), SAMPLE))
    except csv.Error:
        return []


def _short(words: str) -> str:
    return repr(words if len(words) <= 60 else words[:60] + "...")


# ---- which column is which


def _layout(text: Text, wanted: Wanted, header: bool | None) -> Layout:
    """Header and columns, from what is asked and from the first lines."""
    sample = _sample(text)
    if not sample:
        raise _problem(text, Layout(False, {}, ()), ValueError(f"{text.path}: the first lines cannot be read."))
    if header is None:
        header = _has_header(sample, wanted)
    below = sample[1:] if header else sample
    width = Counter(map(len, below)).most_common(1)[0][0] if below else len(sample[0])
    if header and len(sample[0]) != width:
        raise ValueError(
            f"{text.path}: the header has {len(sample[0])} fields and the lines below have {width}, separated by "
            f"{text.shown}; which name belongs to which column is not clear."
        )
    names = [name.strip() for name in sample[0]] if header else None
    positions, notes = _positions(text.path, names, width, wanted)
    return Layout(header, positions, notes)


def _has_header(sample: Sequence[Sequence[str]], wanted: Wanted) -> bool:
    """A header is asked for by name, or is a line without numbers that has usual names or stands above numbers."""
    if any(not str(given).isdecimal() for given in wanted.values() if given is not None):
        return True
    first, *below = sample
    if any(map(_is_number, first)):
        return False
    plain = [_plain(name) for name in first]
    if any(_usual(role, plain, ()) is not None for role in wanted):
        return True
    numbers = Counter(place for row in below for place, field in enumerate(row) if _is_number(field))
    return 2 * max(numbers.values(), default=0) > len(below) or ("rating" in wanted and not below)


def _positions(
    path: Path, names: Sequence[str] | None, width: int, wanted: Wanted
) -> tuple[dict[str, int], tuple[str, ...]]:
    """A column for each role: as asked, by its usual name, or else the first that is left."""
    found = {role: _asked(path, names, width, given) for role, given in wanted.items() if given is not None}
    plain = [_plain(name) for name in names or ()]
    for role in wanted:
        if role not in found and (place := _usual(role, plain, tuple(found.values()))) is not None:
            found[role] = place
    guessed = [role for role in wanted if role not in found and role not in OPTIONAL]
    for role in guessed:
        left = [place for place in range(width) if place not in found.values()]
        if not left:
            raise ValueError(f"{path}: no column is left for the {role}; {_listed(names, width)}.")
        found[role] = left[0]
    if len(set(found.values())) < len(found):
        shared = " and ".join(role for role, place in found.items() if list(found.values()).count(place) > 1)
        raise ValueError(f"{path}: {shared} are the same column; {_listed(names, width)}.")
    found = {role: found[role] for role in wanted if role in found}
    if not names or not guessed:
        return found, ()
    return found, (", ".join(f"column {names[place]!r} taken as the {role}" for role, place in found.items()),)


def _asked(path: Path, names: Sequence[str] | None, width: int, given: str | int) -> int:
    """The place of a column asked for by name or by position."""
    asked = str(given)
    for same in (str, _plain):
        places = [place for place, name in enumerate(names or ()) if same(name) == same(asked) != ""]
        if len(places) == 1:
            return places[0]
    if asked.isdecimal() and int(asked) < width:
        return int(asked)
    raise ValueError(f"{path}: there is no column {asked!r}; {_listed(names, width)}.")


def _listed(names: Sequence[str] | None, width: int) -> str:
    if names is None:
        return f"the file has no header, and its {width} columns are numbered from 0 to {width - 1}"
    return f"the first line has {', '.join(_short(name)[1:-1] for name in names)}"


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _usual(role: str, plain: Sequence[str], taken: Sequence[int]) -> int | None:
    """The first free column with a usual name of the role."""
    usual = COLUMN_ALIASES[role].split()
    return next((place for place, name in enumerate(plain) if name in usual and place not in taken), None)


def _is_number(field: str) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True


# ---- ratings of text


def _blocks(text: Text, layout: Layout) -> Iterator[list[list[str]]]:
    """The lines that are not blank, without the header, a thousand at a time."""
    rows = filter(None, text.reader())
    if layout.header:
        next(rows)
    while block := list(islice(rows, BLOCK)):
        yield block


def _ratings_of_text(text: Text, wanted: Wanted, header: bool | None) -> tuple[Ratings, list[str]]:
    layout = _layout(text, wanted, header)
    time = layout.positions.get("time")
    if wanted["time"] is None:  # problems of a column that nobody asked for are no reason to refuse the file
        layout.positions.pop("time", None)
    notes = [*layout.notes, *(["not UTF-8, read as latin-1"] if text.encoding == "latin-1" else [])]
    try:
        ratings = _parsed(text, layout)
    except (IndexError, ValueError, csv.Error) as error:
        raise _problem(text, layout, error) from None
    if time is not None:
        try:
            ratings = ratings._replace(times=_times(text, layout, time))
        except (IndexError, ValueError) as error:
            if "time" in layout.positions:
                raise _problem(text, layout, error) from None
            notes.append(NO_TIMES)
    return ratings, notes


def _parsed(text: Text, layout: Layout) -> Ratings:
    """Everything but the times; fast, without a word on which line is wrong."""
    user, item, rating = (layout.positions[role] for role in ("user", "item", "rating"))
    users, items = Numbering(), Numbering()
    rows, cols, values = [], [], []
    for block in _blocks(text, layout):
        rows.append(np.array([users[row[user]] for row in block]))
        cols.append(np.array([items[row[item]] for row in block]))
        values.append(np.array([float(row[rating]) for row in block]))
    if not values:
        raise ValueError(f"{text.path}: there is a header but no rating below it.")
    row_ids, row_number = _ids(users)
    col_ids, col_number = _ids(items)
    every_value = np.concatenate(values)
    if not np.isfinite(every_value).all():
        raise ValueError(f"{text.path}: a rating is not finite.")
    row_of, col_of = row_number[np.concatenate(rows)], col_number[np.concatenate(cols)]
    return Ratings(row_of, col_of, every_value, None, row_ids, col_ids)


def _times(text: Text, layout: Layout, place: int) -> np.ndarray:
    """The column of times, in a second reading."""
    blocks = [np.array([_moment(row[place]) for row in block]) for block in _blocks(text, layout)]
    return _whole_if_possible(np.concatenate(blocks))


def _ids(numbering: Numbering) -> tuple[np.ndarray, np.ndarray]:
    """The sorted names, as integers if all are, and the place of each numbered name among them."""
    names = [name.strip() for name in numbering]
    suspect = "" if not all(names) else max(names, key=len) if "\n" not in "".join(names) else "\n"
    if trouble := _id_trouble(suspect):
        raise ValueError(f"an id {trouble}")
    return np.unique(_integers(names), return_inverse=True)


def _integers(names: Sequence[str]) -> np.ndarray:
    """Integers if every name is the usual form of one; "007" stays text, since it may differ from "7"."""
    try:
        numbers = [int(name) for name in names]
        if [str(number) for number in numbers] == list(names):
            return np.array(numbers, np.int64)
    except (ValueError, OverflowError):
        pass
    return np.array(names)


def _id_trouble(name: str) -> str | None:
    if not name:
        return "is empty"
    if "\n" in name or len(name) > LONGEST_ID:
        return f"has {len(name)} characters; is a quotation mark missing?"
    return None


def _moment(field: str) -> float:
    """A number as it is, an ISO date in seconds since 1970; without a zone it is UTC."""
    try:
        moment = float(field)
    except ValueError:
        date = datetime.fromisoformat(field.strip())
        moment = (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
    if not math.isfinite(moment):
        raise ValueError(f"time {field!r} is not finite")
    return moment


def _whole_if_possible(times: np.ndarray) -> np.ndarray:
    whole = bool(np.all(np.abs(times) < 2.0**62) and np.all(times == np.floor(times)))
    return times.astype(np.int64) if whole else times


def _problem(text: Text, layout: Layout, error: Exception) -> ValueError:
    """Read again, slowly, to name the first line with a problem; parsing fast does not know its line."""
    reader = text.reader()
    skip = layout.header
    try:
        for row in reader:
            if row and not skip and (trouble := _trouble(text, layout, row)):
                return ValueError(f"{text.path}, line {reader.line_num}: {trouble}")
            skip = skip and not row
    except csv.Error as wrong:
        return ValueError(f"{text.path}, line {reader.line_num}: {wrong}; is a quotation mark missing?")
    return ValueError(str(error))


def _trouble(text: Text, layout: Layout, row: Sequence[str]) -> str | None:
    """What is wrong with a line, if anything."""
    last = max(layout.positions.values(), default=-1)
    if len(row) <= last:
        received = _short(("" if text.delimiter == "\x1f" else text.delimiter).join(row))
        return f"expected at least {last + 1} fields separated by {text.shown}, got {len(row)}: {received}."
    for role, place in layout.positions.items():
        field = row[place]
        if role in ("user", "item") and (trouble := _id_trouble(field.strip())):
            return f"the {role} (column {place}, from 0) {trouble.rstrip('.')}."
        if role == "rating" and (trouble := _rating_trouble(field)):
            return f"the rating (column {place}, from 0) is {_short(field)}, {trouble}."
        if role == "time":
            try:
                _moment(field)
            except ValueError:
                return f"the time (column {place}, from 0) is {_short(field)}; expected a number or an ISO date."
    return None


def _rating_trouble(field: str) -> str | None:
    if not _is_number(field):
        if re.fullmatch(r"\s*-?\d+,\d+\s*", field):
            return "not a number; write decimals with a point"
        return "not a number; correct the line, or choose another column"
    return None if math.isfinite(float(field)) else "which is not finite; correct or remove the line"


# ---- Parquet and NPZ


def _arrays(path: Path, data: bytes, wanted: Wanted) -> dict[str, np.ndarray]:
    """The wanted columns of an NPZ or Parquet file, all of one length, without missing entries."""
    arrays = _npz(path, data, wanted) if data.startswith(b"PK") else _parquet(path, data, wanted)
    lengths = {role: array.shape for role, array in arrays.items()}
    if len(set(lengths.values())) > 1 or any(len(shape) != 1 for shape in lengths.values()):
        raise ValueError(f"{path}: expected one-dimensional arrays of one length, got {lengths}.")
    if next(iter(lengths.values())) == (0,):
        raise ValueError(f"{path}: there are columns but no rating in them.")
    return arrays


def _npz(path: Path, data: bytes, wanted: Wanted) -> dict[str, np.ndarray]:
    names = {role: IN_NPZ.get(role, role) for role in wanted}
    if any(given not in (None, names[role]) for role, given in wanted.items()):
        raise ValueError(f"{path}: columns cannot be chosen in NPZ, where they are rows, cols, values and times.")
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as parts:
            if {"format", "shape", "data"} <= set(parts.files):
                matrix = load_npz(io.BytesIO(data)).tocoo()
                stored = {"rows": matrix.row, "cols": matrix.col, "values": matrix.data}
            else:
                stored = {name: parts[name] for name in names.values() if name in parts.files}
            held = sorted(parts.files)
    except DAMAGE as error:
        raise ValueError(f"{path}: this NPZ file cannot be read ({error}); write or download it again.") from error
    needed = [names[role] for role, given in wanted.items() if role not in OPTIONAL or given is not None]
    missing = [name for name in needed if name not in stored]
    if missing:
        raise ValueError(
            f"{path}: expected NPZ with rows, cols and values, or from scipy.sparse.save_npz, but {', '.join(missing)} "
            f"is missing; the archive has {', '.join(held[:10])}. Unpack it if it is a plain zip archive."
        )
    return {role: stored[names[role]] for role in wanted if names[role] in stored}


def _parquet(path: Path, data: bytes, wanted: Wanted) -> dict[str, np.ndarray]:
    try:
        parquet, damage = import_module("pyarrow.parquet"), import_module("pyarrow").ArrowException
    except ImportError:
        raise ImportError(f"{path}: Parquet files need pyarrow: pip install 'bilevax[files]'.") from None
    damaged = f"{path}: this Parquet file is damaged; write or download it again"
    try:
        file = parquet.ParquetFile(io.BytesIO(data))
    except (OSError, damage) as error:
        raise ValueError(f"{damaged} ({error}).") from error
    names = file.schema_arrow.names
    positions, _ = _positions(path, names, len(names), wanted)
    try:
        table = file.read(columns=[names[place] for place in positions.values()])
    except (OSError, damage) as error:
        raise ValueError(f"{damaged} ({error}).") from error
    arrays = {}
    for role, place in positions.items():
        column = table.column(names[place])
        if column.null_count:
            entry = column.is_null().to_pylist().index(True) + 1
            raise ValueError(f"{path}, entry {entry}: the {role} (column {names[place]!r}) is missing.")
        arrays[role] = column.to_numpy()
    return arrays


def _ratings_of_arrays(path: Path, arrays: Mapping[str, np.ndarray], *, time_asked: bool) -> tuple[Ratings, list[str]]:
    row_ids, rows = _array_ids(path, "user", arrays["user"])
    col_ids, cols = _array_ids(path, "item", arrays["item"])
    values = _array_numbers(path, "rating", arrays["rating"])
    times, notes = None, []
    if "time" in arrays:
        try:
            times = _whole_if_possible(_array_numbers(path, "time", arrays["time"]))
        except ValueError:
            if time_asked:
                raise
            notes.append(NO_TIMES)
    return Ratings(rows, cols, values, times, row_ids, col_ids), notes


def _array_ids(path: Path, role: str, array: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    if array.dtype.kind == "f":
        _array_numbers(path, role, array)
        if np.all(array == np.floor(array)):
            array = array.astype(np.int64)
    if array.dtype.kind in "iu":
        return np.unique(array, return_inverse=True)
    numbering = Numbering()
    numbers = np.array([numbering[str(name)] for name in array.tolist()])
    try:
        ids, place = _ids(numbering)
    except ValueError as error:
        raise ValueError(f"{path}: {error} (in the column of the {role}).") from None
    return ids, place[numbers]


def _as_text(path: Path, role: str, array: np.ndarray) -> list[str]:
    """A column as strings, ids as `read_ratings` writes them."""
    if role != "title":
        ids, place = _array_ids(path, role, array)
        array = ids[place]
    return [str(entry) for entry in array.tolist()]


def _array_numbers(path: Path, role: str, array: np.ndarray) -> np.ndarray:
    if array.dtype.kind == "M":
        array = array.astype("datetime64[us]").astype(np.int64) / 1e6
    try:
        texts = role == "time" and array.dtype.kind in "OU"
        numbers = np.array([_moment(str(field)) for field in array.tolist()]) if texts else array.astype(float)
        bad = np.flatnonzero(~np.isfinite(numbers))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: expected numbers in the column of the {role} ({error}).") from None
    if len(bad):
        raise ValueError(f"{path}, entry {bad[0] + 1}: the {role} is {numbers[bad[0]]}; correct or remove it.")
    return numbers


# ---- what is the same for all formats


def _finished(
    path: Path, ratings: Ratings, zeros: Zeros | None, notes: Sequence[str]
) -> tuple[Ratings, tuple[str, ...]]:
    """Zeros and repeated pairs dealt with; ratings from which nothing can be learnt are refused."""
    notes = list(notes)
    zero = ratings.values == 0
    count = int(zero.sum())
    if zeros == "drop" and count:
        if count == len(zero):
            raise ValueError(f"{path}: all {count} ratings are zero, and none is left without them.")
        ratings = ratings.subset(~zero)
        notes.append(f"{count} ratings of zero left out")
    elif zeros is None and len(zero) >= 100 and len(zero) / 2 < count < len(zero) and ratings.values.min() == 0:
        raise ValueError(
            f"{path}: {count} of {len(zero)} ratings are zero, which looks like 'no rating given'; "
            "choose --zeros drop (zeros='drop') to leave them out or --zeros keep (zeros='keep') if they are ratings."
        )
    last = _last_of_each_pair(ratings)
    if repeated := len(ratings.values) - len(last):
        notes.append(f"{repeated} repeated ratings of a pair left out, the last one is kept")
        ratings = ratings.subset(last)
    _check_enough(path, ratings)
    return ratings, tuple(notes)


def _last_of_each_pair(ratings: Ratings) -> np.ndarray:
    """Places of the ratings that no later one of the same user and item replaces."""
    pair = ratings.rows.astype(np.int64) * ratings.shape[1] + ratings.cols
    _, back = np.unique(pair[::-1], return_index=True)
    return np.sort(len(pair) - 1 - back)


def _check_enough(path: Path, ratings: Ratings) -> None:
    for what, ids in (("user", ratings.row_ids), ("item", ratings.col_ids)):
        if len(ids) == 1:
            raise ValueError(
                f"{path}: all ratings have the same {what}, {str(ids[0])!r}; completion needs at least two. "
                f"Is the column of the {what} the right one?"
            )
    if ratings.values.min() == ratings.values.max():
        raise ValueError(
            f"{path}: all {len(ratings.values)} ratings are {ratings.values[0]:g}, so there is nothing to learn; "
            "completion needs ratings that differ. Is the column of the rating the right one?"
        )
